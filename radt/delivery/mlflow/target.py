"""Client of one MLflow: the few calls that uploads need, with classified errors.

For the uploader and importers only, as importing MLflow takes over a second and 150 MB.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import sqlalchemy
from mlflow.entities import Experiment, Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils import credentials, rest_utils
from sqlalchemy.pool import NullPool

from radt.delivery.mlflow.artifacts import copy_whole, shares_folder
from radt.delivery.mlflow.database import prepare
from radt.delivery.mlflow.errors import DeliveryError as DeliveryError
from radt.delivery.mlflow.errors import ErrorKind as ErrorKind
from radt.delivery.mlflow.errors import check_responses
from radt.delivery.mlflow.errors import translated_errors as translated_errors
from radt.delivery.mlflow.limits import pages
from radt.delivery.mlflow.variables import DESTINATION, direct_uri, set_client_defaults
from radt.delivery.s3 import FINAL, S3Error, S3Folder
from radt.errors import ArchiveError
from radt.masking import is_postgres, with_driver
from radt.model import RunStatus
from radt.paths import is_database, sqlite_file

NS_PER_MS = 1_000_000

_CREATE = "/api/2.0/mlflow/experiments/create"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class MlflowPoint(NamedTuple):
    """One value of one metric in MLflow's format."""

    key: str
    value: float
    timestamp_ms: int
    step: int


@contextmanager
def _as_next_id(run_id: str) -> Iterator[None]:
    """Make MLflow's database layer use this id for the run that is created in the block.

    Not thread-safe: the caller holds the lock of `MlflowTarget._request`. Scripts get the id before
    MLflow has answered. MLflow takes ids from `uuid.uuid4`; a version that does not uses its own
    id, which is then recorded.
    """
    database_layer = import_module("mlflow.store.tracking.sqlalchemy_store")
    ids = SimpleNamespace(**vars(uuid) | {"uuid4": lambda: uuid.UUID(run_id)})
    vars(database_layer)["uuid"] = ids
    try:
        yield
    finally:
        vars(database_layer)["uuid"] = uuid


class MlflowTarget:
    """One MLflow, by its tracking URI. Methods raise `DeliveryError`. Thread-safe.

    ``artifact_root`` is the folder or URI for artifacts of experiments created here; None for
    MLflow's choice. ``before_request`` is called before each request and each file.
    """

    def __init__(
        self,
        tracking_uri: str,
        artifact_root: Path | str | None = None,
        before_request: Callable[[], object] = lambda: None,
    ) -> None:
        self._uri = with_driver(tracking_uri)
        self._artifact_root = artifact_root
        self._before_request = before_request
        self._client: MlflowClient | None = None
        self._connecting = threading.Lock()
        #: A database has one writer at a time.
        self._turn = nullcontext() if self.is_server else threading.Lock()
        self._artifact_uri = lru_cache(maxsize=1000)(self._read_artifact_uri)
        self._begun_s: dict[int, float] = {}
        #: Whether the server has found a file that was put into its S3 storage directly.
        self._is_direct = False
        #: Number of requests with a response, including refusals.
        self.answers = 0

    @property
    def uri(self) -> str:
        """Return the address, including user and password."""
        return self._uri

    @property
    def is_server(self) -> bool:
        """Return whether it is accessed by HTTP; otherwise its database is written directly."""
        return self._uri.startswith(("http://", "https://"))

    def longest_request_s(self) -> float:
        """Return the age of the oldest pending request, except uploads; 0 if there is none."""
        begun_s = list(self._begun_s.values())
        return time.monotonic() - min(begun_s) if begun_s else 0.0

    def connect(self) -> None:
        """Open the store; a new SQLite database gets its tables here, which takes seconds."""
        with self._connecting:
            if self._client is None:
                self._client = self._connected()

    def _connected(self) -> MlflowClient:
        set_client_defaults()
        uri = self._uri
        if self.is_server:
            check_responses()
        elif is_postgres(uri):
            uri = _patient(uri)
            _check_postgres(uri)  # MLflow itself would retry ten times and sleep for minutes
        file = sqlite_file(uri)
        try:
            with translated_errors():
                if file is not None:
                    _prepare(file)
                client = MlflowClient(uri)
                client.search_experiments(max_results=1)
        except DeliveryError as error:
            if file is not None:  # whatever the error, no run can be uploaded
                raise DeliveryError(
                    ErrorKind.UNREACHABLE,
                    f"{error.message} (if MLflow was killed while it built {file}, rename that)",
                ) from error
            raise
        return client

    def probe(self) -> str:
        """Check that uploads would succeed; return the server's version, empty for a database.

        Nothing changes: an experiment without a name is the last thing that the server refuses.
        """
        if is_postgres(self._uri):
            _check_postgres(_patient(self._uri))
        if not self.is_server:
            return ""
        check_responses()
        http: Any = rest_utils
        server = credentials.get_default_host_creds(self._uri)  # type: ignore[no-untyped-call]
        with self._request():
            version: str = http.http_request(server, "/version", "GET").text
            answer = http.http_request(server, _CREATE, "POST", json={"name": ""})
            if answer.json().get("error_code") != "INVALID_PARAMETER_VALUE":
                http.verify_rest_response(answer, _CREATE)
        return version

    @property
    def client(self) -> MlflowClient:
        self.connect()
        assert self._client is not None
        return self._client

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Wrap a request: translate its errors and record its start time."""
        me = threading.get_ident()
        self._before_request()
        try:
            with self._turn, translated_errors():
                self._begun_s[me] = time.monotonic()
                yield
        except DeliveryError as error:
            if error.kind in (ErrorKind.GONE, ErrorKind.REFUSED):
                self.answers += 1
            raise
        else:
            self.answers += 1
        finally:
            self._begun_s.pop(me, None)

    def experiment_by_id(self, experiment_id: str) -> Experiment | None:
        with self._request():
            try:
                return self.client.get_experiment(experiment_id)
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise

    def experiment_by_name(self, name: str) -> Experiment | None:
        with self._request():
            return self.client.get_experiment_by_name(name)

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
        """Create a run with status RUNNING; return its id, which is ``wanted_id`` in a database.

        After a `DeliveryError` the run may exist: search for it before retrying.
        """
        chosen = bool(wanted_id) and is_database(self._uri)
        with self._request(), _as_next_id(wanted_id) if chosen else nullcontext():
            run = self.client.create_run(
                experiment_id, start_time=start_ms, tags=dict(tags), run_name=name
            )
            return _given(run.info.run_id)

    def runs_with_tag(
        self, experiment_id: str, key: str, value: str, view: int = ViewType.ACTIVE_ONLY
    ) -> list[Run]:
        """Return the runs of an experiment that have the tag ``key``."""
        quoted = value.replace("'", "''")
        search = partial(
            self.client.search_runs,
            [experiment_id],
            filter_string=f"tags.`{key}` = '{quoted}'",
            run_view_type=view,
            max_results=1000,
        )
        with self._request():
            return [run for page in pages(search) for run in page]

    def delete_run(self, run_id: str) -> None:
        """Move a run to MLflow's trash, from which it can be restored."""
        with self._run_errors(run_id):
            self.client.delete_run(run_id)

    def log_points(self, run_id: str, points: Sequence[MlflowPoint]) -> None:
        """Upload at most `MAX_POINTS`. MLflow stores a repeated point once."""
        metrics = [
            Metric(point.key, point.value, point.timestamp_ms, point.step) for point in points
        ]
        with self._run_errors(run_id):
            self.client.log_batch(run_id, metrics=metrics)

    def log_params(self, run_id: str, params: Sequence[tuple[str, str]]) -> None:
        """Upload at most `MAX_TEXTS`; a value that differs from MLflow's is refused."""
        with self._run_errors(run_id):
            self.client.log_batch(run_id, params=[Param(key, value) for key, value in params])

    def set_tags(self, run_id: str, tags: Sequence[tuple[str, str]]) -> None:
        """Set at most `MAX_TEXTS` tags."""
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
        self._before_request()
        path = f"{folder}/{file.name}" if folder else file.name
        kept_at = self._artifact_uri(run_id)
        uri = direct_uri(kept_at)
        if uri.startswith("s3://"):
            _put_into_s3(uri, path, file)
            if uri != kept_at:
                self._check_direct(run_id, path, uri)
        elif (local := self._local_folder(uri)) is not None:
            copy_whole(file, local / path)
        else:
            with self._run_errors(run_id, watched=False):
                self.client.log_artifact(run_id, str(file), artifact_path=folder)

    def _check_direct(self, run_id: str, path: str, uri: str) -> None:
        """Check once that the server finds a file that was put into its S3 storage directly."""
        if self._is_direct:
            return
        with self._run_errors(run_id):
            entries = self.client.list_artifacts(run_id, path.rpartition("/")[0] or None)
        if path not in {entry.path for entry in entries}:
            raise DeliveryError(
                ErrorKind.BUSY,
                f"the server does not find files that were put into {uri}: set {DESTINATION} as it "
                "is set for the server, or unset it to send files through the server",
            )
        self._is_direct = True

    def _read_artifact_uri(self, run_id: str) -> str:
        with self._run_errors(run_id):
            return str(self.client.get_run(run_id).info.artifact_uri)

    def _local_folder(self, uri: str) -> Path | None:
        """Return the folder of an artifact URI; None for other URIs."""
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


def _given(value: object) -> str:
    """Return an id from MLflow; raise an error without one: the response is not MLflow's."""
    if not value:
        raise DeliveryError(ErrorKind.UNREACHABLE, "the address is not an MLflow server (no id)")
    return str(value)


def _put_into_s3(uri: str, path: str, file: Path) -> None:
    """Upload a file directly. A failing S3 server only affects files; MLflow itself may work."""
    try:
        S3Folder.of(uri).put(path, file)
    except S3Error as error:
        kind = ErrorKind.REFUSED if error.code in FINAL else ErrorKind.BUSY
        too_large = error.code == "EntityTooLarge"
        raise DeliveryError(kind, error.reason, too_large=too_large) from error
    except ArchiveError as error:
        raise DeliveryError(ErrorKind.BUSY, error.message) from error


def _patient(uri: str) -> str:
    """Return the URI of a Postgres database with timeouts, unless it sets its own."""
    from radt.store.postgres import PATIENCE  # needs a driver

    url = sqlalchemy.make_url(uri)
    missing = {name: str(limit) for name, limit in PATIENCE.items() if name not in url.query}
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
