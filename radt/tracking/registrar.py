"""Gives runs and workloads their MLflow runs; quick, because training waits for it."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tracking.experiments import ensure_experiment
from radt.tracking.mlflow_target import DeliveryError, MlflowTarget, Trouble
from radt.tracking.names import (
    MAX_TAG_LENGTH,
    clean_text,
    cut,
    mlflow_key,
    run_name,
    workload_name,
)
from radt.tracking.points import NS_PER_MS

log = logging.getLogger(__name__)

RUN_ID_TAG = "radt.run_id"
WORKLOAD_ID_TAG = "radt.workload_id"
_PARENT_TAG = "mlflow.parentRunId"


class Registrar:
    """Creates what MLflow lacks and notes the ids in the store.

    A process that was killed between creating a run and noting its id leaves a run that nobody
    knows. So runs that an earlier attempt may have created are looked for by their ``radt.run_id``
    tag first.

    Args:
        since_ns: Wall-clock time when this process began; of workloads created before it, an
            earlier process may have created runs.
    """

    def __init__(
        self,
        target: MlflowTarget,
        reader: StoreReader,
        writer: StoreWriter,
        tracking_uri: str,
        since_ns: int,
    ) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self._tracking_uri = tracking_uri
        self._since_ns = since_ns
        self._experiments: dict[str, str] = {}
        self._attempted: set[str] = set()
        self._user = _user_name()

    def register_pending(self) -> int:
        """Create all that is missing; returns how many MLflow runs were created.

        Raises:
            DeliveryError: MLflow failed; what was created until then is in the store.
            StoreError: The store failed.
        """
        missing = [
            run
            for run in self._reader.runs_to_deliver(self._tracking_uri)
            if run.mlflow_run_id is None
        ]
        if not missing:
            return 0
        workloads = {
            workload.workload_id: workload
            for workload in self._reader.workloads_to_deliver(self._tracking_uri)
        }
        created = 0
        problem: DeliveryError | None = None
        missing.sort(key=attrgetter("created_ns", "workload_id", "letter"))
        for workload_id, group in groupby(missing, key=attrgetter("workload_id")):
            workload = workloads.get(workload_id)
            if workload is None:
                continue  # recorded with another tracking URI; that one's deliverer has it
            try:
                created += self._register(workload, list(group))
            except DeliveryError as error:
                if error.trouble is Trouble.UNREACHABLE:
                    raise
                # One workload's trouble keeps nobody else waiting.
                log.warning("workload %s not registered yet: %s", workload_id, error.message)
                self._forget_experiment(workload, error)
                problem = error
        if problem is not None:
            raise problem
        return created

    def _register(self, workload: WorkloadRecord, runs: Sequence[RunRecord]) -> int:
        experiment_id = workload.mlflow_experiment_id or self._experiment(workload.experiment)
        if workload.mlflow_experiment_id is None:
            self._writer.update_workload(workload.workload_id, mlflow_experiment_id=experiment_id)
        known: dict[str, str] = {}
        first_attempt = workload.workload_id not in self._attempted
        if not first_attempt or workload.created_ns < self._since_ns:
            known = self._created_before(experiment_id, workload.workload_id)
        self._attempted.add(workload.workload_id)
        parent_id = self._parent(workload, experiment_id, known) if workload.label else None
        for run in runs:
            mlflow_id = known.get(run.run_id) or self._target.create_run(
                experiment_id,
                run_name(run.workload if workload.label else "", run.letter, run.name),
                run.created_ns // NS_PER_MS,
                self._run_tags(run, parent_id),
            )
            self._writer.update_run(run.run_id, mlflow_run_id=mlflow_id)
        return len(runs)

    def _experiment(self, text: str) -> str:
        experiment_id = self._experiments.get(text)
        if experiment_id is None:
            experiment_id = self._experiments[text] = ensure_experiment(self._target, text)
        return experiment_id

    def _forget_experiment(self, workload: WorkloadRecord, error: DeliveryError) -> None:
        """It may have been deleted in MLflow since it was looked up; the next attempt sees."""
        self._experiments.pop(workload.experiment, None)
        if error.trouble in (Trouble.GONE, Trouble.REFUSED):
            self._writer.update_workload(workload.workload_id, mlflow_experiment_id=None)

    def _created_before(self, experiment_id: str, workload_id: str) -> dict[str, str]:
        """MLflow run ids by our ids (the parent's under the workload's) of an earlier attempt."""
        found = self._target.runs_with_tag(experiment_id, WORKLOAD_ID_TAG, workload_id)
        return {tags.get(RUN_ID_TAG, workload_id): run_id for run_id, tags in found.items()}

    def _parent(self, workload: WorkloadRecord, experiment_id: str, known: dict[str, str]) -> str:
        if workload.mlflow_run_id is not None:
            return workload.mlflow_run_id
        parent_id = known.get(workload.workload_id) or self._target.create_run(
            experiment_id,
            workload_name(workload.label),
            workload.created_ns // NS_PER_MS,
            {
                WORKLOAD_ID_TAG: workload.workload_id,
                "radt.workload": cut(workload.label, MAX_TAG_LENGTH),
                "mlflow.user": self._user,
                "mlflow.source.type": "PROJECT",
                "mlflow.source.name": "radt",
            },
        )
        self._writer.update_workload(workload.workload_id, mlflow_run_id=parent_id)
        return parent_id

    def _run_tags(self, run: RunRecord, parent_id: str | None) -> dict[str, str]:
        """What the run is found by must be there from its first moment."""
        tags = {
            RUN_ID_TAG: run.run_id,
            WORKLOAD_ID_TAG: run.workload_id,
            "mlflow.user": self._user,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.name": run.command or run.name,
        }
        if parent_id is not None:
            tags[_PARENT_TAG] = parent_id
        stored = {mlflow_key(key): value for key, value in self._reader.tags(run.run_id).items()}
        return {
            key: cut(clean_text(value), MAX_TAG_LENGTH) for key, value in (stored | tags).items()
        }


def _user_name() -> str:
    """The login name, which MLflow shows beside each run."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return "unknown"
