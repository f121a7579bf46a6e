"""The MLflow that runs are delivered to: the few calls we make, with errors we can act on.

Only the deliverer imports this module: MLflow takes over a second and 150 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import requests
from mlflow.entities import Experiment, Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from radt.errors import TrackingError
from radt.model import RunStatus
from radt.tracking.points import Point

#: Most entities in one request, MLflow's own limits.
MAX_POINTS = 1000
MAX_PARAMS = 100


class Trouble(StrEnum):
    """What a failed request means for what comes next."""

    UNREACHABLE = "unreachable"  # nothing will work for now: wait, then try again
    BUSY = "busy"  # this request did not work for now: try again
    GONE = "gone"  # the run or experiment was deleted: give it up
    REFUSED = "refused"  # this content will never be accepted: leave it out


class DeliveryError(TrackingError):
    """A request to MLflow failed; ``trouble`` says what to make of it."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


_BUSY_CODES = frozenset(
    {
        "ABORTED",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "INTERNAL_ERROR",
        "REQUEST_LIMIT_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "TEMPORARILY_UNAVAILABLE",  # "database is locked" arrives as this
    }
)
#: Wrong credentials, or a server that is not MLflow: somebody has to mend it, nothing is lost.
_UNREACHABLE_CODES = frozenset(
    {"CUSTOMER_UNAUTHORIZED", "ENDPOINT_NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED"}
)


def trouble_of(error: BaseException) -> Trouble:
    """What an exception from MLflow's client means."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, requests.exceptions.RequestException):
            return Trouble.UNREACHABLE
        link = link.__cause__ or link.__context__
    if not isinstance(error, MlflowException):
        return Trouble.BUSY
    if error.error_code == "RESOURCE_DOES_NOT_EXIST":
        return Trouble.GONE
    if error.error_code in _UNREACHABLE_CODES:
        return Trouble.UNREACHABLE
    return Trouble.BUSY if error.error_code in _BUSY_CODES else Trouble.REFUSED


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn what MLflow's client raises into `DeliveryError`."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, requests.exceptions.RequestException) as error:
        text = str(error).strip() or type(error).__name__
        raise DeliveryError(trouble_of(error), text.splitlines()[0][:500]) from error


@dataclass(frozen=True, slots=True)
class KnownExperiment:
    """An experiment as MLflow has it."""

    experiment_id: str
    active: bool


class MlflowTarget:
    """One MLflow, by its tracking URI. Methods raise `DeliveryError`; used by several threads.

    Args:
        tracking_uri: Any that MLflow knows.
        artifact_root: Where experiments made here keep their artifacts; None for MLflow's choice.
    """

    def __init__(self, tracking_uri: str, artifact_root: Path | None = None) -> None:
        self._uri = tracking_uri
        self._artifact_root = artifact_root
        self._client: MlflowClient | None = None

    def connect(self) -> None:
        """Open the store; a new SQLite database gets its tables here, which takes seconds."""
        if self._client is None:
            with translated_errors():
                client = MlflowClient(self._uri)
                client.search_experiments(max_results=1)
            self._client = client

    @property
    def _api(self) -> MlflowClient:
        self.connect()
        assert self._client is not None
        return self._client

    def experiment_by_id(self, experiment_id: str) -> KnownExperiment | None:
        with translated_errors():
            try:
                return _known(self._api.get_experiment(experiment_id))
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise

    def experiment_by_name(self, name: str) -> KnownExperiment | None:
        with translated_errors():
            found = self._api.get_experiment_by_name(name)
        return None if found is None else _known(found)

    def create_experiment(self, name: str) -> str:
        location = None if self._artifact_root is None else self._artifact_root.as_uri()
        with translated_errors():
            return str(self._api.create_experiment(name, artifact_location=location))

    def restore_experiment(self, experiment_id: str) -> None:
        with translated_errors():
            self._api.restore_experiment(experiment_id)

    def create_run(
        self, experiment_id: str, name: str, start_ms: int, tags: Mapping[str, str]
    ) -> str:
        """A new run, RUNNING."""
        with translated_errors():
            run = self._api.create_run(
                experiment_id, start_time=start_ms, tags=dict(tags), run_name=name
            )
        return str(run.info.run_id)

    def runs_with_tag(self, experiment_id: str, key: str, value: str) -> dict[str, dict[str, str]]:
        """Tags by MLflow run id of the runs, deleted ones too, that have the tag ``key``."""
        quoted = value.replace("'", "''")
        with translated_errors():
            found = self._api.search_runs(
                [experiment_id],
                filter_string=f"tags.`{key}` = '{quoted}'",
                run_view_type=ViewType.ALL,
                max_results=1000,
            )
        return {str(run.info.run_id): dict(run.data.tags) for run in found}

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """At most `MAX_POINTS`. Points that MLflow has already are not stored twice."""
        metrics = [
            Metric(point.key, point.value, point.timestamp_ms, point.step) for point in points
        ]
        with self._run_errors(run_id):
            self._api.log_batch(run_id, metrics=metrics)

    def log_params(self, run_id: str, params: Sequence[tuple[str, str]]) -> None:
        """At most `MAX_PARAMS`; a value that differs from the one MLflow has is refused."""
        with self._run_errors(run_id):
            self._api.log_batch(run_id, params=[Param(key, value) for key, value in params])

    def set_tags(self, run_id: str, tags: Sequence[tuple[str, str]]) -> None:
        """At most `MAX_PARAMS`."""
        with self._run_errors(run_id):
            self._api.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags])

    def log_artifact(self, run_id: str, file: Path, folder: str | None) -> None:
        """Copy or upload a file into a folder of the run's artifacts.

        Raises:
            DeliveryError: As always.
            OSError: The file cannot be read, or local artifacts cannot be written.
        """
        with self._run_errors(run_id):
            self._api.log_artifact(run_id, str(file), artifact_path=folder)

    def terminate(self, run_id: str, status: RunStatus, end_ms: int) -> None:
        with self._run_errors(run_id):
            self._api.set_terminated(run_id, status=status.mlflow, end_time=end_ms)

    @contextmanager
    def _run_errors(self, run_id: str) -> Iterator[None]:
        """Tell a refusal because the run was deleted from one because of its content."""
        try:
            with translated_errors():
                yield
        except DeliveryError as error:
            if error.trouble is not Trouble.REFUSED:
                raise
            with translated_errors():
                stage = self._api.get_run(run_id).info.lifecycle_stage
            if stage == "active":
                raise
            raise DeliveryError(Trouble.GONE, f"the run {run_id} is {stage}") from error


def _known(experiment: Experiment) -> KnownExperiment:
    return KnownExperiment(
        str(experiment.experiment_id), active=experiment.lifecycle_stage == "active"
    )
