"""Submits the jobs of a submission to an engine: in arrays, within the queue limit, none twice.

Before the engine is asked, each request is noted in the shared folder (its *intent*); after its
answer, the engine's id is noted, too. A request without an id means that its submitter was killed
or the answer was lost: the engine is then searched for it before any of its jobs is requested
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby

from radt.cluster.engine import ArrayRequest, Engine, JobId, JobState
from radt.cluster.spool import Spool
from radt.cluster.submission import JobKey, Request
from radt.errors import ClusterError, EngineAwayError, SubmitLimitError

#: More jobs are submitted once this fraction (1/n) of the window is free, or all the rest fits.
_PART_TO_REFILL = 4
#: Number of failed searches after which an intent counts as never received. One is not enough: the
#: request of a killed submitter may still be on its way.
_SEARCHES_FOR_INTENT = 2


class Submitter:
    """Submits jobs, and knows the engine's ids of all submitted ones.

    Args:
        build: Builds the engine's request from a `Request`.
        max_jobs: Maximum number of jobs that wait or run at a time; None for no limit.

    Raises:
        OSError: The shared folder cannot be read.

    A method that raises OSError or EngineAwayError midway may be called again.
    """

    def __init__(
        self,
        spool: Spool,
        engine: Engine,
        build: Callable[[Request], ArrayRequest],
        *,
        max_jobs: int | None = None,
    ) -> None:
        self.spool = spool
        self.engine = engine
        self._build = build
        self._most = max_jobs
        #: Number of jobs that the engine accepted when it refused more; None before that.
        self._window: int | None = None
        self._searched: dict[Request, int] = {}
        self._seen: set[Request] = set()
        #: Requests with an id, by job.
        self._answered: defaultdict[JobKey, list[Request]] = defaultdict(list)
        self._arrays: set[str] = set()
        #: Requests whose ids are unknown.
        self.unanswered: list[Request] = []
        #: Why the engine refuses jobs permanently, by job.
        self.refused: dict[JobKey, ClusterError] = {}
        self.refresh()

    # Queries --------------------------------------------------------------------------------------

    def refresh(self) -> set[JobKey]:
        """Read the requests: another process may have made some, or an error hidden some.

        Returns:
            The jobs of new requests.

        Raises:
            OSError: The shared folder cannot be read.
        """
        requests = self.spool.requests()
        self.unanswered = [request for request in requests if not request.job_id]
        new = [request for request in requests if request not in self._seen]
        for request in new:
            self._note(request)
        self._seen.update(self.unanswered)
        return {job for request in new for job in _jobs(request)}

    def job_id(self, job: JobKey) -> JobId | None:
        """Return the engine's id of a job's last submission; None if there is none."""
        requests = self._answered.get(job)
        return JobId(requests[-1].job_id, job.index) if requests else None

    def is_of(self, job: JobKey, state: JobState) -> bool:
        """Return True if a state is that of the job, by its intent.

        A controller that lost its newest state may have given the job's number to a later job.
        """
        requests = self._answered.get(job)
        return state.intent in (None, self.spool.intent(requests[-1]) if requests else None)

    def submissions(self, job: JobKey) -> int:
        """Return the number of times a job was submitted."""
        return len(self._answered.get(job, ()))

    @property
    def asked_for(self) -> set[JobKey]:
        """Return the jobs of requests without an answer."""
        return {job for request in self.unanswered for job in _jobs(request)}

    # Submission -----------------------------------------------------------------------------------

    def recover(self, started: Callable[[JobKey], Collection[str]]) -> Iterator[JobKey]:
        """Find requests whose answer was lost; yield jobs that the engine never received.

        Args:
            started: Returns the engine's ids of the arrays that started a job, from its attempts.

        Raises:
            EngineAwayError: The engine does not answer.
            OSError: The shared folder cannot be read or written.
        """
        for request in tuple(self.unanswered):
            found = self.engine.find(self.spool.intent(request))
            if found is None:  # the engine may have run and forgotten it already
                ids = {name for job in _jobs(request) for name in started(job)}
                found = next(iter(sorted(ids - self._arrays)), None)
            if found is not None:
                self._note(self.spool.submitted(request, found))
                self.unanswered.remove(request)
                continue
            self._searched[request] = self._searched.get(request, 0) + 1
            if self._searched[request] >= _SEARCHES_FOR_INTENT:
                self._forget(request)
                yield from _jobs(request)

    def submit(self, jobs: Sequence[JobKey], unended: int) -> Iterator[JobKey]:
        """Submit as many of the jobs as the limits allow, in order; yield each submitted one.

        Jobs that the engine will never accept are added to `refused`.

        Args:
            jobs: Jobs waiting for submission; none is in a request.
            unended: Number of this submission's jobs that wait or run.

        Raises:
            EngineAwayError: The engine does not answer; the request is in `unanswered`.
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
            if left:  # the engine refused more
                self._window = max(1, unended + submitted)
                return
        if self._window is not None:  # all were accepted: try more next time
            self._window += max(1, self._window // _PART_TO_REFILL)

    def _ask(self, array: int, indices: Sequence[int]) -> ClusterError | None:
        request = self.spool.intend(array, indices)
        self.unanswered.append(request)
        self._seen.add(request)
        try:
            job_id = self.engine.submit(self._build(request))
        except EngineAwayError:
            raise
        except ClusterError as error:
            self._forget(request)
            return error
        self._note(self.spool.submitted(request, job_id))
        self.unanswered.remove(request)
        return None

    def _forget(self, request: Request) -> None:
        self.spool.give_up(request)
        self.unanswered.remove(request)
        self._seen.discard(request)
        self._searched.pop(request, None)

    def _note(self, request: Request) -> None:
        if not request.job_id:
            return
        self._seen.add(request)
        self._arrays.add(request.job_id)
        for key in _jobs(request):
            self._answered[key].append(request)


def _jobs(request: Request) -> list[JobKey]:
    return [JobKey(request.array, index) for index in request.indices]
