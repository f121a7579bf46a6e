"""Makes a selftest's folders, waits for its end, however that comes about, and leaves nothing.

``python -m radt.selftest.janitor FOLDER`` makes a data folder in FOLDER and a runtime folder, says
where they are as one line of JSON, and waits until its input ends: the kernel closes that also when
the selftest is killed. Then it ends every process that was started with this runtime folder in its
environment, the collector among them, and removes both folders.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from radt import procfs
from radt.home import RUNTIME_VARIABLE
from radt.settings_file import SETTINGS_NAME

DATA_PREFIX = ".radt-selftest-"
RUNTIME_PREFIX = "radt-selftest-"
#: Held by the janitor for as long as the folder is in use.
LOCK_NAME = "selftest.lock"
_END_S = 20.0
_LOOK_S = 0.05


def main(parent: Path) -> None:
    """Until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    remove_forgotten(parent)
    data = Path(tempfile.mkdtemp(prefix=DATA_PREFIX, dir=parent))
    lock = os.open(data / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    runtime = Path(tempfile.mkdtemp(prefix=RUNTIME_PREFIX))  # elsewhere: a socket's path is short
    try:
        (data / ".gitignore").write_text("*\n", encoding="utf-8")
        # The nearest settings file counts; this one says nothing.
        (data / SETTINGS_NAME).write_text("", encoding="utf-8")
        with suppress(BrokenPipeError):  # whoever asked is gone already
            sys.stdout.write(json.dumps({"data": str(data), "runtime": str(runtime)}) + "\n")
            sys.stdout.flush()
        sys.stdin.buffer.read()
    finally:
        end_processes(runtime)
        for folder in (runtime, data):
            shutil.rmtree(folder, ignore_errors=True)


def end_processes(runtime: Path) -> None:
    """Kill what carries this runtime folder in its environment, until there is nothing left."""
    deadline_s = time.monotonic() + _END_S
    while time.monotonic() < deadline_s:
        found = [pid for pid in processes_of(runtime) if pid != os.getpid()]
        if not found:
            return
        for pid in found:
            _kill(pid, runtime)
        time.sleep(_LOOK_S)  # a guardian may have started a worker while we looked


def processes_of(runtime: Path) -> list[int]:
    """Processes that were started with this runtime folder."""
    mark = f"{RUNTIME_VARIABLE}={runtime}".encode()
    return [pid for pid in procfs.all_pids() if mark in procfs.environment(pid)]


def _kill(pid: int, runtime: Path) -> None:
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            # From here on the number is this process's; it may have been another's before.
            if f"{RUNTIME_VARIABLE}={runtime}".encode() in procfs.environment(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def remove_forgotten(parent: Path) -> None:
    """Remove the folders of selftests whose janitor was killed as well, or the machine reset."""
    for folder in parent.glob(f"{DATA_PREFIX}*"):
        try:
            lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # being made, or not ours
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
