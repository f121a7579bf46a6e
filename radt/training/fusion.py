"""Jobs of equal structure trained at once; not bit-identical to training them alone.

Fusing helps where starting operations takes longer than computing them: small layers. Where the
computation is busy it harms, and it needs the activations of all models at once. So both ways are
tried on the jobs' own steps, and the faster one is kept.
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

#: Steps of one way before the other one has its turn; the first of them only warms up.
_BLOCK = 3
#: After so many turns of both, the trial ends if each step of one way took this much longer than
#: half of the other's: some take long as others use the machine. It ends after the last one.
_MARGINS = (1.3, 1.1, 1.0, 1.0, 1.0, 0.0)
#: Fused training has to be this much faster, since it is not bit-identical.
_ADVANTAGE = 0.95


class Way(StrEnum):
    """How jobs of equal structure train."""

    LOOP = "loop"
    FUSED = "fused"


@dataclass(slots=True)
class Trial:
    """Which way is faster, found on the jobs' own steps, a few of each in turns.

    Attributes:
        chosen: The way, once it is known.
        reason: Why jobs are not fused, if not for the time it takes.
        times_s: Durations of steps.
        fused_bytes: Memory of the stack and of its step; None where memory is not limited.
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
        """Begin to time a step."""
        if self.chosen is None:
            self._began_s = _now_s()

    def end(self) -> None:
        """End a step; the last one of the trial decides."""
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
    """Jobs with the same structure, which are stacked as long as they train at once.

    Args:
        jobs: The jobs.
        trial: Which way they train.
        allows: Whether so many bytes fit into memory; None if it is not limited.
    """

    def __init__(
        self, jobs: Sequence[Job], trial: Trial, allows: Callable[[int], bool] | None = None
    ) -> None:
        self.trial = trial
        self._jobs = jobs
        self._allows = allows
        self._stack: Stack | None = None
        #: What holds while jobs are stacked: the random states from which they draw.
        self._stacked = ExitStack()
        self._error = ""

    def step(self, batches: Sequence[Any]) -> Tensor | None:
        """Train each job on its batch; return the losses, or None if nothing was done.

        Raises:
            Exception: As the optimiser raises it; it has changed some parameters, maybe.
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
        # Outside of the handler: the error's traceback holds the activations.
        self.separate()
        return None

    def _fused_step(self, batches: Sequence[Any]) -> Tensor:
        """Do a step of the stack; the first one is measured where memory is limited."""
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
        """Fuse no more if a fused step has failed that each job has done on its own since."""
        if self._error:
            self._choose_loop(self._error)

    def _choose_loop(self, reason: str) -> None:
        self.trial.chosen, self.trial.reason = Way.LOOP, reason
        count = len(self._jobs)
        warn_once(f"{self._jobs[0].name} and {count - 1} more jobs are not fused: {reason}")

    def separate(self) -> None:
        """Have each job's state in its own model and optimiser."""
        if self._stack is not None:
            stack, self._stack = self._stack, None
            self._stacked.close()
            stack.separate()
