"""The nodes of a simulated cluster: they write attempts as node runners do, and run nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence

from radt.cluster.attempt import BEAT_S, PREEMPTED, TIME_LIMIT, AttemptStart, JobAttempt
from radt.cluster.spool import Spool
from radt.cluster.submission import JobKey, SubmittedRow
from radt.experiment.plan import WorkloadKey
from radt.experiment.status import RowStatus
from radt.model import RunStatus
from tests.support.simulated import Notice, SimulatedStart, Work

_REASONS: Mapping[Notice, str] = {
    Notice.PREEMPTED: PREEMPTED,
    Notice.CANCELLED: PREEMPTED,  # a node cannot tell them apart
    Notice.TIME_LIMIT: TIME_LIMIT,
}


class SimulatedNodes:
    """A `tests.support.simulated.NodeRunner` of a submission.

    Args:
        spool: The submission.
        seconds: That a workload takes.

    Attributes:
        finished: How often each workload came to its end.
        ended: How the rows of a workload end; FINISHED unless it says otherwise.
    """

    def __init__(self, spool: Spool, seconds: float = 60.0) -> None:
        self._spool = spool
        self._rows = spool.submission.rows
        self._seconds = seconds
        self.finished: Counter[WorkloadKey] = Counter()
        self.ended: dict[WorkloadKey, str] = {}

    def __call__(self, start: SimulatedStart) -> Work:
        job = JobKey(int(start.request.intent.split(":")[2]), start.job.index)
        rows = [row for key in self._spool.submission.workloads(job) for row in self._rows[key]]
        statuses = self._carried(job, rows)
        attempt = self._spool.claim(job)
        attempt.begin(AttemptStart(start.node, str(start.job), 0, "simulated", start.restarts))
        attempt.output_log.write_text("a run prints something\n")
        self._spool.job_log(job.array, str(start.job)).touch()
        for key in self._spool.submission.workloads(job):
            if all(row.line in statuses for row in self._rows[key]):
                continue
            notice = yield from self._run(attempt, key, statuses)
            if notice is not None:
                attempt.put_statuses(statuses, ended=True, reason=_REASONS[notice])
                return 1
        attempt.put_statuses(statuses, ended=True)
        return 0

    def _run(
        self, attempt: JobAttempt, key: WorkloadKey, statuses: dict[int, RowStatus]
    ) -> Generator[float, Notice | None, Notice | None]:
        """Work for as long as a workload takes; return why it was asked to end, if it was."""
        rows = self._rows[key]
        job = attempt.path.parent.parent.name
        ids = {row.line: f"{job}-{attempt.number}-{row.line}" for row in rows}

        def put(text: str, reason: str = "") -> None:
            for row in rows:
                statuses[row.line] = RowStatus(row.text(text, reason), ids[row.line])

        put(RunStatus.RUNNING)
        attempt.put_statuses(statuses)
        left_s = self._seconds
        while left_s > 0:
            wait_s = min(BEAT_S, left_s)
            notice = yield wait_s
            if notice is not None:
                put(RunStatus.KILLED, _REASONS[notice])
                return notice
            attempt.beat()
            left_s -= wait_s
        self.finished[key] += 1
        put(self.ended.get(key, RunStatus.FINISHED))
        attempt.put_statuses(statuses)
        return None

    def _carried(self, job: JobKey, rows: Sequence[SubmittedRow]) -> dict[int, RowStatus]:
        """What earlier attempts brought to its end."""
        said = [attempt.view().statuses for attempt in self._spool.attempts(job)]
        return {
            row.line: statuses[row.line]
            for statuses in said
            for row in rows
            if row.line in statuses and row.is_over(statuses[row.line].text)
        }
