"""Import from MLflow every minute: ``python -m radt.importers``, as a helper of a dashboard.

A separate process, because MLflow and Arrow need hundreds of megabytes. It reads one line of JSON
from its standard input with the tracking URI and the store (all users could read a command line),
writes each `radt.importers.importing.ImportStatus` as a line of JSON, and exits when its input
ends.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time

from radt.delivery.process import block_packages

block_packages("pandas")  # before anything imports Arrow

from radt.errors import RadtError  # noqa: E402
from radt.importers.importing import ImportStatus, Progress  # noqa: E402
from radt.importers.mlflow import MlflowSource  # noqa: E402
from radt.importers.mlflow_import import MlflowImport  # noqa: E402
from radt.store.writer import StoreWriter  # noqa: E402

log = logging.getLogger(__name__)

#: Lower priority than training processes on this machine.
_NICENESS = 5
_INTERVAL_S = 60.0
#: Importing may take at most 1/N of the time: listing 10,000 runs takes seconds.
_SHARE = 10
_PROGRESS_S = 1.0


def main() -> None:
    """Import until standard input ends."""
    task = json.loads(sys.stdin.readline() or "{}")
    if not task:
        return
    threading.Thread(target=_end_with_input, daemon=True).start()
    os.nice(_NICENESS)
    source = MlflowSource(str(task["tracking_uri"]))
    progress = _Progress()
    while True:
        began_s = time.monotonic()
        _print(_import_once(source, str(task["store"]), progress))
        time.sleep(max(_INTERVAL_S, _SHARE * (time.monotonic() - began_s)))


def _end_with_input() -> None:
    """Exit at once, even during an import, which the next process resumes."""
    sys.stdin.read()
    os._exit(0)


def _import_once(source: MlflowSource, store: str, progress: Progress) -> ImportStatus:
    """Import new data; errors are returned, not raised."""
    try:
        source.connect()
        with StoreWriter(store) as writer:
            result = MlflowImport(source, writer, progress=progress).run()
    except RadtError as error:
        return ImportStatus.of_error(error)
    # The dashboard continues, and the next attempt may succeed.
    except Exception as error:
        log.exception("importing from %s", source.where)
        return ImportStatus.of_error(
            RadtError(
                f"importing from {source.where} failed: {type(error).__name__}",
                "The terminal of `radt dashboard` says more",
            )
        )
    return ImportStatus.of_result(result)


class _Progress:
    """Prints the progress of an import, at most once per `_PROGRESS_S`."""

    def __init__(self) -> None:
        self._printed_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._printed_s >= _PROGRESS_S:
            self._printed_s = time.monotonic()
            _print(ImportStatus(done=done, total=total))


def _print(status: ImportStatus) -> None:
    sys.stdout.write(status.line())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
