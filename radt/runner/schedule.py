"""Runs an experiment: workload after workload, skipping what is done, resuming what was cut off."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from radt.collector.protocol import Registration, delivery_env
from radt.errors import CollectorError, RunNotFoundError
from radt.experiment.decision import decide
from radt.experiment.plan import ExperimentPlan, RunPlan, WorkloadPlan
from radt.experiment.status import RowStatus, StatusWriter
from radt.model import RunStatus
from radt.runner import reaper
from radt.runner.outcome import ExperimentOutcome, WorkloadOutcome
from radt.runner.session import Session
from radt.runner.stop import StopRequest
from radt.runner.workload import StatusSink, WorkloadRunner

RUNNER_DIED = "its runner died"


@dataclass(frozen=True, slots=True)
class Due:
    """The rows of a workload that this start runs."""

    plan: WorkloadPlan
    rows: Sequence[RunPlan]

    @property
    def partial(self) -> bool:
        """Whether some rows of the workload are left out, so that it is not what it was."""
        return len(self.rows) < len(self.plan.runs)


def due_workloads(plan: ExperimentPlan, *, rerun: bool) -> list[Due]:
    """What a start has to run, in the file's order."""
    due = [
        Due(workload, [row for row in workload.runs if decide(row.status, rerun=rerun).runs])
        for workload in plan.workloads
    ]
    return [workload for workload in due if workload.rows]


def run_experiment(
    session: Session,
    plan: ExperimentPlan,
    *,
    rerun: bool = False,
    statuses: StatusWriter | None = None,
    stop: StopRequest,
) -> ExperimentOutcome:
    """Run all that is due; the caller holds the experiment's lock and listens for signals.

    Args:
        statuses: Writes them into the experiment file; None for a direct run.

    Raises:
        RadtError: A workload could not be prepared, or the file could not be written.
    """
    write_status: StatusSink = statuses.set_many if statuses else lambda _: None
    recover(session, plan, write_status)
    due = due_workloads(plan, rerun=rerun)
    started_s = time.monotonic()
    outcomes: list[WorkloadOutcome] = []
    for position, workload in enumerate(due, start=1):
        if stop:
            break
        if workload.partial:
            session.console.say(
                f"  {workload.plan.label}: runs without the "
                f"{len(workload.plan.runs) - len(workload.rows)} rows that are done, so it is "
                "less crowded than the whole workload",
                style="dim",
            )
        runner = WorkloadRunner(
            session,
            workload.plan,
            workload.rows,
            position=position,
            total=len(due),
            stop=stop,
            write_status=write_status,
        )
        outcome = runner.run()
        outcomes.append(outcome)
        session.console.workload_ended(position, len(due), outcome)
    if statuses is not None:
        statuses.flush()
    return ExperimentOutcome(
        workloads=outcomes,
        skipped=sum(len(w.runs) for w in plan.workloads) - sum(len(w.rows) for w in due),
        elapsed_s=time.monotonic() - started_s,
        interrupted=bool(stop),
    )


def recover(session: Session, plan: ExperimentPlan, write_status: StatusSink) -> None:
    """End what a runner that died left open: processes, store rows, MLflow runs, CSV rows."""
    for row in plan.runs:
        if row.status is not RunStatus.RUNNING:
            continue
        if row.run_id:
            _end_orphan(session, row.run_id)
        write_status({row.line: RowStatus(f"{RunStatus.KILLED}: {RUNNER_DIED}", row.run_id)})


def _end_orphan(session: Session, shown_id: str) -> None:
    try:
        run = session.reader.find_run(shown_id)
    except RunNotFoundError:
        session.console.say(
            f"  run {shown_id} of a runner that died is not in {session.home.store_path}",
            style="dim",
        )
        return
    reaper.stop_processes_of(run.run_id)
    if run.status.ended:
        return  # the collector was faster
    try:
        session.client.register(
            Registration(
                run_id=run.run_id,
                store_path=str(session.home.store_path),
                spool=run.spool,
                tracking_uri=run.tracking_uri,
                listeners=(),
                devices=(),
                env=delivery_env(os.environ),
            )
        )
        session.client.finish(run.run_id, RunStatus.KILLED, None, RUNNER_DIED)
    except CollectorError as error:
        session.console.say(f"  {error}", style="red")
        session.writer.end_run(
            run.run_id, RunStatus.KILLED, session.clock.now_ns(), reason=RUNNER_DIED
        )
        session.writer.end_workload(run.workload_id)
