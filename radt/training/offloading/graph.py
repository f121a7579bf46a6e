"""A model as blocks in the order of their calls: parts of its graph that are loaded together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from radt.errors import UsageError
from radt.training.calling import Call, Objective
from radt.training.offloading.partition import coarsened
from radt.training.offloading.tracing import Values, traced

#: More blocks would not improve the partition, and slow down the search.
_MOST_BLOCKS = 64


@dataclass(slots=True, eq=False)
class GraphBlock:
    """Successive nodes of the graph, with at most one module with parameters, unless coarsened.

    Attributes:
        name: The module's name; the first one's of several.
        nodes: The computation.
        parameters: Its own parameters, which no other block uses.
        modules: The modules that it calls.
        used_buffers: Other buffers that it uses: the module, and the name there.
    """

    name: str
    nodes: list[fx.Node]
    parameters: list[nn.Parameter] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    used_buffers: list[tuple[nn.Module, str]] = field(default_factory=list)

    @property
    def buffers(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        """The buffers that it may change: the module, the name there, and the buffer."""
        for module in self.modules:
            for inner in module.modules():
                for name, buffer in inner.named_buffers(recurse=False):
                    yield inner, name, buffer
        for owner, name in dict.fromkeys(self.used_buffers):
            yield owner, name, owner.get_buffer(name)


class ModelGraph:
    """A model's computation, block by block.

    Args:
        model: The model.
        call: Its call for the sample.
        objective: The loss.
        device: Where it is computed.
        blocks: Modules that are called one after another, each with the previous one's output; None
            to trace the model.

    Attributes:
        blocks: In the order of their calls.
        shared: Parameters that several blocks use.
        result: The model's output, as a node.
        inputs: The arguments of the call, as nodes.
        users: The modules in whose calls parameters are used, by name, and the numbers of their
            blocks.

    Raises:
        TrainingError: The model cannot be traced.
        UsageError: `blocks` are not modules of the model, or do not have all parameters; or the
            model returns a parameter or buffer itself.
    """

    def __init__(
        self,
        model: nn.Module,
        call: Call,
        objective: Objective,
        device: torch.device,
        blocks: Sequence[nn.Module] | None = None,
    ) -> None:
        self.model = model
        self._modes = {name: module.training for name, module in model.named_modules()}
        self._traced = traced(model, call, objective, device, blocks)
        self._graph, self.constants = self._traced.graph, self._traced.constants
        self.inputs = self._traced.inputs
        nodes = [node for node in self._graph.nodes if node.op not in ("placeholder", "output")]
        (self.result,) = (node for node in self._graph.nodes if node.op == "output")
        for node in self.result.all_input_nodes:
            if node.op == "get_attr":
                raise UsageError(
                    f"offload: the model returns {node.target} itself, which is away at times",
                    "Return what is computed with it",
                )
        self.shared: list[nn.Parameter] = []
        self.blocks = self._cut(nodes)
        self.users = self._users()

    def bind(self, call: Call) -> Values:
        """Return the values of a call's arguments.

        Raises:
            UsageError: The call's arguments differ from the sample's.
        """
        return self._traced.bind(call)

    def _cut(self, nodes: list[fx.Node]) -> list[GraphBlock]:
        """Begin a block at each node with parameters. Parameters of several blocks are shared."""
        blocks = [GraphBlock("", [])]
        users: dict[nn.Parameter, list[GraphBlock]] = {}
        for node in nodes:
            if node.op == "get_attr":
                continue  # resolved where it is used
            parameters = list(self._parameters(node))
            if parameters and any(blocks[-1] in using for using in users.values()):
                blocks.append(GraphBlock("", []))
            block = blocks[-1]
            block.nodes.append(node)
            if node.op == "call_module":
                block.modules.append(self.model.get_submodule(str(node.target)))
            if parameters or not block.name:
                block.name = self._name(node)
            block.used_buffers += self._buffers(node)
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
            whole.used_buffers = [used for block in group for used in block.used_buffers]
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

    def _buffers(self, node: fx.Node) -> Iterator[tuple[nn.Module, str]]:
        for source in node.all_input_nodes:
            if source.op == "get_attr":
                path, _, name = str(source.target).rpartition(".")
                if str(source.target) not in self._traced.lifted:
                    owner = self.model.get_submodule(path)
                    if owner._buffers.get(name) is not None:  # noqa: SLF001, the attribute may be shadowed
                        yield owner, name

    def _name(self, node: fx.Node) -> str:
        """Return the name of the module in whose call a node is computed."""
        if node.op == "call_module":
            return str(node.target)
        return self._traced.module_of(node) or node.name

    def _users(self) -> dict[str, list[int]]:
        users: dict[str, list[int]] = {}
        for number, block in enumerate(self.blocks):
            own = set(block.parameters)
            for node in block.nodes:
                if own.intersection(self._parameters(node)):
                    is_call = node.op == "call_module"
                    name = str(node.target) if is_call else self._traced.module_of(node)
                    numbers = users.setdefault(name, [])
                    numbers += [number] * (number not in numbers)
        return users

    def _attribute(self, node: fx.Node) -> Any:
        if str(node.target) in self._traced.lifted:
            return self._traced.lifted[str(node.target)]
        value: Any = self.model
        for name in str(node.target).split("."):
            value = getattr(value, name)
        return value

    def check_modes(self) -> None:
        """Raise if a module's mode differs from that during tracing and measuring.

        Code outside of blocks was traced in that mode, and the numbers drawn in it are fixed.

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
        """Return the outside values that nodes use, in the order of their creation."""
        inside = set(nodes)
        sources = {
            source
            for node in nodes
            for source in node.all_input_nodes
            if source not in inside and source.op != "get_attr"
        }
        return [node for node in self._graph.nodes if node in sources]

    def made(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the values of nodes that others use, including the model's output."""
        inside = set(nodes)
        return [node for node in nodes if any(user not in inside for user in node.users)]

    def run(self, nodes: Sequence[fx.Node], values: Mapping[fx.Node, Any]) -> Values:
        """Compute nodes from the values that they need. Return the values that others use."""
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
        """Return the model's output, arranged from the values of its last nodes."""
        look: Callable[[fx.Node], Any] = values.__getitem__
        return self._traced.arranged(map_arg(self.result.args[0], look))
