"""Measures the blocks of a model one by one, with one in memory at a time."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from radt.errors import UsageError
from radt.training.offloading.draws import DeviceRandomness, Draws
from radt.training.offloading.graph import ModelGraph, Values
from radt.training.offloading.partition import OffloadBlock
from radt.training.offloading.passes import PassSegment
from radt.training.offloading.stores import Buffers
from radt.training.offloading.swapping import SwappedBlock
from radt.training.segments import Block

_REPEATS = 3
#: Behind a block that hands over tuples of tensors the model is not cut.
NO_CUT_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class Measured:
    """What a sample showed.

    Attributes:
        blocks: The blocks' times and bytes for it.
        draws: The random numbers that it draws.
        update_compute_s: Duration of the optimiser's steps of all blocks, without writing.
        parameter_bytes: Bytes of all parameters.
    """

    blocks: list[OffloadBlock]
    draws: Draws
    update_compute_s: float
    parameter_bytes: int


class Measurement:
    """Runs a sample through the blocks; parameters, buffers and random states stay as they are.

    Args:
        graph: The model.
        swapped: The parameters of its blocks, all in the store.
        loss: ``loss(output, target)`` is a tensor of one element.
        device: Where passes run.
        buffers: Has the memory of blocks that were measured.
    """

    def __init__(
        self,
        graph: ModelGraph,
        swapped: Sequence[SwappedBlock],
        loss: Callable[[Any, Any], Tensor],
        device: torch.device,
        buffers: Buffers,
    ) -> None:
        self._graph = graph
        self._swapped = swapped
        self._loss = loss
        self._device = device
        self._buffers = buffers
        self._update_compute_s = 0.0

    def measure(self, inputs: Any, target: Any) -> Measured:
        """Measure with a sample.

        Raises:
            UsageError: The model draws from generators other than PyTorch's.
        """
        state = DeviceRandomness.current(self._device)
        others = random.getstate(), np.random.get_state(legacy=True)
        draws = Draws()
        values: Values = {**self._graph.constants, self._graph.inputs: inputs}
        blocks = [self._block(at, values, target, draws) for at in range(len(self._graph.blocks))]
        state.restore(self._device)
        now = random.getstate(), np.random.get_state(legacy=True)
        if repr(now) != repr(others):
            raise UsageError(
                "offload: the model draws random numbers from Python or NumPy",
                "It can only repeat those of PyTorch: draw them with torch.rand",
            )
        total = sum(block.block.parameter_bytes for block in blocks)
        total += sum(parameter.nbytes for parameter in self._graph.shared)
        return Measured(blocks, draws, self._update_compute_s, total)

    def _block(self, at: int, values: Values, target: Any, draws: Draws) -> OffloadBlock:
        swapped, part = self._swapped[at], self._graph.blocks[at]
        segment = PassSegment(self._graph, [part], [swapped], 0)
        is_last = at == len(self._graph.blocks) - 1
        load_s = self._timed(swapped.load)
        swapped.attach()

        def forward() -> Values:
            outputs = self._graph.run(segment.nodes, values)
            if is_last:
                output = self._graph.output({**values, **outputs})
                return {self._graph.inputs: self._loss(output, target)}
            return outputs

        with segment.buffers_unchanged():
            with draws:  # and first of all, what is slower the first time
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
            values.update(tree_map(_without_graph, outputs))
        output_bytes = self._cut_bytes(at, values)
        update_s = self._update(swapped)
        swapped.drop()
        self._buffers.keep(0)
        return OffloadBlock(
            Block(
                part.name,
                statistics.median(forward_s),
                statistics.median(backward_s),
                swapped.parameter_bytes,
                output_bytes,
            ),
            load_s,
            update_s,
            swapped.gradient_bytes,
            swapped.largest_gradient_bytes,
            swapped.update_bytes,
            kept.byte_count,
        )

    def _backward(self, segment: PassSegment, values: Values, outputs: Values) -> None:
        """Go backward with gradients of one, and drop what it finds."""
        roots = [value for value in _tensors(outputs.values()) if value.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        for value in _tensors(values[node] for node in segment.needed):
            value.grad = None
        segment.swapped[0].drop_gradients()
        for parameter in self._graph.shared:
            parameter.grad = None

    def _cut_bytes(self, at: int, values: Values) -> int:
        """Return the bytes handed over behind a block; drop what no later block needs."""
        later = [node for block in self._graph.blocks[at + 1 :] for node in block.nodes]
        needed = set(self._graph.needed([*later, self._graph.result]))
        for node in set(values) - needed - set(self._graph.constants):
            del values[node]
        crossing = [value for node, value in values.items() if node is not self._graph.inputs]
        tensors = [value for value in crossing if isinstance(value, Tensor)]
        nested = [leaf for value in crossing for leaf in tree_leaves(value)]
        if sum(isinstance(leaf, Tensor) for leaf in nested) > len(tensors):
            return NO_CUT_BYTES
        handed_over = _Kept([])
        for tensor in tensors:
            handed_over.pack(tensor)
        return handed_over.byte_count

    def _update(self, swapped: SwappedBlock) -> float:
        """Return the duration of an optimiser's step and of writing back."""
        begin_s = time.perf_counter()
        step_s = swapped.rehearse_update()
        self._update_compute_s += step_s
        return time.perf_counter() - begin_s

    def _timed(self, action: Callable[[], object]) -> float:
        begin_s = time.perf_counter()
        action()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - begin_s


class _Kept:
    """Counts memory that a graph keeps, each piece once, without that of some values."""

    def __init__(self, without: Sequence[Any]) -> None:
        self._seen = {_pointer(value) for value in without if isinstance(value, Tensor)}
        self.byte_count = 0

    def pack(self, value: Any) -> Any:
        """Count a tensor; return it without its graph, which would otherwise hold itself."""
        if isinstance(value, Tensor) and _pointer(value) not in self._seen:
            self._seen.add(_pointer(value))
            self.byte_count += value.untyped_storage().nbytes()
        return value.detach() if isinstance(value, Tensor) else value


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return all tensors among values, those in tuples included."""
    return [leaf for leaf in tree_leaves(list(values)) if isinstance(leaf, Tensor)]


def _without_graph(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    return value


def _pointer(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
