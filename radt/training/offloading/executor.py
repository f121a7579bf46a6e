"""A step, segment by segment: C micro-batches go through one while a thread loads the next one.

For a GPU, optimisers run on the host in a separate thread, so that copies do not wait for them. A
segment's gradients are copied before the next segment is loaded, which needs their memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from radt.errors import TrainingError
from radt.loaders.paced import PacedMetrics, span
from radt.training.calling import Call
from radt.training.offloading.passes import Passes, PassSegment
from radt.training.offloading.stores import Budget, give_memory_back
from radt.training.offloading.swapping import Clip, SwappedBlock


@dataclass(frozen=True, slots=True)
class Clipping:
    """Clips gradients like `torch.nn.utils.clip_grad_norm_`.

    Attributes:
        largest_norm: Maximum norm of all gradients.
        parameters: In the order in which norms are added.
    """

    largest_norm: float
    parameters: Sequence[nn.Parameter]

    def of(self, norms: Sequence[Mapping[nn.Parameter, Tensor]]) -> Clip:
        """Return the function that clips gradients with these norms."""
        known = {parameter: norm for some in norms for parameter, norm in some.items()}
        found = [known[parameter] for parameter in self.parameters if parameter in known]
        total = torch.linalg.vector_norm(torch.stack(found)).cpu() if found else torch.zeros(())
        return lambda some: nn.utils.clip_grads_with_norm_(some, self.largest_norm, total)


class OffloadExecutor:
    """Makes steps whose losses and parameters are bit-identical to those of the plain loop.

    Threads load segments before they are used and update them afterwards, in the order of the
    calls.

    Args:
        segments: In the order of their calls.
        shared: The parameters that stay on the device, if there are any.
        passes: Computes segments.
        optimizer: Has the learning rate and the other settings.
        budget: Counts the bytes on the device.
        clipping: How gradients are clipped; None if they are not.
        ahead: Whether the threads load and update during passes.
        is_cpu: Whether both use one thread, for one disk, and freed host memory is returned to the
            system once per step.

    Attributes:
        loads: Number of loads of each segment.
    """

    def __init__(
        self,
        segments: Sequence[PassSegment],
        shared: SwappedBlock | None,
        passes: Passes,
        optimizer: Optimizer,
        budget: Budget,
        clipping: Clipping | None,
        *,
        ahead: bool,
        is_cpu: bool,
    ) -> None:
        self._segments = segments
        self._shared = shared
        self._passes = passes
        self._optimizer = optimizer
        self._budget = budget
        self._resting_bytes = budget.used_bytes
        self._clipping = clipping
        self._ahead = ahead
        self._frees_memory = is_cpu
        self._loads = ThreadPoolExecutor(1, "radt-offload")
        self._updates = self._loads if is_cpu else ThreadPoolExecutor(1, "radt-offload-update")
        self._futures: list[Future[None]] = []
        #: The last update of each segment, for which its next load waits.
        self._updated: dict[int, Future[None]] = {}
        #: The copy of each segment's gradients, for which its update waits.
        self._copied: dict[int, Future[None]] = {}
        self._loading: dict[int, Future[None]] = {}
        self._resident: set[int] = set()
        self._is_updating = False
        self._is_broken = False
        self._has_states = False
        self.loads = [0] * len(segments)
        self._wait_s = 0.0  # waiting time of passes
        self._metrics = PacedMetrics("offload")

    def step(self, batches: Sequence[tuple[Call, Any]]) -> Tensor:
        """Train on micro-batches (calls and targets). Return the mean of their losses.

        Raises:
            TrainingError: A previous step was interrupted in the middle, or the model needs more
                memory or draws other random numbers than with the sample.
        """
        self.check_whole()
        try:
            loss = self._step(batches)
        except BaseException:
            self.rest()
            raise
        # Its own step is never called, so schedulers would warn.
        self._optimizer._opt_called = True  # type: ignore[attr-defined] # noqa: SLF001
        if self._metrics.record(resident=self._budget.recent_bytes, wait=self._wait_s):
            self._wait_s = 0.0
            self._budget.restart_recent()
        return loss

    def _step(self, batches: Sequence[tuple[Call, Any]]) -> Tensor:
        last = len(self._segments) - 1
        passes = self._passes
        self.use(0)
        for block in self.blocks():
            block.set_hyperparameters()
        micros = passes.begin(batches)
        for at in range(last):
            self.use(at)
            self.load(at + 1)
            passes.forward(self._segments[at], micros)
            self.free(at)
        for at in range(last, -1, -1):
            self.use(at)
            if at > 0:
                self.load(at - 1)
            if at == last:
                loss = passes.turn(self._segments[at], micros)
            else:
                passes.backward(self._segments[at], micros)
            if self._clipping is None:
                self._hand_over(at)
            else:
                # They wait, with their norms, until the last norm is known.
                self._copy_gradients(at, self._given(at, with_norms=True))
        if self._clipping is not None:
            norms = [block.norms for block in self.blocks()]
            self._update_all(self._clipping.of(norms))
        passes.end(micros)
        return loss

    # Segments ------------------------------------------------------------------------------------

    def blocks(self) -> Iterator[SwappedBlock]:
        """Yield all blocks."""
        for segment in self._segments:
            yield from segment.swapped
        if self._shared is not None:
            yield self._shared

    def load(self, at: int) -> None:
        """Make the thread load a segment."""

        updated = self._updated.pop(at, None)

        def load() -> None:
            if updated is not None:
                updated.result()
            for block in self._segments[at].swapped:
                block.load()

        self.loads[at] += 1
        self._loading[at] = self._submit(self._loads, load)

    def use(self, at: int) -> None:
        """Wait until a segment is loaded and all previous updates are written."""
        if at in self._resident:
            return
        if at not in self._loading:
            self.load(at)
        self._await(self._loading.pop(at))
        self._settle()
        for block in self._segments[at].swapped:
            block.attach()
        if at == 0 and self._shared is not None:
            self._shared.attach()  # it may have been updated
        self._resident.add(at)

    def is_resident(self, at: int) -> bool:
        """Return whether a segment is in use."""
        return at in self._resident

    def load_ahead(self, at: int) -> None:
        """Make the thread load a segment, if it exists, is not loaded and fits."""
        if at < len(self._segments) and at not in self._resident and at not in self._loading:
            needed = sum(block.parameter_bytes for block in self._segments[at].swapped)
            if self._budget.has_room(needed):
                self.load(at)

    def free(self, at: int) -> None:
        """Free a segment that no pass has changed."""
        for block in self._segments[at].swapped:
            block.drop()
        self._resident.discard(at)

    def _hand_over(self, at: int) -> None:
        """Start the update of a segment. The first one, the last of a step, stays loaded."""
        self._is_updating = True
        blocks = self._given(at)
        if self._updates is not self._loads:
            self._copy_gradients(at, blocks)
        self._update(at, blocks)

    def _copy_gradients(self, at: int, blocks: Sequence[SwappedBlock]) -> None:
        def copy() -> None:
            for block in blocks:
                block.set_aside()

        self._copied[at] = self._submit(self._loads, copy)

    def _update_all(self, clip: Clip) -> None:
        """Update all segments whose gradients were stored. The first one stays loaded."""
        self._is_updating = True
        for at in range(len(self._segments) - 1, -1, -1):
            self.loads[at] += self._updates is self._loads  # a CPU's optimiser needs all of it
            self._update(at, self._of(at), clip)

    def _given(self, at: int, with_norms: bool = False) -> list[SwappedBlock]:
        blocks = self._of(at)
        for block in blocks:
            block.hand_over(with_norms)
        self._resident.discard(at)
        return blocks

    def _of(self, at: int) -> list[SwappedBlock]:
        """Return the blocks that are updated with a segment."""
        shared = [self._shared] if at == 0 and self._shared is not None else []
        return [*shared, *self._segments[at].swapped]

    def _update(self, at: int, blocks: Sequence[SwappedBlock], clip: Clip | None = None) -> None:
        copied = self._copied.pop(at, None)

        def update() -> None:
            try:
                if copied is not None:
                    copied.result()
                for block in blocks:
                    block.update(keep=at == 0, clip=clip)
            except BaseException:
                self._is_broken = True
                raise
            # Once per step: passes that allocate memory each time are a third slower. Also after
            # the first updates, which leave free memory as they create the states.
            if self._frees_memory and (at == 0 or not self._has_states):
                give_memory_back()
            self._has_states |= at == 0

        self._updated[at] = self._submit(self._updates, update)
        if at == 0:
            self._loading[0] = self._updated.pop(0)
            self._is_updating = False  # the thread does the rest

    def check_whole(self) -> None:
        """Raise if some parameters are a step ahead of others.

        Raises:
            TrainingError: A previous step was interrupted in the middle.
        """
        if self._is_broken:
            raise TrainingError(
                "an offloaded step ended in the middle, so that some parameters are a step ahead",
                "Load a checkpoint: step.job.load_state_dict(state)",
            )

    def rest(self) -> None:
        """Wait for the threads, and free everything that can be loaded again.

        Raises:
            Exception: An update failed.
        """
        self._is_broken |= self._is_updating
        self._is_updating = False
        futures, self._futures = self._futures, []
        self._loading.clear()
        self._updated.clear()
        self._copied.clear()
        errors = [error for future in futures if (error := future.exception()) is not None]
        for block in self.blocks():
            block.drop_gradients()
            if block is not self._shared:
                block.drop()
        self._resident.clear()
        self.counted_anew()
        if errors:
            self._is_broken = True
            raise errors[0]

    def counted_anew(self) -> None:
        """Reset the count to what stays in memory."""
        self._budget.used_bytes = self._resting_bytes

    def restored(self) -> None:
        """Continue after all parameters and states were replaced."""
        self._is_broken = False

    def wait(self) -> None:
        """Wait for the last update."""
        wait(self._futures)
        self._settle()

    def close(self) -> None:
        """End the threads after their current work."""
        for thread in (self._updates, self._loads):
            thread.shutdown(wait=True, cancel_futures=True)

    def _submit(self, thread: ThreadPoolExecutor, task: Callable[[], None]) -> Future[None]:
        future = thread.submit(task)
        self._futures.append(future)
        if not self._ahead:
            self._await(future)
        return future

    def _await(self, future: Future[None]) -> None:
        """Wait, and record the waiting time."""
        if future.done():
            return
        begin_s = time.monotonic()
        with span("load segment"):
            wait([future])
        self._wait_s += time.monotonic() - begin_s

    def _settle(self) -> None:
        """Raise an error of the thread, and forget finished work."""
        for future in [future for future in self._futures if future.done()]:
            self._futures.remove(future)
            future.result()
