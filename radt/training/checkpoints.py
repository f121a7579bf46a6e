"""The states of jobs in a folder, and which job was at work when the process was lost."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from radt.errors import TrainingError, described
from radt.training.feed import Feed
from radt.training.guard import RUNNING, forget_lost, lost_job
from radt.training.job import Failure, FailureKind, Job, JobStatus


class Checkpoints:
    """A folder with a file for each job, written whole or not at all.

    Args:
        folder: The folder; it is made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lost = lost_job(folder)
        self._at_work = ""
        # Unbuffered: what is written survives the process.
        self._running = (folder / RUNNING).open("wb", buffering=0)

    def _file(self, job: Job) -> Path:
        return self._folder / f"{quote(job.name, safe=' ')}.pt"

    def save(self, job: Job, feed: Feed | None) -> None:
        """Keep a job's state and its position.

        Raises:
            TrainingError: It cannot be written; the state before is still there.
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
        fresh = file.with_suffix(".tmp")
        try:
            with fresh.open("wb") as written:
                torch.save(state, written)
                written.flush()
                os.fsync(written.fileno())  # else the name may outlive a crash, and the content not
            fresh.replace(file)
        except (OSError, RuntimeError) as error:  # torch.save raises both
            fresh.unlink(missing_ok=True)
            raise TrainingError(
                f"the state of job {job.name} cannot be written to {file}: {described(error)}",
                "make space there; a new start goes on from the state before",
            ) from error

    def load(self, job: Job, feed: Feed) -> None:
        """Have a job go on from its state, if there is one.

        A job that was paused is ready again. The job at work when the process was lost has failed.

        Raises:
            TrainingError: The state is of another training, or cannot be read.
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
        """Note which job is at work; empty if none is."""
        if name != self._at_work:
            os.ftruncate(self._running.fileno(), 0)
            os.pwrite(self._running.fileno(), name.encode(), 0)
            self._at_work = name

    def close(self, is_lost: bool = False) -> None:
        """End; the note of the job at work stays if the process is lost."""
        if not self._running.closed:
            if not is_lost:
                self.at_work("")
            self._running.close()
