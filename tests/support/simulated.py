"""A cluster in memory with a clock of its own: for tests, and for what thousands of rows cost.

Nodes are instances of one kind; jobs start in the order of their submission wherever they fit.
Failures are drawn from a seed, so a simulation repeats exactly.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from radt.cluster.engine import ArrayRequest, JobEnd, JobId, JobState, Phase, Shape
from radt.errors import ClusterError, EngineAwayError, SubmitLimitError

#: Seconds between asking a cancelled job to end and killing it; Slurm's default KillWait.
KILL_WAIT_S = 30.0
#: Seconds until a requeued job may start again; what Slurm takes.
REQUEUE_S = 120.0
#: Seconds that a preempted job has left; a GraceTime that sites use.
GRACE_S = 60.0
#: Seconds before its time limit at which a job is asked to end, or a quarter of a shorter limit.
LIMIT_NOTICE_S = 120.0


class Notice(StrEnum):
    """Why a job is asked to end."""

    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True, slots=True)
class SimulatedStart:
    """One start of a job, as its node runner sees it."""

    job: JobId
    request: ArrayRequest
    node: str
    restarts: int
    time_s: float


#: What runs on a node yields the seconds that it works until it goes on, is sent the notice that it
#: is to end (else None), and returns its exit code. One that is killed is closed.
Work = Generator[float, Notice | None, int]
NodeRunner = Callable[[SimulatedStart], Work]


def one_minute(_start: SimulatedStart) -> Work:
    """Work for a minute; end at once if asked to."""
    return 1 if (yield 60.0) else 0


@dataclass(slots=True)
class _Node:
    name: str
    free_gpus: int
    free_cpus: int
    jobs: set[JobId] = field(default_factory=set)
    up: bool = True


@dataclass(slots=True)
class _Job:
    """A job. ``starts`` and ``waits`` tell whether an event is of this start, and of this wait."""

    id: JobId
    request: ArrayRequest
    state: JobState = JobState(Phase.QUEUED, "Resources")  # noqa: RUF009 - frozen
    node: _Node | None = None
    work: Work | None = None
    starts: int = 0
    waits: int = 0
    cancelled: bool = False
    ended_s: float = 0.0

    def is_at(self, start: int) -> bool:
        """Whether it is still in this start."""
        return self.starts == start and self.state.phase is Phase.RUNNING


@dataclass(slots=True)
class _Array:
    request: ArrayRequest
    jobs: dict[int, _Job]
    queue: deque[_Job]


class SimulatedEngine:
    """An `Engine` whose time passes only in `advance`.

    Args:
        nodes: How many, each with ``gpus`` and ``cpus``.
        runner: What runs on a node; its ends are the ends of jobs.
        seed: Of the failures.
        node_failures: The share of starts (0 to 1) whose node fails, with all jobs on it.
        preemptions: The share of starts that are preempted.
        fault_within_s: Seconds within which, after a start, its failure or preemption comes.
        repair_s: Seconds after which a failed node is back.
        keep_ended_s: Seconds after which an ended job is forgotten (Slurm's MinJobAge).
        max_array_size: Jobs in an array, at most.
        max_queued: Jobs that are not ended, at most; more are refused with `SubmitLimitError`.

    Attributes:
        time_s: Its clock.
        is_away: Whether questions fail with `EngineAwayError`.
        lost_answers: How many of the next submissions succeed, but answer with `EngineAwayError`.
        questions: How often each method was called.
        unended: Jobs that have not ended.
    """

    name = "simulated"

    def __init__(
        self,
        nodes: int = 3,
        *,
        gpus: int = 2,
        cpus: int = 8,
        runner: NodeRunner = one_minute,
        seed: int = 0,
        node_failures: float = 0.0,
        preemptions: float = 0.0,
        fault_within_s: float = 60.0,
        repair_s: float = 600.0,
        keep_ended_s: float = 300.0,
        max_array_size: int = 1001,
        max_queued: int | None = None,
    ) -> None:
        self.time_s = 0.0
        self.is_away = False
        self.lost_answers = 0
        self.questions: Counter[str] = Counter()
        self.unended = 0
        self._gpus, self._cpus = gpus, cpus
        self._nodes = [_Node(f"node{number + 1}", gpus, cpus) for number in range(nodes)]
        self.runner = runner
        self._random = random.Random(seed)
        self._node_failures, self._preemptions = node_failures, preemptions
        self._fault_within_s, self._repair_s = fault_within_s, repair_s
        self._keep_ended_s = keep_ended_s
        self._max_array_size, self._max_queued = max_array_size, max_queued
        self._arrays: dict[str, _Array] = {}
        self._numbers = itertools.count(1)
        self._lost: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._schedules = False

    @property
    def arrays(self) -> set[str]:
        """The ids of all arrays that it has."""
        return set(self._arrays)

    def forget(self, array: str) -> None:
        """Lose an array, as a controller does that dies before it has saved its state: the next one
        gets its number."""
        self._lost.append(array)
        for job in self._arrays.pop(array).jobs.values():
            if job.state.phase is not Phase.ENDED:
                self.unended -= 1

    def drop(self, job: JobId) -> None:
        """Cancel a queued job and show it no more, as Slurm does."""
        self.cancel([job])
        del self._arrays[job.array].jobs[job.index]

    # Engine ---------------------------------------------------------------------------------------

    @property
    def max_array_size(self) -> int:
        return self._max_array_size

    def check(self, request: ArrayRequest) -> str:
        self._count("check")
        self._refuse(request)
        return "starts at once" if self._place(request.shape) else "starts later"

    def pick(self, request: ArrayRequest) -> str:
        self._count("check")
        self._refuse(request)
        return (self._place(request.shape) or self._nodes[0]).name

    def submit(self, request: ArrayRequest) -> str:
        self._count("submit")
        self._refuse(request)
        if self._max_queued is not None and self.unended + len(request.indices) > self._max_queued:
            raise SubmitLimitError("the cluster refuses: QOSMaxSubmitJobPerUserLimit")
        name = self._lost.pop() if self._lost else str(next(self._numbers))
        jobs = {index: _Job(JobId(name, index), request) for index in sorted(request.indices)}
        self._arrays[name] = _Array(request, jobs, deque(jobs.values()))
        self.unended += len(jobs)
        self._schedule()
        if self.lost_answers > 0:
            self.lost_answers -= 1
            raise EngineAwayError("the cluster does not answer: Socket timed out")
        return name

    def find(self, intent: str) -> str | None:
        self._count("find")
        self._forget()
        return next(
            (n for n, array in self._arrays.items() if array.request.intent == intent), None
        )

    def states(self, arrays: Collection[str]) -> Mapping[JobId, JobState]:
        self._count("states")
        self._forget()
        return {
            job.id: replace(job.state, intent=job.request.intent)
            for name in arrays
            if name in self._arrays
            for job in self._arrays[name].jobs.values()
        }

    def past(self, jobs: Collection[JobId]) -> Mapping[JobId, JobState]:
        self._count("past")
        return {}

    def cancel(self, jobs: Collection[JobId], *, now: bool = False) -> None:
        self._count("cancel")
        for job in self._known(jobs):
            if job.state.phase in (Phase.QUEUED, Phase.HELD):
                self._end(job, JobEnd.CANCELLED)
            elif job.state.phase is Phase.RUNNING:
                job.cancelled = True
                if not now:
                    self._notify(job, job.starts, Notice.CANCELLED)
                self._in(
                    0.0 if now else KILL_WAIT_S,
                    partial(self._end_start, job, job.starts, JobEnd.CANCELLED),
                )

    def release(self, jobs: Collection[JobId]) -> None:
        self._count("release")
        for job in self._known(jobs):
            if job.state.phase is Phase.HELD:
                self._queue(job)

    def hold(self, jobs: Collection[JobId]) -> None:
        self._count("hold")
        for job in self._known(jobs):
            if job.state.phase is Phase.QUEUED:
                job.state = JobState(Phase.HELD, "JobHeldUser")

    # Time and faults ------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass, with all that happens in it."""
        until_s = self.time_s + seconds
        while self._events and self._events[0][0] <= until_s:
            self.time_s, _, event = heapq.heappop(self._events)
            event()
        self.time_s = until_s

    def fail_node(self, name: str) -> None:
        """Let a node fail now: its jobs are killed and queued again; it is back after a while."""
        node = next(node for node in self._nodes if node.name == name)
        node.up = False
        for job in self._known(sorted(node.jobs)):
            self._requeue(job)
        self._in(self._repair_s, partial(self._repair, node))

    def preempt(self, job: JobId) -> None:
        """Ask a running job to end; if it has not after the grace, it is killed and queued again.

        One that ends within the grace is not queued again, as with Slurm.
        """
        (running,) = self._known([job])
        self._notify(running, running.starts, Notice.PREEMPTED)
        self._in(GRACE_S, partial(self._out_of_grace, running, running.starts))

    # Inside ---------------------------------------------------------------------------------------

    def _count(self, question: str) -> None:
        self.questions[question] += 1
        if self.is_away:
            raise EngineAwayError("the cluster does not answer: Unable to contact controller")

    def _in(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.time_s + seconds, next(self._numbers), event))

    def _known(self, jobs: Collection[JobId]) -> list[_Job]:
        arrays = self._arrays
        return [
            arrays[job.array].jobs[job.index]
            for job in jobs
            if job.array in arrays and job.index in arrays[job.array].jobs
        ]

    def _forget(self) -> None:
        """Drop jobs that ended long ago."""
        oldest_s = self.time_s - self._keep_ended_s
        for name, array in list(self._arrays.items()):
            for job in list(array.jobs.values()):
                if job.state.phase is Phase.ENDED and job.ended_s < oldest_s:
                    del array.jobs[job.id.index]
            if not array.jobs:
                del self._arrays[name]

    def _needs(self, shape: Shape) -> tuple[int, int]:
        if shape.exclusive:
            return self._gpus, self._cpus
        return shape.gpus, shape.cpus or 1

    def _refuse(self, request: ArrayRequest) -> None:
        gpus, cpus = self._needs(request.shape)
        if gpus > self._gpus or cpus > self._cpus or request.shape.nodes > 1:
            raise ClusterError(
                "the cluster refuses: Requested node configuration is not available",
                "Ask for what its nodes have",
            )
        if len(request.indices) > self._max_array_size:
            raise ClusterError("the cluster refuses: Invalid job array specification")

    def _place(self, shape: Shape) -> _Node | None:
        gpus, cpus = self._needs(shape)
        return next(
            (
                node
                for node in self._nodes
                if shape.node in ("", node.name)
                and node.up
                and node.free_gpus >= gpus
                and node.free_cpus >= cpus
            ),
            None,
        )

    def _queue(self, job: _Job) -> None:
        job.state = JobState(Phase.QUEUED, "Resources")
        self._arrays[job.id.array].queue.append(job)
        self._schedule()

    def _schedule(self) -> None:
        """Start what fits, once all that happens at this moment has happened."""
        if not self._schedules:
            self._schedules = True
            self._in(0.0, self._start_jobs)

    def _start_jobs(self) -> None:
        self._schedules = False
        for array in self._arrays.values():
            while array.queue:
                node = self._place(array.request.shape)
                if node is None:
                    break
                job = array.queue.popleft()
                if job.state.phase is Phase.QUEUED:  # not held, ended or queued twice
                    self._begin(job, node)

    def _begin(self, job: _Job, node: _Node) -> None:
        gpus, cpus = self._needs(job.request.shape)
        node.free_gpus -= gpus
        node.free_cpus -= cpus
        node.jobs.add(job.id)
        job.node = node
        job.state = JobState(Phase.RUNNING, nodes=node.name)
        job.work = self.runner(
            SimulatedStart(job.id, job.request, node.name, job.starts, self.time_s)
        )
        job.starts += 1
        limit_s = job.request.shape.time_s
        if limit_s is not None:
            early_s = min(LIMIT_NOTICE_S, limit_s / 4)
            notify = partial(self._notify, job, job.starts, Notice.TIME_LIMIT)
            self._in(limit_s - early_s, notify)
            self._in(limit_s, partial(self._end_start, job, job.starts, JobEnd.TIMEOUT))
        self._draw_faults(job, node)
        self._go_on(job, job.starts, job.waits)

    def _draw_faults(self, job: _Job, node: _Node) -> None:
        # Always all draws, so that one rate does not change the other's victims.
        fails, preempted, share = (self._random.random() for _ in range(3))
        start, after_s = job.starts, share * self._fault_within_s

        def fault() -> None:
            if not job.is_at(start):
                return
            if fails < self._node_failures:
                self.fail_node(node.name)
            else:
                self.preempt(job.id)

        if fails < self._node_failures or preempted < self._preemptions:
            self._in(after_s, fault)

    def _go_on(self, job: _Job, start: int, waits: int, notice: Notice | None = None) -> None:
        """Let the job's work go on after a wait, if it is still in it."""
        if not job.is_at(start) or job.waits != waits:
            return
        assert job.work is not None
        job.waits += 1
        try:
            work_s = job.work.send(notice)
        except StopIteration as stop:
            end = JobEnd.COMPLETED if stop.value == 0 else JobEnd.FAILED
            self._end(job, JobEnd.CANCELLED if job.cancelled else end)
        else:
            self._in(work_s, partial(self._go_on, job, start, job.waits))

    def _notify(self, job: _Job, start: int, notice: Notice) -> None:
        """Let the job's work go on at once, with a notice: what it does then is its matter."""
        if job.is_at(start):
            self._in(0.0, partial(self._go_on, job, start, job.waits, notice))

    def _end_start(self, job: _Job, start: int, end: JobEnd) -> None:
        if job.is_at(start):
            self._end(job, end)

    def _out_of_grace(self, job: _Job, start: int) -> None:
        if job.is_at(start):
            self._requeue(job)

    def _repair(self, node: _Node) -> None:
        node.up = True
        self._schedule()

    def _stop(self, job: _Job) -> None:
        """Take a job off its node; its work ends without a word."""
        if job.work is not None:
            job.work.close()
            job.work = None
        if job.node is not None:
            gpus, cpus = self._needs(job.request.shape)
            job.node.free_gpus += gpus
            job.node.free_cpus += cpus
            job.node.jobs.remove(job.id)
            job.node = None
            self._schedule()

    def _requeue(self, job: _Job) -> None:
        if job.cancelled:
            self._end(job, JobEnd.CANCELLED)
            return
        self._stop(job)
        job.state = JobState(Phase.QUEUED, "BeginTime")
        self._in(REQUEUE_S, partial(self._queue_again, job, job.starts))

    def _queue_again(self, job: _Job, start: int) -> None:
        if job.starts == start and job.state.phase is Phase.QUEUED:
            self._queue(job)

    def _end(self, job: _Job, end: JobEnd) -> None:
        nodes = job.state.nodes
        self._stop(job)
        job.state = JobState(Phase.ENDED, nodes=nodes, end=end)
        job.ended_s = self.time_s
        self.unended -= 1
