"""Client of one MLflow: the few calls that delivery makes, with classified errors.

Only the uploader and importers import this module, as MLflow takes over a second and 150 MB.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import sqlalchemy
from mlflow.entities import Experiment, Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.pool import NullPool

from radt.delivery.mlflow import errors
from radt.delivery.mlflow.artifacts import copy_whole, shares_folder
from radt.delivery.mlflow.database import prepare
from radt.delivery.mlflow.errors import DeliveryError as DeliveryError
from radt.delivery.mlflow.errors import ErrorKind as ErrorKind
from radt.delivery.mlflow.errors import translated_errors as translated_errors
from radt.delivery.s3 import S3Error, S3Folder
from radt.errors import ArchiveError
from radt.masking import is_postgres, with_driver
from radt.model import RunStatus
from radt.paths import is_database, sqlite_file

#: Maximum number of entities in one request: MLflow's own limits.
MAX_POINTS = 1000
MAX_PARAMS = 100

NS_PER_MS = 1_000_000

#: Number of runs whose artifact folder is cached.
_MAX_FOLDERS = 1000
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
#: For libpq, which otherwise waits for hours on a silently broken connection.
_POSTGRES_PATIENCE = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


class Point(NamedTuple):
    """One value of one metric in MLflow's format."""

    key: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True, slots=True)
class KnownExperiment:
    """An experiment in MLflow."""

    experiment_id: str
    active: bool


@contextmanager
def _as_next_id(run_id: str) -> Iterator[None]:
    """Have MLflow's database layer give this id to the run that this thread creates.

    Scripts are told the id before MLflow has answered. MLflow takes it from `uuid.uuid4`; a version
    that does not gives one of its own, which is what is noted then.
    """
    database_layer = import_module("mlflow.store.tracking.sqlalchemy_store")
    thread = threading.get_ident()

    def uuid4() -> uuid.UUID:
        return uuid.UUID(run_id) if threading.get_ident() == thread else uuid.uuid4()

    ids = SimpleNamespace(**vars(uuid) | {"uuid4": uuid4})
    vars(database_layer)["uuid"] = ids
    try:
        yield
    finally:
        vars(database_layer)["uuid"] = uuid


class MlflowTarget:
    """One MLflow, by its tracking URI. Methods raise `DeliveryError`. Thread-safe.

    ``artifact_root`` is the folder or URI for artifacts of experiments created here; None for
    MLflow's choice.
    """

    def __init__(self, tracking_uri: str, artifact_root: Path | str | None = None) -> None:
        self._uri = with_driver(tracking_uri)
        self._artifact_root = artifact_root
        self._client: MlflowClient | None = None
        self._connecting = threading.Lock()
        self._folders: dict[str, str] = {}
        self._begun_s: dict[int, float] = {}
        #: Number of requests with a response, including refusals.
        self.answers = 0

    @property
    def uri(self) -> str:
        """The address, with user and password."""
        return self._uri

    @property
    def is_server(self) -> bool:
        """Return whether it is reached by HTTP, rather than a database written directly."""
        return self._uri.startswith(("http://", "https://"))

    def longest_request_s(self) -> float:
        """Return the age of the oldest pending request, except uploads; 0 if there is none."""
        begun_s = list(self._begun_s.values())
        return time.monotonic() - min(begun_s) if begun_s else 0.0

    def connect(self) -> None:
        """Open the store; a new SQLite database gets its tables here, which takes seconds."""
        if self._client is not None:
            return
        with self._connecting:
            if self._client is None:
                self._client = self._connected()

    def _connected(self) -> MlflowClient:
        uri = self._uri
        if self.is_server:
            errors.install_http()
        elif is_postgres(uri):
            uri = _patient(uri)
            _check_postgres(uri)  # MLflow itself tries ten times and sleeps for minutes
        file = sqlite_file(uri)
        try:
            with translated_errors():
                if file is not None:
                    _prepare(file)
                client = MlflowClient(uri)
                client.search_experiments(max_results=1)
        except DeliveryError as error:
            if file is not None:  # no run can be delivered, whatever the error is
                raise DeliveryError(ErrorKind.UNREACHABLE, error.message) from error
            raise
        return client

    @property
    def client(self) -> MlflowClient:
        self.connect()
        assert self._client is not None
        return self._client

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Wrap each request: translate its errors and watch its time."""
        me = threading.get_ident()
        self._begun_s[me] = time.monotonic()
        try:
            with translated_errors():
                yield
        except DeliveryError as error:
            if error.kind in (ErrorKind.GONE, ErrorKind.REFUSED):
                self.answers += 1
            raise
        else:
            self.answers += 1
        finally:
            self._begun_s.pop(me, None)

    def experiment_by_id(self, experiment_id: str) -> KnownExperiment | None:
        with self._request():
            try:
                return _known(self.client.get_experiment(experiment_id))
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise

    def experiment_by_name(self, name: str) -> KnownExperiment | None:
        with self._request():
            experiment = self.client.get_experiment_by_name(name)
        return None if experiment is None else _known(experiment)

    def create_experiment(self, name: str) -> str:
        root = self._artifact_root
        location = root.as_uri() if isinstance(root, Path) else root
        with self._request():
            return _given(self.client.create_experiment(name, artifact_location=location))

    def restore_experiment(self, experiment_id: str) -> None:
        with self._request():
            self.client.restore_experiment(experiment_id)

    def create_run(
        self,
        experiment_id: str,
        name: str,
        start_ms: int,
        tags: Mapping[str, str],
        wanted_id: str = "",
    ) -> str:
        """Create a run, RUNNING; return its id, ``wanted_id`` in a database.

        After a `DeliveryError` it may exist: look before the next try.
        """
        database = bool(wanted_id) and is_database(self._uri)
        with self._request(), _as_next_id(wanted_id) if database else nullcontext():
            run = self.client.create_run(
                experiment_id, start_time=start_ms, tags=dict(tags), run_name=name
            )
            return _given(run.info.run_id)

    def runs_with_tag(self, experiment_id: str, key: str, value: str) -> dict[str, dict[str, str]]:
        """Return tags by MLflow id of the runs, even deleted ones, that have the tag ``key``."""
        runs = self._tagged(experiment_id, key, value, ViewType.ALL)
        return {str(run.info.run_id): dict(run.data.tags) for run in runs}

    def empty_runs_with_tag(
        self, experiment_id: str, key: str, value: str
    ) -> dict[str, dict[str, str]]:
        """Return the result of `runs_with_tag` for runs with nothing but tags."""
        runs = self._tagged(experiment_id, key, value, ViewType.ACTIVE_ONLY)
        return {
            str(run.info.run_id): dict(run.data.tags)
            for run in runs
            if run.info.status == "RUNNING" and not run.data.metrics and not run.data.params
        }

    def _tagged(self, experiment_id: str, key: str, value: str, view: int) -> list[Run]:
        quoted = value.replace("'", "''")
        with self._request():
            return list(
                self.client.search_runs(
                    [experiment_id],
                    filter_string=f"tags.`{key}` = '{quoted}'",
                    run_view_type=view,
                    max_results=1000,
                )
            )

    def delete_run(self, run_id: str) -> None:
        """Move a run to MLflow's trash, from which it can be restored."""
        with self._run_errors(run_id):
            self.client.delete_run(run_id)

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """Upload at most `MAX_POINTS`. MLflow stores a repeated point once."""
        metrics = [
            Metric(point.key, point.value, point.timestamp_ms, point.step) for point in points
        ]
        with self._run_errors(run_id):
            self.client.log_batch(run_id, metrics=metrics)

    def log_params(self, run_id: str, params: Sequence[tuple[str, str]]) -> None:
        """Upload at most `MAX_PARAMS`; a value that differs from MLflow's is refused."""
        with self._run_errors(run_id):
            self.client.log_batch(run_id, params=[Param(key, value) for key, value in params])

    def set_tags(self, run_id: str, tags: Sequence[tuple[str, str]]) -> None:
        """Set at most `MAX_PARAMS` tags."""
        with self._run_errors(run_id):
            self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags])

    def tags(self, run_id: str) -> dict[str, str]:
        with self._run_errors(run_id):
            return dict(self.client.get_run(run_id).data.tags)

    def log_artifact(self, run_id: str, file: Path, folder: str | None) -> None:
        """Copy or upload a file atomically into a folder of the run's artifacts.

        Raises:
            DeliveryError: The request failed.
            OSError: The file cannot be read, or local artifacts cannot be written.
        """
        path = f"{folder}/{file.name}" if folder else file.name
        uri = self._artifact_uri(run_id)
        if uri.startswith("s3://"):
            _put_into_s3(uri, path, file)
        elif (local := self._local_folder(uri)) is not None:
            copy_whole(file, local / path)
        else:
            with self._run_errors(run_id, watched=False):
                self.client.log_artifact(run_id, str(file), artifact_path=folder)

    def _artifact_uri(self, run_id: str) -> str:
        known = self._folders.get(run_id)
        if known is None:
            with self._run_errors(run_id):
                known = str(self.client.get_run(run_id).info.artifact_uri)
            if len(self._folders) >= _MAX_FOLDERS:
                self._folders.clear()
            self._folders[run_id] = known
        return known

    def _local_folder(self, uri: str) -> Path | None:
        """Return the folder that an artifact URI names, None for other URIs."""
        scheme = urlsplit(uri).scheme
        if scheme not in ("", "file"):
            return None
        folder = Path(url2pathname(urlsplit(uri).path) if scheme else uri)
        if (
            self.is_server
            and urlsplit(self._uri).hostname not in _LOOPBACK
            and not shares_folder(folder)
        ):
            raise DeliveryError(
                ErrorKind.BUSY,
                f"the server keeps artifacts in its folder {folder.parents[2]}, which this machine "
                "does not have: start it with --serve-artifacts and --artifacts-destination, or "
                "share the folder",
            )
        return folder

    def terminate(self, run_id: str, status: RunStatus, end_ms: int) -> None:
        with self._run_errors(run_id):
            self.client.set_terminated(run_id, status=status.mlflow, end_time=end_ms)

    @contextmanager
    def _run_errors(self, run_id: str, *, watched: bool = True) -> Iterator[None]:
        """Distinguish a refusal because the run was deleted from one because of its content.

        A request that is not `watched` may take any time.
        """
        try:
            with self._request() if watched else translated_errors():
                yield
        except DeliveryError as error:
            if error.kind is not ErrorKind.REFUSED or error.too_large:
                raise
            with self._request():
                stage = self.client.get_run(run_id).info.lifecycle_stage
            if stage == "active":
                raise
            raise DeliveryError(ErrorKind.GONE, f"the run {run_id} is {stage}") from error


def _prepare(database: Path) -> None:
    try:
        prepare(database)
    except OSError as error:
        raise DeliveryError(ErrorKind.BUSY, f"its database {database}: {error.strerror}") from error


def _known(experiment: Experiment) -> KnownExperiment:
    return KnownExperiment(
        str(experiment.experiment_id), active=experiment.lifecycle_stage == "active"
    )


def _given(value: object) -> str:
    """Return an id from MLflow; a response without one is not MLflow's."""
    if not value:
        raise DeliveryError(ErrorKind.UNREACHABLE, "the address is not an MLflow server (no id)")
    return str(value)


def _put_into_s3(uri: str, path: str, file: Path) -> None:
    """Upload a file directly; a failing S3 server only concerns files, as MLflow may be well."""
    try:
        S3Folder.of(uri).put(path, file)
    except S3Error as error:
        kind = ErrorKind.REFUSED if error.final else ErrorKind.BUSY
        too_large = error.code == "EntityTooLarge"
        raise DeliveryError(kind, error.reason, too_large=too_large) from error
    except ArchiveError as error:
        raise DeliveryError(ErrorKind.BUSY, error.message) from error


def _patient(uri: str) -> str:
    """Return the URI of a Postgres database with timeouts, unless it sets its own."""
    url = sqlalchemy.make_url(uri)
    missing = {name: value for name, value in _POSTGRES_PATIENCE.items() if name not in url.query}
    return url.update_query_dict(missing).render_as_string(hide_password=False)


def _check_postgres(uri: str) -> None:
    engine = sqlalchemy.create_engine(uri, poolclass=NullPool)
    try:
        with translated_errors(), engine.connect():
            pass
    except DeliveryError as error:
        raise DeliveryError(ErrorKind.UNREACHABLE, error.message) from error
    finally:
        engine.dispose()
