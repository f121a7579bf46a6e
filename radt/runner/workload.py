"""Runs one workload: set-up, start, following, clean-up; nobody is left behind."""

from __future__ import annotations

import time

from radt.errors import StatusError
from radt.experiment.status import StatusSink
from radt.model import RunStatus
from radt.runner.active import ActiveWorkload
from radt.runner.due import Due
from radt.runner.ending import Ending
from radt.runner.environment import Limits
from radt.runner.follow import Follower
from radt.runner.launch import start_together
from radt.runner.live import RunView, WorkloadView
from radt.runner.options import ExperimentOptions, SyncPoint
from radt.runner.outcome import STOPPED, WorkloadOutcome
from radt.runner.preparation import (
    MlflowIds,
    RecordedWorkload,
    record_workload,
    wait_for_mlflow,
)
from radt.runner.provision import Provision, SetUpError
from radt.runner.recording import Recording
from radt.runner.rendezvous import ContextBarrier
from radt.runner.row import Row
from radt.runner.session import Session
from radt.runner.stop import StopRequest
from radt.store.tags import PROFILER_NOTICE

#: How often, and how far apart, the file is tried before rows are not started.
NOTE_ATTEMPTS = 4
NOTE_PAUSE_S = 0.5


class WorkloadRunner:
    """Runs the rows of a workload together. One object, one call of `run`.

    Args:
        series_id: The same for all repeats of the workload.
        position: Its place among the ``total`` that this start runs, from 1.
        statuses: Writes them into the experiment file; None where there is none.
    """

    def __init__(
        self,
        session: Session,
        due: Due,
        options: ExperimentOptions,
        *,
        series_id: str,
        position: int,
        total: int,
        stop: StopRequest,
        statuses: StatusSink | None,
    ) -> None:
        self._session = session
        self._due = due
        self._options = options
        self._series_id = series_id
        self._stop = stop
        self._statuses = statuses
        self._view = WorkloadView(
            position=position,
            total=total,
            label=due.plan.label or due.plan.runs[0].label,
            runs=[RunView(row.letter, row.label) for row in due.plan.runs],
            repeat=due.repeat,
            repeats=due.repeats,
        )

    def run(self) -> WorkloadOutcome:
        """Run it.

        Raises:
            RadtError: The store or the collector refuses; nothing was started.
        """
        started_s = time.monotonic()
        self._session.console.show_live(self._view)
        recorded = record_workload(self._session, self._due, self._series_id)
        with Recording(self._session) as recording:
            active = self._active(recorded, recording)
            for warning in recorded.warnings:
                if warning not in self._session.said:
                    self._session.said.add(warning)
                    active.say(warning)
            self._stop.on_request = active.wake
            reason = STOPPED
            try:
                self._run(active, recorded)
            except Exception as error:
                reason = f"radt could not go on: {error}"
                raise
            finally:
                self._clean_up(active, reason)
        return WorkloadOutcome(
            label=self._view.label,
            workload_id=recorded.workload_id,
            runs=[row.outcome for row in active.rows if row.outcome is not None],
            start_skew_s=None if active.skew_ns is None else active.skew_ns / 1e9,
            repeat=self._due.repeat,
            repeats=self._due.repeats,
            elapsed_s=time.monotonic() - started_s,
        )

    def _active(self, recorded: RecordedWorkload, recording: Recording) -> ActiveWorkload:
        return ActiveWorkload(
            session=self._session,
            due=self._due,
            options=self._options,
            stop=self._stop,
            statuses=self._statuses,
            workload_id=recorded.workload_id,
            rows=[Row(run, view) for run, view in zip(recorded.runs, self._view.runs, strict=True)],
            view=self._view,
            provision=Provision(
                self._session,
                recorded,
                self._options.busy,
                say=lambda text: self._session.console.progress(self._view, text),
                cancelled=lambda: bool(self._stop),
            ),
            recording=recording,
        )

    def _run(self, active: ActiveWorkload, recorded: RecordedWorkload) -> None:
        try:
            mlflow = self._set_up(active, recorded)
            if self._stop:
                return
            if self._options.sync is SyncPoint.CONTEXT and len(active.rows) > 1:
                run_ids = [row.run_id for row in active.rows]
                active.context = ContextBarrier(run_ids, on_release=active.wake)
            self._make_startable(active, mlflow)
        except SetUpError as error:
            _give_up(active, error)
            return
        if not self._note_running(active):
            return
        follower = Follower(active)
        start_together(active)
        follower.follow()

    def _note_running(self, active: ActiveWorkload) -> bool:
        """Note in the file that the rows run; False if that cannot be done, and they may not.

        The next start would run them a second time. A file may be away for a moment while it is
        saved, so this is tried again.
        """
        for _ in range(NOTE_ATTEMPTS):
            try:
                active.write(dict.fromkeys(active.rows, Ending(RunStatus.RUNNING)))
            except StatusError as error:
                problem = error.message
            else:
                return True
            if self._stop.wait(NOTE_PAUSE_S):
                return True  # the start sees to that
        for row in active.rows:
            active.end(
                row,
                Ending(RunStatus.SKIPPED, f"could not be noted in the experiment file: {problem}"),
            )
        return False

    def _set_up(self, active: ActiveWorkload, recorded: RecordedWorkload) -> MlflowIds:
        """Environments, devices, CPUs, and MLflow's ids, which rows that fail here have, too.

        Raises:
            SetUpError: The workload cannot be set up.
        """
        try:
            active.provision.set_up()
        finally:
            mlflow, warning = wait_for_mlflow(
                self._session, recorded, cancelled=lambda: bool(self._stop)
            )
            for row in active.rows:
                row.mlflow_run_id = mlflow.runs.get(row.run_id)
            if warning:
                active.say(warning)
        return mlflow

    def _make_startable(self, active: ActiveWorkload, mlflow: MlflowIds) -> None:
        limits = Limits(self._options.max_time_s, self._options.max_epoch).variables()
        for row in active.rows:
            barrier = active.context.variables(row.run_id) if active.context else {}
            row.startable = active.provision.startable(row.recorded, mlflow, limits | barrier)
            tags = active.provision.tags(row.letter)
            if (profiling := row.startable.profiling) is not None and profiling.notices:
                tags[PROFILER_NOTICE] = "; ".join(profiling.notices)
                active.say(f"{row.letter} {tags[PROFILER_NOTICE]}")
            active.recording.tags(row.run_id, tags)

    def _clean_up(self, active: ActiveWorkload, reason: str) -> None:
        """Nothing is left running, or set up, whatever went wrong."""
        active.kill_all()
        for row in active.rows:
            if row.outcome is None:
                active.end(row, Ending(RunStatus.KILLED, reason))
        if active.context is not None:
            active.context.close()
        for problem in active.provision.tear_down():
            active.say(problem, "red")
        self._stop.on_request = lambda: None
        status = RunStatus.worst(row.outcome.status for row in active.rows if row.outcome)
        active.recording.workload_ended(active.workload_id, status)
        self._session.console.hide_live()


def _give_up(active: ActiveWorkload, error: SetUpError) -> None:
    """The workload cannot be set up: whose fault it is FAILED, the others are SKIPPED."""
    culprits = ", ".join(sorted(error.reasons))
    for row in active.rows:
        reason = error.reasons.get(row.letter)
        if reason is not None:
            active.end(row, Ending(RunStatus.FAILED, reason))
        else:
            active.end(row, Ending(RunStatus.SKIPPED, f"{culprits} could not be set up"))
