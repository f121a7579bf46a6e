"""Several jobs in one process: each trains as if it were alone, in the order of a policy."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from radt.errors import TrainingError, UsageError, described
from radt.run.run import active_run
from radt.training.feed import End, Feed
from radt.training.job import Failure, FailureKind, Job, JobStatus
from radt.training.policies import Candidate, Policy, policy_of


class _Request(Enum):
    """What another thread asked for; it is done between two steps."""

    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(slots=True)
class _Place(Candidate):
    """A job in the trainer."""

    feed: Feed | None = None
    request: _Request | None = None


@dataclass(slots=True)
class _Group:
    """Places that train in lockstep; one, unless input is shared or jobs are fused."""

    places: list[_Place] = field(default_factory=list)

    @property
    def ready(self) -> list[_Place]:
        return [place for place in self.places if place.job.status is JobStatus.READY]


class MultiTrainer:
    """Train several jobs in one process; losses of each are those of its plain loop, bit by bit.

    ::

        with MultiTrainer(jobs, policy="sjf") as trainer:
            for job in trainer.run():
                torch.save(job.model.state_dict(), f"{job.name}.pt")

    One job trains at a time, each with its own random states (UnifiedNN). `pause`, `resume`,
    `cancel` and `add` may be called from other threads; they take effect after the step under way.

    Args:
        jobs: The jobs; more may join by `add`.
        policy: ``fcfs``, ``priority``, ``sjf``, ``round_robin``, or a `Policy` of your own.

    Raises:
        UsageError: An argument is invalid, or two jobs have the same name.
    """

    def __init__(self, jobs: Iterable[Job] = (), *, policy: str | Policy = "fcfs") -> None:
        self._policy = policy_of(policy)
        self._lock = threading.RLock()
        self._groups: list[_Group] = []
        self._places: dict[str, _Place] = {}
        self._numbers, self._turns = count(1), count(1)
        self._ended: deque[Job] = deque()
        self._is_closed = False
        for job in jobs:
            self.add(job)

    # Control, from any thread ------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Have a job join.

        Raises:
            UsageError: It has no loader, its name is taken, or the trainer is closed.
        """
        if job.loader is None:
            raise UsageError(f"job {job.name} has no loader", "give it one: Job(…, loader=…)")
        with self._lock:
            if self._is_closed:
                raise UsageError("the trainer is closed", "add jobs within its `with` block")
            if job.name in self._places:
                raise UsageError(f"two jobs are named {job.name}", "give each job its own name")
            feed = Feed(job.loader, job.randomness)
            place = _Place(job, next(self._numbers), feed=feed)
            self._places[job.name] = place
            self._groups.append(_Group([place]))

    def pause(self, name: str) -> None:
        """Stop a job after the step under way; `run` yields it. Its state stays as it is.

        Nothing happens if it has ended or is paused.

        Raises:
            UsageError: There is no such job.
        """
        with self._lock:
            self._place(name).request = _Request.PAUSE

    def resume(self, name: str) -> None:
        """Have a paused job go on where it was; nothing happens if it is not paused.

        Raises:
            UsageError: There is no such job.
        """
        with self._lock:
            place = self._place(name)
            if place.request is _Request.PAUSE:
                place.request = None
            if place.job.status is JobStatus.PAUSED:
                place.job.status = JobStatus.READY
                place.joined = next(self._numbers)

    def cancel(self, name: str) -> None:
        """End a job after the step under way; `run` yields it. Nothing happens if it has ended.

        Raises:
            UsageError: There is no such job.
        """
        with self._lock:
            self._place(name).request = _Request.CANCEL

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            known = ", ".join(self._places) or "none"
            raise UsageError(f"there is no job named {name}", f"jobs of this trainer: {known}")
        return self._places[name]

    # Training ----------------------------------------------------------------------------------

    def run(self) -> Iterator[Job]:
        """Train; yield each job as soon as it has finished, failed, or been paused or cancelled.

        It ends when no job is ready. Paused jobs go on after `resume`, with this call or the next.

        Raises:
            TrainingError: The trainer is closed.
        """
        while True:
            self._answer_requests()
            while self._ended:
                yield self._ended.popleft()
            if self._is_closed:
                raise TrainingError("the trainer is closed", "use it within its `with` block")
            group = self._chosen()
            if group is not None:
                self._turn(group)
            elif not self._ended:
                return

    def _answer_requests(self) -> None:
        with self._lock:
            for place in self._places.values():
                request, place.request = place.request, None
                if request is _Request.CANCEL and not place.job.status.has_ended:
                    self._end(place, JobStatus.CANCELLED)
                elif request is _Request.PAUSE and place.job.status is JobStatus.READY:
                    self._end(place, JobStatus.PAUSED)

    def _chosen(self) -> _Group | None:
        with self._lock:
            ready = [group for group in self._groups if group.ready]
            return min(ready, key=self._rank, default=None)

    def _rank(self, group: _Group) -> tuple[float, ...]:
        return min(self._policy.rank(place) for place in group.ready)

    def _is_interrupted(self, group: _Group) -> bool:
        running = min(group.ready, key=self._policy.rank).job
        with self._lock:
            others = [other for other in self._groups if other is not group]
        waiting = [place.job for other in others for place in other.ready]
        return any(self._policy.interrupts(job, running) for job in waiting)

    def _turn(self, group: _Group) -> None:
        """Train a group until its epoch is complete, one of its jobs ends, or it is interrupted."""
        number = next(self._turns)
        run = active_run()
        with ExitStack() as spans:
            for place in group.ready:
                place.served = number
                if run is not None:
                    spans.enter_context(run.span(f"job {place.job.name}"))
            while True:
                is_complete = self._advance(group)
                self._answer_requests()
                if is_complete or self._ended or self._is_interrupted(group):
                    return

    def _advance(self, group: _Group) -> bool:
        """Train each job of a group on its next batch; return whether an epoch is complete."""
        is_complete = False
        batches: dict[int, Any] = {}
        for place in group.ready:
            feed = place.feed
            assert feed is not None
            try:
                if id(feed) not in batches:
                    batches[id(feed)] = feed.next()
                batch = batches[id(feed)]
                if batch is not End.EPOCH:
                    self._step(place.job, batch)
                    continue
                is_complete = True
                place.job.end_epoch()
            except Exception as error:  # noqa: BLE001 - any error of a job is its own
                self._fail(place, error)
                continue
            if place.job.epoch == place.job.epochs:
                self._end(place, JobStatus.FINISHED)
        return is_complete

    def _step(self, job: Job, batch: Any) -> Tensor:
        """Train a job on a batch."""
        return job.step(batch)

    def _fail(self, place: _Place, error: Exception) -> None:
        place.job.failure = Failure(FailureKind.EXCEPTION, described(error))
        self._end(place, JobStatus.FAILED)

    def _end(self, place: _Place, status: JobStatus) -> None:
        place.job.status = status
        if status.has_ended and place.feed is not None:
            place.feed.close()
            place.feed = None
        self._ended.append(place.job)

    # End ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """End loaders' iterations. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            for place in self._places.values():
                if place.feed is not None:
                    place.feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
