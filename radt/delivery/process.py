"""What delivery processes share: one per store and destination, a log, little memory."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path

from radt.home import runtime_dir
from radt.parent_watch import take_lock

#: How often a failing delivery is retried once the process was told to finish.
LAST_TRIES = 5
_LOG_LIMIT_BYTES = 5 * 2**20
_LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def run_alone(name: str, deliver: Callable[[], int]) -> int:
    """Call `deliver` while no other process of this name does, and return its exit code.

    Returns 0 without delivering if standard input was closed before it was this process's turn.
    All output goes to ``NAME.log`` in the runtime folder.
    """
    _log_to_file(runtime_dir() / f"{name}.log")
    # Ctrl-C is for the runner; the end of standard input tells this process to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (runtime_dir() / f"{name}.lock").open("a") as lock:
        return deliver() if take_lock(lock.fileno()) else 0


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
    logging.basicConfig(level=logging.WARNING, format=_LOG_FORMAT)
    logging.getLogger("radt").setLevel(logging.INFO)


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("not needed in this process", name=name)


def block_pandas() -> None:
    """Keep this process from importing pandas.

    MLflow's clients and Arrow use pandas only if it is installed; without it they need 45 MB less.
    """
    sys.meta_path.insert(0, _NoPandas())
