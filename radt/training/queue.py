"""The jobs of a trainer: pending requests, and which job trains next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count

from radt.errors import UsageError
from radt.loaders.randomness import RandomState
from radt.run.notices import warn_once
from radt.training.failures import (
    BudgetError,
    failure_of,
    free_caches,
    free_gradients,
)
from radt.training.feed import Feed
from radt.training.job import Job, JobStatus
from radt.training.memory import Admission
from radt.training.policies import Candidate, Policy
from radt.training.records import JobRecord


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedJob(Candidate):
    """A job in the trainer. Places with the same feed train in lockstep.

    Attributes:
        feed: Returns the job's batches, perhaps shared with other jobs.
        record: Its run within the active one.
        structure: What fusable jobs have in common; None if the job cannot be fused.
        request: The requested status: paused or cancelled.
        is_unsaved: Whether its state has changed since it was saved.
        before: The random states from before the last batch was loaded, if its step may be
            abandoned.
    """

    feed: Feed
    record: JobRecord
    structure: Hashable | None = None
    request: JobStatus | None = None
    is_unsaved: bool = True
    before: RandomState | None = None

    @property
    def is_ready(self) -> bool:
        """True if the job can train in its next turn."""
        return self.job.status is JobStatus.READY

    def fail(self, error: Exception) -> None:
        """End the job with an error, and free everything except its state."""
        self.job.failure = failure_of(error)
        self.end(JobStatus.FAILED, error)
        free_gradients(self.job)
        free_caches()

    def end(self, status: JobStatus, error: Exception | None = None) -> None:
        """Stop training the job, for good or, if it is paused, for now."""
        self.job.status = status
        self.is_unsaved = True
        self.record.flush()
        if status.has_ended:
            self.record.finish(error)


class Queue:
    """The jobs of a trainer, in the order of a policy. Thread-safe.

    Args:
        policy: The order.
        admission: Decides which jobs fit into memory; None if memory is not limited.

    Attributes:
        lock: Held while several values must be consistent.
        places: Places of jobs that have not ended, or whose end has not been handled, by name.
        ended: Jobs that have ended or are paused, and are to be yielded.
        has_joined: Whether jobs joined since the caller set it to False.
        team: Places of the current turn.
    """

    def __init__(self, policy: Policy, admission: Admission | None) -> None:
        self._policy = policy
        self._admission = admission
        self._numbers = count(1)
        self._ended_names: set[str] = set()
        self.lock = threading.RLock()
        self.places: dict[str, QueuedJob] = {}
        self.ended: deque[Job] = deque()
        self.has_joined = False
        self.team: list[QueuedJob] = []

    def has(self, name: str) -> bool:
        """Return True if there is, or was, a job of this name."""
        return name in self.places or name in self._ended_names

    def join(self, place: QueuedJob) -> None:
        """Add a job, which waits for its turns."""
        with self.lock:
            place.joined = next(self._numbers)
            self.places[place.job.name] = place
            self.has_joined = True

    def leave(self, place: QueuedJob) -> None:
        """Take a job that has stopped training out of its team. It will be yielded."""
        with self.lock:
            if sum(other.feed is place.feed for other in self.places.values()) > 1:
                place.feed = place.feed.fork()
            self.ended.append(place.job)

    def forget(self, job: Job) -> None:
        """Keep only the name of a job that has ended."""
        with self.lock:
            self._ended_names.add(job.name)
            self.places.pop(job.name, None)

    def present(self) -> list[Job]:
        """Return all jobs that are in memory."""
        with self.lock:
            return [place.job for place in self.places.values()]

    # Requests ----------------------------------------------------------------------------------

    def ask(self, name: str, request: JobStatus) -> None:
        """Request a status for a job, to be set between two steps. Does nothing if it has ended.

        Raises:
            UsageError: There is no such job.
        """
        with self.lock:
            place = self._place(name)
            if place is not None and place.request is not JobStatus.CANCELLED:
                place.request = request

    def resume(self, name: str) -> None:
        """Make a paused job wait for its turns again.

        Raises:
            UsageError: There is no such job.
        """
        with self.lock:
            place = self._place(name)
            if place is None:
                return
            if place.request is JobStatus.PAUSED:
                place.request = None
            if place.job.status is JobStatus.PAUSED:
                place.job.status = JobStatus.READY
                place.joined = next(self._numbers)
                self.has_joined = True

    def _place(self, name: str) -> QueuedJob | None:
        if not self.has(name):
            known = ", ".join([*self.places, *self._ended_names]) or "none"
            raise UsageError(f"there is no job named {name}", f"jobs of this trainer: {known}")
        return self.places.get(name)

    def answer_requests(self) -> None:
        """Pause and cancel jobs as requested. Call this between steps."""
        with self.lock:
            for place in self.places.values():
                request, place.request = place.request, None
                can_pause, can_end = place.is_ready, not place.job.status.has_ended
                if request and (can_end if request.has_ended else can_pause):
                    place.end(request)
                    self.leave(place)

    # The order ---------------------------------------------------------------------------------

    def next_team(self) -> list[QueuedJob]:
        """Return the places of the next turn; none if no job can train."""
        with self.lock:
            self.team = self._next_team()
            return self.team

    def _next_team(self) -> list[QueuedJob]:
        ready = sorted(self._ready(), key=self._policy.rank)
        present = self.present()
        if able := self._fitting(ready, present):
            return self._team(able, ready)
        paused = [job for job in present if job.status is JobStatus.PAUSED]
        others = [job for job in present if job not in paused]
        if self._fitting(ready, others):
            names = ", ".join(job.name for job in paused)
            warn_once(
                f"jobs wait for memory that paused ones keep ({names}): {ready[0].job.name} "
                "goes on once they are resumed or cancelled, with the next run()"
            )
        elif ready:
            assert self._admission is not None
            ready[0].fail(BudgetError(self._admission.refusal(ready[0].job, others)))
            self.leave(ready[0])
        return []

    @staticmethod
    def _team(able: Sequence[QueuedJob], ready: Sequence[QueuedJob]) -> list[QueuedJob]:
        """Return the places that train with the first one: with its feed or its structure.

        Args:
            able: Places that fit into memory, by rank. Others with the same feed wait and leave the
                lockstep.
            ready: All places that are ready.
        """
        first = able[0]
        team = [place for place in able if place.feed is first.feed]
        if first.structure is not None and all(p.structure == first.structure for p in team):
            team = [
                place
                for place in able
                if place.structure == first.structure
                and place.feed.batches == first.feed.batches
                and all(p.structure == first.structure for p in able if p.feed is place.feed)
            ]
        for place in ready:
            if place not in able and any(place.feed is mate.feed for mate in team):
                place.feed = place.feed.fork()
        return team

    def fits(self, team: Sequence[QueuedJob]) -> bool:
        """Return True if every place can train within the available memory."""
        return len(self._fitting(team, self.present())) == len(team)

    def _fitting(self, places: Sequence[QueuedJob], present: Sequence[Job]) -> list[QueuedJob]:
        """Return the places whose steps fit into memory beside the present jobs."""
        if self._admission is None:
            return list(places)
        fitting = self._admission.fitting([place.job for place in places], present)
        return [place for place in places if place.job in fitting]

    def is_interrupted(self, team: Sequence[QueuedJob]) -> bool:
        """Return True if another job takes over from the team."""
        training = {id(place) for place in team}
        waiting = [place.job for place in self._ready() if id(place) not in training]
        if not waiting:
            return False
        running = min(team, key=self._policy.rank).job
        return any(self._policy.interrupts(job, running) for job in waiting)

    def _ready(self) -> list[QueuedJob]:
        with self.lock:
            return [place for place in self.places.values() if place.is_ready]
