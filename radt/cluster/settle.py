"""Derives the statuses of a job's rows, and the next action, from the reports of engine and nodes.

Pure functions: `settle` is called again after every change.

A node's report takes precedence over the engine's: if an attempt reports that it has ended and run
all of its rows, the engine is not needed. Only the engine knows why an attempt was asked to end, or
why it ended without a report. The newest of several attempts counts; rows that earlier attempts
finished stay finished.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from radt.cluster.attempt import PREEMPTED, TIME_LIMIT, AttemptView
from radt.cluster.engine import JobEnd, JobState, Phase
from radt.cluster.spool import MOST_ATTEMPTS
from radt.cluster.submission import SubmittedRow
from radt.experiment.columns import QUEUED, parse_status
from radt.experiment.status import RowStatus
from radt.model import RunStatus

NO_REPORT = "the job ended without reporting a result"
STARTED_TOO_OFTEN = f"started {MOST_ATTEMPTS} times"
LOST = "lost"
#: Seconds until a job is lost that the engine has forgotten and that sends no heartbeat.
LOST_S = 300.0
#: Seconds to wait for the report of a job that has ended according to the engine: a network file
#: system may show new files up to a minute late.
OUTCOME_S = 90.0
#: The same for a stopped job, because the user waits for its end.
_STOPPED_S = 10.0
#: Messages in a job's log when the engine only knows that it failed: those of slurmd, with cgroups
#: and without.
OVER_MEMORY = re.compile(r"exceeded (?:job |step )?memory limit|oom[_-]kill", re.IGNORECASE)
#: Reasons of jobs that were ended from outside.
_ENDS: Mapping[JobEnd, str] = {
    JobEnd.TIMEOUT: TIME_LIMIT,
    JobEnd.PREEMPTED: PREEMPTED,
    JobEnd.NODE_FAIL: "its node failed",
    JobEnd.BOOT_FAIL: "its node did not start",
    JobEnd.DEADLINE: "the job's deadline",
    JobEnd.CANCELLED: "the job was cancelled",
}
#: Ends of jobs that ended by themselves.
_BY_ITSELF = (JobEnd.COMPLETED, JobEnd.FAILED)
#: Ends without preemption, whatever signal the job got: such jobs are not submitted again.
_BY_ORDER = (JobEnd.CANCELLED, JobEnd.DEADLINE, JobEnd.TIMEOUT)


class Next(StrEnum):
    """The next action for a job."""

    WAIT = "wait"
    DONE = "done"
    SUBMIT = "submit again"
    CANCEL = "cancel"  # its rows are done, but the engine still has it


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The known facts about a job.

    ``state`` is None if the engine no longer has the job, or was not asked yet. ``silent_s`` is the
    time since the last change of the engine's state or of the attempts; 0 while the engine does not
    answer. ``submissions`` is the number of times it was submitted. ``holds`` are the reasons for
    which jobs were told not to begin, ``stopped`` is why it was stopped. ``log_line`` is the last
    line of the job's log, or its line about exceeded memory. ``is_forgotten`` says that the engine
    lost the whole array soon after its submission, as only a controller that lost its newest state
    does.
    """

    job_id: str
    state: JobState | None = None
    attempts: Sequence[AttemptView] = ()
    silent_s: float = 0.0
    submissions: int = 1
    holds: Collection[str] = ()
    stopped: str = ""
    log_line: str = ""
    is_forgotten: bool = False


@dataclass(frozen=True, slots=True)
class Settlement:
    """The status of a job's rows, by line, and the next action.

    ``never_began`` is why the job ended before it ran any row; "" if it ran one or continues.
    """

    next: Next
    rows: Mapping[int, RowStatus] = field(default_factory=dict)
    never_began: str = ""


def settle(job: JobFacts, rows: Sequence[SubmittedRow], outcome_s: float = OUTCOME_S) -> Settlement:
    """Return the statuses of a job's rows and the next action; see `OUTCOME_S`."""
    return _Case(job, rows, outcome_s).settled()


class _Case:
    def __init__(self, job: JobFacts, rows: Sequence[SubmittedRow], outcome_s: float) -> None:
        self._job = job
        self._rows = rows
        self._outcome_s = outcome_s
        self._newest = job.attempts[-1] if job.attempts else None
        self._known = _known(job.attempts, rows)
        self._left = [row for row in rows if not row.is_over(self._text(row))]

    def settled(self) -> Settlement:
        newest, state = self._newest, self._job.state
        if newest is not None and newest.ended and not self._left:
            return self._as_known(Next.DONE)
        if state is None:
            return self._unknown()
        match state.phase:
            case Phase.QUEUED | Phase.HELD:
                if len(self._job.attempts) >= MOST_ATTEMPTS:
                    return self._killed(STARTED_TOO_OFTEN, Next.CANCEL)
                return self._queued(state.reason or ("held" if state.phase is Phase.HELD else ""))
            case Phase.RUNNING:
                return self._running(state.nodes)
        has_run = newest is not None or bool(state.nodes)
        patience_s = _STOPPED_S if self._job.stopped else self._outcome_s
        if has_run and self._final_report is None and self._job.silent_s < patience_s:
            return self._running(state.nodes)
        return self._ended(state.end or JobEnd.FAILED)

    @property
    def _final_report(self) -> AttemptView | None:
        """Return the newest attempt if it reported its end and belongs to the job's last start."""
        newest = self._newest
        if newest is None or not newest.ended:
            return None
        is_older = newest.start is not None and newest.start.job_id != self._job.job_id
        return None if is_older else newest

    @property
    def _may_start_again(self) -> bool:
        return max(len(self._job.attempts), self._job.submissions) < MOST_ATTEMPTS

    @property
    def _has_lost_a_node(self) -> bool:
        """Return True if Slurm has restarted the job.

        If the lost node comes back, its srun ends the step of the same number, which now belongs to
        another node. A job submitted again has another number and is safe from that.
        """
        start = self._newest.start if self._newest is not None else None
        return start is not None and start.job_id == self._job.job_id and start.restarts > 0

    def _unknown(self) -> Settlement:
        """Settle a job that the engine does not know."""
        if self._final_report is not None:
            if self._job.silent_s < self._outcome_s:
                return self._running("")
            return self._ended(JobEnd.COMPLETED)
        silent_s = self._job.silent_s
        if self._job.stopped and silent_s >= _STOPPED_S:
            return self._killed(self._job.stopped)
        if self._newest is None and self._job.is_forgotten and self._may_start_again:
            if silent_s >= self._outcome_s:
                return self._queued("", Next.SUBMIT)
            return self._as_known(Next.WAIT)
        if silent_s < LOST_S:
            return self._as_known(Next.WAIT)
        return self._killed(LOST)

    def _ended(self, end: JobEnd) -> Settlement:
        """Settle an ended job with unfinished rows."""
        report = self._final_report
        if report is not None and report.reason in self._job.holds:
            if end in _BY_ITSELF:
                if self._may_start_again:
                    return self._queued("held", Next.SUBMIT)
                return self._killed(STARTED_TOO_OFTEN)
            report = None  # a held job ends by itself: the report is of an earlier start
        if report is not None:
            return self._after_final_report(report, end)
        if self._job.stopped:
            return self._killed(self._job.stopped)
        if end is JobEnd.OUT_OF_MEMORY or OVER_MEMORY.search(self._job.log_line):
            return self._all_left(RunStatus.OOM, "the job's memory")
        if end in _BY_ITSELF:
            if self._has_lost_a_node and self._may_start_again:
                return self._queued("ended with the node that it had lost", Next.SUBMIT)
            line = f": {self._job.log_line}" if self._job.log_line else ""
            reason = NO_REPORT + line
            never = "" if any(view.statuses for view in self._job.attempts) else reason
            return self._all_left(RunStatus.FAILED, reason, never_began=never)
        return self._killed(_ENDS[end])

    def _after_final_report(self, newest: AttemptView, end: JobEnd) -> Settlement:
        """Settle a job whose attempt reported its end without finishing all of its rows."""
        if not newest.statuses and newest.reason not in ("", PREEMPTED, self._job.stopped):
            return self._all_left(RunStatus.FAILED, newest.reason, never_began=newest.reason)
        if self._job.stopped:
            return self._killed(self._job.stopped)
        if end in _BY_ORDER:
            return self._killed(_ENDS[end])
        if newest.reason == PREEMPTED:
            # Slurm reports a job that ends within the grace time as COMPLETED and does not requeue.
            if self._may_start_again:
                return self._queued(PREEMPTED, Next.SUBMIT)
            return self._killed(STARTED_TOO_OFTEN)
        if not newest.statuses:
            return self._all_left(RunStatus.FAILED, NO_REPORT, never_began=NO_REPORT)
        untouched = [row for row in self._left if row.line not in newest.statuses]
        if untouched and self._has_progress and self._may_start_again:
            return self._queued(newest.reason, Next.SUBMIT)  # the rest of a bundle
        killed = RunStatus.KILLED
        own = {row.line for row in self._left if parse_status(self._text(row)) is killed}
        reason = newest.reason or _ENDS.get(end, NO_REPORT)
        return self._all_left(RunStatus.KILLED, reason, but=own)

    @property
    def _has_progress(self) -> bool:
        """Return True if the newest attempt finished a row that earlier ones did not."""
        before = _known(self._job.attempts[:-1], self._rows)
        assert self._newest is not None
        return any(
            row.is_over(self._newest.statuses[row.line].text)
            for row in self._rows
            if row.line in self._newest.statuses
            and not (row.line in before and row.is_over(before[row.line].text))
        )

    # Results --------------------------------------------------------------------------------------

    def _as_known(self, after: Next) -> Settlement:
        return Settlement(after, self._known)

    def _queued(self, reason: str, after: Next = Next.WAIT) -> Settlement:
        job_id = "" if after is Next.SUBMIT else self._job.job_id
        return self._all_left(QUEUED, " ".join(filter(None, (job_id, reason))), after)

    def _running(self, nodes: str) -> Settlement:
        start = self._newest.start if self._newest is not None else None
        where = nodes or (start.host if start is not None else "")
        rows = dict(self._known)
        for row in self._left:
            status = parse_status(self._text(row))
            # The reason of killed runs is known only once the engine says how the job ended.
            if status is RunStatus.RUNNING or (self._final_report and status is RunStatus.KILLED):
                rows[row.line] = self._row(row, RunStatus.RUNNING, where)
            elif status in (None, RunStatus.SCHEDULED):
                waits = " ".join(filter(None, (self._job.job_id, where)))
                rows[row.line] = self._row(row, QUEUED, waits)
        return Settlement(Next.WAIT, rows)

    def _killed(self, reason: str, after: Next = Next.DONE) -> Settlement:
        return self._all_left(RunStatus.KILLED, reason, after)

    def _all_left(
        self,
        status: str,
        reason: str,
        after: Next = Next.DONE,
        *,
        but: frozenset[int] | set[int] = frozenset(),
        never_began: str = "",
    ) -> Settlement:
        """Give all unfinished rows this status."""
        reason, never_began = " ".join(reason.split()), " ".join(never_began.split())
        rows = dict(self._known)
        for row in self._left:
            if row.line not in but:
                rows[row.line] = self._row(row, status, reason)
        return Settlement(after, rows, never_began)

    def _row(self, row: SubmittedRow, status: str, reason: str) -> RowStatus:
        known = self._known.get(row.line)
        return RowStatus(
            row.text(status, reason, self._text(row)), None if known is None else known.run_id
        )

    def _text(self, row: SubmittedRow) -> str:
        known = self._known.get(row.line)
        return "" if known is None else known.text


def _known(
    attempts: Sequence[AttemptView], rows: Sequence[SubmittedRow]
) -> Mapping[int, RowStatus]:
    """Return the statuses that attempts report; from earlier attempts only those of ended rows."""
    known: dict[int, RowStatus] = {}
    for row in rows:
        for view in reversed(attempts):
            status = view.statuses.get(row.line)
            if status is not None and (view is attempts[-1] or row.is_over(status.text)):
                known[row.line] = status
                break
            if view.kept is not None:
                break  # it includes the valid runs of earlier attempts, and their statuses
    return known
