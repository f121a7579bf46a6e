"""The protocol between clients and collector: one JSON object per line over a Unix socket.

A request is ``{"op": …, …arguments}``; the response is ``{"ok": true, …}`` or ``{"ok": false,
"error": …, "remedy": …, "code": …}``. Requests are idempotent: a client that loses its connection
reconnects and repeats them. Imports the standard library only, as training processes import it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from radt.errors import CollectorError
from radt.home import runtime_dir
from radt.model import ListenerChoice, RunStatus
from radt.paths import may_exist
from radt.tags import PARENT

#: Part of the socket's name, so that collectors of incompatible versions can run side by side.
PROTOCOL_VERSION = 3
#: Maximum length of a line; a registration carries an environment, not data.
MAX_LINE_BYTES = 1 << 20
#: Maximum length of a Unix socket's address (unix(7)), including its final zero.
_ADDRESS_BYTES = 108

#: Prefixes of variables for the processes that upload to MLflow and Postgres. libpq's
#: (https://www.postgresql.org/docs/17/libpq-envars.html) begin with PG; the proxies and
#: certificates are those that requests and botocore read.
ENV_PREFIXES = (
    *("MLFLOW_", "AWS_", "PG", "RADT_REPLICATION_S", "RADT_ARCHIVE_S"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
#: Variables that describe a process instead of a server.
_ENV_OF_A_RUN = frozenset({"MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"})
#: Paths of files, made absolute for processes with another current directory.
_FILE_VARIABLES = frozenset(
    {"PGPASSFILE", "PGSERVICEFILE", "PGSSLCERT", "PGSSLKEY", "PGSSLROOTCERT", "PGSSLCRL"}
    | {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {"AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"}
)


def socket_path() -> Path:
    """Return the address that the user's collector listens at."""
    return runtime_dir() / f"collector-v{PROTOCOL_VERSION}.sock"


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yield an address of a Unix socket that is short enough for the kernel.

    Raises:
        OSError: The folder does not exist.
    """
    if len(os.fsencode(path)) < _ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def delivery_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that MLflow, its artifact store and Postgres need."""
    return {
        name: _whole(value) if name in _FILE_VARIABLES else value
        for name, value in environ.items()
        if name.startswith(ENV_PREFIXES) and name not in _ENV_OF_A_RUN
    }


def _whole(path: str) -> str:
    """Return the absolute path; unchanged if it is not a file's path (``PGSSLROOTCERT=system``)."""
    return str(Path(path).absolute()) if may_exist(Path(path)) else path


class Op(StrEnum):
    """Kind of request."""

    HELLO = "hello"
    RECORD = "record"
    REGISTER = "register"
    BEGIN = "begin"
    STARTED = "started"
    FINISH = "finish"
    LIVE = "live"
    STATUS = "status"
    FLUSH = "hurry"  # its name in protocol 3
    DELIVER = "deliver"


class RefusalCode(StrEnum):
    """Reason of a refusal that a client handles instead of showing it."""

    NONE = ""
    UNKNOWN_RUN = "unknown-run"
    UNFINISHED = "unfinished"


class RefusedError(CollectorError):
    """The collector refuses a request; the client handles ``code``."""

    def __init__(
        self, message: str, remedy: str | None = None, code: RefusalCode = RefusalCode.NONE
    ) -> None:
        super().__init__(message, remedy)
        self.code = code


@dataclass(frozen=True, slots=True)
class Registration:
    """A run to record.

    Args:
        run_id: The run's id.
        store_path: Absolute path of the sample store, which already has the run's row.
        spool: Absolute path of the run's spool folder (`radt.home.RunDir`).
        tracking_uri: MLflow's URI; empty for a run that is not uploaded there.
        store_uri: Postgres database that the store is replicated to; empty for none.
        listeners: Listeners that the run requests.
        devices: NVML indices or UUIDs of GPUs or MIG devices; empty for a CPU run.
        profiler: Profiler of the run, if it uses the GPU's counters.
        env: Variables for delivery (`delivery_env`). Kept in memory, never on disk.
    """

    run_id: str
    store_path: str
    spool: str
    tracking_uri: str = ""
    store_uri: str = ""
    listeners: tuple[ListenerChoice, ...] = ()
    devices: tuple[str, ...] = ()
    profiler: str = ""
    env: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """All data for a run's rows, from the script itself or from the runner that starts it.

    Without a runner, ``pid`` is the training process and ``started_monotonic_ns`` the time when it
    entered the run; the collector writes the rows with that creation time. With a runner, which
    starts and ends the run, they are the runner's process and the time when it planned the run.
    ``devices`` and ``collocation`` are normalised texts. ``is_numbered``: the name gets the run's
    number in its experiment.
    """

    registration: Registration
    workload_id: str
    experiment: str
    pid: int
    started_monotonic_ns: int
    workload: str = ""
    letter: str = "a"
    name: str = ""
    is_numbered: bool = False
    command: str = ""
    host: str = ""
    devices: str = "cpu"
    collocation: str = "-"
    has_runner: bool = False
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def parent_id(self) -> str:
        """Return the id of the run that this one is a child of; empty for none."""
        return self.tags.get(PARENT, "")


@dataclass(frozen=True, slots=True)
class Begun:
    """Answer for a run without a runner that is now recorded: its name, and warnings."""

    name: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveView:
    """Current values of a run, for live tables; None for values that do not exist yet.

    ``metrics`` holds the newest value of each metric that the script logs; ``samples`` counts the
    values received so far from listeners and script.
    """

    cpu_cores: float | None = None
    rss_bytes: float | None = None
    gpu_utilization: float | None = None
    gpu_memory_bytes: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    epoch: int | None = None
    epochs_total: int | None = None
    samples: int = 0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}  # called every second


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """The collector's own status.

    ``cpu_s`` covers worker, guardian and all deliverers, ``rss_bytes`` worker and guardian.
    ``guardian_pid`` is None if nothing would restart the worker. ``listeners`` are those sampling
    now; ``problems`` are sentences that describe current failures.
    """

    pid: int
    guardian_pid: int | None
    uptime_s: float
    cpu_s: float
    rss_bytes: int
    runs: tuple[str, ...] = ()
    listeners: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


MessageT = TypeVar("MessageT")


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Parse a line into a message; raise ValueError if it is not a JSON object."""
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error for all bad lines
    return message


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value


#: Readers of JSON values, by the type of the field.
_READ: Mapping[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": int,
    "float": float,
    "bool": bool,
    "int | None": lambda value: None if value is None else int(value),
    "tuple[str, ...]": lambda value: tuple(map(str, value)),
    "tuple[ListenerChoice, ...]": lambda value: tuple(
        ListenerChoice(
            str(choice["name"]),
            None if choice["interval_s"] is None else float(choice["interval_s"]),
            tuple(map(str, choice["options"])),
        )
        for choice in value
    ),
    "dict[str, str]": lambda value: {str(name): str(text) for name, text in value.items()},
    "Registration": lambda value: from_json(Registration, value),
    "RunRequest": lambda value: from_json(RunRequest, value),
    "RunStatus": RunStatus,
}


def from_json(
    cls: type[MessageT],
    data: Mapping[str, Any],
    readers: Mapping[str, Callable[[Any], Any]] = MappingProxyType({}),
) -> MessageT:
    """Build a dataclass from the JSON of its `dataclasses.asdict`; ignore fields of later versions.

    Args:
        cls: The dataclass.
        data: The JSON.
        readers: Readers for fields of other types than the protocol's.

    Raises:
        ValueError: A field without a default is missing, or a field has another type.
    """
    by_type = {**_READ, **readers}
    try:
        values = {
            item.name: by_type[str(item.type)](data[item.name])
            for item in fields(cls)  # type: ignore[arg-type]
            if item.name in data
        }
        return cls(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a {cls.__name__}: {error!r}") from error
