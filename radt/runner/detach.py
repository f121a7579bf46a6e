"""Starts a runner in the background, so that it survives the end of the login session."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from radt.errors import UsageError
from radt.experiment.lock import ExperimentLock, Holder
from radt.home import Home
from radt.processes import send_signal
from radt.runner import exit_recorder

_POLL_S = 0.05
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, slots=True)
class Detached:
    """A runner in the background: its ``holder`` if it is running, else how it ended at once."""

    log: Path
    holder: Holder | None
    exit_code: int | None = None


def start_detached(file: Path, arguments: Sequence[str], home: Home) -> Detached:
    """Run ``radt ARGUMENTS…`` in its own session, with its output in a log of the data folder.

    Returns when the runner holds the experiment's lock, or has ended.

    Raises:
        UsageError: The log cannot be written.
    """
    log = new_log(file, home)
    # -P: a user's file named like a module must not be imported in its place.
    script = Path(sys.argv[0])
    program = [str(script.absolute())] if script.name == "radt" else ["-m", "radt"]
    runner = [sys.executable, "-P", *program, *arguments]
    recorder = [sys.executable, "-I", "-S", exit_recorder.__file__, exit_recorder.OUTPUT]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*recorder, *runner],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        return _wait(process, file, log)
    except KeyboardInterrupt:  # the user cancelled the start
        send_signal(process.pid, signal.SIGINT, group=True)
        raise


def _wait(process: subprocess.Popen[bytes], file: Path, log: Path) -> Detached:
    lock = ExperimentLock(file)
    while True:
        code = process.poll()
        holder = lock.holder()
        if holder is not None and holder.log and Path(holder.log) == log:
            return Detached(log, holder)
        if code is not None:
            return Detached(log, None, code if code >= 0 else 128 - code)
        time.sleep(_POLL_S)


def new_log(file: Path, home: Home) -> Path:
    """Create an empty log in the data folder: ``logs/NAME-DATE-TIME.log``.

    Raises:
        UsageError: It cannot be created.
    """
    home.create()
    start = f"{log_name(file)}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        path = home.logs.resolve() / f"{start}{f'-{number}' if number > 1 else ''}.log"
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UsageError(
                f"cannot write the log {path}: {error.strerror}",
                f"Free disk space in {home.logs}, or check its permissions",
            ) from error
        else:
            return path


def log_name(file: Path) -> str:
    """Return the common prefix of the names of an experiment's logs."""
    return _NOT_IN_NAMES.sub("_", file.stem)[:80]


def last_log(file: Path, home: Home) -> Path | None:
    """Return the newest log of the experiment's detached runners."""
    pattern = re.compile(rf"{re.escape(log_name(file))}-\d{{8}}-\d{{6}}(?:-\d+)?\.log")
    try:
        logs = [path for path in home.logs.iterdir() if pattern.fullmatch(path.name)]
        return max(logs, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None  # the folder does not exist, or belongs to another user
