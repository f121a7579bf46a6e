"""Follows a submission: writes statuses into the file, collects runs, and shows lines to the user.

The follower holds the experiment's lock, so there is one at a time. If it is ended, the jobs
continue, and the next follower brings the file up to date.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from radt.cluster.collecting import Collection
from radt.cluster.monitor import MonitoredJob, StepChanges, SubmissionMonitor
from radt.cluster.opened import close
from radt.cluster.overview import Overview, cluster_table, workload_progress
from radt.cluster.submission import JobKey
from radt.errors import ClusterError, RadtError, StatusError
from radt.experiment.plan import WorkloadKey
from radt.experiment.status import RowStatus, StatusSink, merged
from radt.home import Home
from radt.model import RunStatus
from radt.runner.active import FileWait, StopRequest
from radt.runner.console import SHOWN_TAIL_LINES, RunConsole
from radt.runner.live import label_width
from radt.runner.notify import Notification, Notifier
from radt.runner.outcome import ExperimentOutcome
from radt.runner.output import TAIL_BYTES, last_lines
from radt.runner.progress import ProgressView, WorkloadProgress
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.units import plural

WRITE_S = 2.0
#: Maximum fraction of CPU time spent on writing, as writing a long file takes a while.
_PART_FOR_WRITING = 0.02
COLLECT_S = 60.0
#: Maximum delay in s after the end until a shared folder shows all files of its nodes.
LATE_S = 180.0
_LOOP_S = 1.0
#: Maximum number of workloads that get a line each although they ended before this process began.
_MOST_LINES_BEFORE = 20


class PacedStatuses:
    """Writes statuses into a file at a limited rate.

    Args:
        statuses: Writes them; None if another process does.
        say: Called with errors.
    """

    def __init__(self, statuses: StatusSink | None, say: Callable[[str], None]) -> None:
        self._statuses = statuses
        self._say = say
        self._waiting: dict[int, RowStatus] = {}
        self._next_s = 0.0
        self._last_error = ""

    def put(self, statuses: Mapping[int, RowStatus]) -> None:
        """Add statuses to the next write."""
        for line, status in statuses.items():
            self._waiting[line] = merged(self._waiting.get(line), status)

    def write_if_due(self, now_s: float) -> None:
        """Write pending statuses if it is time to; failed writes are retried when it is again."""
        if (self._waiting or self._last_error) and now_s >= self._next_s:
            began_s = time.process_time()
            try:
                self.flush()
                self._last_error = ""
            except StatusError as error:
                if error.message != self._last_error:
                    self._last_error = error.message
                    self._say(str(error))
            took_s = time.process_time() - began_s
            self._next_s = now_s + max(WRITE_S, took_s / _PART_FOR_WRITING)

    def flush(self) -> None:
        """Write all pending statuses now.

        Raises:
            StatusError: They could not be written; the next call retries.
        """
        waiting, self._waiting = self._waiting, {}
        if self._statuses is None:
            return
        if waiting:
            self._statuses.set_many(waiting)  # it keeps statuses that it could not write
        else:
            self._statuses.flush()


class SubmissionFollower:
    """Follows one submission. Each object is for one call of `run`.

    Args:
        monitor: The submission's monitor.
        home: The data folder that gets the runs.
        console: Where to print.
        collection: Collects the runs; None if another process does.
        statuses: Writes the experiment file; None if another process does.
        notifier: Notified of workloads that do not finish.
        stop: Request to stop following.
        wait_for_file_s: How long to wait at the end for a file that cannot be written.
        on_look: Called about once a second.
        clock: Monotonic seconds.

    Attributes:
        settled_at_once: All jobs had ended before this process began to follow.
    """

    settled_at_once = False

    def __init__(
        self,
        monitor: SubmissionMonitor,
        home: Home,
        console: RunConsole,
        *,
        collection: Collection | None,
        statuses: StatusSink | None,
        notifier: Notifier,
        stop: StopRequest,
        wait_for_file_s: float = 30.0,
        on_look: Callable[[SubmissionMonitor], None] = lambda _monitor: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monitor = monitor
        self._spool = monitor.spool
        self._clock = clock
        self._home = home
        self._console = console
        self._reader: StoreReader | None = None
        self._collection = collection
        self._notifier = notifier
        self._stop = stop
        self._on_look = on_look
        self._wait_for_file_s = wait_for_file_s
        self._statuses = PacedStatuses(statuses, lambda text: self._say(text, "red"))
        self._workloads = list(self._spool.submission.rows)
        self._began_s = clock()
        self._ended_before = 0
        self._is_first = True
        self._view = Overview.of(monitor)
        self._to_collect: set[JobKey] = set()
        self._next_collection_s = self._began_s + COLLECT_S
        self._shown: set[str] = set()
        self._late: Sequence[str] = ()
        self._ended: list[WorkloadProgress] = []
        self._problem: RadtError | None = None

    def run(self) -> ExperimentOutcome:
        """Follow until all is settled, the rest is held, or the user stops following.

        Raises:
            ClusterError: The engine refuses to answer.
        """
        self._console.label_width = label_width(key.label for key in self._workloads)
        try:
            was_closed = False
            while True:
                with suppress(OSError):  # retried
                    # True if it was closed by another process while this one only observes.
                    was_closed = self._spool.is_closed
                self.step()
                if self._monitor.is_settled or self._monitor.is_stuck or self._stop:
                    break
                if was_closed:
                    break
                self._on_look(self._monitor)
                self.show()
                self._stop.wait(_LOOP_S)
        finally:
            self._console.hide_live()
            self._write_all()
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        if self._monitor.is_settled:
            if self._collect_all():
                self._close()
        elif self._monitor.is_stuck:
            self._problem = ClusterError(
                f"{plural(len(self._monitor.jobs), 'job')} held: {self._monitor.held}",
                "Fix that, then start the file again with the same --on, which lets them start",
            )
        return ExperimentOutcome(self._ended, problem=self._problem)

    def step(self) -> None:
        """Advance the monitor, collect data, and write pending statuses.

        Raises:
            ClusterError: The engine refuses to answer.
        """
        now_s = self._clock()
        changes = self._monitor.step(now_s)
        for note in changes.notes:
            self._say(note, "yellow")
        self._statuses.put(changes.statuses)
        if changes.has_looked:
            jobs = self._monitor.jobs.values()
            self._to_collect.update(job.key for job in jobs if job.is_running)
        ended = {job.key for job in changes.ended if job.views}
        if ended or (now_s >= self._next_collection_s and self._to_collect):
            self._collect(ended)
        self._report(changes)
        self._statuses.write_if_due(now_s)
        if changes.has_looked or changes.statuses or changes.ended or changes.notes:
            self._view = Overview.of(self._monitor)
        self._is_first = False

    def _close(self) -> None:
        try:
            close(self._spool)
        except OSError as error:  # the next follower closes it
            self._say_once(f"the submission is not closed yet: {error}")

    def _write_all(self) -> None:
        wait = FileWait(self._wait_for_file_s, self._stop, lambda text: self._say(text, "dim"))
        problem = wait.write(self._statuses.flush, changed_rows_s=0.0)
        if problem is not None:
            self._problem = problem

    # Runs -----------------------------------------------------------------------------------------

    def _collect_all(self) -> bool:
        """Collect everything, including files that appear late; return True if all was stored."""
        end_s = time.monotonic() + LATE_S
        while (is_all := self._collect(None)) and self._late and not self._stop:
            late = plural(len(self._late), "run")
            if time.monotonic() > end_s:
                self._say(f"the last data of {late} never arrived", "yellow")
                break
            self._say_once(f"waiting for the last files of {late} in the shared folder")
            self._stop.wait(_LOOP_S)
        return is_all and not self._stop

    def _collect(self, ended: set[JobKey] | None) -> bool:
        """Collect data from running and just ended jobs; None for all jobs.

        Returns:
            True if all of it could be stored.
        """
        if self._collection is None:
            return False
        self._next_collection_s = self._clock() + COLLECT_S
        self._to_collect |= ended or set()  # until all of them could be stored
        jobs = None if ended is None else sorted(self._to_collect)
        try:
            found = self._collection.collect(jobs)
        except (RadtError, OSError) as error:
            self._say_once(f"runs are not collected: {error}")
            return False
        for problem in found.problems:
            self._say_once(f"not collected yet: {problem}")
        self._late = list(found.late)
        if not found.problems:
            self._to_collect = {key for key in self._to_collect if key in self._monitor.jobs}
        return not found.problems

    # Workloads that have ended --------------------------------------------------------------------

    def _report(self, changes: StepChanges) -> None:
        outcomes = [
            (self._outcome(job, key), job) for job in changes.ended for key in job.workloads
        ]
        shown = not self._is_first or len(outcomes) <= _MOST_LINES_BEFORE
        for outcome, job in outcomes:
            self._ended.append(outcome)
            if shown:
                self._add_records(job, outcome)
                total = len(self._workloads)
                self._console.workload_ended(len(self._ended), total, outcome)
            if not self._is_first and outcome.status is not RunStatus.FINISHED:
                file = self._spool.submission.file
                self._notifier.send(Notification.of_workload(outcome, file))
        if not shown:
            bad = sum(outcome.status is not RunStatus.FINISHED for outcome, _ in outcomes)
            failed = f", {bad} of them not FINISHED" if bad else ""
            self._say(f"{len(outcomes)} of {len(self._workloads)} workloads had ended{failed}")
        if self._is_first:
            self._ended_before = len(outcomes)
            self.settled_at_once = self._monitor.is_settled

    def _outcome(self, job: MonitoredJob, key: WorkloadKey) -> WorkloadProgress:
        outcome = workload_progress(key, job.workloads[key], self._monitor.statuses)
        # `repeats_done` counts earlier repeats; the status includes the one that has just ended.
        outcome.repeats_done -= outcome.status is RunStatus.FINISHED
        for run in outcome.runs:
            if run.status is RunStatus.SCHEDULED:
                run.status = RunStatus.SKIPPED
        runs = outcome.runs
        has_all = job.has_reported_end and all(run.status is RunStatus.FINISHED for run in runs)
        if self._collection is not None and not has_all:
            with suppress(RadtError, OSError):  # the next collection reports it
                self._collection.end_lost(job.key, runs[0].reason)
        return outcome

    def _add_records(self, job: MonitoredJob, outcome: WorkloadProgress) -> None:
        """Add the recorded times, logs and start skew of an ended workload's runs."""
        runs = outcome.runs
        for run in runs:
            record = self._recorded(run.run_id)
            logs = [] if record is None else [self._home.run_dir(record.run_id).output_log]
            with suppress(OSError):  # its last lines are not essential
                logs += [attempt.output_log for attempt in self._spool.attempts(job.key)[-1:]]
                run.log = next((log for log in logs if log.exists()), None)
            if run.status is not RunStatus.FINISHED and run.log is not None:
                run.tail = last_lines(run.log, TAIL_BYTES)[-SHOWN_TAIL_LINES:]
            if record is not None and record.ended_ns is not None:
                run.set_times(record)
        outcome.start_skew_s = self._skew_s(runs[0].run_id) if len(runs) > 1 else None
        outcome.elapsed_s = max(run.elapsed_s or 0.0 for run in runs)

    def _recorded(self, run_id: str) -> RunRecord | None:
        if not run_id or not self._home.store_path.exists():
            return None
        try:
            if self._reader is None:
                self._reader = StoreReader(self._home.store_path)
            return self._reader.find_run(run_id)
        except RadtError:
            return None  # not collected yet, or only its status is known

    def _skew_s(self, run_id: str) -> float | None:
        """Return the time from the first to the last start of a workload's rows, by its node."""
        run = self._recorded(run_id)
        if run is None or self._reader is None:
            return None
        try:
            skew_ns = self._reader.workload(run.workload_id).start_skew_ns
        except RadtError:
            return None
        return None if skew_ns is None else skew_ns / 1e9

    # The terminal ---------------------------------------------------------------------------------

    def show(self) -> None:
        """Update the live table."""
        view = self._view
        self._console.show_text(
            lambda width, height: cluster_table(view, width, height, self._progress())
        )

    def _progress(self) -> ProgressView:
        """Return the progress; the end is estimated from the rate of workloads since the start."""
        ended, total = len(self._ended), len(self._workloads)
        ended_since = ended - self._ended_before
        elapsed_s = self._clock() - self._began_s
        remaining_s = elapsed_s / ended_since * (total - ended) if ended_since else None
        return ProgressView(ended, total, elapsed_s, remaining_s)

    def _say(self, text: str, style: str = "dim") -> None:
        self._console.say(f"  {text}", style, indent=2)

    def _say_once(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            self._say(text, "red")
