"""Measure the blocks of a model, with one at a time in memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from radt.errors import UsageError
from radt.loaders.batches import mapped, tensors_of
from radt.loaders.randomness import RandomState
from radt.training.calling import Call
from radt.training.offloading.partition import OffloadBlock
from radt.training.offloading.passes import Passes, PassSegment
from radt.training.offloading.swapping import SwappedBlock
from radt.training.offloading.tracing import Values

_REPEATS = 3
#: Prevents cuts behind blocks that hand over tuples of tensors.
NO_CUT_BYTES = 1 << 50


class Measurement:
    """Runs a sample through the blocks. Parameters, buffers and random states are unchanged.

    Args:
        passes: The model's passes; receives the draws of a micro-batch.
        swapped: The parameters of its blocks, all in the store.
    """

    def __init__(self, passes: Passes, swapped: Sequence[SwappedBlock]) -> None:
        self._passes, self._graph = passes, passes.graph
        self._swapped = swapped

    def measure(self, call: Call, target: Any) -> list[OffloadBlock]:
        """Return the blocks, as measured with a sample.

        Raises:
            UsageError: The model draws from generators other than PyTorch's.
        """
        before = RandomState.current()
        values: Values = {**self._graph.constants, **self._graph.bind(call)}
        blocks = [self._block(at, values, target) for at in range(len(self._graph.blocks))]
        now = RandomState.current()
        before.restore()
        if repr((now.python, now.numpy)) != repr((before.python, before.numpy)):
            raise UsageError(
                "offload: the model draws random numbers from Python or NumPy",
                "It can only repeat those of PyTorch: draw them with torch.rand",
            )
        return blocks

    def _block(self, at: int, values: Values, target: Any) -> OffloadBlock:
        swapped, part = self._swapped[at], self._graph.blocks[at]
        segment = PassSegment(self._graph, [part], [swapped], 0)
        is_last = at == len(self._graph.blocks) - 1
        load_s = self._timed(swapped.load)
        swapped.attach()

        def forward() -> Values:
            outputs = self._graph.run(segment.nodes, values)
            if is_last:
                output = self._graph.output({**values, **outputs})
                return {self._graph.result: self._passes.objective.value(output, target)}
            return outputs

        with segment.buffers_unchanged():
            with self._passes.draws:  # also warms up
                outputs = forward()
            kept = _Kept([*_tensors(values.values()), *swapped.parameters, *self._graph.shared])
            with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
                outputs = forward()
            for output in _tensors(outputs.values()):
                kept.pack(output)
            forward_s, backward_s = [], []
            for _ in range(_REPEATS):
                outputs.clear()
                forward_s.append(self._timed(lambda: outputs.update(forward())))
                backward_s.append(self._timed(lambda: self._backward(segment, values, outputs)))
        if not is_last:
            values.update(mapped(outputs, _without_graph))
        output_bytes = self._cut_bytes(at, values)
        begin_s = time.perf_counter()
        update_compute_s = swapped.rehearse_update()
        update_s = time.perf_counter() - begin_s
        swapped.drop()
        self._passes.budget.buffers.keep(0)
        return OffloadBlock(
            part.name,
            statistics.median(forward_s),
            statistics.median(backward_s),
            swapped.parameter_bytes,
            output_bytes,
            load_s,
            update_s,
            update_compute_s,
            swapped.gradient_bytes,
            swapped.largest_gradient_bytes,
            swapped.update_bytes,
            kept.byte_count,
        )

    def _backward(self, segment: PassSegment, values: Values, outputs: Values) -> None:
        """Run backward with gradients of one, and discard the results."""
        roots = [value for value in _tensors(outputs.values()) if value.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        for value in _tensors(values[node] for node in segment.needed):
            value.grad = None
        segment.swapped[0].drop_gradients()
        for parameter in self._graph.shared:
            parameter.grad = None

    def _cut_bytes(self, at: int, values: Values) -> int:
        """Return the bytes handed over behind a block. Drop values that are not needed later."""
        later = [node for block in self._graph.blocks[at + 1 :] for node in block.nodes]
        needed = set(self._graph.needed([*later, self._graph.result]))
        for node in set(values) - needed - set(self._graph.constants):
            del values[node]
        crossing = [value for node, value in values.items() if node not in self._graph.inputs]
        tensors = [value for value in crossing if isinstance(value, Tensor)]
        if len(list(tensors_of(crossing))) > len(tensors):
            return NO_CUT_BYTES
        handed_over = _Kept([])
        for tensor in tensors:
            handed_over.pack(tensor)
        return handed_over.byte_count

    def _timed(self, action: Callable[[], object]) -> float:
        begin_s = time.perf_counter()
        action()
        if self._passes.device.type == "cuda":
            torch.cuda.synchronize(self._passes.device)
        return time.perf_counter() - begin_s


class _Kept:
    """Counts the memory that a graph keeps, each piece once, excluding some values."""

    def __init__(self, without: Sequence[Any]) -> None:
        self._seen = {_pointer(value) for value in without if isinstance(value, Tensor)}
        self.byte_count = 0

    def pack(self, value: Any) -> Any:
        """Count a tensor. Return it without its graph, which would otherwise keep itself alive."""
        if isinstance(value, Tensor) and _pointer(value) not in self._seen:
            self._seen.add(_pointer(value))
            self.byte_count += value.untyped_storage().nbytes()
        return value.detach() if isinstance(value, Tensor) else value


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return all tensors among values, including those in tuples."""
    return list(tensors_of(list(values)))


def _without_graph(value: Tensor) -> Tensor:
    return value.detach().requires_grad_(value.requires_grad)


def _pointer(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
