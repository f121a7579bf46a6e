"""Passes of micro-batches through segments, bit-identical to passes through the whole model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from radt.errors import TrainingError
from radt.loaders.batches import moved
from radt.loaders.randomness import RandomState
from radt.training.calling import Call, Objective
from radt.training.offloading.draws import Draws
from radt.training.offloading.graph import GraphBlock, ModelGraph
from radt.training.offloading.stores import Budget
from radt.training.offloading.swapping import ParameterView, SwappedBlock
from radt.training.offloading.tracing import Values


class PassSegment:
    """Successive blocks that are on the device together.

    Args:
        graph: The model.
        blocks: The blocks.
        swapped: Their parameters.
        working_bytes: Bytes that one micro-batch keeps in a pass that is computed again.
    """

    def __init__(
        self,
        graph: ModelGraph,
        blocks: Sequence[GraphBlock],
        swapped: Sequence[SwappedBlock],
        working_bytes: int,
    ) -> None:
        self.blocks = blocks
        self.swapped = swapped
        self.working_bytes = working_bytes
        self.nodes = [node for block in blocks for node in block.nodes]
        self.is_first = blocks[0] is graph.blocks[0]
        self.is_last = blocks[-1] is graph.blocks[-1]
        used = [*self.nodes, graph.result] if self.is_last else self.nodes
        self.needed = [node for node in graph.needed(used) if node not in graph.constants]
        self.made = graph.made(self.nodes)
        self.gradient_bytes = sum(block.gradient_bytes for block in swapped)
        self.largest_gradient_bytes = max(block.largest_gradient_bytes for block in swapped)

    @contextmanager
    def buffers_unchanged(self) -> Iterator[None]:
        """Let passes change copies of the buffers (running means) within the block."""
        replaced = [entry for block in self.blocks for entry in block.buffers]
        for module, name, buffer in replaced:
            module._buffers[name] = buffer.clone()  # noqa: SLF001, the attribute may be shadowed
        try:
            yield
        finally:
            for module, name, buffer in replaced:
                module._buffers[name] = buffer  # noqa: SLF001


@dataclass(slots=True)
class _Passed:
    """Outputs of a segment, with their graph."""

    inputs: Values
    outputs: Values
    kept_bytes: int = 0


@dataclass(slots=True, eq=False)
class MicroBatch:
    """One micro-batch in progress.

    Attributes:
        values: Values handed over by segments, and the inputs.
        gradients: Gradients of these values.
        shared: This micro-batch's gradients of the parameters that several blocks use.
        graphs: Outputs of the segments, kept for their backward passes.
        begins: The random states from which each segment is computed again.
        random: The random states from which it continues.
        end: The random states after it in the plain loop.
    """

    target: Any
    random: RandomState
    end: RandomState
    values: Values = field(default_factory=dict)
    gradients: dict[fx.Node, Tensor] = field(default_factory=dict)
    shared: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    graphs: dict[PassSegment, _Passed] = field(default_factory=dict)
    begins: dict[PassSegment, RandomState] = field(default_factory=dict)
    _held: Counter[int] = field(default_factory=Counter)

    def hold(self, node: fx.Node, value: Any) -> int:
        """Keep a value. Return the bytes that it adds, as several values may share memory."""
        self.values[node] = value
        if not isinstance(value, Tensor):
            return 0
        storage = value.untyped_storage()
        self._held[storage.data_ptr()] += 1
        return storage.nbytes() if self._held[storage.data_ptr()] == 1 else 0

    def release(self, node: fx.Node) -> int:
        """Forget a value. Return the bytes that are freed."""
        value = self.values.pop(node, None)
        if not isinstance(value, Tensor):
            return 0
        storage = value.untyped_storage()
        self._held[storage.data_ptr()] -= 1
        return 0 if self._held[storage.data_ptr()] else storage.nbytes()


class Passes:
    """Computes segments, forward and backward.

    Args:
        graph: The model.
        shared: The parameters that stay on the device, if there are any.
        objective: The loss.
        device: Where passes run.
        budget: Counts the bytes there.

    Attributes:
        graph, objective, device, budget: As given.
        draws: The random draws of a micro-batch.
        recompute: Whether backward passes compute segments again.
    """

    def __init__(
        self,
        graph: ModelGraph,
        shared: SwappedBlock | None,
        objective: Objective,
        device: torch.device,
        budget: Budget,
    ) -> None:
        self.graph = graph
        self._shared = shared
        self.objective = objective
        self.device = device
        self.budget = budget
        self.draws = Draws()
        self.recompute = True

    def begin(self, batches: Sequence[tuple[Call, Any]]) -> list[MicroBatch]:
        """Return micro-batches on the device, with the random states of the plain loop."""
        micros = []
        state = RandomState.current()
        for call, target in batches:
            arguments = self.graph.bind(call.on(self.device))
            self.draws.repeat()
            begin, state = state, RandomState.current()
            micro = MicroBatch(moved(target, self.device), begin, state)
            for node, value in arguments.items():
                self.budget.take(micro.hold(node, value))
            micros.append(micro)
        return micros

    def end(self, micros: Sequence[MicroBatch]) -> None:
        """Set the random states after the micro-batches."""
        micros[-1].end.restore()

    def forward(self, segment: PassSegment, micros: Sequence[MicroBatch]) -> None:
        """Run the forward pass of a segment that is not the last one."""
        for micro in micros:
            self._forward(segment, micro)

    def _forward(self, segment: PassSegment, micro: MicroBatch) -> None:
        if self.recompute:
            micro.begins[segment] = micro.random
            with self.budget.taken(segment.working_bytes):
                passed = self._pass(segment, micro)
        else:
            passed = micro.graphs[segment] = self._kept_pass(segment, micro)
        for node, output in passed.outputs.items():
            value = output
            if isinstance(value, Tensor):
                value = value.detach().requires_grad_(value.requires_grad)
            self.budget.take(micro.hold(node, value))

    def turn(self, segment: PassSegment, micros: Sequence[MicroBatch]) -> Tensor:
        """Run the last segment forward and then backward. Return the mean loss."""
        losses: list[Tensor] = []
        if self._shared is not None:
            self.budget.take(self._shared.gradient_bytes)
        with self._summing(segment):
            for micro in micros:
                with self.budget.taken(segment.working_bytes):
                    losses.append(self._turned(segment, micro, len(micros)))
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def _turned(self, segment: PassSegment, micro: MicroBatch, count: int) -> Tensor:
        """Run the last segment with one micro-batch. Return its share of the loss."""
        passed = self._pass(segment, micro, to_loss=True)
        if not RandomState.current().draws_as(micro.end):
            raise TrainingError(
                "the model draws other random numbers than with the sample",
                "offload gives each micro-batch those of the plain loop, so numbers drawn "
                "must not depend on values: use micro-batches of the sample's shape",
            )
        (loss,) = passed.outputs.values()
        part = loss / count
        passed.outputs = {self.graph.result: part}
        micro.gradients[self.graph.result] = torch.ones_like(part)
        self.budget.take(part.nbytes)
        self._differentiate(segment, micro, passed)
        share: Tensor = part.detach()
        return share

    def backward(self, segment: PassSegment, micros: Sequence[MicroBatch]) -> None:
        """Run the backward pass of a segment that is not the last one."""
        with self._summing(segment):
            for micro in micros:
                if self.recompute:
                    micro.random = micro.begins.pop(segment)
                    with self.budget.taken(segment.working_bytes), segment.buffers_unchanged():
                        self._differentiate(segment, micro, self._pass(segment, micro))
                else:
                    passed = micro.graphs.pop(segment)
                    self._differentiate(segment, micro, passed)
                    self.budget.give(passed.kept_bytes)
                    del passed

    @contextmanager
    def _summing(self, segment: PassSegment) -> Iterator[None]:
        """Count gradients, plus one that is created before it is added to the others."""
        self.budget.take(segment.gradient_bytes)  # released by the update
        with self.budget.taken(segment.largest_gradient_bytes):
            yield

    def _pass(self, segment: PassSegment, micro: MicroBatch, to_loss: bool = False) -> _Passed:
        """Compute a segment with the micro-batch's random numbers."""
        inputs = {node: micro.values[node] for node in segment.needed}
        versions = {node: _version(value) for node, value in inputs.items()}
        if self.draws:
            micro.random.restore()
        outputs = self.graph.run(segment.nodes, {**self.graph.constants, **inputs})
        if to_loss:
            output = self.graph.output({**micro.values, **outputs})
            outputs = {self.graph.result: self.objective.value(output, micro.target)}
        if self.draws:
            micro.random = RandomState.current()
        for node, version in versions.items():
            if _version(inputs[node]) != version:
                raise TrainingError(
                    f"{segment.blocks[0].name} changes its input in place, which offload keeps",
                    "Use the variant that returns a new tensor, such as ReLU(inplace=False)",
                )
        return _Passed(inputs, outputs)

    def _kept_pass(self, segment: PassSegment, micro: MicroBatch) -> _Passed:
        """Compute a segment and keep its graph without the parameters, which are loaded again."""
        parameters = {
            block.storage_pointer(): number
            for number, block in enumerate(segment.swapped)
            if block.parameter_bytes
        }
        known = {
            value.untyped_storage().data_ptr()
            for value in (*micro.values.values(), *self._staying())
            if isinstance(value, Tensor)
        }
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor | ParameterView:
            storage = tensor.untyped_storage()
            pointer = storage.data_ptr()
            if pointer in parameters:
                return ParameterView.of(parameters[pointer], tensor)
            if pointer not in known and pointer not in kept:
                kept[pointer] = storage.nbytes()
                self.budget.take(storage.nbytes())
            return tensor.detach()  # an output with its graph would keep itself alive

        def unpack(saved: Tensor | ParameterView) -> Tensor:
            if isinstance(saved, ParameterView):
                return segment.swapped[saved.block].saved(saved)
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            passed = self._pass(segment, micro)
        for output in passed.outputs.values():  # counted where it is handed over
            if isinstance(output, Tensor):
                self.budget.give(kept.pop(output.untyped_storage().data_ptr(), 0))
        passed.kept_bytes = sum(kept.values())
        return passed

    def _staying(self) -> Iterator[Tensor]:
        if self._shared is not None:
            yield from self._shared.parameters
        yield from self.graph.model.buffers()

    def _differentiate(self, segment: PassSegment, micro: MicroBatch, passed: _Passed) -> None:
        """Run a segment backward, and add gradients in the order of the plain loop.

        If later segments also use a value or a parameter, its gradient from there is a root of the
        pass, so that it arrives before the segment's own, as in one pass through the whole model.
        """
        leaves = {
            node: value
            for node, value in passed.inputs.items()
            if isinstance(value, Tensor) and value.requires_grad
        }
        roots = [
            (value, micro.gradients.pop(node))
            for node, value in (*passed.outputs.items(), *leaves.items())
            if node in micro.gradients
        ]
        shared = [parameter for parameter in self.graph.shared if parameter.requires_grad]
        roots += [(p, micro.shared.pop(p)) for p in shared if p in micro.shared]
        sums = [parameter.grad for parameter in shared]
        for parameter in shared:
            parameter.grad = None
        if roots:
            torch.autograd.backward([root for root, _ in roots], [given for _, given in roots])
        for node, leaf in leaves.items():
            if leaf.grad is not None:
                self.budget.take(leaf.grad.nbytes)
                micro.gradients[node] = leaf.grad
                leaf.grad = None
        for parameter, total in zip(shared, sums, strict=True):
            own, parameter.grad = parameter.grad, total
            if own is None:
                continue
            if segment.is_first:
                parameter.grad = own if total is None else total.add_(own)
            else:  # earlier blocks may use it, too
                self.budget.take(own.nbytes)
                micro.shared[parameter] = own
        self.budget.give(sum(given.nbytes for _, given in roots))
        for node in segment.made:
            self.budget.give(micro.release(node))
        for node in self.graph.inputs if segment.is_first else ():
            self.budget.give(micro.release(node))


def _version(value: Any) -> int:
    """Return the number of in-place changes of a tensor."""
    return value._version if isinstance(value, Tensor) else 0  # noqa: SLF001
