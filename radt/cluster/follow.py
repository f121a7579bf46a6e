"""Follows a submission: statuses go into the file, runs into the data folder, lines to the user.

Whoever follows holds the experiment's lock, so there is one at a time. Who ends it ends nothing but
the looking: the jobs go on, and the next one who looks brings the file up to date.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from radt.cluster.collecting import Collection
from radt.cluster.course import Changes, Course, CourseJob
from radt.cluster.opened import close
from radt.cluster.overview import Overview, cluster_table
from radt.cluster.settle import SubmittedRow
from radt.cluster.shape import WorkloadKey
from radt.cluster.spool import JobKey, Spool
from radt.errors import ClusterError, RadtError, StatusError
from radt.experiment.columns import parse_repeats, parse_status
from radt.experiment.plan import WorkloadPlan
from radt.experiment.status import RowStatus, StatusSink, merged
from radt.home import Home
from radt.model import RunStatus
from radt.runner.active import StopRequest
from radt.runner.console import SHOWN_TAIL_LINES, RunConsole
from radt.runner.file_wait import FileWait
from radt.runner.live import ProgressView, label_width, repeated
from radt.runner.notify import Notification, Notifier
from radt.runner.outcome import RunOutcome, WorkloadOutcome
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.units import plural

WRITE_S = 2.0
#: Writing a long file takes a while; it may take this part of a core.
_PART_FOR_WRITING = 0.02
COLLECT_S = 60.0
#: How long after the end a shared folder may take to show what its nodes have written.
LATE_S = 180.0
_LOOP_S = 1.0
#: Workloads that had ended before somebody looked: so many get a line each.
_MOST_LINES_BEFORE = 20


class PacedStatuses:
    """Writes statuses into a file, not oftener than it should be written.

    Args:
        statuses: Writes them; None where another process does.
        say: Told what cannot be written.
    """

    def __init__(self, statuses: StatusSink | None, say: Callable[[str], None]) -> None:
        self._statuses = statuses
        self._say = say
        self._waiting: dict[int, RowStatus] = {}
        self._next_s = 0.0
        self._said = ""
        #: How often the file was written.
        self.writes = 0

    def put(self, statuses: Mapping[int, RowStatus]) -> None:
        """Take statuses that are to be written."""
        for line, status in statuses.items():
            self._waiting[line] = merged(self._waiting.get(line), status)

    def write_if_due(self, now_s: float) -> None:
        """Write what waits, if it is time to; what cannot be written goes with the next call."""
        if self._waiting and now_s >= self._next_s:
            began_s = time.process_time()
            try:
                self.write()
                self._said = ""
            except StatusError as error:
                if error.message != self._said:
                    self._said = error.message
                    self._say(str(error))
            took_s = time.process_time() - began_s
            self._next_s = now_s + max(WRITE_S, took_s / _PART_FOR_WRITING)

    def write(self) -> None:
        """Write what waits now.

        Raises:
            StatusError: It goes with the next call.
        """
        if self._statuses is None:
            self._waiting.clear()
            return
        self.writes += 1
        waiting, self._waiting = self._waiting, {}
        self._statuses.set_many(waiting)  # which keeps what it could not write

    def flush(self) -> None:
        """Write all that is left.

        Raises:
            StatusError: It cannot be written.
        """
        if self._waiting:
            self.write()
        elif self._statuses is not None:
            self._statuses.flush()


@dataclass(slots=True)
class Followed:
    """What following came to: the workloads that have ended, and why it cannot go on.

    ``settled_at_once`` is whether all of it had ended before.
    """

    workloads: list[WorkloadOutcome] = field(default_factory=list)
    problem: RadtError | None = None
    settled_at_once: bool = False


class Follower:
    """Follows one submission. One object, one call of `run`.

    Args:
        spool: The submission.
        course: Of it.
        home: The data folder that gets the runs.
        console: Printed to.
        collection: Takes the runs; None where another process does.
        statuses: Writes the experiment file; None where another process does.
        notifier: Told of workloads that do not finish.
        stop: Ends the looking.
        on_look: Called about once a second.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        spool: Spool,
        course: Course,
        home: Home,
        console: RunConsole,
        *,
        engine_name: str,
        collection: Collection | None,
        statuses: StatusSink | None,
        notifier: Notifier,
        stop: StopRequest,
        wait_for_file_s: float = 30.0,
        on_look: Callable[[Course], None] = lambda _course: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spool = spool
        self._course = course
        self._clock = clock
        self._home = home
        self._console = console
        self._reader: StoreReader | None = None
        self._engine_name = engine_name
        self._collection = collection
        self._notifier = notifier
        self._stop = stop
        self._on_look = on_look
        self._wait_for_file_s = wait_for_file_s
        self._statuses = PacedStatuses(statuses, lambda text: self._say(text, "red"))
        submission = spool.submission
        self._labels = [key for job in submission.jobs for key in submission.workloads(job)]
        self._began_s = clock()
        self._ended_before = 0
        self._is_first = True
        self._to_collect: set[JobKey] = set()
        self._next_collection_s = self._began_s + COLLECT_S
        self._said: set[str] = set()
        self._late: Sequence[str] = ()
        self._found = Followed()

    @property
    def writes(self) -> int:
        """How often the file was written."""
        return self._statuses.writes

    def run(self, *, once: bool = False) -> Followed:
        """Follow until all is settled, the rest is held, or the user stops looking.

        Args:
            once: Only bring the file up to date.

        Raises:
            ClusterError: The engine refuses to answer.
        """
        self._console.label_width = label_width(key.label for key in self._labels)
        try:
            was_closed = False
            while True:
                with suppress(OSError):  # asked again
                    # Closed by another process, which this one looks over the shoulder of.
                    was_closed = self._spool.is_closed
                self.step()
                if self._course.is_settled or self._course.is_stuck or once or self._stop:
                    break
                if was_closed:
                    break
                self._on_look(self._course)
                self.show()
                self._stop.wait(_LOOP_S)
        finally:
            self._console.hide_live()
            self._write_all()
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        if self._course.is_settled:
            if self._collect_all():
                self._close()
        elif self._course.is_stuck and not once:
            self._found.problem = held_error(self._course)
        return self._found

    def step(self) -> None:
        """Do what is due.

        Raises:
            ClusterError: The engine refuses to answer.
        """
        now_s = self._clock()
        changes = self._course.step(now_s)
        for note in changes.notes:
            self._say(note, "yellow")
        self._statuses.put(changes.statuses)
        self._to_collect.update(job.key for job in self._course.jobs.values() if job.is_running)
        ended = {job.key for job in changes.ended if job.views}
        if ended or (now_s >= self._next_collection_s and self._to_collect):
            self._collect(ended)
        self._report(changes)
        self._statuses.write_if_due(now_s)
        self._is_first = False

    def _close(self) -> None:
        try:
            close(self._spool)
        except OSError as error:  # whoever looks next closes it
            self._say_once(f"the submission is not closed yet: {error}")

    def _write_all(self) -> None:
        wait = FileWait(self._wait_for_file_s, self._stop, lambda text: self._say(text, "dim"))
        problem = wait.write(self._statuses.flush, changed_rows_s=0.0)
        if problem is not None:
            self._found.problem = problem

    # Runs -----------------------------------------------------------------------------------------

    def _collect_all(self) -> bool:
        """Take all there is, also what the shared folder is late to show; whether all was taken."""
        end_s = time.monotonic() + LATE_S
        while (is_all := self._collect(None)) and self._late and not self._stop:
            late = plural(len(self._late), "run")
            if time.monotonic() > end_s:
                self._say(f"what {late} recorded last never came", "yellow")
                break
            self._say_once(f"the shared folder does not show all of {late} yet")
            self._stop.wait(_LOOP_S)
        return is_all and not self._stop

    def _collect(self, ended: set[JobKey] | None) -> bool:
        """Take what nodes have sent, of jobs that run or have ended; None for all.

        Returns:
            Whether all of it could be taken.
        """
        if self._collection is None:
            return False
        self._next_collection_s = self._clock() + COLLECT_S
        jobs = None if ended is None else sorted(self._to_collect | ended)
        try:
            found = self._collection.collect(jobs)
        except (RadtError, OSError) as error:
            self._say_once(f"runs are not collected: {error}")
            return False
        for problem in found.problems:
            self._say_once(f"not collected yet: {problem}")
        self._late = found.late
        if not found.problems:
            self._to_collect = {key for key in self._to_collect if key in self._course.jobs}
        return not found.problems

    # Workloads that have ended --------------------------------------------------------------------

    def _report(self, changes: Changes) -> None:
        outcomes = [
            (self._outcome(job, key), key) for job in changes.ended for key in job.workloads
        ]
        shown = not self._is_first or len(outcomes) <= _MOST_LINES_BEFORE
        for outcome, key in outcomes:
            self._found.workloads.append(outcome)
            if shown:
                total = len(self._labels)
                self._console.workload_ended(len(self._found.workloads), total, outcome)
            if not self._is_first and outcome.status is not RunStatus.FINISHED:
                self._notify(outcome, key)
        if not shown:
            bad = sum(outcome.status is not RunStatus.FINISHED for outcome, _ in outcomes)
            failed = f", {bad} of them not FINISHED" if bad else ""
            self._say(f"{len(outcomes)} of {len(self._labels)} workloads had ended{failed}")
        if self._is_first:
            self._ended_before = len(outcomes)
            self._found.settled_at_once = self._course.is_settled

    def _outcome(self, job: CourseJob, key: WorkloadKey) -> WorkloadOutcome:
        runs = []
        for row in job.workloads[key]:
            status = job.settlement.rows.get(row.line) or RowStatus("")
            runs.append(self._run_outcome(job, row, status))
        done = min((parse_repeats(_text(job, row)) for row in job.workloads[key]), default=0)
        asked = max(row.asked for row in job.workloads[key])
        has_all = job.has_word and all(run.status is RunStatus.FINISHED for run in runs)
        if self._collection is not None and not has_all:
            with suppress(RadtError, OSError):  # said by the next collection
                self._collection.end_lost(job.key, runs[0].reason)
        return WorkloadOutcome(
            label=repeated(key.label, done, asked),
            workload_id="",
            runs=runs,
            start_skew_s=self._skew_s(runs[0].run_id) if len(runs) > 1 else None,
            elapsed_s=max((run.elapsed_s or 0.0 for run in runs), default=0.0),
        )

    def _run_outcome(self, job: CourseJob, row: SubmittedRow, status: RowStatus) -> RunOutcome:
        run = self._recorded(status.run_id)
        log = self._home.run_dir(run.run_id).output_log if run is not None else None
        if log is not None and not log.exists():
            log = None
        with suppress(OSError):  # its last lines are only shown
            if log is None and (attempts := self._spool.attempts(job.key)):
                own = attempts[-1].output_log
                log = own if own.exists() else None
        ended = parse_status(status.text) or RunStatus.SKIPPED
        is_bad = ended is not RunStatus.FINISHED
        return RunOutcome(
            letter=row.letter,
            name=row.name,
            run_id=run.run_id if run is not None else status.run_id or "",
            status=ended,
            reason=status.text.partition(": ")[2],
            elapsed_s=_elapsed_s(run),
            tail=_tail(log) if is_bad and log is not None else (),
            log=log,
            role=row.role,
        )

    def _recorded(self, run_id: str | None) -> RunRecord | None:
        if not run_id or not self._home.store_path.exists():
            return None
        try:
            if self._reader is None:
                self._reader = StoreReader(self._home.store_path)
            return self._reader.find_run(run_id)
        except RadtError:
            return None  # it comes later, or only its status does

    def _skew_s(self, run_id: str) -> float | None:
        """How far apart the rows of a workload began, as its node has measured it."""
        run = self._recorded(run_id)
        if run is None or self._reader is None:
            return None
        try:
            skew_ns = self._reader.workload(run.workload_id).start_skew_ns
        except RadtError:
            return None
        return None if skew_ns is None else skew_ns / 1e9

    def _notify(self, outcome: WorkloadOutcome, key: WorkloadKey) -> None:
        plan = WorkloadPlan(key.experiment, key.label, ())
        self._notifier.send(Notification.of_workload(plan, outcome, self._spool.submission.file))

    # The terminal ---------------------------------------------------------------------------------

    def show(self) -> None:
        """Bring the live table up to date."""
        view = Overview.of(self._course, self._engine_name)
        self._console.show_text(
            lambda width, height: cluster_table(view, width, height, self._progress())
        )

    def _progress(self) -> ProgressView:
        """How far it is; when it will end by how fast workloads ended since somebody looks."""
        ended, total = len(self._found.workloads), len(self._labels)
        here = ended - self._ended_before
        elapsed_s = self._clock() - self._began_s
        remaining_s = elapsed_s / here * (total - ended) if here else None
        return ProgressView(ended, total, elapsed_s, remaining_s)

    def _say(self, text: str, style: str = "dim") -> None:
        self._console.say(f"  {text}", style, indent=2)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text, "red")


def held_error(course: Course) -> ClusterError:
    """Return the error for a submission whose rest is held."""
    return ClusterError(
        f"{plural(len(course.jobs), 'job')} held: {course.held}",
        "Fix that, then start the file again with the same --on, which lets them start",
    )


def _text(job: CourseJob, row: SubmittedRow) -> str:
    status = job.settlement.rows.get(row.line)
    return "" if status is None else status.text


def _elapsed_s(run: RunRecord | None) -> float | None:
    if run is None or run.started_ns is None or run.ended_ns is None:
        return None
    return (run.ended_ns - run.started_ns) / 1e9


def _tail(log: Path) -> list[str]:
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return [line.rstrip("\n") for line in deque(lines, SHOWN_TAIL_LINES)]
    except OSError:
        return []
