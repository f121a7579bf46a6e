"""Asks an engine for the jobs of a submission: in arrays, no more than may wait, none twice.

Each request is noted in the shared folder before the engine is asked (its *intent*), and the
engine's id after it has answered. Whoever finds a request without an id, because its submitter was
killed or the answer was lost, asks the engine for it before any of its jobs is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby

from radt.cluster.engine import ArrayRequest, Engine, JobId, JobState
from radt.cluster.spool import JobKey, Request, Spool
from radt.errors import ClusterError, EngineAwayError, SubmitLimitError

#: More jobs are submitted once so large a part of the window is free, or all the rest fits.
_PART_TO_REFILL = 4
#: An intent that the engine did not find so often was never taken. Not after the first time: the
#: request of a submitter that was killed may still be on its way.
_LOOKS_FOR_INTENT = 2


class Submitter:
    """Submits jobs, and knows the engine's ids of all that were.

    Args:
        build: Makes what the engine is asked for of a request.
        max_jobs: Jobs that wait or run at a time, at most; None for all.

    Raises:
        OSError: The shared folder cannot be read.

    Whatever raises OSError in between, or EngineAwayError, may be called again.
    """

    def __init__(
        self,
        spool: Spool,
        engine: Engine,
        build: Callable[[Request], ArrayRequest],
        *,
        max_jobs: int | None = None,
    ) -> None:
        self._spool = spool
        self._engine = engine
        self._build = build
        self._most = max_jobs
        #: As many jobs as the engine took, while it takes no more.
        self._window: int | None = None
        self._looked: dict[Request, int] = {}
        self._seen: set[Request] = set()
        self._ids: dict[JobKey, JobId] = {}
        self._intents: dict[JobKey, str] = {}
        self._counts: dict[JobKey, int] = {}
        self._arrays: set[str] = set()
        #: Requests whose ids are not known.
        self.unanswered: list[Request] = []
        #: Why the engine refuses jobs for good, by job.
        self.refused: dict[JobKey, ClusterError] = {}
        self.refresh()

    # Looking up -----------------------------------------------------------------------------------

    def refresh(self) -> set[JobKey]:
        """Read the requests: another process may have made some, or an error hidden one.

        Returns:
            Jobs of those that are new.

        Raises:
            OSError: The shared folder cannot be read.
        """
        requests = self._spool.requests()
        self.unanswered = [request for request in requests if not request.job_id]
        new = [request for request in requests if request not in self._seen]
        for request in new:
            self._note(request)
        self._seen.update(self.unanswered)
        return {job for request in new for job in _jobs(request)}

    def job_id(self, job: JobKey) -> JobId | None:
        """The engine's id of a job, of its last submission; None while there is none."""
        return self._ids.get(job)

    def is_of(self, job: JobKey, state: JobState) -> bool:
        """Whether the engine says this of the job, and not of one that got its number later: from a
        controller that had lost its newest state."""
        return state.intent in (None, self._intents.get(job))

    def submissions(self, job: JobKey) -> int:
        """How often a job was submitted."""
        return self._counts.get(job, 0)

    @property
    def asked_for(self) -> set[JobKey]:
        """Jobs that are in requests without an answer."""
        return {job for request in self.unanswered for job in _jobs(request)}

    # Asking ---------------------------------------------------------------------------------------

    def recover(self, started: Callable[[JobKey], Collection[str]]) -> Iterator[JobKey]:
        """Find requests whose answer was lost; yield jobs that the engine was never asked for.

        Args:
            started: The engine's ids of the arrays that started a job, as its attempts say.

        Raises:
            EngineAwayError: The engine does not answer.
            OSError: The shared folder does not.
        """
        for request in tuple(self.unanswered):
            found = self._engine.find(self._spool.intent(request))
            if found is None:  # it may have run and be forgotten already
                ids = {name for job in _jobs(request) for name in started(job)}
                found = next(iter(sorted(ids - self._arrays)), None)
            if found is not None:
                self._note(self._spool.submitted(request, found))
                self.unanswered.remove(request)
                continue
            self._looked[request] = self._looked.get(request, 0) + 1
            if self._looked[request] >= _LOOKS_FOR_INTENT:
                self._forget(request)
                yield from _jobs(request)

    def submit(self, jobs: Sequence[JobKey], unended: int) -> Iterator[JobKey]:
        """Submit as many of the jobs as may wait now, in their order; yield each that was.

        Jobs that the engine will never take are in `refused` then.

        Args:
            jobs: Those that wait for it, each in no request.
            unended: Jobs of this submission that wait or run.

        Raises:
            EngineAwayError: The engine does not answer; what was asked for is `unanswered`.
            OSError: The shared folder cannot be written; likewise.
        """
        if not jobs:
            return
        submitted = 0
        limits = [limit for limit in (self._most, self._window) if limit is not None]
        room = len(jobs)
        if limits:
            room = min(limits) - unended
            if unended and room < min(len(jobs), max(1, min(limits) // _PART_TO_REFILL)):
                return
        jobs = jobs[: max(0, room)]
        for array, group in groupby(jobs, key=lambda job: job.array):
            left = list(group)
            size = len(left)
            while left and size:
                piece, outcome = left[:size], self._ask(array, [job.index for job in left[:size]])
                if isinstance(outcome, SubmitLimitError):
                    size //= 2
                    continue
                if isinstance(outcome, ClusterError):
                    self.refused.update(dict.fromkeys(piece, outcome))
                else:
                    submitted += len(piece)
                    yield from piece
                left = left[size:]
                size = min(size, len(left))
            if left:  # the engine takes no more
                self._window = max(1, unended + submitted)
                return
        if self._window is not None:  # it took all: see whether it takes more the next time
            self._window += max(1, self._window // _PART_TO_REFILL)

    def _ask(self, array: int, indices: Sequence[int]) -> ClusterError | None:
        request = self._spool.intend(array, indices)
        self.unanswered.append(request)
        self._seen.add(request)
        try:
            job_id = self._engine.submit(self._build(request))
        except EngineAwayError:
            raise
        except ClusterError as error:
            self._forget(request)
            return error
        self._note(self._spool.submitted(request, job_id))
        self.unanswered.remove(request)
        return None

    def _forget(self, request: Request) -> None:
        self._spool.give_up(request)
        self.unanswered.remove(request)
        self._seen.discard(request)  # its number may be another one's
        self._looked.pop(request, None)

    def _note(self, request: Request) -> None:
        if not request.job_id:
            return
        self._seen.add(request)
        self._arrays.add(request.job_id)
        for key in _jobs(request):
            self._ids[key] = JobId(request.job_id, key.index)
            self._intents[key] = self._spool.intent(request)
            self._counts[key] = self._counts.get(key, 0) + 1


def _jobs(request: Request) -> list[JobKey]:
    return [JobKey(request.array, index) for index in request.indices]
