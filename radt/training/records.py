"""Record a trainer's jobs: each is a run within the active one. Does nothing without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from radt.run.run import Run, active_run
from radt.training.job import Job

_INTERVAL_S = 1.0


class JobRecord:
    """The run of a job within the active one: its epochs and its loss.

    The loss is the mean since the last value, recorded about once a second and at each epoch's end,
    because reading it waits for the device.

    Args:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._run: Run | None = None
        self._losses: list[Tensor] = []
        self._due_s = 0.0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Mark a turn of the job. Its run begins with the first one."""
        run = active_run()
        if run is None:
            yield
            return
        if self._run is None:
            self._run = run.child(self._job.name, {"epochs": self._job.epochs})
        self._due_s = time.monotonic() + _INTERVAL_S
        with run.span(f"job {self._job.name}"):
            # An interrupted epoch is marked only in its first turn.
            number = self._job.epoch + 1
            if self._job.batches == 0:
                with self._run.epoch(number, self._job.epochs):
                    yield
            else:
                yield

    def step(self, loss: Tensor) -> None:
        """Note the loss of a step."""
        if self._run is not None:
            self._losses.append(loss)
            if time.monotonic() >= self._due_s:
                self.flush()

    def flush(self) -> None:
        """Record the mean of the losses since the last record."""
        if self._run is not None and self._losses:
            device = self._losses[-1].device  # a job may have moved since the first loss
            mean = torch.stack([loss.reshape(()).to(device) for loss in self._losses]).mean().item()
            self._run.log_metric("loss", mean, self._job.steps)
        self._losses.clear()
        self._due_s = time.monotonic() + _INTERVAL_S

    def finish(self, error: BaseException | None = None) -> None:
        """End the job's run."""
        if self._run is not None:
            self._run.finish(error)
