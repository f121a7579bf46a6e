"""Runs experiments on this machine, workload after workload; recovers from dead runners first."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from radt import units
from radt.collocation.ledger import CreatedLedger, ProcessOwner
from radt.collocation.setup import clean_up
from radt.devices.machine import Machine
from radt.errors import RadtError, RunNotFoundError, StatusError
from radt.experiment.plan import WorkloadKey
from radt.experiment.status import RowStatus, StatusSink
from radt.home import runtime_dir
from radt.model import RunStatus
from radt.processes import stop_run
from radt.runner.active import FileWait
from radt.runner.context import RunnerContext
from radt.runner.live import label_width
from radt.runner.notify import Notification
from radt.runner.options import PendingWorkload, StartOptions, Work
from radt.runner.outcome import ExperimentOutcome, RunEnd
from radt.runner.process import KILL_PATIENCE_S
from radt.runner.progress import ProgressView, WorkloadProgress, remaining_s, repeated
from radt.runner.work_queue import WorkQueue
from radt.runner.workload import run_workload
from radt.store.records import RunRecord
from radt.tags import RUNNER, SERIES

RUNNER_DIED = "its runner died"


def recover(context: RunnerContext, work: Work, statuses: StatusSink | None) -> None:
    """Close what a dead runner left open: processes, store rows, CSV rows.

    Runs that the collector knows are ended by it.

    Raises:
        StatusError: The file cannot be written.
        StoreError: The store cannot be written.
    """
    lost = [row for row in work.plan.runs if row.status is RunStatus.RUNNING]
    orphans = [row.run_id for row in lost if row.run_id]
    if not context.was_settled:
        orphans += _recorded_and_no_more(context)
    if unended := [run for run_id in orphans if (run := _stop_orphan(context, run_id)) is not None]:
        from radt.collector.recovery import recover_runs  # needs numpy, see `radt.store.peek`

        recover_runs(context.home)
        for run in unended:
            _end_unseen(context, run)
    if statuses is None:
        return
    killed = RunEnd(RunStatus.KILLED, RUNNER_DIED)
    endings = dict.fromkeys((row.line for row in lost), killed) | dict(work.endings)
    rows = {}
    for row in work.plan.runs:
        if (ending := endings.get(row.line)) is not None:
            number = row.repeats_done + (ending.status is not RunStatus.FINISHED)
            text = ending.text(number, max(work.options.repeat, number))
            rows[row.line] = RowStatus(text, row.run_id)
    if rows:
        statuses.set_many(rows)


def _recorded_and_no_more(context: RunnerContext) -> list[str]:
    """Return runs whose runner died after recording them, before collector and file had them."""
    here = platform.node()
    runs = [run.run_id for run in context.reader.unended_runs() if run.host == here]
    tags = context.reader.tags_of(runs)
    return [run_id for run_id in runs if _is_dead(tags.get(run_id, {}).get(RUNNER, ""))]


def _is_dead(runner: str) -> bool:
    """Return True if the process in a tag is gone; False if the tag cannot be parsed."""
    try:
        return not ProcessOwner.parse(runner).alive
    except ValueError:
        return False


def _end_unseen(context: RunnerContext, run: RunRecord) -> None:
    """End a run that recovery leaves alone: of another host or container, or without its folder."""
    from radt.collector.runs import RunStates  # as above

    states = RunStates(runtime_dir() / "runs")
    if states.has(run.run_id, context.home.store_path):
        return  # its collector ends it
    now_ns = context.clock.now_ns()
    if context.writer.end_run(run.run_id, RunStatus.KILLED, now_ns, reason=RUNNER_DIED):
        context.writer.end_workload(run.workload_id)


def _stop_orphan(context: RunnerContext, shown_id: str) -> RunRecord | None:
    """Stop the processes of a dead runner's run; return it if its end is not in the store."""
    try:
        run = context.reader.find_run(shown_id)
    except RunNotFoundError:
        context.console.say(
            f"  run {shown_id} of a dead runner is not in {context.home.store_path}",
            style="dim",
        )
        return None
    stop_run(run.run_id, kill_s=KILL_PATIENCE_S)
    return None if run.status.ended else run


class LocalSchedule:
    """Runs the pending work of a plan. Each object is for one call of `run`.

    Args:
        statuses: Writes them into the experiment file; None for a script run directly.
        series: The series ids that repeats of a workload share, by its experiment and label, if
            they are already known.
    """

    def __init__(
        self,
        context: RunnerContext,
        work: Work,
        statuses: StatusSink | None,
        series: Mapping[WorkloadKey, str] | None = None,
    ) -> None:
        self._context = context
        self._work = work
        self._queue = WorkQueue(context, work)
        self._options = work.options
        self._stop = context.stop
        self._statuses = statuses
        self._file_wait = FileWait(
            work.options.wait_for_file_s,
            context.stop,
            lambda text: context.console.say(f"  {text}", "dim"),
        )
        self._outcomes: list[WorkloadProgress] = []
        #: Workloads that did not finish: further repeats would not finish either.
        self._given_up: set[WorkloadKey] = set()
        #: Their lines.
        self._failed_rows: set[int] = set()
        self._first_failure = ""
        self._series = dict(series or {})
        self._ended_s: dict[WorkloadKey, list[float]] = {}

    def run(self) -> ExperimentOutcome:
        """Run it; the caller holds the experiment's lock and listens for signals.

        A workload that cannot be recorded, or statuses that cannot be written, become the outcome's
        ``problem`` rather than an exception: the results so far are valid.

        Raises:
            RadtError: Recovery from an earlier runner failed; nothing was started.
        """
        recover(self._context, self._work, self._statuses)
        started_s = time.monotonic()
        problem: RadtError | None = None
        try:
            self._run_all(started_s)
        except RadtError as error:
            problem = error
        if self._statuses is not None:
            unwritten = self._file_wait.write(self._statuses.flush, changed_rows_s=0.0)
            problem = problem or unwritten
        return ExperimentOutcome(
            workloads=self._outcomes,
            failed_before=self._work.failed_before,
            elapsed_s=time.monotonic() - started_s,
            interrupted_by=self._stop.number,
            problem=problem,
        )

    def _run_all(self, started_s: float) -> None:
        self._context.console.label_width = label_width(
            repeated(pending.plan.label, pending.repeat, pending.repeats)
            for pending in self._work.pending
            if not pending.plan.is_auto
        )
        position = 0
        while self._queue and not self._stop:
            position += 1
            has_failed = self._options.fail_fast and bool(self._given_up)
            pending = self._queue.next_row() if has_failed else self._queue.next()
            self._show_progress(position, pending, started_s)
            if pending.plan.key in self._given_up or self._has_failed(pending):
                continue
            if has_failed:
                self._skip(pending, f"{self._first_failure} did not finish (--fail-fast)")
                continue
            if self._outcomes:
                self._cool_down()
            if not self._stop:
                self._run_one(position, pending)

    def _run_one(self, position: int, pending: PendingWorkload) -> None:
        if pending.grouped_by:
            names = " + ".join(f"{run.letter} {run.label}" for run in pending.plan.runs)
            text = f"  {pending.plan.label}: {names} · {pending.grouped_by}"
            self._context.console.say(text, "dim", indent=4)
        outcome = run_workload(
            self._context,
            pending,
            series_id=self._series_of(pending),
            statuses=self._statuses,
            file_wait=self._file_wait,
        )
        self._outcomes.append(outcome)
        total = position + len(self._queue.keys)
        self._context.console.workload_ended(position, total, outcome)
        if alone := {row.letter for row in self._queue.put_back(pending, outcome)}:
            # Their next run counts; this one is in the store.
            outcome.runs = [run for run in outcome.runs if run.letter not in alone]
        if outcome.status in (RunStatus.FINISHED, None):
            self._ended_s.setdefault(pending.plan.key, []).append(outcome.elapsed_s)
        else:
            self._given_up.add(pending.plan.key)
            self._failed_rows |= {run.line for run in pending.plan.runs if run.letter not in alone}
            self._first_failure = self._first_failure or outcome.label
            if not self._stop:
                file = str(self._work.plan.path)
                self._context.notifier.send(Notification.of_workload(outcome, file))

    def _has_failed(self, pending: PendingWorkload) -> bool:
        """Return True for a row of ``auto`` that comes up by itself after its group failed."""
        return pending.plan.is_auto and pending.plan.runs[0].line in self._failed_rows

    def _skip(self, pending: PendingWorkload, reason: str) -> None:
        """Write into the file why the rows were not run; the next start runs them."""
        ending = RunEnd(RunStatus.SKIPPED, reason)
        if self._statuses is not None:
            text = ending.text(pending.repeat, pending.repeats)
            try:
                self._statuses.set_many({run.line: RowStatus(text) for run in pending.plan.runs})
            except StatusError as error:  # the next write includes these statuses
                self._context.console.say(f"  {error}", style="red")
        self._given_up.add(pending.plan.key)
        self._outcomes.append(pending.progress(RunStatus.SKIPPED, reason))

    def _cool_down(self) -> None:
        """Pause for the hardware to cool down; a stop ends the pause."""
        end_s = time.monotonic() + self._options.cooldown_s
        while (left_s := end_s - time.monotonic()) > 0 and not self._stop:
            self._context.console.show_wait(f"cooling down, {units.duration(left_s)} left")
            self._stop.wait(min(left_s, 1.0))
        self._context.console.hide_live()

    def _series_of(self, pending: PendingWorkload) -> str:
        """Return the id that all repeats of a workload share, including those of earlier starts."""
        key = pending.plan.key
        if key not in self._series:
            self._series[key] = (
                pending.repeat > 1 and self._earlier_series(pending)
            ) or uuid.uuid4().hex
        return self._series[key]

    def _earlier_series(self, pending: PendingWorkload) -> str:
        for run in pending.plan.runs:
            if run.run_id:
                try:
                    record = self._context.reader.find_run(run.run_id)
                except RunNotFoundError:
                    continue
                tags = self._context.reader.tags(record.run_id)
                # A row of `auto` may have been in another group.
                is_same = not pending.grouped_by or record.workload == pending.plan.label
                if is_same and SERIES in tags:
                    return tags[SERIES]
        return ""

    def _show_progress(self, position: int, pending: PendingWorkload, started_s: float) -> None:
        left = [pending.plan.key, *self._queue.keys]
        self._context.console.experiment = ProgressView(
            done=position - 1,
            total=position - 1 + len(left),
            elapsed_s=time.monotonic() - started_s,
            remaining_s=remaining_s(left, self._ended_s, cooldown_s=self._options.cooldown_s),
        )


class LocalExecutor:
    """Runs workloads on this machine, one at a time; an `Executor`."""

    outlives_start = False

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine.detect()

    def plan(self, path: Path, options: StartOptions) -> Work:
        return Work.of(path, options, self.machine)

    def begin(self, path: Path, options: StartOptions, say: Callable[[str], None]) -> Work:
        # Clean up after dead runners before rows are checked against the available devices.
        for problem in clean_up(CreatedLedger(), say=say):
            say(problem)
        return self.plan(path, options).settled()

    def resume(self, _context: RunnerContext, work: Work) -> Work:
        return work

    def where(self, _work: Work) -> str:
        return str(self.machine)

    def run(
        self, context: RunnerContext, work: Work, statuses: StatusSink | None
    ) -> ExperimentOutcome:
        return LocalSchedule(context, work, statuses).run()
