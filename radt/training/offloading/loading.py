"""A thread that loads segments before they are used, and updates them when they were."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext

from radt.errors import TrainingError
from radt.run.run import active_run
from radt.training.offloading.passes import PassSegment
from radt.training.offloading.stores import give_memory_back
from radt.training.offloading.swapping import SwappedBlock


class Swapper:
    """Has segments on the device when they are used; the thread works in the order of the calls.

    Args:
        segments: In the order of their calls.
        shared: The parameters that stay on the device, if there are any.
        ahead: Whether the thread loads and updates while passes go on.
        frees_memory: Whether freed memory of the host goes back to the system, once a step.

    Attributes:
        loads: How often each segment was loaded.
        wait_s: How long passes waited.
    """

    def __init__(
        self,
        segments: Sequence[PassSegment],
        shared: SwappedBlock | None,
        ahead: bool,
        frees_memory: bool,
    ) -> None:
        self._segments = [segment.swapped for segment in segments]
        self._shared = shared
        self._ahead = ahead
        self._frees_memory = frees_memory
        self._thread = ThreadPoolExecutor(1, "radt-offload")
        self._futures: list[Future[None]] = []
        self._loading: dict[int, Future[None]] = {}
        self._resident: set[int] = set()
        self._is_updating = False
        self._is_broken = False
        self._has_states = False
        self.loads = [0] * len(segments)
        self.wait_s = 0.0

    def blocks(self) -> Iterator[SwappedBlock]:
        """Give all blocks."""
        for segment in self._segments:
            yield from segment
        if self._shared is not None:
            yield self._shared

    def load(self, at: int) -> None:
        """Have the thread load a segment."""

        def load() -> None:
            for block in self._segments[at]:
                block.load()

        self.loads[at] += 1
        self._loading[at] = self._submit(load)

    def use(self, at: int) -> None:
        """Wait until a segment is loaded and what was updated before it is written."""
        if at in self._resident:
            return
        if at not in self._loading:
            self.load(at)
        self._await(self._loading.pop(at))
        self._settle()
        for block in self._segments[at]:
            block.attach()
        self._resident.add(at)

    def free(self, at: int) -> None:
        """Free a segment, which no pass has changed."""
        for block in self._segments[at]:
            block.drop()
        self._resident.discard(at)

    def hand_over(self, at: int) -> None:
        """Have the thread update a segment; the first one, a step's last, stays for the next."""
        self._is_updating = True
        updated = list(self._segments[at])
        if at == 0 and self._shared is not None:
            updated.insert(0, self._shared)
        for block in updated:
            block.hand_over()
        self._resident.discard(at)

        def update() -> None:
            try:
                for block in updated:
                    block.update(keep=at == 0)
            except BaseException:
                self._is_broken = True
                raise
            # Once a step: passes that take their memory anew each time are a third slower. The
            # first updates make the states, in memory that they will not have again.
            if self._frees_memory and (at == 0 or not self._has_states):
                give_memory_back()
            self._has_states |= at == 0

        future = self._submit(update)
        if at == 0:
            self._loading[0] = future
            self._is_updating = False  # the thread has all that is left to do

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
        """Wait for the thread and free all that can be loaded again.

        Raises:
            Exception: An update failed.
        """
        self._is_broken |= self._is_updating
        self._is_updating = False
        futures, self._futures = self._futures, []
        self._loading.clear()
        errors = [error for future in futures if (error := future.exception()) is not None]
        for block in self.blocks():
            block.drop_gradients()
            if block is not self._shared:
                block.drop()
        self._resident.clear()
        if errors:
            self._is_broken = True
            raise errors[0]

    def restored(self) -> None:
        """Go on: all parameters and states were replaced."""
        self._is_broken = False

    def wait(self) -> None:
        """Wait for the last update."""
        wait(self._futures)
        self._settle()

    def close(self) -> None:
        """End the thread, after what it is doing."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _submit(self, task: Callable[[], None]) -> Future[None]:
        future = self._thread.submit(task)
        self._futures.append(future)
        if not self._ahead:
            self._await(future)
        return future

    def _await(self, future: Future[None]) -> None:
        """Wait, and record how long."""
        if future.done():
            return
        run = active_run()
        begin_s = time.monotonic()
        with nullcontext() if run is None else run.span("load segment"):
            wait([future])
        self.wait_s += time.monotonic() - begin_s

    def _settle(self) -> None:
        """Raise what failed in the thread, and forget what is done."""
        for future in [future for future in self._futures if future.done()]:
            self._futures.remove(future)
            future.result()
