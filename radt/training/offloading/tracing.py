"""The graph of a model: traced symbolically, exported with a sample, or a chain of listed blocks.

Symbolic tracing (``torch.fx``) calls the model's code with placeholders, so that whole modules stay
calls. Code that depends on shapes or values, has keyword arguments, or returns its loss is exported
(``torch.export``) instead: its operations are those of the sample, with shapes that may vary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from radt.errors import TrainingError, UsageError, described
from radt.training.calling import Call, Objective

Values = dict[fx.Node, Any]

_REMEDY = (
    "List the modules that it calls one after another, each with what the one before returned: "
    "offload(…, blocks=[model.embedding, *model.layers, model.head])"
)


@dataclass(frozen=True, slots=True)
class Traced:
    """A model's computation.

    Attributes:
        graph: Its nodes; attributes have the same names as in the model.
        inputs: The placeholders of a call's arguments.
        constants: Placeholders with constant values.
        lifted: Tensors that the model's code creates, by the names of their attributes.
        arranged: Returns the model's output, given that of the graph.
    """

    graph: fx.Graph
    inputs: list[fx.Node]
    constants: Values = field(default_factory=dict)
    lifted: dict[str, Tensor] = field(default_factory=dict)
    arranged: Callable[[Any], Any] = lambda output: output
    _spec: TreeSpec | None = None
    _sample: Sequence[Any] = ()

    def bind(self, call: Call) -> Values:
        """Return the values of a call's arguments.

        Raises:
            UsageError: The call's arguments differ from the sample's.
        """
        values, spec = _flat(call)
        fixed = [None if isinstance(value, Tensor) else value for value in values]
        expected = [None if isinstance(value, Tensor) else value for value in self._sample]
        if self._spec is not None and (spec != self._spec or fixed != expected):
            raise UsageError(
                f"offload: a micro-batch has {_names(call)}, the sample had other parts or values: "
                f"{self._spec}",
                "Give each micro-batch the parts of the sample; only tensors may differ",
            )
        return dict(zip(self.inputs, values, strict=True))

    @staticmethod
    def module_of(node: fx.Node) -> str:
        """Return the name of the module whose code computes a node; empty for the model itself."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(stack[-1][0]) if stack else ""
        return path.removeprefix(_MODEL).removeprefix(".") if path.startswith(_MODEL) else path


def traced(
    model: nn.Module,
    call: Call,
    objective: Objective,
    device: torch.device,
    blocks: Sequence[nn.Module] | None,
) -> Traced:
    """Return the graph of a model.

    Raises:
        TrainingError: The model can neither be traced nor exported.
        UsageError: `blocks` are not modules of the model, or do not have all parameters.
    """
    is_plain = objective.loss is not None and len(call.args) == 1 and not call.kwargs
    if blocks is not None:
        if not is_plain:
            raise UsageError(
                "offload: with blocks, the model has one argument and the loss is a function",
                "Leave out blocks, or give loss= and samples (inputs, target)",
            )
        return Traced(graph := _chained(model, blocks), _placeholders(graph))
    reason = "it has several arguments, or returns its loss"
    if is_plain:
        try:
            with _no_own_gradients():
                return _symbolic(model)
        except Exception as error:  # noqa: BLE001 - any error of its code at a placeholder
            reason = described(error)
    try:
        with _no_own_gradients():
            return _exported(model, call, objective, device)
    except Exception as error:
        raise TrainingError(
            f"offload cannot trace {type(model).__name__}: {reason}; nor export it: "
            f"{described(error).splitlines()[0]}",
            f"Its forward decides by values, or has gradients of its own. {_REMEDY}",
        ) from error


@contextmanager
def _no_own_gradients() -> Iterator[None]:
    """Refuse gradients that the model's code computes itself, as a graph would lose them."""

    def refuse(function: type, /, *_args: object, **_kwargs: object) -> None:
        raise TypeError(f"it calls {function.__name__}, an autograd.Function, outside of a block")

    base: Any = torch.autograd.Function
    apply = base.__dict__["apply"]
    base.apply = classmethod(refuse)
    try:
        yield
    finally:
        base.apply = apply


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _flat(call: Call) -> tuple[list[Any], TreeSpec]:
    return tree_flatten((call.args, dict(sorted(call.kwargs.items()))))


def _names(call: Call) -> str:
    return ", ".join([f"{len(call.args)} arguments"] * bool(call.args) + sorted(call.kwargs))


# Symbolic tracing ---------------------------------------------------------------------------------


def _symbolic(model: nn.Module) -> Traced:
    graph = _Tracer().trace(model, concrete_args=_defaults(model) or None)
    inputs, *others = _placeholders(graph)
    return Traced(graph, [inputs], {node: node.args[0] for node in others})


class _Tracer(fx.Tracer):
    """Treats PyTorch's modules, and elements of lists and sequences, as blocks. Enters others."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one call in the graph."""
        containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
        if isinstance(m, containers):
            return False
        parent, _, _ = module_qualified_name.rpartition(".")
        is_element = isinstance(self.root.get_submodule(parent), containers)
        return is_element or super().is_leaf_module(m, module_qualified_name)


def _defaults(model: nn.Module) -> dict[str, Any]:
    """Return the defaults of the arguments after the first one."""
    signature = inspect.signature(model.forward)
    return {
        name: parameter.default
        for name, parameter in list(signature.parameters.items())[1:]
        if parameter.default is not parameter.empty
    }


# Exporting ----------------------------------------------------------------------------------------

#: Name of the model inside the exported module.
_MODEL = "model"


class _Exported(nn.Module):
    """The model, or its loss if the model returns it, as a function of one call."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = objective

    def forward(self, arguments: tuple[Any, dict[str, Any]]) -> Any:
        args, kwargs = arguments
        output = self.model(*args, **kwargs)
        return self._objective.value(output, None) if self._objective.loss is None else output


def _exported(model: nn.Module, call: Call, objective: Objective, device: torch.device) -> Traced:
    arguments = call.args, dict(sorted(call.kwargs.items()))
    with_loss = _Exported(model, objective)
    with_loss.training = model.training  # not `train`, which would switch the modules
    shapes = (tree_map(_any_shape, arguments),)
    program = torch.export.export(with_loss, (arguments,), dynamic_shapes=shapes, strict=False)
    whole = program.module()
    graph, names = whole.graph, {name for name, _ in _tensors(model)}
    lifted = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            value = attrgetter(node.target)(whole)
            node.target = node.target.removeprefix(f"{_MODEL}.")
            if node.target not in names:
                lifted[node.target] = value.to(device)
        elif node.op == "call_module":  # it checks the shapes
            node.op, node.target = "call_function", _Guard(whole.get_submodule(node.target))
        node.args, node.kwargs = (
            map_aggregate(some, lambda each: device if isinstance(each, torch.device) else each)
            for some in (node.args, node.kwargs)
        )
        if "_assert_tensor_metadata" in str(node.target):  # of the device of the export
            graph.erase_node(node)
    values, spec = _flat(call)
    output_spec = program.call_spec.out_spec

    def arranged(output: Any) -> Any:
        return tree_unflatten(list(output), output_spec)

    return Traced(graph, _placeholders(graph), {}, lifted, arranged, spec, values)


def _any_shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO)
    return None


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


class _Guard:
    """Checks that the graph is valid for the shapes of a micro-batch."""

    __name__ = "guard"

    def __init__(self, check: nn.Module) -> None:
        self._check = check

    def __call__(self, *values: Any) -> None:
        try:
            self._check(*values)
        except Exception as error:
            raise UsageError(
                f"offload: a micro-batch has shapes for which the model may compute other things "
                f"than for the sample: {described(error)}",
                "Give a sample of the largest shape, and pad micro-batches so that they differ in "
                "the same dimensions",
            ) from error


# Listed blocks ------------------------------------------------------------------------------------


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
