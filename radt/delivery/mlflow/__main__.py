"""The process that uploads to MLflow: ``python -m radt.delivery.mlflow --store FILE``.

The collector starts one for each store and tracking URI, writes a newline to its standard input for
new data, and closes it to make the uploader finish and exit. All its state is in the store and in
the spool folders, so it can be killed at any time. With ``--give-way-s`` it gives other programs
priority, and limits its own checks for new data to this interval.

The tracking URI comes from ``RADT_TRACKING_URI``, because process lists would show a password in an
argument.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from radt.delivery.mlflow.variables import (
    FOR_UPLOADER,
    ROOT,
    longest_request_s,
    set_client_defaults,
)
from radt.delivery.problems import EVERYTHING, MLFLOW, ProblemLog, destination_name
from radt.delivery.process import (
    block_packages,
    give_way,
    run_alone,
    setting_or_default,
)
from radt.home import TRACKING_VARIABLE, Home
from radt.lazy import large_import, skip_init
from radt.paths import is_database
from radt.processes import ParentMessage, wait_for_parent
from radt.settings import ARCHIVE_S

if TYPE_CHECKING:
    from radt.delivery.mlflow.target import MlflowTarget
    from radt.store.writer import StoreWriter

log = logging.getLogger("radt.delivery.mlflow")

#: How often to check the store without a notification.
POLL_S = 2.0
#: A longer request is stuck where no timeout applies: in a name server, or in a database behind a
#: link that drops everything. A new process gets new connections. Users may allow longer requests.
STUCK_S = 600.0
#: The first call also connects.
_REQUESTS_A_CALL = 2
#: EX_TEMPFAIL of sysexits.h: the collector restarts the process.
_STUCK_CODE = 75


def main(arguments: Sequence[str] | None = None) -> int:
    """Upload until standard input is closed; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m radt.delivery.mlflow")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--live-interval-s", type=float, default=10.0)
    parser.add_argument("--give-way-s", type=float, default=0.0)
    order = parser.parse_args(arguments)
    uri = os.environ.get(TRACKING_VARIABLE)
    if not uri:
        parser.error(f"Expected {TRACKING_VARIABLE}")
    order.store = order.store.absolute()
    name = f"deliver-{destination_name(order.store, uri)}"
    return run_alone(name, partial(_deliver, order, uri))


def _artifact_root(store: Path, tracking_uri: str) -> Path | str | None:
    """Return the artifact root of new experiments; None for the server's choice.

    For a database, MLflow would use the working folder, which is ``/`` here.
    """
    if not is_database(tracking_uri):
        return None
    home = Home(store.parent)
    own = tracking_uri == home.default_tracking_uri
    return (not own and os.environ.get(ROOT)) or home.artifacts


def _deliver(order: argparse.Namespace, uri: str) -> int:
    if order.give_way_s:
        give_way()
    _set_up_mlflow()
    with large_import():  # here, because a process that waits for its turn does not need these
        from radt.clock import Clock
        from radt.delivery.mlflow.archives import ArchiveUploader
        from radt.delivery.mlflow.runs import RunCreator
        from radt.delivery.mlflow.target import MlflowTarget
        from radt.delivery.mlflow.tasks import Delivery
        from radt.delivery.mlflow.uploader import Uploader
        from radt.errors import RadtError
        from radt.store.reader import StoreReader
        from radt.store.writer import StoreWriter

    since_ns = Clock.for_machine().now_ns()
    try:
        reader, writer = StoreReader(order.store), StoreWriter(order.store)
    except RadtError:
        log.exception("the store cannot be used")
        return 1
    root = _artifact_root(order.store, uri)
    # A store that was moved has another uploader at its new place.
    target = MlflowTarget(uri, root, writer.check_in_place)
    problems = ProblemLog(order.store, MLFLOW, uri)
    archive_s = setting_or_default(ARCHIVE_S)  # 0 for no archives
    archives = ArchiveUploader(target, reader, writer, archive_s) if archive_s else None
    delivery = Delivery(
        RunCreator(target, reader, writer, since_ns),
        Uploader(target, reader, writer, archives),
        reader,
        uri,
        problems,
        lambda: target.answers,
        max(order.live_interval_s, order.give_way_s),
    )
    delivery.start()
    token, looked_s = reader.change_token(), time.monotonic()
    while (message := wait_for_parent(POLL_S)) is not ParentMessage.CLOSED:
        has_news = message is ParentMessage.NEWS
        if has_news or time.monotonic() >= looked_s + order.give_way_s:
            previous, token, looked_s = token, reader.change_token(), time.monotonic()
            if has_news or token != previous:
                delivery.notify()
        _check_in_place(writer)
        _check_not_stuck(target, problems)
    delivery.finish()
    while delivery.is_alive():
        delivery.join(POLL_S)
        _check_not_stuck(target, problems)
    return 0


def _check_in_place(writer: StoreWriter) -> None:
    """Exit if the store was moved or deleted: its new place has an uploader of its own."""
    if writer.vanished:
        log.warning("the store %s was moved or deleted", writer.path)
        logging.shutdown()
        os._exit(0)


def _check_not_stuck(target: MlflowTarget, problems: ProblemLog) -> None:
    """Exit if a request hangs; recorded uploads are kept, the rest is repeated."""
    stuck_s = max(STUCK_S, _REQUESTS_A_CALL * longest_request_s() + POLL_S)
    if target.longest_request_s() > stuck_s:
        problems.note(EVERYTHING, f"no answer to a request in {stuck_s:.0f} s")
        logging.shutdown()
        os._exit(_STUCK_CODE)


def _set_up_mlflow() -> None:
    """Set the variables that MLflow reads on import."""
    block_packages("pandas", "pygments")
    skip_init("mlflow.gateway")  # its __init__ imports FastAPI, which takes 0.2 s of CPU time
    set_client_defaults(FOR_UPLOADER)
    # MLflow logs a traceback whenever its database is locked or unreachable; radt logs that once.
    logging.getLogger("mlflow.store.db").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    sys.exit(main())
