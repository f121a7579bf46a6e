"""What a runner that died left open: rows that say RUNNING, processes, runs without an end."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace

from radt.collector.protocol import Registration, delivery_env
from radt.collocation.ledger import Owner
from radt.errors import CollectorError, RunNotFoundError
from radt.experiment.plan import ExperimentPlan, RunPlan
from radt.experiment.status import RowStatus, StatusSink
from radt.home import Home
from radt.model import RunStatus
from radt.runner import trees
from radt.runner.active import status_text
from radt.runner.ending import Ending
from radt.runner.preparation import RUNNER_TAG
from radt.runner.session import Session
from radt.store.reader import StoreReader

RUNNER_DIED = "its runner died"


@dataclass(frozen=True, slots=True)
class Settled:
    """A plan with what the store knows of rows whose runner died before it wrote their end.

    ``endings`` are those ends, by line; the file does not have them yet.
    """

    plan: ExperimentPlan
    endings: Mapping[int, Ending]


def settle(plan: ExperimentPlan, home: Home) -> Settled:
    """Look up how rows ended that say RUNNING: a run that came to its own end need not run again.

    Raises:
        StoreError: The store cannot be read.
    """
    ids = [run.run_id for run in plan.runs if run.status is RunStatus.RUNNING and run.run_id]
    if not ids or not home.store_path.exists():
        return Settled(plan, {})
    endings: dict[int, Ending] = {}
    with StoreReader(home.store_path) as reader:
        for run in plan.runs:
            if run.status is RunStatus.RUNNING and run.run_id:
                try:
                    record = reader.find_run(run.run_id)
                except RunNotFoundError:
                    continue
                # KILLED is what the collector says of runs whose runner is gone.
                if record.status.ended and record.status is not RunStatus.KILLED:
                    endings[run.line] = Ending(record.status, record.end_reason)

    def known(run: RunPlan) -> RunPlan:
        ending = endings.get(run.line)
        if ending is None:
            return run
        done = run.repeats_done + (ending.status is RunStatus.FINISHED)
        return replace(run, status=ending.status, repeats_done=done)

    workloads = tuple(
        replace(workload, runs=tuple(known(run) for run in workload.runs))
        for workload in plan.workloads
    )
    return Settled(replace(plan, workloads=workloads), endings)


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
    for run_id in _recorded_and_no_more(session):
        _end_orphan(session, run_id)
    if statuses is None:
        return
    killed = Ending(RunStatus.KILLED, RUNNER_DIED)
    rows = {row.line: _said(row, killed, row.repeats_done + 1, repeats) for row in lost}
    for row in settled.plan.runs:
        if (ending := settled.endings.get(row.line)) is not None:
            finished = ending.status is RunStatus.FINISHED
            number = row.repeats_done if finished else row.repeats_done + 1
            rows[row.line] = _said(row, ending, number, repeats)
    if rows:
        statuses.set_many(rows)


def _said(row: RunPlan, ending: Ending, number: int, repeats: int) -> RowStatus:
    return RowStatus(status_text(ending, number, max(repeats, number)), row.run_id)


def _recorded_and_no_more(session: Session) -> list[str]:
    """Runs whose runner died before it had told collector and file of them."""
    here = platform.node()
    runs = [run.run_id for run in session.reader.unended_runs() if run.host == here]
    tags = session.reader.tags_of(runs)
    return [run_id for run_id in runs if _is_dead(tags.get(run_id, {}).get(RUNNER_TAG, ""))]


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
            f"  run {shown_id} of a runner that died is not in {session.home.store_path}",
            style="dim",
        )
        return
    trees.stop_processes_of(run.run_id)
    if run.status.ended:
        return  # the collector was faster
    try:
        session.client.register(
            Registration(
                run_id=run.run_id,
                store_path=str(session.home.store_path),
                spool=run.spool,
                tracking_uri=run.tracking_uri,
                store_uri=session.store_uri,
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
