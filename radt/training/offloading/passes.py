"""Passes of micro-batches through segments, which give the bits of passes through the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from radt.errors import TrainingError
from radt.training.offloading.draws import DeviceRandomness, Draws
from radt.training.offloading.graph import GraphBlock, ModelGraph, Values
from radt.training.offloading.stores import Budget
from radt.training.offloading.swapping import SavedView, SwappedBlock


class PassSegment:
    """Successive blocks that are on the device together.

    Args:
        graph: The model.
        blocks: The blocks.
        swapped: Their parameters.
        working_bytes: What one micro-batch keeps in a pass that is computed again.
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
    """What a segment computed, with its graph."""

    inputs: Values
    outputs: Values
    kept_bytes: int = 0


@dataclass(slots=True, eq=False)
class MicroBatch:
    """One micro-batch on its way.

    Attributes:
        values: What segments handed over, and the inputs.
        gradients: Of these values.
        shared: Gradients of the parameters that several blocks use, of this micro-batch alone.
        graphs: What the segments computed, kept for their backward passes.
        begins: The random states in which each segment is computed again.
        random: The random states in which it goes on.
        end: Those behind it in the plain loop.
    """

    target: Any
    random: DeviceRandomness
    end: DeviceRandomness
    values: Values = field(default_factory=dict)
    gradients: dict[fx.Node, Tensor] = field(default_factory=dict)
    shared: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    graphs: dict[PassSegment, _Passed] = field(default_factory=dict)
    begins: dict[PassSegment, DeviceRandomness] = field(default_factory=dict)
    _held: Counter[int] = field(default_factory=Counter)

    def hold(self, node: fx.Node, value: Any) -> int:
        """Keep a value; return the bytes that it adds, as several may be views of the same."""
        self.values[node] = value
        if not isinstance(value, Tensor):
            return 0
        storage = value.untyped_storage()
        self._held[storage.data_ptr()] += 1
        return storage.nbytes() if self._held[storage.data_ptr()] == 1 else 0

    def release(self, node: fx.Node) -> int:
        """Forget a value; return the bytes that become free."""
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
        loss: ``loss(output, target)`` is a tensor of one element.
        device: Where passes run.
        budget: Counts the bytes there.
        draws: What a micro-batch draws.
        recompute: Whether backward passes compute segments again.
    """

    def __init__(
        self,
        graph: ModelGraph,
        shared: SwappedBlock | None,
        loss: Callable[[Any, Any], Tensor],
        device: torch.device,
        budget: Budget,
        draws: Draws,
        recompute: bool,
    ) -> None:
        self._graph = graph
        self._shared = shared
        self._loss = loss
        self._device = device
        self._budget = budget
        self._draws = draws
        self._recompute = recompute

    def begin(self, batches: Sequence[tuple[Any, Any]]) -> list[MicroBatch]:
        """Return micro-batches on the device, with the random states of the plain loop."""
        micros = []
        state = DeviceRandomness.current(self._device)
        for batch in batches:
            inputs, target = tree_map(self._moved, batch)
            self._draws.repeat()
            begin, state = state, DeviceRandomness.current(self._device)
            micro = MicroBatch(target, begin, state)
            self._budget.take(micro.hold(self._graph.inputs, inputs))
            micros.append(micro)
        return micros

    def end(self, micros: Sequence[MicroBatch]) -> None:
        """Go on with the random states behind micro-batches."""
        micros[-1].end.restore(self._device)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._device, non_blocking=True)
        return value

    def forward(self, segment: PassSegment, micros: Sequence[MicroBatch]) -> None:
        """Pass a segment that is not the last one."""
        for micro in micros:
            self._forward(segment, micro)

    def _forward(self, segment: PassSegment, micro: MicroBatch) -> None:
        if self._recompute:
            micro.begins[segment] = micro.random
            with self._budget.taken(segment.working_bytes):
                passed = self._pass(segment, micro)
        else:
            passed = micro.graphs[segment] = self._kept_pass(segment, micro)
        for node, output in passed.outputs.items():
            value = output
            if isinstance(value, Tensor):
                value = value.detach().requires_grad_(value.requires_grad)
            self._budget.take(micro.hold(node, value))

    def turn(self, segment: PassSegment, micros: Sequence[MicroBatch]) -> Tensor:
        """Go through the last segment forward and at once backward; return the mean loss."""
        losses: list[Tensor] = []
        if self._shared is not None:
            self._budget.take(self._shared.gradient_bytes)
        with self._summing(segment):
            for micro in micros:
                with self._budget.taken(segment.working_bytes):
                    losses.append(self._turned(segment, micro, len(micros)))
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def _turned(self, segment: PassSegment, micro: MicroBatch, count: int) -> Tensor:
        """Go through the last segment with one micro-batch; return its share of the loss."""
        passed = self._pass(segment, micro, to_loss=True)
        if not DeviceRandomness.current(self._device).equals(micro.end):
            raise TrainingError(
                "the model draws other random numbers than with the sample",
                "offload gives each micro-batch those of the plain loop, so numbers drawn "
                "must not depend on values: use micro-batches of the sample's shape",
            )
        (loss,) = passed.outputs.values()
        part = loss / count
        passed.outputs = {self._graph.inputs: part}
        micro.gradients[self._graph.inputs] = torch.ones_like(part)
        self._budget.take(part.nbytes)
        self._differentiate(segment, micro, passed)
        share: Tensor = part.detach()
        return share

    def backward(self, segment: PassSegment, micros: Sequence[MicroBatch]) -> None:
        """Go backward through a segment that is not the last one."""
        with self._summing(segment):
            for micro in micros:
                if self._recompute:
                    micro.random = micro.begins.pop(segment)
                    with self._budget.taken(segment.working_bytes), segment.buffers_unchanged():
                        self._differentiate(segment, micro, self._pass(segment, micro))
                else:
                    passed = micro.graphs.pop(segment)
                    self._differentiate(segment, micro, passed)
                    self._budget.give(passed.kept_bytes)
                    del passed

    @contextmanager
    def _summing(self, segment: PassSegment) -> Iterator[None]:
        """Count gradients, and one that is made before it is added to the others."""
        self._budget.take(segment.gradient_bytes)  # given by the update
        with self._budget.taken(segment.largest_gradient_bytes):
            yield

    def _pass(self, segment: PassSegment, micro: MicroBatch, to_loss: bool = False) -> _Passed:
        """Compute a segment with the micro-batch's random numbers."""
        inputs = {node: micro.values[node] for node in segment.needed}
        versions = {node: _version(value) for node, value in inputs.items()}
        if self._draws:
            micro.random.restore(self._device)
        outputs = self._graph.run(segment.nodes, {**self._graph.constants, **inputs})
        if to_loss:
            output = self._graph.output({**micro.values, **outputs})
            outputs = {self._graph.inputs: self._loss(output, micro.target)}
        if self._draws:
            micro.random = DeviceRandomness.current(self._device)
        for node, version in versions.items():
            if _version(inputs[node]) != version:
                raise TrainingError(
                    f"{segment.blocks[0].name} changes its input in place, which offload keeps",
                    "Use the variant that returns a new tensor, such as ReLU(inplace=False)",
                )
        return _Passed(inputs, outputs)

    def _kept_pass(self, segment: PassSegment, micro: MicroBatch) -> _Passed:
        """Compute a segment whose graph is kept without the parameters, which are loaded again."""
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

        def pack(tensor: Tensor) -> Tensor | SavedView:
            storage = tensor.untyped_storage()
            pointer = storage.data_ptr()
            if pointer in parameters:
                return SavedView.of(parameters[pointer], tensor)
            if pointer not in known and pointer not in kept:
                kept[pointer] = storage.nbytes()
                self._budget.take(storage.nbytes())
            return tensor.detach()  # an output with its graph would keep itself alive

        def unpack(saved: Tensor | SavedView) -> Tensor:
            if isinstance(saved, SavedView):
                return segment.swapped[saved.block].saved(saved)
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            passed = self._pass(segment, micro)
        for output in passed.outputs.values():  # counted where it is handed over
            if isinstance(output, Tensor):
                self._budget.give(kept.pop(output.untyped_storage().data_ptr(), 0))
        passed.kept_bytes = sum(kept.values())
        return passed

    def _staying(self) -> Iterator[Tensor]:
        if self._shared is not None:
            yield from self._shared.parameters
        yield from self._graph.model.buffers()

    def _differentiate(self, segment: PassSegment, micro: MicroBatch, passed: _Passed) -> None:
        """Go backward through a segment, and add gradients in the order of the plain loop.

        Where a value or a parameter is used by later segments, too, their gradient is a root of the
        pass: so it arrives before the segment's own ones, as in one pass through the whole model.
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
        shared = [parameter for parameter in self._graph.shared if parameter.requires_grad]
        roots += [(p, micro.shared.pop(p)) for p in shared if p in micro.shared]
        sums = [parameter.grad for parameter in shared]
        for parameter in shared:
            parameter.grad = None
        if roots:
            torch.autograd.backward([root for root, _ in roots], [given for _, given in roots])
        for node, leaf in leaves.items():
            if leaf.grad is not None:
                self._budget.take(leaf.grad.nbytes)
                micro.gradients[node] = leaf.grad
                leaf.grad = None
        for parameter, total in zip(shared, sums, strict=True):
            own, parameter.grad = parameter.grad, total
            if own is None:
                continue
            if segment.is_first:
                parameter.grad = own if total is None else total.add_(own)
            else:  # blocks before may use it, too
                self._budget.take(own.nbytes)
                micro.shared[parameter] = own
        self._budget.give(sum(given.nbytes for _, given in roots))
        for node in segment.made:
            self._budget.give(micro.release(node))
        if segment.is_first:
            self._budget.give(micro.release(self._graph.inputs))


def _version(value: Any) -> int:
    """Return how often a tensor was changed in place."""
    return value._version if isinstance(value, Tensor) else 0  # noqa: SLF001
