"""The process that uploads to MLflow: ``python -m radt.delivery.mlflow --store FILE``.

The collector starts one for each store and tracking URI, writes a newline to its standard input
when there is something new, and closes it when the uploader shall finish up and end. All it works
on is in the store and in the spool folders, so it can be killed at any time. With ``--give-way-s``
it lets others' programs go first, and looks for itself only that often.

The tracking URI comes from ``--tracking-uri``, or from ``RADT_TRACKING_URI`` if it holds a password
that process lists must not show.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from radt.delivery.problems import ProblemLog, Reports, destination_name, problem_file
from radt.delivery.process import block_pandas, give_way, run_alone
from radt.home import TRACKING_VARIABLE, Home
from radt.parent_watch import ParentMessage, wait_for_parent
from radt.paths import is_database

if TYPE_CHECKING:
    from radt.delivery.mlflow.target import MlflowTarget
    from radt.store.writer import StoreWriter

log = logging.getLogger("radt.delivery.mlflow")

#: How often to check the store without a notification.
POLL_S = 2.0
#: A longer request is stuck where no timeout applies: a name server, or a database behind a link
#: that drops everything. A new process has new connections.
STUCK_S = 600.0
#: EX_TEMPFAIL of sysexits.h: the collector restarts the process.
_STUCK_CODE = 75
#: Default of MLflow's server for the artifacts of experiments.
_ROOT_VARIABLE = "MLFLOW_DEFAULT_ARTIFACT_ROOT"
#: Unless the user has set them.
_MLFLOW_SETTINGS = {
    # radt retries while it serves other runs; MLflow's retries can block one request for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    # S3 addresses that a server hands out may be unreachable from here, and such uploads have no
    # timeout.
    "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
    # A background process must not report usage to a third party.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # Log records go to our log.
    "MLFLOW_CONFIGURE_LOGGING": "false",
}


@dataclass(frozen=True, slots=True)
class Order:
    """Source and destination of this process."""

    store: Path
    tracking_uri: str
    live_interval_s: float
    give_way_s: float = 0.0

    @property
    def home(self) -> Home | None:
        """Return the data folder if MLflow is the SQLite file in it."""
        home = Home(self.store.parent)
        return home if self.tracking_uri == home.default_tracking_uri else None

    @property
    def artifact_root(self) -> Path | str | None:
        """Return where new experiments keep artifacts; None for the server's choice.

        For a database, MLflow would use the working folder, which is ``/`` here.
        """
        if not is_database(self.tracking_uri):
            return None
        root = "" if self.home else os.environ.get(_ROOT_VARIABLE, "")
        return root or Home(self.store.parent).artifacts


def main(arguments: Sequence[str] | None = None) -> int:
    """Deliver until standard input is closed; return the exit code."""
    order = _parse(arguments)
    name = f"deliver-{destination_name(order.store, order.tracking_uri)}"
    return run_alone(name, partial(_deliver, order))


def _parse(arguments: Sequence[str] | None) -> Order:
    parser = argparse.ArgumentParser(prog="python -m radt.delivery.mlflow")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--tracking-uri", default=os.environ.get(TRACKING_VARIABLE))
    parser.add_argument("--live-interval-s", type=float, default=10.0)
    parser.add_argument("--give-way-s", type=float, default=0.0)
    given = parser.parse_args(arguments)
    if not given.tracking_uri:
        parser.error(f"Expected --tracking-uri or {TRACKING_VARIABLE}")
    return Order(
        given.store.absolute(),
        given.tracking_uri,
        max(given.live_interval_s, given.give_way_s),
        given.give_way_s,
    )


def _deliver(order: Order) -> int:
    if order.give_way_s:
        give_way()
    _set_up_mlflow()
    gc.disable()  # imports leave no garbage, and looking for it takes a sixth of their time
    # Imported late: a process that waits for its turn does not need it.
    from radt.clock import Clock
    from radt.delivery.mlflow.archives import Archiver, archive_interval_s
    from radt.delivery.mlflow.runs import RunCreator
    from radt.delivery.mlflow.target import MlflowTarget
    from radt.delivery.mlflow.threads import RunCreatorThread, UploaderThread
    from radt.delivery.mlflow.uploader import Uploader
    from radt.delivery.process import IN_TURN, SIDE_BY_SIDE, Wakeup
    from radt.errors import RadtError
    from radt.store.reader import StoreReader
    from radt.store.writer import StoreWriter

    gc.freeze()  # exclude MLflow's hundreds of thousands of objects from garbage collection
    gc.enable()
    since_ns = Clock.for_machine().now_ns()
    if order.home is not None:
        _use_wal(order.home.mlflow_database)
    try:
        reader, writer = StoreReader(order.store), StoreWriter(order.store)
    except RadtError:
        log.exception("the store cannot be used")
        return 1
    target = MlflowTarget(order.tracking_uri, order.artifact_root)
    problem_log = ProblemLog(problem_file(order.store, order.tracking_uri), order.tracking_uri)
    reports = Reports(problem_log, lambda: target.answers)
    creator_wakeup, uploader_wakeup = Wakeup(), Wakeup()
    creator = RunCreatorThread(
        RunCreator(target, reader, writer, order.tracking_uri, since_ns, reports),
        creator_wakeup,
        uploader_wakeup.poke,
        reports,
    )
    archive_s = archive_interval_s()
    archiver = None if archive_s is None else Archiver(order.store, archive_s)

    def before_request() -> None:
        writer.check_in_place()
        if not target.is_server:  # a database has one writer at a time
            creator.idle.wait()

    uploader = UploaderThread(
        Uploader(target, reader, writer, before_request, archiver),
        reader,
        order.tracking_uri,
        uploader_wakeup,
        order.live_interval_s,
        reports,
        SIDE_BY_SIDE if target.is_server else IN_TURN,
    )
    creator.start()
    uploader.start()
    token, looked_s = reader.change_token(), time.monotonic()
    while (message := wait_for_parent(POLL_S)) is not ParentMessage.CLOSED:
        has_news = message is ParentMessage.NEWS
        if has_news or time.monotonic() >= looked_s + order.give_way_s:
            previous, token, looked_s = token, reader.change_token(), time.monotonic()
            if has_news or token != previous:
                creator_wakeup.poke()
                uploader_wakeup.poke()
        _check_in_place(writer)
        _check_not_stuck(target, reports)
    # First create all MLflow runs, then fill them.
    for thread, wakeup in ((creator, creator_wakeup), (uploader, uploader_wakeup)):
        wakeup.finish()
        while thread.is_alive():
            thread.join(POLL_S)
            _check_not_stuck(target, reports)
    if archiver is not None:
        archiver.close()
    return 0


def _use_wal(database: Path) -> None:
    from radt.delivery.mlflow.database import use_wal

    if database.exists():
        try:
            use_wal(database)
        except sqlite3.Error as error:
            log.warning("cannot enable the write-ahead log of %s: %s", database, error)


def _check_in_place(writer: StoreWriter) -> None:
    """Exit if the store was moved or deleted: its new place has an uploader of its own."""
    if writer.vanished:
        log.warning("the store %s was moved or deleted", writer.path)
        logging.shutdown()
        os._exit(0)


def _check_not_stuck(target: MlflowTarget, reports: Reports) -> None:
    """Exit if a request hangs; recorded deliveries are kept, the rest is repeated."""
    from radt.delivery.mlflow.errors import DeliveryError, ErrorKind

    if target.longest_request_s() > STUCK_S:
        reports.everything_failed(
            DeliveryError(ErrorKind.UNREACHABLE, f"no answer to a request in {STUCK_S:.0f} s")
        )
        logging.shutdown()
        os._exit(_STUCK_CODE)


def _set_up_mlflow() -> None:
    """Set the variables that MLflow reads on import."""
    block_pandas()
    for name, value in _MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)
    # MLflow logs a traceback whenever its database is locked or unreachable; radt logs it once.
    logging.getLogger("mlflow.store.db").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    sys.exit(main())
