"""Create the MLflow runs of runs and workloads, quickly, because training waits for them."""

from __future__ import annotations

import getpass
import logging
import math
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.limits import (
    MAX_TAG_LENGTH,
    clean_text,
    cut,
    experiment_name,
    mlflow_key,
    run_name,
    workload_name,
)
from radt.delivery.mlflow.target import MAX_PARAMS, NS_PER_MS, MlflowTarget
from radt.delivery.problems import Reports
from radt.delivery.process import Deferred
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

#: Longest wait before a failed workload is retried, while others continue.
_LONGEST_DELAY_S = 30.0


class RunCreator:
    """Creates missing MLflow runs and records their ids in the store.

    A process killed between creating a run and recording its id leaves an orphaned run. So runs
    that an earlier attempt may have created (of workloads older than ``since_ns``, the wall-clock
    time when this process began) are first searched by their ``radt.run_id`` tag.
    """

    def __init__(
        self,
        target: MlflowTarget,
        reader: StoreReader,
        writer: StoreWriter,
        tracking_uri: str,
        since_ns: int,
        reports: Reports | None = None,
    ) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self._tracking_uri = tracking_uri
        self._since_ns = since_ns
        self._experiments: dict[str, str] = {}
        self._attempted: set[str] = set()
        self._user = _user_name()
        self._reports = reports or Reports()
        self._deferred = Deferred(_LONGEST_DELAY_S)

    def seconds_to_next(self) -> float | None:
        """Return the time until the first of the failed workloads may be retried."""
        left_s = self._deferred.next_s - time.monotonic()
        return None if left_s == math.inf else max(0.0, left_s)

    def register_pending(self, *, everything: bool = False) -> int:
        """Create all missing MLflow runs and return their number.

        With `everything`, also retry workloads that have just failed.

        Raises:
            DeliveryError: MLflow failed; runs created so far are in the store.
            StoreError: The store failed.
        """
        missing = [
            run
            for run in self._reader.runs_to_deliver(self._tracking_uri)
            if run.mlflow_run_id is None
        ]
        self._deferred.keep({run.workload_id for run in missing})
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
                continue  # recorded with another tracking URI, whose uploader has it
            if not everything and self._deferred.waits(workload_id):
                continue
            try:
                created += self._register(workload, list(group))
            except DeliveryError as error:
                if error.kind is ErrorKind.UNREACHABLE:
                    raise
                # A failure of one workload must not delay the others.
                self._deferred.put(workload_id, error.message)
                self._reports.failed(workload_id, error)
                self._forget_experiment(workload, error)
                problem = error
            else:
                self._deferred.drop(workload_id)
                self._reports.worked(workload_id)
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
            tags = self._reader.tags(run.run_id)
            above_id = self._mlflow_id(tags.get(PARENT))
            label = "" if above_id is not None else run.workload if workload.label else ""
            own = self._run_tags(run, tags, above_id or parent_id)
            mlflow_id = known.get(run.run_id) or self._adopted(tags.get(MLFLOW_RUN), own)
            mlflow_id = mlflow_id or self._target.create_run(
                experiment_id,
                run_name(label, run.letter, run.name),
                run.created_ns // NS_PER_MS,
                own,
                run.run_id,
            )
            self._writer.update_run(run.run_id, mlflow_run_id=mlflow_id)
        return len(runs)

    def _adopted(self, mlflow_id: str | None, tags: Mapping[str, str]) -> str | None:
        """Return the id of the MLflow run that the script made for a run; None if it is gone."""
        if mlflow_id is None:
            return None
        kept = (MLFLOW_USER, MLFLOW_SOURCE_TYPE, MLFLOW_SOURCE_NAME)
        try:
            there = self._target.tags(mlflow_id)
            missing = [(k, v) for k, v in tags.items() if k not in kept or k not in there]
            for first in range(0, len(missing), MAX_PARAMS):
                self._target.set_tags(mlflow_id, missing[first : first + MAX_PARAMS])
        except DeliveryError as error:
            if error.kind is not ErrorKind.GONE:
                raise
            return None
        return mlflow_id

    def _mlflow_id(self, run_id: str | None) -> str | None:
        """Return MLflow's id of the run that another is a child of, which has it first."""
        runs = self._reader.runs(run_ids=[run_id]) if run_id else []
        return runs[0].mlflow_run_id if runs else None

    def _experiment(self, text: str) -> str:
        experiment_id = self._experiments.get(text)
        if experiment_id is None:
            experiment_id = self._experiments[text] = ensure_experiment(self._target, text)
        return experiment_id

    def _forget_experiment(self, workload: WorkloadRecord, error: DeliveryError) -> None:
        """Look the experiment up again next time: it may have been deleted in MLflow."""
        self._experiments.pop(workload.experiment, None)
        if error.kind in (ErrorKind.GONE, ErrorKind.REFUSED):
            self._writer.update_workload(workload.workload_id, mlflow_experiment_id=None)

    def _created_before(self, experiment_id: str, workload_id: str) -> dict[str, str]:
        """Return an earlier attempt's MLflow run ids by run id, the parent's by workload id."""
        tags_of = self._target.runs_with_tag(experiment_id, WORKLOAD_ID, workload_id)
        return {tags.get(RUN_ID, workload_id): run_id for run_id, tags in tags_of.items()}

    def _parent(self, workload: WorkloadRecord, experiment_id: str, known: dict[str, str]) -> str:
        if workload.mlflow_run_id is not None:
            return workload.mlflow_run_id
        parent_id = known.get(workload.workload_id) or self._target.create_run(
            experiment_id,
            workload_name(workload.label),
            workload.created_ns // NS_PER_MS,
            {
                WORKLOAD_ID: workload.workload_id,
                WORKLOAD: cut(workload.label, MAX_TAG_LENGTH),
                MLFLOW_USER: self._user,
                MLFLOW_SOURCE_TYPE: "PROJECT",
                MLFLOW_SOURCE_NAME: "radt",
            },
        )
        self._writer.update_workload(workload.workload_id, mlflow_run_id=parent_id)
        return parent_id

    def _run_tags(
        self, run: RunRecord, own: Mapping[str, str], parent_id: str | None
    ) -> dict[str, str]:
        """Return the tags that identify the run, which it must have when it is created."""
        tags = {
            RUN_ID: run.run_id,
            WORKLOAD_ID: run.workload_id,
            EXPERIMENT: run.experiment,
            MLFLOW_USER: self._user,
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
    ours = {run.run_id for run in runs}
    empty = target.empty_runs_with_tag(
        workload.mlflow_experiment_id, WORKLOAD_ID, workload.workload_id
    )
    lost = [
        mlflow_id
        for mlflow_id, tags in empty.items()
        if mlflow_id not in known and tags.get(RUN_ID, "") in {"", *ours}
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
            if not known.active:
                _restore(target, known.experiment_id, text)
            return known.experiment_id
        log.warning("MLflow has no experiment with id %s; %s is taken as a name", text, text)
    name = experiment_name(text)
    known = target.experiment_by_name(name)
    if known is None:
        try:
            return target.create_experiment(name)
        except DeliveryError as error:
            if error.kind is not ErrorKind.REFUSED:
                raise
            known = target.experiment_by_name(name)  # another process was faster
            if known is None:
                raise
    if not known.active:
        _restore(target, known.experiment_id, name)
    return known.experiment_id


def _restore(target: MlflowTarget, experiment_id: str, name: str) -> None:
    log.warning("experiment %r had been deleted in MLflow; restored for a new run", name)
    target.restore_experiment(experiment_id)
