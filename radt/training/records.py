"""What a trainer records of a job in the active run; nothing outside of a run."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from radt.run.run import active_run
from radt.training.job import Job

_INTERVAL_S = 1.0


class JobRecord:
    """The mean loss of a job since the value before: about once a second, and for each epoch's end.

    Reading a loss waits for the device; one a second costs nothing.

    Args:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._losses: list[Tensor] = []
        self._steps = 0
        self._due_s = time.monotonic() + _INTERVAL_S

    def span(self) -> AbstractContextManager[object]:
        """Mark a turn of the job."""
        run = active_run()
        return nullcontext() if run is None else run.span(f"job {self._job.name}")

    def step(self, loss: Tensor) -> None:
        """Count a step."""
        self._steps += 1
        self._losses.append(loss)
        if time.monotonic() >= self._due_s:
            self.flush()

    def flush(self) -> None:
        """Record the mean of the losses since the last time."""
        if not self._losses:
            return
        run = active_run()
        if run is not None:
            mean = torch.stack([loss.reshape(()) for loss in self._losses]).mean().item()
            run.log_metrics({f"{self._job.name}/loss": mean}, step=self._steps)
        self._losses.clear()
        self._due_s = time.monotonic() + _INTERVAL_S
