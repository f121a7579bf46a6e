"""The process that talks to MLflow: ``python -m radt.tracking.deliver --store FILE``.

The collector starts one for each store and tracking URI, writes a newline to its standard input
when there is something new, and closes it when the deliverer shall finish up and end. All it works
on is in the store and in the spool folders, so it can be killed at any time.

The tracking URI comes from ``--tracking-uri``, or from ``RADT_TRACKING_URI`` where it holds a
password that a list of processes must not show.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from radt.home import TRACKING_VARIABLE, Home, runtime_dir
from radt.lifeline import Heard, listen, take_turn
from radt.tracking.problems import ProblemBook, Reports, destination_name, problem_file

if TYPE_CHECKING:
    from radt.tracking.mlflow_target import MlflowTarget

log = logging.getLogger("radt.tracking")

#: How often the store is looked at without being told to.
POLL_S = 2.0
#: A request that takes longer than this is stuck where no time limit reaches: a name server, a
#: database behind a link that swallows everything. A new process has new connections.
STUCK_S = 600.0
#: EX_TEMPFAIL of sysexits.h: the collector starts another one.
_STUCK_CODE = 75
#: As MLflow's server has it: where experiments keep their artifacts.
_ROOT_VARIABLE = "MLFLOW_DEFAULT_ARTIFACT_ROOT"
_DATABASES = ("sqlite:", "postgresql", "mysql", "mssql")
#: Unless the user has set them.
_MLFLOW_SETTINGS = {
    # Retries are ours, with other runs served meanwhile; MLflow's can hold one request for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    # Addresses of S3 that a server hands out need not be reachable from here, and nothing limits
    # the time of such uploads.
    "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
    # A background process has no business reporting usage to a third party.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # Log records go where ours go.
    "MLFLOW_CONFIGURE_LOGGING": "false",
}
_LOG_LIMIT_BYTES = 5 * 2**20


@dataclass(frozen=True, slots=True)
class Order:
    """What this process is to deliver, and where to."""

    store: Path
    tracking_uri: str
    live_interval_s: float

    @property
    def name(self) -> str:
        """Tells the deliverers of one user apart."""
        return destination_name(self.store, self.tracking_uri)

    @property
    def home(self) -> Home | None:
        """The data folder, if MLflow is the SQLite file in it."""
        home = Home(self.store.parent)
        return home if self.tracking_uri == home.default_tracking_uri else None

    @property
    def artifact_root(self) -> Path | str | None:
        """Where new experiments keep artifacts; None for what a server says.

        MLflow would put those of a database into the working folder, which is ``/`` here.
        """
        if not self.tracking_uri.startswith(_DATABASES):
            return None
        root = "" if self.home else os.environ.get(_ROOT_VARIABLE, "")
        return root or Home(self.store.parent).artifacts


def main(arguments: Sequence[str] | None = None) -> int:
    """Deliver until standard input is closed; returns the exit code."""
    order = _parse(arguments)
    _log_to_file(runtime_dir() / f"deliver-{order.name}.log")
    # Ctrl-C is for the runner; the end of standard input tells us what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (runtime_dir() / f"deliver-{order.name}.lock").open("a") as lock:
        if not take_turn(lock.fileno()):
            return 0
        return _deliver(order)


def _parse(arguments: Sequence[str] | None) -> Order:
    parser = argparse.ArgumentParser(prog="python -m radt.tracking.deliver")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--tracking-uri", default=os.environ.get(TRACKING_VARIABLE))
    parser.add_argument("--live-interval-s", type=float, default=10.0)
    given = parser.parse_args(arguments)
    if not given.tracking_uri:
        parser.error(f"--tracking-uri or {TRACKING_VARIABLE} is needed")
    return Order(given.store.absolute(), given.tracking_uri, given.live_interval_s)


def _log_to_file(path: Path) -> None:
    """Send all output to a file: MLflow, Alembic and SQLAlchemy write to standard error too."""
    if path.exists() and path.stat().st_size > _LOG_LIMIT_BYTES:
        path.replace(path.with_suffix(".log.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("radt").setLevel(logging.INFO)
    # MLflow shows a traceback whenever its database is locked or away; we say it once.
    logging.getLogger("mlflow.store.db").setLevel(logging.CRITICAL)


def _deliver(order: Order) -> int:
    _make_mlflow_lean()
    # Only now: whoever waits for the lock needs none of this.
    from radt.clock import Clock
    from radt.errors import RadtError
    from radt.store.reader import StoreReader
    from radt.store.writer import StoreWriter
    from radt.tracking.archiving import Archiving, archive_interval_s
    from radt.tracking.courier import Courier
    from radt.tracking.delivery import CourierThread, Pace, RegistrarThread
    from radt.tracking.lanes import IN_TURN, SIDE_BY_SIDE
    from radt.tracking.mlflow_target import MlflowTarget
    from radt.tracking.registrar import Registrar

    gc.freeze()  # MLflow's hundreds of thousands of objects stay; no collection looks at them again
    since_ns = Clock.for_machine().now_ns()
    home = order.home
    if home is not None:
        _use_wal(home.path / "mlflow.db")
    try:
        reader, writer = StoreReader(order.store), StoreWriter(order.store)
    except RadtError:
        log.exception("the store cannot be used")
        return 1
    target = MlflowTarget(order.tracking_uri, order.artifact_root)
    book = ProblemBook(problem_file(order.store, order.tracking_uri), order.tracking_uri)
    reports = Reports(book, lambda: target.answers)
    registrar_pace, courier_pace = Pace(), Pace()
    registrar = RegistrarThread(
        Registrar(target, reader, writer, order.tracking_uri, since_ns, reports),
        registrar_pace,
        courier_pace.poke,
        reports,
    )
    archive_s = archive_interval_s()
    archiving = None if archive_s is None else Archiving(order.store, archive_s)
    # A database has one writer at a time; a server takes turns by itself.
    before_request: Callable[[], object] = registrar.idle.wait
    if target.is_server:
        before_request = _nothing
    courier = CourierThread(
        Courier(target, reader, writer, before_request, archiving),
        reader,
        order.tracking_uri,
        courier_pace,
        order.live_interval_s,
        reports,
        SIDE_BY_SIDE if target.is_server else IN_TURN,
    )
    registrar.start()
    courier.start()
    token = reader.change_token()
    while (heard := listen(POLL_S)) is not Heard.CLOSED:
        previous, token = token, reader.change_token()
        if heard is Heard.NEWS or token != previous:
            registrar_pace.poke()
            courier_pace.poke()
        _check_not_stuck(target, reports)
    # First all MLflow runs, then what belongs into them.
    for thread, pace in ((registrar, registrar_pace), (courier, courier_pace)):
        pace.finish()
        while thread.is_alive():
            thread.join(POLL_S)
            _check_not_stuck(target, reports)
    if archiving is not None:
        archiving.close()
    return 0


def _nothing() -> None:
    pass


def _check_not_stuck(target: MlflowTarget, reports: Reports) -> None:
    """End this process if a request hangs; what was delivered is noted, the rest is repeated."""
    from radt.tracking.trouble import DeliveryError, Trouble

    if target.longest_request_s() > STUCK_S:
        reports.everything_failed(
            DeliveryError(Trouble.UNREACHABLE, f"no answer to a request in {STUCK_S:.0f} s")
        )
        logging.shutdown()
        os._exit(_STUCK_CODE)


def _make_mlflow_lean() -> None:
    """Before MLflow is imported: what it shall do without in this process."""
    # MLflow's stores and clients work without pandas (mlflow-skinny has none); leaving out pandas
    # and what it pulls in saves 45 of 210 MB. None makes Python say that it is not installed.
    sys.modules["pandas"] = None  # type: ignore[assignment]
    for name, value in _MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)


def _use_wal(database: Path) -> None:
    """Let readers of our own MLflow database (scripts, MLflow's UI) not wait for its writers."""
    connection = sqlite3.connect(database, timeout=60.0)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error as error:
        log.warning("%s stays without write-ahead log: %s", database, error)
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
