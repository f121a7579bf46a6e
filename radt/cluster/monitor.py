"""Monitors a submission: the state of its jobs, step by step, until all of them are settled.

`SubmissionMonitor.step` is called often and decides by itself what to do. It queries the engine
once in 15 s at most (less and less often while the engine does not answer), reads the shared folder
every 5 s, submits jobs as limits allow, and returns changed statuses. It can be interrupted at any
point and continued by another process: its state is in the shared folder and the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from radt.cluster.attempt import AttemptView
from radt.cluster.engine import REST, JobEnd, JobId, JobState, Phase
from radt.cluster.settle import (
    OUTCOME_S,
    OVER_MEMORY,
    JobFacts,
    Next,
    Settlement,
    settle,
)
from radt.cluster.spool import MOST_UNFIT
from radt.cluster.submission import JobKey, SubmittedRow
from radt.cluster.submit import Submitter
from radt.errors import EngineAwayError
from radt.experiment.columns import QUEUED
from radt.experiment.plan import WorkloadKey
from radt.experiment.status import RowStatus
from radt.model import RunStatus
from radt.runner.output import last_lines
from radt.units import plural

POLL_S = 15.0
LONGEST_POLL_S = 300.0
#: Number of scans of the shared folder per poll of the engine.
_SCANS_PER_POLL = 3
#: Slurm keeps ended jobs for 300 s (MinJobAge). A job that is missing earlier was lost with the
#: controller's state.
FORGOTTEN_S = 240.0
_TAIL_BYTES = 4096
#: State of a job that is missing although others of its array are listed, and that never began.
_CANCELLED = JobState(Phase.ENDED, end=JobEnd.CANCELLED)


@dataclass(slots=True)
class MonitoredJob:
    """A job and its known state; ``changed_s`` is the time of the last change.

    ``submitted_s`` is when this process submitted it; see `JobFacts` for ``is_forgotten``.
    """

    key: JobKey
    workloads: Mapping[WorkloadKey, Sequence[SubmittedRow]]
    state: JobState | None = None
    views: Sequence[AttemptView] = ()
    changed_s: float = 0.0
    scanned_at_poll: int = 0
    submitted_s: float | None = None
    is_forgotten: bool = False

    @property
    def rows(self) -> list[SubmittedRow]:
        return [row for rows in self.workloads.values() for row in rows]

    @property
    def has_reported_end(self) -> bool:
        """Return True if its newest attempt has reported its end."""
        return bool(self.views) and self.views[-1].ended

    @property
    def is_running(self) -> bool:
        return self.state is not None and self.state.phase is Phase.RUNNING

    @property
    def has_ended(self) -> bool:
        return self.state is not None and self.state.phase is Phase.ENDED

    @property
    def is_queued(self) -> bool:
        return self.state is not None and self.state.phase in (Phase.QUEUED, Phase.HELD)


@dataclass(slots=True)
class StepChanges:
    """The changes of a step: statuses by line, newly settled jobs, lines for people.

    ``has_looked`` says that the engine was queried or attempts were read. Between such steps, only
    jobs that could not be settled before can change.
    """

    has_looked: bool = False
    statuses: dict[int, RowStatus] = field(default_factory=dict)
    ended: list[MonitoredJob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class SubmissionMonitor:
    """Brings the jobs of a submission to their end, or only observes them.

    Args:
        submitter: Submits the jobs of the submission.
        outcome_s: See `radt.cluster.settle.OUTCOME_S`.
        observes_only: Do not submit, cancel or hold: another process does.
        poll_s: Seconds between queries of the engine.

    Attributes:
        spool: The submission's folder.
        jobs: Those that are not settled yet.
        statuses: The current status of all rows, by line.
        held: Why no further job starts; "" if jobs may start.
        away: Why the engine does not answer; "" while it does.
        remedy: What to do about that.
        folder_problem: What fails in the shared folder; "" while it works. Failed operations are
            retried.
    """

    def __init__(
        self,
        submitter: Submitter,
        *,
        outcome_s: float = OUTCOME_S,
        observes_only: bool = False,
        poll_s: float = POLL_S,
    ) -> None:
        self.spool = submitter.spool
        self._observes_only = observes_only
        self._engine = submitter.engine
        self._submitter = submitter
        self._outcome_s = outcome_s
        submission = self.spool.submission
        self.jobs = {
            key: MonitoredJob(
                key, {name: submission.rows[name] for name in submission.workloads(key)}
            )
            for key in submission.jobs
        }
        asked_for = submitter.asked_for
        #: Jobs still to be submitted.
        self._waiting = {
            key for key in self.jobs if submitter.job_id(key) is None and key not in asked_for
        }
        self.statuses: dict[int, RowStatus] = {}
        self._touched: set[JobKey] = set(self.jobs)
        self._next_poll_s = self._next_scan_s = 0.0
        self._usual_poll_s = self._poll_s = poll_s
        self._poll_count = 0
        self._engine_answers = False
        self._failures = 0
        self._releases = False
        self._was_held = False
        self._cancels: list[JobId] = []
        self.held = self._stopped = ""
        #: False if attempts could not be read.
        self._is_readable = True
        #: The failure of the shared folder in this step; "" for none.
        self._failed = ""
        self._noted: set[str] = set()
        self.away = self.remedy = ""
        self.folder_problem = ""

    @property
    def is_settled(self) -> bool:
        return not self.jobs and (self._observes_only or not self._cancels)

    @property
    def is_stuck(self) -> bool:
        """Return True if the rest is held and none of its jobs runs any more."""
        if not self.held or self._stopped:
            return False
        waiting = self._waiting
        return self._engine_answers and all(
            key in waiting or (job.state is not None and job.state.phase is Phase.HELD)
            for key, job in self.jobs.items()
        )

    @property
    def unsubmitted(self) -> set[JobKey]:
        """Return jobs that were not requested from the engine, or without an answer."""
        return self._waiting | self._submitter.asked_for

    def unended(self) -> list[JobId]:
        """Return the engine's ids of jobs that wait or run."""
        return self._ids(Phase.QUEUED, Phase.HELD, Phase.RUNNING)

    def status(self, row: SubmittedRow) -> str:
        """Return the current text of a row's Status cell; "" before the first."""
        return self.statuses[row.line].text if row.line in self.statuses else ""

    def job_id(self, job: MonitoredJob) -> str:
        """Return the engine's id of a job; "" while it has none."""
        return str(self._submitter.job_id(job.key) or "")

    def release(self) -> None:
        """Release held jobs; the engine gets the order with the next query.

        Raises:
            OSError: The shared folder cannot be written.
        """
        if self.spool.held:
            self.spool.release()
        # Also after a release by another process, which may not have reached the engine.
        self._releases = bool(self.spool.released)

    def step(self, now_s: float) -> StepChanges:
        """Query, submit and settle as far as the time for each has come.

        Operations that fail because of the shared folder are retried in a later step.

        Args:
            now_s: Time of a monotonic clock.

        Raises:
            ClusterError: The engine refuses to answer.
        """
        changes = StepChanges()
        self._failed = ""
        asks = now_s >= self._next_poll_s
        changes.has_looked = asks or now_s >= self._next_scan_s
        self._scan_if_due(now_s)
        if asks:
            self._ask(now_s, changes)
            self._scan_if_due(now_s)
        with self._folder():
            self._settle(now_s, changes, all_silent=asks)
            self._note_hold(changes)
        self._note_folder(changes, asks=asks)
        return changes

    @contextmanager
    def _folder(self) -> Iterator[None]:
        """Note an error of the shared folder (full, unreachable, corrupt) and continue."""
        try:
            yield
        except OSError as error:
            self._failed = f"{error.filename or self.spool.path}: {error.strerror or error}"

    def _note_folder(self, changes: StepChanges, *, asks: bool) -> None:
        """Report once that the shared folder fails, once that it recovered, and any oddities."""
        if self._failed and not self.folder_problem:
            changes.notes.append(f"{self._failed}; jobs go on, and radt tries again")
        elif self.folder_problem and asks and not self._failed:
            changes.notes.append("the shared folder works again")
        if self._failed or asks:
            self.folder_problem = self._failed
        changes.notes += [text for text in self.spool.problems if text not in self._noted]
        self._noted.update(self.spool.problems)

    # The engine -----------------------------------------------------------------------------------

    def _ask(self, now_s: float, changes: StepChanges) -> None:
        self._poll_count += 1
        try:
            with self._folder():
                new = self._submitter.refresh()
                self._waiting -= new
                self._touched |= new
                if not self._observes_only:
                    self._waiting.update(self._submitter.recover(self._started_by))
                    self._waiting &= self.jobs.keys()
                    self._submit(now_s, changes)
            ids = (self._submitter.job_id(key) for key in self.jobs)
            arrays = dict.fromkeys(job.array for job in ids if job is not None)
            self._take(self._engine.states(list(arrays)), now_s)
            self._ask_for_the_past(now_s)
            with self._folder():
                self._give_orders()
        except EngineAwayError as error:
            if not self.away:
                changes.notes.append(
                    f"{error.message}; jobs go on, statuses stay as they are, and radt asks again"
                )
            self.away, self.remedy = error.message, error.remedy or ""
            self._engine_answers = False
            self._next_poll_s = now_s + self._poll_s
            self._poll_s = min(2 * self._poll_s, LONGEST_POLL_S)
            return
        if not self._engine_answers:  # restart the silence: jobs may have changed in the meantime
            for job in self.jobs.values():
                job.changed_s = now_s
        if self.away:
            changes.notes.append(f"{self._engine.name} answers again")
        self.away, self.remedy = "", ""
        self._engine_answers, self._poll_s = True, self._usual_poll_s
        self._next_poll_s = now_s + self._usual_poll_s
        self._next_scan_s = now_s

    def _submit(self, now_s: float, changes: StepChanges) -> None:
        if not self._waiting or self.spool.stopped or self.spool.held:
            return
        unended = sum(
            key not in self._waiting and not job.has_ended for key, job in self.jobs.items()
        )
        try:
            for key in self._submitter.submit(sorted(self._waiting), unended):
                self._waiting.discard(key)
                self._touched.add(key)
                self.jobs[key].submitted_s = now_s
        finally:  # unanswered requests must not be made a second time
            self._waiting -= self._submitter.asked_for
        for key, error in self._submitter.refused.items():
            if key in self._waiting:
                self._waiting.remove(key)
                job = self.jobs[key]
                self._end_rest(job, RunStatus.FAILED, error.message, changes)

    def _take(self, states: Mapping[JobId, JobState], now_s: float) -> None:
        unsubmitted = self.unsubmitted
        # One state per array is enough: all jobs of an array belong to one request.
        arrays = {job_id.array: state for job_id, state in states.items()}
        for key, job in self.jobs.items():
            job_id = self._submitter.job_id(key)
            state = None
            if job_id is not None and key not in unsubmitted:
                of_array = arrays.get(job_id.array)
                is_listed = of_array is not None and self._submitter.is_of(key, of_array)
                state = states.get(job_id) if is_listed else None
                before = None if job.state is None else job.state.phase
                if state is None and before is Phase.ENDED:
                    state = job.state  # the engine has forgotten it, but its end is known
                elif state is None and is_listed and not job.views:
                    state = states.get(JobId(job_id.array, REST))
                    # A job that ran, or whose attempts cannot be read, may have finished.
                    if state is None and before is not Phase.RUNNING and self._is_readable:
                        state = _CANCELLED
                elif state is None and before is not Phase.RUNNING:
                    age_s = inf if job.submitted_s is None else now_s - job.submitted_s
                    job.is_forgotten |= age_s < FORGOTTEN_S
            if state != job.state:
                job.state, job.changed_s = state, now_s
                self._touched.add(key)

    def _ask_for_the_past(self, now_s: float) -> None:
        """Query the accounting for silent jobs that the engine has forgotten."""
        unsubmitted = self.unsubmitted
        forgotten = {
            job_id: job
            for key, job in self.jobs.items()
            if job.state is None
            and key not in unsubmitted
            and self._silent_s(job, now_s) >= self._outcome_s
            and (job_id := self._submitter.job_id(key)) is not None
        }
        if forgotten:
            for job_id, state in self._engine.past(list(forgotten)).items():
                # Otherwise the accounting lags: the controller was asked and has no such job.
                if state.phase is Phase.ENDED:
                    forgotten[job_id].state = state
                    self._touched.add(forgotten[job_id].key)

    def _give_orders(self) -> None:
        """Cancel, hold or release jobs; repeated with each query as long as it is needed."""
        if self._observes_only:
            return
        if self._cancels:
            self._engine.cancel(self._cancels)
            self._cancels = []
        if self._releases:
            self._engine.release(self._ids(Phase.HELD))
            self._releases = False
        elif self.spool.stopped:
            if ids := self.unended():
                self._engine.cancel(ids)
        elif self.spool.held and (ids := self._ids(Phase.QUEUED)):
            self._engine.hold(ids)

    def _ids(self, *phases: Phase) -> list[JobId]:
        found = []
        for key, job in self.jobs.items():
            job_id = self._submitter.job_id(key)
            if job_id is not None and job.state is not None and job.state.phase in phases:
                found.append(job_id)
        return found

    # The folder -----------------------------------------------------------------------------------

    def _scan_if_due(self, now_s: float) -> None:
        """Read attempts that may have changed, if it is time to."""
        if now_s < self._next_scan_s:
            return
        self._next_scan_s = now_s + self._usual_poll_s / _SCANS_PER_POLL
        self._is_readable = False
        with self._folder():
            for key in self.spool.started_jobs() & self.jobs.keys():
                job = self.jobs[key]
                if not (job.is_queued and job.views and job.scanned_at_poll == self._poll_count):
                    self._read_attempts(job, now_s)
                    job.scanned_at_poll = self._poll_count
            self._is_readable = True
        # If nothing can be read, silence says nothing about a job.
        self._engine_answers &= self._is_readable

    def _read_attempts(self, job: MonitoredJob, now_s: float) -> None:
        attempts = self.spool.attempts(job.key)
        seen = max(0, len(job.views) - 1)  # the last one may have changed since
        views = [*job.views[:seen], *(attempt.view() for attempt in attempts[seen:])]
        if views != job.views:
            job.views, job.changed_s = views, now_s
            self._touched.add(job.key)

    def _started_by(self, key: JobKey) -> Collection[str]:
        """Return the engine's ids of the arrays that started a job."""
        starts = (attempt.view().start for attempt in self.spool.attempts(key))
        return {start.job_id.partition("_")[0] for start in starts if start is not None}

    # Settling jobs --------------------------------------------------------------------------------

    def _settle(self, now_s: float, changes: StepChanges, *, all_silent: bool) -> None:
        self.held, self._stopped = self.spool.held, self.spool.stopped
        holds = [reason for reason in (self.held, self.spool.released) if reason]
        unsubmitted, touched = self.unsubmitted, self._touched & self.jobs.keys()
        if all_silent:
            touched |= {k for k, job in self.jobs.items() if job.state is None or job.has_ended}
        for key in sorted(touched):
            job, is_in = self.jobs[key], key not in unsubmitted
            with self._folder():  # a job that cannot be settled now must not block others
                self._settle_job(job, holds, now_s, changes, is_in=is_in)
                self._touched.discard(key)
        self._touched &= self.jobs.keys()

    def _settle_job(
        self,
        job: MonitoredJob,
        holds: Sequence[str],
        now_s: float,
        changes: StepChanges,
        *,
        is_in: bool,
    ) -> None:
        """Settle one job; ``is_in`` is True if the engine has it."""
        job_id = self._submitter.job_id(job.key)
        if not is_in or job_id is None:
            if self._stopped and job.key in self._waiting:
                self._waiting.remove(job.key)
                self._end_rest(job, RunStatus.KILLED, self._stopped, changes)
            elif any(row.line not in self.statuses for row in job.rows):
                self._say({row.line: RowStatus(row.text(QUEUED)) for row in job.rows}, changes)
            return
        facts = JobFacts(
            str(job_id),
            job.state,
            job.views,
            self._silent_s(job, now_s),
            self._submitter.submissions(job.key),
            holds,
            self._stopped,
            "" if job.has_reported_end or not job.has_ended else self._last_line(job),
            job.is_forgotten,
        )
        self._follow_up(job, settle(facts, job.rows, self._outcome_s), job_id, changes)

    def _follow_up(
        self, job: MonitoredJob, settlement: Settlement, job_id: JobId, changes: StepChanges
    ) -> None:
        if settlement.next is not Next.WAIT and not self._observes_only:
            log = self.spool.job_log(job.key.array, str(job_id))
            with suppress(OSError):  # there may be none; one per job would be a lot of files
                if not log.stat().st_size:
                    log.unlink()
        match settlement.next:
            case Next.WAIT:
                self._say(settlement.rows, changes)
            case Next.SUBMIT:
                self._say(settlement.rows, changes)
                if self._stopped:
                    self._end_rest(job, RunStatus.KILLED, self._stopped, changes)
                else:
                    self._waiting.add(job.key)
                    job.state, job.is_forgotten = None, False
            case Next.DONE | Next.CANCEL:
                if settlement.next is Next.CANCEL:
                    self._cancels.append(job_id)
                self._end(job, settlement.rows, changes)
                self._count_failure(settlement.never_began)

    def _end(self, job: MonitoredJob, rows: Mapping[int, RowStatus], changes: StepChanges) -> None:
        self._say(rows, changes)
        changes.ended.append(job)
        del self.jobs[job.key]

    def _end_rest(
        self, job: MonitoredJob, status: RunStatus, reason: str, changes: StepChanges
    ) -> None:
        """End a job, and its rows with this status, except those that have ended already."""
        left = [row for row in job.rows if not row.is_over(self.status(row))]
        self._end(job, {row.line: RowStatus(row.text(status, reason)) for row in left}, changes)

    def _say(self, rows: Mapping[int, RowStatus], changes: StepChanges) -> None:
        for line, status in rows.items():
            if self.statuses.get(line) != status:
                self.statuses[line] = changes.statuses[line] = status

    def _count_failure(self, reason: str) -> None:
        """Hold the rest after several jobs in a row ended before running anything."""
        if self._poll_count <= 1:
            return  # an old failure: the user who follows now may have fixed the cause
        self._failures = self._failures + 1 if reason else 0
        if self._failures >= MOST_UNFIT and not (self.held or self._observes_only):
            self.spool.hold(reason)

    def _note_hold(self, changes: StepChanges) -> None:
        """Report once that the rest is held, and hold it in the engine at once."""
        held = "" if self._stopped else self.held
        if held and not self._was_held and self.jobs:
            changes.notes.append(f"{held}; the other {plural(len(self.jobs), 'job')} are held")
            with suppress(EngineAwayError):  # repeated with the next query
                self._give_orders()
        self._was_held = bool(held)

    def _silent_s(self, job: MonitoredJob, now_s: float) -> float:
        return now_s - job.changed_s if self._engine_answers else 0.0

    def _last_line(self, job: MonitoredJob) -> str:
        """Return the last line of the engine's log of a job, or the runner's; see `JobFacts`."""
        job_id = self._submitter.job_id(job.key)
        logs = [self.spool.job_log(job.key.array, str(job_id))]
        if attempts := self.spool.attempts(job.key):
            logs.append(attempts[-1].output_log)
        return next(filter(None, map(last_line, logs)), "")


def last_line(path: Path) -> str:
    """Return a log's last line with a word in it, or one about memory; "" if there is none."""
    lines = reversed(last_lines(path, _TAIL_BYTES))
    texts = [text for line in lines if (text := line.strip())]
    return next(filter(OVER_MEMORY.search, texts), texts[0] if texts else "")
