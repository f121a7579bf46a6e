"""Runs an experiment: workload after workload, once what a dead runner left is recovered."""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Mapping, Sequence

from radt import units
from radt.collector.protocol import Registration, delivery_env
from radt.collocation.ledger import Owner
from radt.errors import CollectorError, RadtError, RunNotFoundError, StatusError
from radt.experiment.plan import FAILURES, RunPlan, WorkloadPlan
from radt.experiment.status import RowStatus, StatusSink
from radt.masking import unmasked
from radt.model import RunStatus
from radt.runner.active import StopRequest, status_text
from radt.runner.file_wait import FileWait
from radt.runner.live import ProgressView, label_width, remaining_s, repeated
from radt.runner.notify import Notification, Notifier
from radt.runner.outcome import ExperimentOutcome, RunEnd, RunOutcome, WorkloadOutcome
from radt.runner.pending import ExperimentOptions, PendingWorkload, Settled
from radt.runner.process import stop_processes_of
from radt.runner.recording import Session
from radt.runner.workload import WorkloadRunner
from radt.tags import RUNNER, SERIES

RUNNER_DIED = "its runner died"


def recover(
    session: Session, settled: Settled, statuses: StatusSink | None, *, repeats: int = 1
) -> None:
    """End what a runner that died left open: processes, store rows, MLflow runs, CSV rows.

    Args:
        repeats: How often rows are to be run; the count in a Status cell stays.

    Raises:
        StatusError: The file cannot be written.
    """
    lost = [row for row in settled.plan.runs if row.status is RunStatus.RUNNING]
    for row in lost:
        if row.run_id:
            _end_orphan(session, row.run_id)
    if not session.was_settled:
        for run_id in _recorded_and_no_more(session):
            _end_orphan(session, run_id)
    if statuses is None:
        return
    killed = RunEnd(RunStatus.KILLED, RUNNER_DIED)
    rows = {row.line: _said(row, killed, row.repeats_done + 1, repeats) for row in lost}
    for row in settled.plan.runs:
        if (ending := settled.endings.get(row.line)) is not None:
            finished = ending.status is RunStatus.FINISHED
            number = row.repeats_done if finished else row.repeats_done + 1
            rows[row.line] = _said(row, ending, number, repeats)
    if rows:
        statuses.set_many(rows)


def _said(row: RunPlan, ending: RunEnd, number: int, repeats: int) -> RowStatus:
    return RowStatus(status_text(ending, number, max(repeats, number)), row.run_id)


def _recorded_and_no_more(session: Session) -> list[str]:
    """Runs whose runner died before it had reported them to collector and file."""
    here = platform.node()
    runs = [run.run_id for run in session.reader.unended_runs() if run.host == here]
    tags = session.reader.tags_of(runs)
    return [run_id for run_id in runs if _is_dead(tags.get(run_id, {}).get(RUNNER, ""))]


def _is_dead(runner: str) -> bool:
    """Whether the process of a tag is gone; what cannot be understood is left to its own."""
    try:
        return not Owner.parse(runner).alive
    except ValueError:
        return False


def _end_orphan(session: Session, shown_id: str) -> None:
    try:
        run = session.reader.find_run(shown_id)
    except RunNotFoundError:
        session.console.say(
            f"  run {shown_id} of a dead runner is not in {session.home.store_path}",
            style="dim",
        )
        return
    stop_processes_of(run.run_id)
    if run.status.ended:
        return  # the collector was faster
    try:
        session.client.register(
            Registration(
                run_id=run.run_id,
                store_path=str(session.home.store_path),
                spool=run.spool,
                tracking_uri=unmasked(run.tracking_uri, [session.tracking_uri]),
                store_uri=session.store_uri,
                listeners=(),
                devices=(),
                env=delivery_env(os.environ),
            )
        )
        session.client.finish(run.run_id, RunStatus.KILLED, None, RUNNER_DIED)
    except CollectorError as error:
        session.presence.note(error, refused=session.client.away is None)
        session.client.forget(run.run_id)
        session.writer.end_run(
            run.run_id, RunStatus.KILLED, session.clock.now_ns(), reason=RUNNER_DIED
        )
        session.writer.end_workload(run.workload_id)


class Schedule:
    """Runs what is pending of a plan. One object, one call of `run`.

    Args:
        statuses: Writes them into the experiment file; None for a script run directly.
        series: What the repeats of a workload share, by its experiment and label, where that is
            known before.
    """

    def __init__(
        self,
        session: Session,
        settled: Settled,
        pending: Sequence[PendingWorkload],
        options: ExperimentOptions,
        stop: StopRequest,
        statuses: StatusSink | None,
        notifier: Notifier,
        series: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._session = session
        self._settled = settled
        self._plan = settled.plan
        self._pending = pending
        self._options = options
        self._stop = stop
        self._statuses = statuses
        self._notifier = notifier
        self._file_wait = FileWait(
            options.wait_for_file_s, stop, lambda text: session.console.say(f"  {text}", "dim")
        )
        self._outcomes: list[WorkloadOutcome] = []
        #: Workloads that did not finish: a repeat of them would not either.
        self._given_up: set[tuple[str, str]] = set()
        self._first_failure = ""
        self._series = dict(series or {})
        self._ended_s: dict[tuple[str, str], list[float]] = {}

    def run(self) -> ExperimentOutcome:
        """Run it; the caller holds the experiment's lock and listens for signals.

        If a workload cannot be recorded, or statuses cannot be written, that is the outcome's
        ``problem``: what ran until then has been measured.

        Raises:
            RadtError: What an earlier runner left could not be recovered; nothing was started.
        """
        recover(self._session, self._settled, self._statuses, repeats=self._options.repeat)
        started_s = time.monotonic()
        problem: RadtError | None = None
        try:
            self._run_all(started_s)
        except RadtError as error:
            problem = error
        if self._statuses is not None:
            unwritten = self._file_wait.write(self._statuses.flush, changed_rows_s=0.0)
            problem = problem or unwritten
        outcome = self._outcome(started_s, problem)
        file = str(self._plan.path)
        what = str(problem or "")
        self._notifier.send(
            Notification.of_experiment(self._plan.name, outcome, file, problem=what)
        )
        return outcome

    def _run_all(self, started_s: float) -> None:
        self._session.console.label_width = label_width(
            repeated(pending.plan.label, pending.repeat, pending.repeats)
            for pending in self._pending
        )
        for position, pending in enumerate(self._pending, start=1):
            if self._stop:
                break
            self._show_progress(position, started_s)
            if _key(pending.plan) in self._given_up:
                continue
            if self._options.fail_fast and self._given_up:
                self._skip(pending, f"{self._first_failure} did not finish (--fail-fast)")
                continue
            if self._outcomes:
                self._cool_down()
            if not self._stop:
                self._run_one(position, pending)

    def _run_one(self, position: int, pending: PendingWorkload) -> None:
        outcome = WorkloadRunner(
            self._session,
            pending,
            self._options,
            series_id=self._series_of(pending),
            position=position,
            total=len(self._pending),
            stop=self._stop,
            statuses=self._statuses,
            file_wait=self._file_wait,
        ).run()
        self._outcomes.append(outcome)
        self._session.console.workload_ended(position, len(self._pending), outcome)
        if outcome.status is RunStatus.FINISHED:
            self._ended_s.setdefault(_key(pending.plan), []).append(outcome.elapsed_s)
        else:
            self._given_up.add(_key(pending.plan))
            self._first_failure = self._first_failure or outcome.label
            if not self._stop:
                self._notifier.send(
                    Notification.of_workload(pending.plan, outcome, str(self._plan.path))
                )

    def _skip(self, pending: PendingWorkload, reason: str) -> None:
        """Say in the file why the rows were not run; the next start runs them."""
        ending = RunEnd(RunStatus.SKIPPED, reason)
        if self._statuses is not None:
            text = status_text(ending, pending.repeat, pending.repeats)
            try:
                self._statuses.set_many({run.line: RowStatus(text) for run in pending.plan.runs})
            except StatusError as error:  # the next write tries again
                self._session.console.say(f"  {error}", style="red")
        self._given_up.add(_key(pending.plan))
        self._outcomes.append(
            WorkloadOutcome(
                label=pending.plan.label,
                workload_id="",
                runs=[_skipped(run, reason) for run in pending.plan.runs],
                start_skew_s=None,
                repeat=pending.repeat,
                repeats=pending.repeats,
            )
        )

    def _cool_down(self) -> None:
        """Let the hardware come to rest; a stop ends the rest."""
        end_s = time.monotonic() + self._options.cooldown_s
        while (left_s := end_s - time.monotonic()) > 0 and not self._stop:
            self._session.console.show_wait(f"cooling down, {units.duration(left_s)} left")
            self._stop.wait(min(left_s, 1.0))
        self._session.console.hide_live()

    def _series_of(self, pending: PendingWorkload) -> str:
        """An id that all repeats of a workload share, also those of an earlier start."""
        key = _key(pending.plan)
        if key not in self._series:
            self._series[key] = (
                pending.repeat > 1 and self._earlier_series(pending)
            ) or uuid.uuid4().hex
        return self._series[key]

    def _earlier_series(self, pending: PendingWorkload) -> str:
        for run in pending.plan.runs:
            if run.run_id:
                try:
                    record = self._session.reader.find_run(run.run_id)
                except RunNotFoundError:
                    continue
                tags = self._session.reader.tags(record.run_id)
                if SERIES in tags:
                    return tags[SERIES]
        return ""

    def _show_progress(self, position: int, started_s: float) -> None:
        left = [_key(pending.plan) for pending in self._pending[position - 1 :]]
        self._session.console.experiment = ProgressView(
            done=position - 1,
            total=len(self._pending),
            elapsed_s=time.monotonic() - started_s,
            remaining_s=remaining_s(left, self._ended_s, cooldown_s=self._options.cooldown_s),
        )

    def _outcome(self, started_s: float, problem: RadtError | None) -> ExperimentOutcome:
        ran = {_key(pending.plan) for pending in self._pending}
        left = [workload for workload in self._plan.workloads if _key(workload) not in ran]
        return ExperimentOutcome(
            workloads=self._outcomes,
            skipped=sum(len(workload.runs) for workload in left),
            failed_before=[
                run
                for workload in left
                if not self._options.only or workload.label in self._options.only
                for run in workload.runs
                if run.status in FAILURES
            ],
            elapsed_s=time.monotonic() - started_s,
            interrupted_by=self._stop.number,
            problem=problem,
        )


def _key(workload: WorkloadPlan) -> tuple[str, str]:
    return workload.experiment, workload.label


def _skipped(run: RunPlan, reason: str) -> RunOutcome:
    return RunOutcome(run.letter, run.label, "", RunStatus.SKIPPED, reason, None, role=run.role)
