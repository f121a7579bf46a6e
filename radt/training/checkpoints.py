"""Store the states of jobs in a folder, and which job was running when a process was lost."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from radt.errors import TrainingError, described
from radt.files import whole_file
from radt.training.feed import Feed
from radt.training.guard import RUNNING, forget_lost, lost_job
from radt.training.job import Failure, FailureKind, Job, JobStatus


class Checkpoints:
    """A folder with one file per job, each written atomically.

    Args:
        folder: The folder; it is created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lost = lost_job(folder)
        self._at_work = ""
        # Unbuffered, so that what is written survives the process.
        self._running = (folder / RUNNING).open("wb", buffering=0)

    def _file(self, job: Job) -> Path:
        return self._folder / f"{quote(job.name, safe=' ')}.pt"

    def save(self, job: Job, feed: Feed | None) -> None:
        """Save a job's state and its position.

        Raises:
            TrainingError: The state cannot be written. The previous state is intact.
        """
        state: dict[str, Any] = {
            "job": job.state_dict(),
            "feed": None if feed is None else feed.state_dict(),
            "status": job.status.value,
            "failure": None,
        }
        if job.failure is not None:  # plain values only, which `load` reads safely
            state["failure"] = {**asdict(job.failure), "kind": job.failure.kind.value}
        file = self._file(job)
        try:
            with whole_file(file, durable=True, temporary=file.with_suffix(".tmp")) as fresh:
                torch.save(state, fresh)
        except (OSError, RuntimeError) as error:  # torch.save raises both
            raise TrainingError(
                f"the state of job {job.name} cannot be written to {file}: {described(error)}",
                "make space there; a new start goes on from the state before",
            ) from error

    def load(self, job: Job, feed: Feed) -> None:
        """Restore a job from its saved state, if there is one.

        A paused job becomes ready. The job that was running when the process was lost has failed.

        Raises:
            TrainingError: The state belongs to another training, or cannot be read.
        """
        file = self._file(job)
        if file.exists():
            try:
                state = torch.load(file, map_location="cpu", weights_only=True)
                job.load_state_dict(state["job"])
                if state["feed"] is not None:
                    feed.load_state_dict(state["feed"])
                status, failure = JobStatus(state["status"]), state["failure"]
            except Exception as error:
                raise TrainingError(
                    f"job {job.name} cannot go on from {file}: {described(error)}",
                    "use the model and optimiser that it began with, or another folder",
                ) from error
            job.status = status if status.has_ended else JobStatus.READY
            if failure is not None:
                job.failure = Failure(**{**failure, "kind": FailureKind(failure["kind"])})
        if job.name == self._lost:
            job.status = JobStatus.FAILED
            job.failure = Failure(
                FailureKind.PROCESS_LOST, f"the process ended while {job.name} trained"
            )
            self.save(job, feed)
            forget_lost(self._folder)
            self._lost = ""

    def at_work(self, name: str) -> None:
        """Note which job is running; "" for none."""
        if name != self._at_work:
            os.ftruncate(self._running.fileno(), 0)
            os.pwrite(self._running.fileno(), name.encode(), 0)
            self._at_work = name

    def close(self, is_lost: bool = False) -> None:
        """Close the folder. If the process is lost, keep the note of the running job."""
        if not self._running.closed:
            if not is_lost:
                self.at_work("")
            self._running.close()
