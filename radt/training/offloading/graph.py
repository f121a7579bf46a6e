"""A model as blocks in the order of their calls, traced with torch.fx or listed by the user."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from radt.errors import TrainingError, UsageError
from radt.training.offloading.partition import coarsened

#: More blocks make no better partition, only a slower search.
_MOST_BLOCKS = 64

Values = dict[fx.Node, Any]


@dataclass(slots=True, eq=False)
class GraphBlock:
    """Successive nodes of the graph: at most one module with parameters, unless made coarser.

    Attributes:
        name: The module's name; the first one's of several.
        nodes: What is computed.
        parameters: Its own parameters: no other block uses them.
        modules: The modules that it calls.
    """

    name: str
    nodes: list[fx.Node]
    parameters: list[nn.Parameter] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of its own parameters."""
        return sum(parameter.nbytes for parameter in self.parameters)

    @property
    def buffers(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        """The buffers that it may change: of which module, its name there, and itself."""
        for module in self.modules:
            for inner in module.modules():
                for name, buffer in inner.named_buffers(recurse=False):
                    yield inner, name, buffer


class ModelGraph:
    """A model's computation, block by block.

    Args:
        model: The model; ``model(inputs)`` is its output.
        blocks: Modules that are called one after another, each with what the one before returned;
            None to trace the model.

    Attributes:
        blocks: In the order of their calls.
        shared: Parameters that several blocks use.
        result: What the model returns, as a node.

    Raises:
        TrainingError: The model cannot be traced.
        UsageError: `blocks` are not modules of the model, or do not have all parameters; or the
            model returns a parameter or buffer itself.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module] | None = None) -> None:
        self.model = model
        self._modes = {name: module.training for name, module in model.named_modules()}
        self._graph = _traced(model) if blocks is None else _chained(model, blocks)
        nodes = [node for node in self._graph.nodes if node.op not in ("placeholder", "output")]
        (self.result,) = (node for node in self._graph.nodes if node.op == "output")
        for node in self.result.all_input_nodes:
            if node.op == "get_attr":
                raise UsageError(
                    f"offload: the model returns {node.target} itself, which is away at times",
                    "Return what is computed with it",
                )
        self.inputs, *others = (node for node in self._graph.nodes if node.op == "placeholder")
        self.constants: Values = {node: node.args[0] for node in others}
        self.shared: list[nn.Parameter] = []
        self.blocks = self._cut(nodes)

    def _cut(self, nodes: list[fx.Node]) -> list[GraphBlock]:
        """Begin a block at each node with parameters; those of several blocks are shared."""
        blocks = [GraphBlock("", [])]
        users: dict[nn.Parameter, list[GraphBlock]] = {}
        for node in nodes:
            if node.op == "get_attr":
                continue  # looked up where it is used
            parameters = list(self._parameters(node))
            if parameters and any(blocks[-1] in using for using in users.values()):
                blocks.append(GraphBlock("", []))
            block = blocks[-1]
            block.nodes.append(node)
            if node.op == "call_module":
                block.modules.append(self.model.get_submodule(str(node.target)))
            if parameters or not block.name:
                block.name = str(node.target) if node.op == "call_module" else node.name
            for parameter in parameters:
                using = users.setdefault(parameter, [])
                if block not in using:
                    using.append(block)
        if not users:
            raise UsageError("the model has no parameters to offload")
        sizes = [sum(p.nbytes for p in users if block in users[p]) for block in blocks]
        joined: dict[GraphBlock, GraphBlock] = {}
        for begin, end in pairwise([0, *coarsened(sizes, _MOST_BLOCKS)]):
            group = blocks[begin:end]
            whole = GraphBlock(group[0].name, [node for block in group for node in block.nodes])
            whole.modules = [module for block in group for module in block.modules]
            joined.update(dict.fromkeys(group, whole))
        for parameter, using in users.items():
            owner, *others = dict.fromkeys(joined[block] for block in using)
            (self.shared if others else owner.parameters).append(parameter)
        return list(dict.fromkeys(joined.values()))

    def _parameters(self, node: fx.Node) -> Iterator[nn.Parameter]:
        if node.op == "call_module":
            yield from self.model.get_submodule(str(node.target)).parameters()
        for source in node.all_input_nodes:
            if source.op == "get_attr":
                value = self._attribute(source)
                if isinstance(value, nn.Parameter):
                    yield value

    def _attribute(self, node: fx.Node) -> Any:
        value: Any = self.model
        for name in str(node.target).split("."):
            value = getattr(value, name)
        return value

    def check_modes(self) -> None:
        """Raise if a module is in another mode than when the model was traced and measured.

        Code outside of blocks was traced in that mode; so many random numbers were drawn in it.

        Raises:
            UsageError: A module was switched with ``train()`` or ``eval()``.
        """
        for name, module in self.model.named_modules():
            if module.training != self._modes.get(name, module.training):
                modes = ["evaluation", "training"]
                raise UsageError(
                    f"offload: {name or 'the model'} is in {modes[module.training]} mode, "
                    f"it was in {modes[not module.training]} mode when it was planned",
                    "Call model.train() or model.eval() before offload(model, …)",
                )

    def needed(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the values from outside that nodes use, in the order of their making."""
        inside = set(nodes)
        sources = {
            source
            for node in nodes
            for source in node.all_input_nodes
            if source not in inside and source.op != "get_attr"
        }
        return [node for node in self._graph.nodes if node in sources]

    def made(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the values of nodes that others use; the model's output among them."""
        inside = set(nodes)
        return [node for node in nodes if any(user not in inside for user in node.users)]

    def run(self, nodes: Sequence[fx.Node], values: Mapping[fx.Node, Any]) -> Values:
        """Compute nodes from the values that they need; return the ones that others use."""
        found: Values = dict(values)

        def look(node: fx.Node) -> Any:
            return self._attribute(node) if node.op == "get_attr" else found[node]

        for node in nodes:
            args, kwargs = map_arg(node.args, look), map_arg(node.kwargs, look)
            if node.op == "call_module":
                found[node] = self.model.get_submodule(str(node.target))(*args, **kwargs)
            elif node.op == "call_method":
                found[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                target: Any = node.target
                found[node] = target(*args, **kwargs)
        return {node: found[node] for node in self.made(nodes)}

    def output(self, values: Mapping[fx.Node, Any]) -> Any:
        """Return the model's output, as it arranges the values of its last nodes."""
        look: Callable[[fx.Node], Any] = values.__getitem__
        return map_arg(self.result.args[0], look)


class _Tracer(fx.Tracer):
    """Modules of PyTorch and elements of lists and sequences are blocks, all others are entered."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one call in the graph."""
        containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
        if isinstance(m, containers):
            return False
        parent, _, _ = module_qualified_name.rpartition(".")
        is_element = isinstance(self.root.get_submodule(parent), containers)
        return is_element or super().is_leaf_module(m, module_qualified_name)


def _traced(model: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(model, concrete_args=_defaults(model) or None)
    except Exception as error:  # whatever the model's code raises when it meets a placeholder
        raise TrainingError(
            f"offload cannot trace {type(model).__name__}: {type(error).__name__}: {error}",
            "Its forward decides by values. List the modules that it calls one after another: "
            "offload(…, blocks=[model.embedding, *model.layers, model.head])",
        ) from error


def _defaults(model: nn.Module) -> dict[str, Any]:
    """Return the arguments after the first one as they are when they are not given."""
    signature = inspect.signature(model.forward)
    return {
        name: parameter.default
        for name, parameter in list(signature.parameters.items())[1:]
        if parameter.default is not parameter.empty
    }


def _chained(model: nn.Module, blocks: Sequence[nn.Module]) -> fx.Graph:
    """Return the graph that calls blocks one after another."""
    names = {module: name for name, module in model.named_modules()}
    graph = fx.Graph()
    value = graph.placeholder("inputs")
    for block in blocks:
        if not isinstance(block, nn.Module) or block not in names:
            raise UsageError(
                f"offload: blocks has {str(block)[:60]!r}, expected modules of the model",
                "offload(…, blocks=[model.embedding, *model.layers, model.head])",
            )
        value = graph.call_module(names[block], (value,))
    graph.output(value)
    held = {parameter for block in blocks for parameter in block.parameters()}
    missing = [name for name, parameter in model.named_parameters() if parameter not in held]
    if missing:
        raise UsageError(
            f"offload: no block has the parameter {missing[0]}",
            "Give all modules that the model calls, in their order",
        )
    return graph
