"""The protocol between clients and collector: one JSON object per line over a Unix socket.

A request is ``{"op": …, …arguments}``; the response is ``{"ok": true, …}`` or ``{"ok": false,
"error": …, "remedy": …, "code": …}``. Requests are idempotent: a client that loses its connection
reconnects and repeats them. Imports the standard library only, as training processes import it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from radt.home import runtime_dir
from radt.model import ListenerChoice
from radt.tags import PARENT

#: Part of the socket's name, so that collectors of incompatible versions coexist.
PROTOCOL_VERSION = 3
#: Maximum length of a line; a registration carries an environment, not data.
MAX_LINE_BYTES = 1 << 20
#: Maximum length of a Unix socket's address (unix(7)), including its final zero.
_ADDRESS_BYTES = 108

#: Variables for the processes that upload to MLflow and Postgres. libpq's
#: (https://www.postgresql.org/docs/17/libpq-envars.html) begin with PG; proxies and certificates
#: are those that requests and botocore read.
ENV_PREFIXES = (
    *("MLFLOW_", "AWS_", "PG", "RADT_REPLICATION_S", "RADT_ARCHIVE_S"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
#: These describe a process, not the way to a server.
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
    """Return the absolute path; unchanged if it names no file (``PGSSLROOTCERT=system``)."""
    return str(Path(path).absolute()) if Path(path).exists() else path


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
    HURRY = "hurry"
    DELIVER = "deliver"


class RefusalCode(StrEnum):
    """Reason of a refusal that a client handles rather than shows."""

    NONE = ""
    UNKNOWN_RUN = "unknown-run"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Registration:
    """A run to record.

    Args:
        store_path: Absolute path of the sample store, which already has the run's row.
        spool: Absolute path of the run's spool folder (`radt.home.RunDir`).
        tracking_uri: MLflow's URI; empty for a run that is not uploaded there.
        store_uri: Postgres database that the store is replicated to; empty for none.
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Registration:
        """Parse; raise ValueError if a field is missing or of the wrong type."""
        try:
            return cls(
                run_id=_text(data, "run_id"),
                store_path=_text(data, "store_path"),
                spool=_text(data, "spool"),
                tracking_uri=_text(data, "tracking_uri"),
                store_uri=_text(data, "store_uri"),
                listeners=tuple(
                    ListenerChoice(
                        str(choice["name"]),
                        None if choice["interval_s"] is None else float(choice["interval_s"]),
                        tuple(str(option) for option in choice["options"]),
                    )
                    for choice in data["listeners"]
                ),
                devices=tuple(str(device) for device in data["devices"]),
                profiler=_text(data, "profiler"),
                env={str(name): str(value) for name, value in data["env"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a registration: {error!r}") from error


@dataclass(frozen=True, slots=True)
class StandaloneRun:
    """All that a run's rows say, as the script says it of itself, or the runner of its runs.

    Without a runner ``pid`` is the training process, and ``started_monotonic_ns`` when it entered
    the run; the collector writes the rows, created at that instant. With one they are the runner,
    which starts and ends the run, and when it planned the run. ``devices`` and ``collocation`` are
    normalised texts. ``is_numbered``: the name gets the run's number in its experiment.
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
        """Id of the run that this one is a child of; empty for none."""
        return self.tags.get(PARENT, "")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StandaloneRun:
        """Parse; raise ValueError if a field is missing or of the wrong type."""
        try:
            return cls(
                registration=Registration.from_json(data["registration"]),
                workload_id=_text(data, "workload_id"),
                experiment=_text(data, "experiment"),
                pid=int(data["pid"]),
                started_monotonic_ns=int(data["started_monotonic_ns"]),
                workload=_text(data, "workload"),
                letter=_text(data, "letter"),
                name=_text(data, "name"),
                is_numbered=bool(data.get("is_numbered")),
                command=_text(data, "command"),
                host=_text(data, "host"),
                devices=_text(data, "devices"),
                collocation=str(data.get("collocation", "-")),
                has_runner=data.get("has_runner") is True,
                params={str(name): str(value) for name, value in data["params"].items()},
                tags={str(name): str(value) for name, value in data["tags"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a standalone run: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Begun:
    """A run without a runner that is being recorded: its name in the store, and warnings."""

    name: str
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Begun:
        warnings = tuple(str(warning) for warning in data["warnings"])
        return cls(str(data.get("name", "")), warnings)  # an earlier collector gives no name


@dataclass(frozen=True, slots=True)
class LiveView:
    """The current values of a run, for live tables; None where there is none yet.

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
        return {name: getattr(self, name) for name in self.__slots__}  # asked for every second

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LiveView:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """The collector's own status.

    ``cpu_s`` is of worker, guardian and all deliverers, ``rss_bytes`` of worker and guardian.
    ``on_s`` is how long at least one run was on, ``on_cpu_s`` the part of ``cpu_s`` within it.
    ``guardian_pid`` is None when nobody would restart the worker. ``listeners`` are those sampling
    now; ``problems`` are sentences about what does not work at present.
    """

    pid: int
    guardian_pid: int | None
    uptime_s: float
    cpu_s: float
    rss_bytes: int
    runs: tuple[str, ...] = ()
    listeners: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    on_s: float = 0.0
    on_cpu_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CollectorStatus:
        texts = ("runs", "listeners", "problems")
        return cls(**{**data, **{name: tuple(data[name]) for name in texts}})


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Return the message of a line; raise ValueError if that is not a JSON object."""
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error for all bad lines
    return message


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a string")
    return value
