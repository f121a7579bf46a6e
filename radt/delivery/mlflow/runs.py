"""Create an MLflow run for each run and workload."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from mlflow.entities import Experiment, ViewType

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.limits import (
    MAX_TAG_LENGTH,
    MAX_TEXTS,
    clean_text,
    cut,
    experiment_name,
    mlflow_key,
    run_name,
    workload_name,
)
from radt.delivery.mlflow.target import NS_PER_MS, MlflowTarget
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import (
    EXPERIMENT,
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN,
    MLFLOW_SOURCE_NAME,
    MLFLOW_SOURCE_TYPE,
    MLFLOW_USER,
    PARENT,
    RUN_ID,
    WORKLOAD,
    WORKLOAD_ID,
)

log = logging.getLogger(__name__)


def missing_runs(
    due: Iterable[RunRecord], workloads: Iterable[WorkloadRecord]
) -> list[tuple[WorkloadRecord, list[RunRecord]]]:
    """Return the runs that have no MLflow run yet, with their workloads, in order of creation.

    A run whose workload was recorded with another tracking URI is left to that URI's uploader.
    """
    missing: dict[str, list[RunRecord]] = {}
    for run in sorted(due, key=attrgetter("created_ns", "letter")):
        if run.mlflow_run_id is None:
            missing.setdefault(run.workload_id, []).append(run)
    known = {workload.workload_id: workload for workload in workloads}
    return [(known[own_id], runs) for own_id, runs in missing.items() if own_id in known]


@dataclass
class RunCreator:
    """Creates missing MLflow runs and records their ids in the store.

    A process killed between creating a run and recording its id leaves an orphaned run. So runs
    that an earlier attempt may have created (of workloads older than ``since_ns``, the wall-clock
    time when this process began) are first searched for by their ``radt.run_id`` tag.
    """

    target: MlflowTarget
    reader: StoreReader
    writer: StoreWriter
    since_ns: int
    _experiments: dict[str, str] = field(default_factory=dict)
    _attempted: set[str] = field(default_factory=set)

    def register(self, workload: WorkloadRecord, runs: Sequence[RunRecord]) -> None:
        """Create the MLflow runs of a workload and of some of its runs.

        Raises:
            DeliveryError: MLflow failed; runs created so far are in the store.
            StoreError: The store failed.
        """
        try:
            self._create(workload, runs)
        except DeliveryError as error:
            # The experiment may have been deleted in MLflow, so look it up again next time.
            self._experiments.pop(workload.experiment, None)
            if error.kind in (ErrorKind.GONE, ErrorKind.REFUSED):
                self.writer.update_workload(workload.workload_id, mlflow_experiment_id=None)
            raise

    def _create(self, workload: WorkloadRecord, runs: Sequence[RunRecord]) -> None:
        experiment_id = workload.mlflow_experiment_id or self._experiment(workload.experiment)
        if workload.mlflow_experiment_id is None:
            self.writer.update_workload(workload.workload_id, mlflow_experiment_id=experiment_id)
        known: dict[str, str] = {}
        first_attempt = workload.workload_id not in self._attempted
        if not first_attempt or workload.created_ns < self.since_ns:
            known = self._created_before(experiment_id, workload.workload_id)
        self._attempted.add(workload.workload_id)
        parent_id = self._parent(workload, experiment_id, known) if workload.label else None
        for run in runs:
            tags = self.reader.tags(run.run_id)
            above_id = self._mlflow_id(tags.get(PARENT))
            label = "" if above_id is not None else run.workload if workload.label else ""
            own = self._run_tags(run, tags, above_id or parent_id)
            mlflow_id = known.get(run.run_id) or self._adopt(tags.get(MLFLOW_RUN), own)
            mlflow_id = mlflow_id or self.target.create_run(
                experiment_id,
                run_name(label, run.letter, run.name),
                run.created_ns // NS_PER_MS,
                own,
                run.run_id,
            )
            self.writer.update_run(run.run_id, mlflow_run_id=mlflow_id)

    def _adopt(self, mlflow_id: str | None, tags: Mapping[str, str]) -> str | None:
        """Add tags to the MLflow run that the script created; return its id, None if it is gone."""
        if mlflow_id is None:
            return None
        kept = (MLFLOW_USER, MLFLOW_SOURCE_TYPE, MLFLOW_SOURCE_NAME)
        try:
            present = self.target.tags(mlflow_id)
            missing = [(k, v) for k, v in tags.items() if k not in kept or k not in present]
            for first in range(0, len(missing), MAX_TEXTS):
                self.target.set_tags(mlflow_id, missing[first : first + MAX_TEXTS])
        except DeliveryError as error:
            if error.kind is not ErrorKind.GONE:
                raise
            return None
        return mlflow_id

    def _mlflow_id(self, run_id: str | None) -> str | None:
        """Return MLflow's id of a child's parent run, which is created first."""
        runs = self.reader.runs(run_ids=[run_id]) if run_id else []
        return runs[0].mlflow_run_id if runs else None

    def _experiment(self, text: str) -> str:
        experiment_id = self._experiments.get(text)
        if experiment_id is None:
            experiment_id = self._experiments[text] = ensure_experiment(self.target, text)
        return experiment_id

    def _created_before(self, experiment_id: str, workload_id: str) -> dict[str, str]:
        """Return the MLflow runs created earlier, by run id (the parent: by workload id)."""
        runs = self.target.runs_with_tag(experiment_id, WORKLOAD_ID, workload_id, ViewType.ALL)
        return {run.data.tags.get(RUN_ID, workload_id): run.info.run_id for run in runs}

    def _parent(self, workload: WorkloadRecord, experiment_id: str, known: dict[str, str]) -> str:
        if workload.mlflow_run_id is not None:
            return workload.mlflow_run_id
        parent_id = known.get(workload.workload_id) or self.target.create_run(
            experiment_id,
            workload_name(workload.label),
            workload.created_ns // NS_PER_MS,
            {
                WORKLOAD_ID: workload.workload_id,
                WORKLOAD: cut(workload.label, MAX_TAG_LENGTH),
                MLFLOW_USER: _user_name(),
                MLFLOW_SOURCE_TYPE: "PROJECT",
                MLFLOW_SOURCE_NAME: "radt",
            },
        )
        self.writer.update_workload(workload.workload_id, mlflow_run_id=parent_id)
        return parent_id

    def _run_tags(
        self, run: RunRecord, own: Mapping[str, str], parent_id: str | None
    ) -> dict[str, str]:
        """Return the tags that identify the run, which it must have from its creation on."""
        tags = {
            RUN_ID: run.run_id,
            WORKLOAD_ID: run.workload_id,
            EXPERIMENT: run.experiment,
            MLFLOW_USER: _user_name(),
            MLFLOW_SOURCE_TYPE: "LOCAL",
            MLFLOW_SOURCE_NAME: run.command or run.name,
        }
        if parent_id is not None:
            tags[MLFLOW_PARENT_RUN_ID] = parent_id
        stored = {mlflow_key(key): value for key, value in own.items()}
        return {
            key: cut(clean_text(value), MAX_TAG_LENGTH) for key, value in (stored | tags).items()
        }


def delete_lost_runs(
    target: MlflowTarget, workload: WorkloadRecord, runs: Sequence[RunRecord]
) -> int:
    """Delete orphaned MLflow runs of a workload; return their number.

    A request to create a run may be delayed beyond its timeout and arrive after a repeated request
    has created the run. The extra run has radt's tags and nothing else.

    Raises:
        DeliveryError: MLflow failed.
    """
    if workload.mlflow_experiment_id is None:
        return 0
    known = {workload.mlflow_run_id, *(run.mlflow_run_id for run in runs)}
    ours = {"", *(run.run_id for run in runs)}
    lost = [
        run.info.run_id
        for run in target.runs_with_tag(
            workload.mlflow_experiment_id, WORKLOAD_ID, workload.workload_id
        )
        if run.info.status == "RUNNING"
        and not (run.data.metrics or run.data.params)
        and run.info.run_id not in known
        and run.data.tags.get(RUN_ID, "") in ours
    ]
    for mlflow_id in lost:
        target.delete_run(mlflow_id)
    return len(lost)


def _user_name() -> str:
    """Return the login name, which MLflow shows with each run."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return "unknown"


def ensure_experiment(target: MlflowTarget, text: str) -> str:
    """Return the id of the Experiment column's MLflow experiment, creating it if needed.

    A number is an id, as in the original radT; an unknown id is used as a name, because losing the
    run would be worse. A deleted experiment is restored, because it is in use again and MLflow
    keeps its name reserved.

    Raises:
        DeliveryError: MLflow refuses or cannot be reached.
    """
    if text.isascii() and text.isdigit():
        known = target.experiment_by_id(text)
        if known is not None:
            return _active(target, known)
        log.warning("MLflow has no experiment with id %s; %s is taken as a name", text, text)
    name = experiment_name(text)
    known = target.experiment_by_name(name)
    if known is None:
        try:
            return target.create_experiment(name)
        except DeliveryError as error:
            known = None
            if error.kind is ErrorKind.REFUSED:
                known = target.experiment_by_name(name)  # another process was faster
            if known is None:
                raise
    return _active(target, known)


def _active(target: MlflowTarget, experiment: Experiment) -> str:
    """Return the id of an experiment; restore it if it was deleted."""
    experiment_id = str(experiment.experiment_id)
    if experiment.lifecycle_stage != "active":
        log.warning("%r had been deleted in MLflow; restored for a new run", experiment.name)
        target.restore_experiment(experiment_id)
    return experiment_id
