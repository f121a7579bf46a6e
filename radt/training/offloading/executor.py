"""A step, segment by segment: C micro-batches go through one while a thread loads the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from radt.loaders.paced import PacedMetrics
from radt.training.offloading.loading import Swapper
from radt.training.offloading.passes import Passes, PassSegment
from radt.training.offloading.stores import Budget


class Executor:
    """Makes steps whose losses and parameters are those of the plain loop, bit by bit.

    Args:
        segments: In the order of their calls.
        swapper: Has them on the device.
        passes: Computes them.
        optimizer: Has the learning rate and the other settings.
        budget: Counts the bytes on the device.

    Attributes:
        swapper: As given.
    """

    def __init__(
        self,
        segments: Sequence[PassSegment],
        swapper: Swapper,
        passes: Passes,
        optimizer: Optimizer,
        budget: Budget,
    ) -> None:
        self._segments = segments
        self.swapper = swapper
        self._passes = passes
        self._optimizer = optimizer
        self._budget = budget
        self._resting_bytes = budget.used_bytes
        self._metrics = PacedMetrics("offload")

    def step(self, batches: Sequence[tuple[Any, Any]]) -> Tensor:
        """Train on micro-batches ``(inputs, target)``; return the mean of their losses.

        Raises:
            TrainingError: A step before was interrupted in the middle; or what the model needs or
                draws differs from what it did with the sample.
        """
        self.swapper.check_whole()
        try:
            loss = self._step(batches)
        except BaseException:
            self.rest()
            raise
        # Its own step is never called, and schedulers would warn.
        self._optimizer._opt_called = True  # type: ignore[attr-defined] # noqa: SLF001
        if self._metrics.record(resident=self._budget.recent_bytes, wait=self.swapper.wait_s):
            self.swapper.wait_s = 0.0
            self._budget.restart_recent()
        return loss

    def rest(self) -> None:
        """Wait for the loading thread and free all that can be loaded again.

        Raises:
            Exception: An update failed.
        """
        try:
            self.swapper.rest()
        finally:
            self.counted_anew()

    def counted_anew(self) -> None:
        """Count only what stays in memory."""
        self._budget.used_bytes = self._resting_bytes

    def _step(self, batches: Sequence[tuple[Any, Any]]) -> Tensor:
        last = len(self._segments) - 1
        swapper, passes = self.swapper, self._passes
        swapper.use(0)
        for block in swapper.blocks():
            block.set_hyperparameters(self._optimizer)
        micros = passes.begin(batches)
        for at in range(last):
            swapper.use(at)
            swapper.load(at + 1)
            passes.forward(self._segments[at], micros)
            swapper.free(at)
        for at in range(last, -1, -1):
            swapper.use(at)
            if at > 0:
                swapper.load(at - 1)
            if at == last:
                loss = passes.turn(self._segments[at], micros)
            else:
                passes.backward(self._segments[at], micros)
            swapper.hand_over(at)
        passes.end(micros)
        return loss
