"""A step, segment by segment: C micro-batches go through one while a thread loads the next one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from radt.errors import TrainingError
from radt.run.paced import PacedMetrics
from radt.run.run import active_run
from radt.training.offloading.draws import DeviceRandomness, Draws
from radt.training.offloading.graph import GraphBlock, ModelGraph, Values
from radt.training.offloading.stores import Budget, give_memory_back
from radt.training.offloading.swapping import SavedView, SwappedBlock


@dataclass(slots=True, eq=False)
class _MicroBatch:
    """One micro-batch on its way.

    Attributes:
        values: What segments handed over, and the inputs.
        gradients: Of these values.
        shared: Gradients of the parameters that several blocks use, of this micro-batch alone.
        graphs: What the segments computed, kept for their backward passes.
        begins: The random states in which each segment is computed again.
        random: The random states in which it goes on.
    """

    target: Any
    values: Values
    gradients: dict[fx.Node, Tensor] = field(default_factory=dict)
    shared: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    graphs: dict[int, _Passed] = field(default_factory=dict)
    begins: dict[int, DeviceRandomness] = field(default_factory=dict)
    random: DeviceRandomness | None = None
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


@dataclass(slots=True)
class _Passed:
    """What a segment computed, with its graph."""

    inputs: Values
    outputs: Values
    kept_bytes: int = 0


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
        is_last = self.nodes[-1] is graph.last
        used = [*self.nodes, graph.result] if is_last else self.nodes
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


class Executor:
    """Makes steps whose losses and parameters are those of the plain loop, bit by bit.

    Args:
        graph: The model.
        segments: In the order of their calls.
        shared: The parameters that stay on the device, if there are any.
        loss: ``loss(output, target)`` is a tensor of one element.
        optimizer: Has the learning rate and the other settings.
        device: Where passes run.
        budget: Counts the bytes there.
        draws: What a micro-batch draws.
        recompute: Whether backward passes compute segments again.
        ahead: Whether the thread loads and updates while passes go on.

    Attributes:
        loads: How often each segment was loaded.
    """

    def __init__(
        self,
        graph: ModelGraph,
        segments: Sequence[PassSegment],
        shared: SwappedBlock | None,
        loss: Callable[[Any, Any], Tensor],
        optimizer: Optimizer,
        device: torch.device,
        budget: Budget,
        draws: Draws,
        recompute: bool,
        ahead: bool,
    ) -> None:
        self._graph = graph
        self._ahead = ahead
        self._segments = segments
        self._shared = shared
        self._loss = loss
        self._optimizer = optimizer
        self._device = device
        self._budget = budget
        self._draws = draws
        self._recompute = recompute
        self._thread = ThreadPoolExecutor(1, "radt-offload")
        self._futures: list[Future[None]] = []
        self._loading: dict[int, Future[None]] = {}
        self._resting_bytes = budget.used_bytes
        self._resident: set[int] = set()
        self._is_updating = False
        self._is_broken = False
        self._metrics = PacedMetrics("offload")
        self._wait_s = 0.0
        self.loads = [0] * len(segments)

    def step(self, batches: Sequence[tuple[Any, Any]]) -> Tensor:
        """Train on micro-batches ``(inputs, target)``; return the mean of their losses.

        Raises:
            TrainingError: A step before was interrupted in the middle; or what the model needs or
                draws differs from what it did with the sample.
        """
        self.check_whole()
        try:
            return self._step(batches)
        except BaseException:
            self._is_broken |= self._is_updating
            self.rest()
            raise

    def check_whole(self) -> None:
        """Raise if some parameters are a step ahead of others.

        Raises:
            TrainingError: A step before was interrupted in the middle.
        """
        if self._is_broken:
            raise TrainingError(
                "an offloaded step ended in the middle, so that some parameters are a step ahead",
                "Load a checkpoint: step.job.load_state_dict(state)",
            )

    def rest(self) -> None:
        """Wait for the loading thread and free all that can be loaded again.

        Raises:
            Exception: An update failed.
        """
        futures, self._futures = self._futures, []
        self._loading.clear()
        errors = [error for future in futures if (error := future.exception()) is not None]
        for block in self._all_blocks():
            for parameter in block.parameters:
                parameter.grad = None
            if block is not self._shared:
                block.drop()
        self._resident.clear()
        self._is_updating = False
        self._budget.used_bytes = self._resting_bytes
        if errors:
            self._is_broken = True
            raise errors[0]

    def wait(self) -> None:
        """Wait for the last update."""
        wait(self._futures)
        self._settle()

    def counted_anew(self) -> None:
        """Count only what stays in memory, after all of it was replaced."""
        self._budget.used_bytes = self._resting_bytes

    def restored(self) -> None:
        """Go on: all parameters and states were replaced."""
        self._is_broken = False

    def close(self) -> None:
        """End the loading thread, after what it is doing."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    # A step --------------------------------------------------------------------------------------

    def _step(self, batches: Sequence[tuple[Any, Any]]) -> Tensor:
        last = len(self._segments) - 1
        self._use(0)
        for block in self._all_blocks():
            block.set_hyperparameters(self._optimizer)
        micros = [self._arriving(inputs, target) for inputs, target in batches]
        ends = self._begins(micros)
        for at in range(last):
            self._use(at)
            self._load(at + 1)
            for micro in micros:
                self._forward(at, micro)
            self._free(at)
        self._use(last)
        if last > 0:
            self._load(last - 1)
        loss = self._turn(last, micros, ends)
        for at in range(last, -1, -1):
            if at < last:
                self._use(at)
                if at > 0:
                    self._load(at - 1)
                self._backward(at, micros)
            self._hand_over(at)
        self._is_updating = False  # the thread has all that is left to do
        ends[-1].restore(self._device)
        # Its own step is never called, and schedulers would warn.
        self._optimizer._opt_called = True  # type: ignore[attr-defined] # noqa: SLF001
        self._metrics_of_step()
        return loss

    def _arriving(self, inputs: Any, target: Any) -> _MicroBatch:
        inputs, target = tree_map(self._moved, (inputs, target))
        micro = _MicroBatch(target, {})
        self._budget.take(micro.hold(self._graph.inputs, inputs))
        return micro

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._device, non_blocking=True)
        return value

    def _begins(self, micros: Sequence[_MicroBatch]) -> list[DeviceRandomness]:
        """Give each micro-batch the random states of the plain loop; return those at their ends."""
        ends = []
        state = DeviceRandomness.current(self._device)
        for micro in micros:
            micro.random = state
            self._draws.repeat()
            state = DeviceRandomness.current(self._device)
            ends.append(state)
        return ends

    def _forward(self, at: int, micro: _MicroBatch) -> None:
        """Pass a segment that is not the last one."""
        segment = self._segments[at]
        if self._draws and self._recompute:
            assert micro.random is not None
            micro.begins[at] = micro.random
        if self._recompute:
            with self._working(segment):
                passed = self._pass(segment, micro)
        else:
            passed = micro.graphs[at] = self._kept_pass(segment, micro)
        for node, output in passed.outputs.items():
            value = output
            if isinstance(value, Tensor):
                value = value.detach().requires_grad_(value.requires_grad)
            self._budget.take(micro.hold(node, value))

    def _turn(
        self, last: int, micros: Sequence[_MicroBatch], ends: Sequence[DeviceRandomness]
    ) -> Tensor:
        """Go through the last segment forward and at once backward; return the loss."""
        segment = self._segments[last]
        losses: list[Tensor] = []
        self._begin_backward(segment, len(micros))
        if self._shared is not None:
            self._budget.take(self._shared.gradient_bytes)
        for micro, end in zip(micros, ends, strict=True):
            with self._working(segment):
                passed = self._pass(segment, micro, to_loss=True)
                now = DeviceRandomness.current(self._device)
                if not now.equals(end):
                    raise TrainingError(
                        "the model draws other random numbers than with the sample",
                        "offload gives each micro-batch those of the plain loop, so numbers drawn "
                        "must not depend on values: use micro-batches of the sample's shape",
                    )
                (loss,) = passed.outputs.values()
                part = loss / len(micros)
                losses.append(part.detach())
                passed.outputs = {self._graph.inputs: part}
                micro.gradients[self._graph.inputs] = torch.ones_like(part)
                self._budget.take(part.nbytes)
                self._differentiate(last, segment, micro, passed)
                del passed, loss, part
        self._end_backward(segment, len(micros))
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def _backward(self, at: int, micros: Sequence[_MicroBatch]) -> None:
        segment = self._segments[at]
        self._begin_backward(segment, len(micros))
        for micro in micros:
            if self._recompute:
                with self._working(segment), segment.buffers_unchanged():
                    micro.random = micro.begins.pop(at, None)
                    self._differentiate(at, segment, micro, self._pass(segment, micro))
            else:
                passed = micro.graphs.pop(at)
                self._differentiate(at, segment, micro, passed)
                self._budget.give(passed.kept_bytes)
                del passed
        self._end_backward(segment, len(micros))

    def _pass(self, segment: PassSegment, micro: _MicroBatch, to_loss: bool = False) -> _Passed:
        """Compute a segment with the micro-batch's random numbers."""
        inputs = {node: micro.values[node] for node in segment.needed}
        versions = {node: _version(value) for node, value in inputs.items()}
        if self._draws and micro.random is not None:
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

    def _kept_pass(self, segment: PassSegment, micro: _MicroBatch) -> _Passed:
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

    def _differentiate(
        self, at: int, segment: PassSegment, micro: _MicroBatch, passed: _Passed
    ) -> None:
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
            if at > 0:  # blocks before may use it, too
                self._budget.take(own.nbytes)
                micro.shared[parameter] = own
            else:
                parameter.grad = own if total is None else total.add_(own)
        self._budget.give(sum(given.nbytes for _, given in roots))
        for node in segment.made:
            self._budget.give(micro.release(node))
        if at == 0:
            self._budget.give(micro.release(self._graph.inputs))

    # Memory and the loading thread ---------------------------------------------------------------

    @contextmanager
    def _working(self, segment: PassSegment) -> Iterator[None]:
        self._budget.take(segment.working_bytes)
        try:
            yield
        finally:
            self._budget.give(segment.working_bytes)

    def _begin_backward(self, segment: PassSegment, count: int) -> None:
        self._budget.take(segment.gradient_bytes)
        if count > 1:
            self._budget.take(segment.largest_gradient_bytes)

    def _end_backward(self, segment: PassSegment, count: int) -> None:
        if count > 1:
            self._budget.give(segment.largest_gradient_bytes)

    def _all_blocks(self) -> Iterator[SwappedBlock]:
        for segment in self._segments:
            yield from segment.swapped
        if self._shared is not None:
            yield self._shared

    def _submit(self, task: Callable[[], None]) -> Future[None]:
        future = self._thread.submit(task)
        self._futures.append(future)
        if not self._ahead:
            self._await(future)
        return future

    def _load(self, at: int) -> None:
        """Have the thread load a segment."""

        def load() -> None:
            for block in self._segments[at].swapped:
                block.load()

        self.loads[at] += 1
        self._loading[at] = self._submit(load)

    def _use(self, at: int) -> None:
        """Wait until a segment is loaded and what was updated before it is written."""
        if at in self._resident:
            return
        if at not in self._loading:
            self._load(at)
        future = self._loading.pop(at)
        self._await(future)
        self._settle()
        for block in self._segments[at].swapped:
            block.attach()
        self._resident.add(at)

    def _await(self, future: Future[None]) -> None:
        """Wait, and record how long."""
        if future.done():
            return
        run = active_run()
        begin_s = time.monotonic()
        with nullcontext() if run is None else run.span("load segment"):
            wait([future])
        self._wait_s += time.monotonic() - begin_s

    def _settle(self) -> None:
        """Raise what failed in the thread, and forget what is done."""
        for future in [future for future in self._futures if future.done()]:
            self._futures.remove(future)
            future.result()

    def _free(self, at: int) -> None:
        for block in self._segments[at].swapped:
            block.drop()
        self._resident.discard(at)

    def _hand_over(self, at: int) -> None:
        """Have the thread update a segment; the first one stays for the next step."""
        segment = self._segments[at]
        for block in segment.swapped:
            block.hand_over()
        self._resident.discard(at)
        self._is_updating = True
        if at == 0 and self._shared is not None:
            shared = self._shared
            shared.hand_over()
            self._submit(lambda: self._update([shared], keep=True))

        def update() -> None:
            self._update(segment.swapped, keep=at == 0)
            # Once a step: passes that take their memory anew each time are a third slower.
            if at == 0 and self._device.type == "cpu":
                give_memory_back()

        future = self._submit(update)
        if at == 0:
            self._loading[0] = future

    def _update(self, blocks: Sequence[SwappedBlock], keep: bool) -> None:
        """Update blocks, in the thread."""
        try:
            for block in blocks:
                block.update(keep)
        except BaseException:
            self._is_broken = True
            raise

    def _metrics_of_step(self) -> None:
        if self._metrics.record(resident=self._budget.recent_bytes, wait=self._wait_s):
            self._wait_s = 0.0
            self._budget.restart_recent()


def _version(value: Any) -> int:
    """Return how often a tensor was changed in place."""
    return value._version if isinstance(value, Tensor) else 0  # noqa: SLF001
