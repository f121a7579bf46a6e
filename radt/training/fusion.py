"""Jobs of equal structure trained at once; not bit-identical to training them alone.

Fusing helps where launching operations takes longer than computing them: small layers. Where
computation dominates, it hurts, and it needs the activations of all models at once. So both ways
are tried on the jobs' own steps, and the faster one is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

import torch
from torch import Tensor

from radt.errors import described
from radt.run.notices import warn_once
from radt.training.job import Job
from radt.training.memory import with_peak
from radt.training.stack import Stack

#: Steps of one way before the other one has its turn. The first step is a warm-up.
_BLOCK = 3
#: After n turns of both ways, the trial ends if the median of one way times margin n is below the
#: other's fastest step. The margins tolerate steps slowed down by other users of the machine. The
#: trial ends after the last one.
_MARGINS = (1.3, 1.1, 1.0, 1.0, 1.0, 0.0)
#: Fused steps must be faster than this share of the loop's, as they are not bit-identical.
_ADVANTAGE = 0.95


class Way(StrEnum):
    """How jobs of equal structure train."""

    LOOP = "loop"
    FUSED = "fused"


@dataclass(slots=True)
class Trial:
    """Finds the faster way on the jobs' own steps, a few of each way in turns.

    Attributes:
        chosen: The way, once it is known.
        reason: Why jobs are not fused, if not because of the time.
        times_s: Durations of steps.
        fused_bytes: Memory of the stack and its step; None if memory is not limited.
    """

    chosen: Way | None = None
    reason: str = ""
    fused_bytes: int | None = None
    times_s: dict[Way, list[float]] = field(default_factory=lambda: {way: [] for way in Way})
    _steps: int = 0
    _began_s: float = 0.0

    @property
    def way(self) -> Way:
        """The way of the next step."""
        if self.chosen is not None:
            return self.chosen
        return (Way.LOOP, Way.FUSED)[self._steps // _BLOCK % 2]

    def begin(self) -> None:
        """Start timing a step."""
        if self.chosen is None:
            self._began_s = _now_s()

    def end(self) -> None:
        """Stop timing a step. The last one of the trial decides."""
        if self.chosen is not None:
            return
        if self._steps % _BLOCK:
            self.times_s[self.way].append(_now_s() - self._began_s)
        self._steps += 1
        turns, more = divmod(self._steps, 2 * _BLOCK)
        if more == 0:
            loop, fused = (self.times_s[way] for way in Way)
            margin = _MARGINS[turns - 1]
            loop_s, fused_s = median(loop), median(fused)
            if fused_s * margin < min(loop) or loop_s * margin < min(fused):
                is_faster = fused_s < loop_s * _ADVANTAGE
                self.chosen = Way.FUSED if is_faster else Way.LOOP


def _now_s() -> float:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()


class Fusion:
    """Jobs with the same structure, which are stacked while they train at once.

    Args:
        jobs: The jobs.
        trial: Decides which way they train.
        allows: Returns True if this many bytes fit into memory; None if memory is not limited.
    """

    def __init__(
        self, jobs: Sequence[Job], trial: Trial, allows: Callable[[int], bool] | None = None
    ) -> None:
        self.trial = trial
        self._jobs = jobs
        self._allows = allows
        self._stack: Stack | None = None
        #: Open while jobs are stacked: the random states from which they draw.
        self._stacked = ExitStack()
        self._error = ""

    def step(self, batches: Sequence[Any]) -> Tensor | None:
        """Train each job on its batch. Return the losses, or None if nothing was done.

        Raises:
            Exception: Any error of the optimiser, which may have changed some parameters.
        """
        if self.trial.way is Way.LOOP:
            self.separate()
            return None
        try:
            return self._fused_step(batches)
        except Exception as error:
            if self._stack is not None and self._stack.is_updating:
                raise
            self._error = described(error)
        # Outside the handler, because the error's traceback keeps the activations alive.
        self.separate()
        return None

    def _fused_step(self, batches: Sequence[Any]) -> Tensor:
        """Run a step of the stack. The first one is measured if memory is limited."""
        if self._stack is None:
            self._stack = Stack(self._jobs)
            self._stacked.enter_context(self._jobs[0].randomness.in_use())
        stack = self._stack
        if self._allows is None or self.trial.fused_bytes is not None:
            return stack.step(batches)
        losses, peak_bytes = with_peak(lambda: stack.step(batches), stack.device)
        self.trial.fused_bytes = peak_bytes + stack.bytes
        if not self._allows(self.trial.fused_bytes):
            self._choose_loop("there is no memory for all activations at once")
        return losses

    def give_up(self) -> None:
        """Stop fusing if the last fused step failed although each job can do it alone."""
        if self._error:
            self._choose_loop(self._error)

    def _choose_loop(self, reason: str) -> None:
        self.trial.chosen, self.trial.reason = Way.LOOP, reason
        count = len(self._jobs)
        warn_once(f"{self._jobs[0].name} and {count - 1} more jobs are not fused: {reason}")

    def separate(self) -> None:
        """Return each job's state to its own model and optimiser."""
        if self._stack is not None:
            stack, self._stack = self._stack, None
            self._stacked.close()
            stack.separate()
