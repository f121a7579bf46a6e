"""Everything that comes before the barrier: store rows, spool folders, collector, MLflow."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radt.collector.protocol import Registration, delivery_env
from radt.errors import RadtError
from radt.experiment.plan import RunPlan, WorkloadPlan
from radt.home import RunDir
from radt.masking import masked
from radt.model import RunStatus
from radt.params import command_params
from radt.runner.environment import RunIdentity, command_of, environment_of
from radt.runner.session import Session
from radt.store.records import RunRecord, WorkloadRecord
from radt.tracking.inventory import collect_inventory

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A row that can be started."""

    plan: RunPlan
    run_id: str
    run_dir: RunDir
    command: list[str]
    env: dict[str, str]
    mlflow_run_id: str | None

    @property
    def shown_id(self) -> str:
        """The id for the Run column: MLflow's, as people paste it there; else radt's own."""
        return self.mlflow_run_id or self.run_id


@dataclass(frozen=True, slots=True)
class PreparedWorkload:
    """A workload that can be started."""

    workload_id: str
    label: str
    runs: Sequence[PreparedRun]
    warnings: Sequence[str]


def prepare(
    session: Session,
    plan: WorkloadPlan,
    rows: Sequence[RunPlan],
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> PreparedWorkload:
    """Record the rows, register them, and wait until MLflow has them.

    Args:
        cancelled: Asked while waiting; if it says yes, the wait is over.

    Raises:
        RadtError: The store or the collector refuses; what was recorded is ended as FAILED.
    """
    workload_id = uuid.uuid4().hex
    run_ids = [uuid.uuid4().hex for _ in rows]
    _record(session, plan, rows, workload_id, run_ids)
    try:
        warnings = _register(session, rows, run_ids)
        mlflow_ids = _wait_for_mlflow(session, run_ids, cancelled)
    except RadtError as error:
        _abandon(session, workload_id, run_ids, str(error))
        raise
    if not cancelled():
        if missed := len(mlflow_ids) < len(run_ids):
            warnings.append(
                f"MLflow at {masked(session.tracking_uri)} did not answer within "
                f"{session.mlflow_patience.timeout_s:.0f} s; runs start now, it gets them when it "
                "is back"
            )
        session.mlflow_patience.answered(in_time=not missed)
    mlflow_experiment_id = session.reader.workload(workload_id).mlflow_experiment_id
    return PreparedWorkload(
        workload_id,
        plan.label,
        [
            _prepared(session, row, run_id, mlflow_ids.get(run_id), mlflow_experiment_id)
            for row, run_id in zip(rows, run_ids, strict=True)
        ],
        warnings,
    )


def _prepared(
    session: Session,
    row: RunPlan,
    run_id: str,
    mlflow_run_id: str | None,
    mlflow_experiment_id: str | None,
) -> PreparedRun:
    run_dir = session.home.run_dir(run_id)
    identity = RunIdentity(
        run_id=run_id,
        spool=run_dir.path,
        tracking_uri=session.tracking_uri,
        mlflow_run_id=mlflow_run_id,
        mlflow_experiment_id=mlflow_experiment_id,
    )
    env = environment_of(row, identity, session.home, session.machine)
    return PreparedRun(row, run_id, run_dir, command_of(row), env, mlflow_run_id)


def _abandon(session: Session, workload_id: str, run_ids: Sequence[str], reason: str) -> None:
    """Nothing was started, and nothing of it may look as if it were about to run."""
    now_ns = session.clock.now_ns()
    with session.writer.transaction():
        for run_id in run_ids:
            session.writer.end_run(run_id, RunStatus.FAILED, now_ns, reason=reason)
        session.writer.update_workload(workload_id, status=RunStatus.FAILED, ended_ns=now_ns)


def _record(
    session: Session,
    plan: WorkloadPlan,
    rows: Sequence[RunPlan],
    workload_id: str,
    run_ids: Sequence[str],
) -> None:
    now_ns = session.clock.now_ns()
    with session.writer.transaction():
        session.writer.put_workload(
            WorkloadRecord(
                workload_id=workload_id,
                experiment=plan.experiment,
                label=plan.label,
                created_ns=now_ns,
                tracking_uri=session.tracking_uri,
            )
        )
        for row, run_id in zip(rows, run_ids, strict=True):
            run_dir = session.home.run_dir(run_id).create()
            inventory = collect_inventory(
                row.program.folder, run_dir.artifacts, interpreter=sys.executable
            )
            command = command_of(row)
            session.writer.put_run(
                RunRecord(
                    run_id=run_id,
                    workload_id=workload_id,
                    experiment=row.experiment,
                    workload=row.workload,
                    letter=row.letter,
                    name=row.label,
                    created_ns=now_ns,
                    status=RunStatus.SCHEDULED,
                    devices=str(row.devices),
                    collocation=str(row.collocation),
                    listeners="+".join(str(choice) for choice in row.listeners),
                    command=shlex.join(command),
                    host=platform.node(),
                    spool=str(run_dir.path),
                    tracking_uri=session.tracking_uri,
                )
            )
            session.writer.put_params(
                run_id,
                command_params(row.program.path.name, row.params_text, row.params),
            )
            session.writer.put_tags(
                run_id,
                {
                    "radt.workload": row.workload,
                    "radt.letter": row.letter,
                    "radt.devices": str(row.devices),
                    "radt.collocation": str(row.collocation),
                    "radt.listeners": "+".join(str(choice) for choice in row.listeners),
                }
                | inventory.tags,
            )


def _register(session: Session, rows: Sequence[RunPlan], run_ids: Sequence[str]) -> list[str]:
    env = delivery_env(os.environ)
    warnings: dict[str, None] = {}  # the same for each row mostly; an ordered set
    for row, run_id in zip(rows, run_ids, strict=True):
        answer = session.client.register(
            Registration(
                run_id=run_id,
                store_path=str(session.home.store_path),
                spool=str(session.home.run_dir(run_id).path),
                tracking_uri=session.tracking_uri,
                listeners=row.listeners,
                devices=tuple(str(index) for index in row.devices.gpus),
                env=env,
            )
        )
        warnings |= dict.fromkeys(answer)
    return list(warnings)


def _wait_for_mlflow(
    session: Session, run_ids: Sequence[str], cancelled: Callable[[], bool]
) -> dict[str, str]:
    """MLflow's ids by ours, as soon as all are known or the time is over."""
    deadline = time.monotonic() + session.mlflow_patience.timeout_s
    while True:
        known = {
            run.run_id: run.mlflow_run_id
            for run in session.reader.runs(run_ids=list(run_ids))
            if run.mlflow_run_id
        }
        if len(known) == len(run_ids) or time.monotonic() >= deadline or cancelled():
            return known
        time.sleep(_POLL_S)
