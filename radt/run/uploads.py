"""Make scripts wait at their end until everything is uploaded, as in a container."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import NamedTuple, NoReturn

from radt import lifetime
from radt.errors import UsageError
from radt.home import HOME_VARIABLE, STORE_VARIABLE, TRACKING_VARIABLE, Home
from radt.lifetime import Wait
from radt.paths import start_folder
from radt.processes import command
from radt.run.notices import say
from radt.settings import Settings


class Terminated(SystemExit):
    """Raised by SIGTERM, so that the script leaves its blocks and everything can be uploaded."""


class _Uploads(NamedTuple):
    """Where this process's runs are, and where they are uploaded to; "" for nowhere."""

    pid: int
    home: str
    tracking_uri: str
    store_uri: str
    wait: Wait

    def finish(self) -> bool:
        """Upload the rest in a separate process, which shows its progress.

        Returns:
            True if this process may exit with 0.
        """
        uris = {TRACKING_VARIABLE: self.tracking_uri, STORE_VARIABLE: self.store_uri}
        env = os.environ | uris | {HOME_VARIABLE: self.home}
        try:
            process = subprocess.Popen(command("radt.runner.delivering"), env=env)
        except OSError as error:
            say(f"nothing is uploaded: {error}. Run `radt sync --home {self.home}`")
            return self.wait is not Wait.MUST
        while True:
            with suppress(KeyboardInterrupt):  # Ctrl-C also reaches that process, which reports it
                return process.wait() == 0 or self.wait is not Wait.MUST


_noted: dict[_Uploads, None] = {}
_fails = threading.Event()


def wait_at_exit(home: Home, tracking_uri: str, store_uri: str) -> None:
    """Make the end of this process wait for the uploads of a data folder, if so configured."""
    wait = _wait() if tracking_uri or store_uri else Wait.NO
    if wait is Wait.NO:
        return
    _noted[_Uploads(os.getpid(), str(home.path), tracking_uri, store_uri, wait)] = None
    in_main = threading.current_thread() is threading.main_thread()
    # By default SIGTERM ends the process at once, or is ignored if its process id is 1.
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def ignore_termination() -> None:
    """Ignore SIGTERM from now on if this process has runs to upload at its end.

    The sender kills the process with SIGKILL when its own timeout is over.
    """
    if _mine() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def finish_uploads() -> bool:
    """Upload the rest of this process's runs. Return True if it may exit with 0."""
    mine = _mine()
    _noted.clear()
    done = [uploads.finish() for uploads in mine]
    return all(done)


def fail_exit() -> None:
    """Make this process exit with 1 instead of 0."""
    _fails.set()


def _exit_with_1() -> None:
    """Exit with 1 if `fail_exit` was called, skipping the handlers registered before this one."""
    if not _fails.is_set():
        return
    # The skipped handlers may include these of the standard library. Unlike others, they may run
    # twice.
    for name, function in (("multiprocessing.util", "_exit_function"), ("logging", "shutdown")):
        if name in sys.modules:
            getattr(sys.modules[name], function)()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(1)


# Registered on import of radt, so that it runs after the handlers of libraries imported later.
atexit.register(_exit_with_1)


def _mine() -> list[_Uploads]:
    """Return the uploads that this process noted; a forked child also has its parent's."""
    return [uploads for uploads in _noted if uploads.pid == os.getpid()]


def _wait() -> Wait:
    try:
        return lifetime.waits(Settings.of(start_folder()))
    except (UsageError, OSError):  # invalid settings, which other code reports
        return lifetime.waits(Settings(None))


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + number)


# Forked processes, such as those of multiprocessing, end at SIGTERM as usual. SIGTERM is blocked
# during the fork: Python drops a signal that arrives between the fork and the hooks.
_fork = threading.local()


def _before_fork() -> None:
    is_ours = signal.getsignal(signal.SIGTERM) is _terminate
    _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) if is_ours else None


def _after_fork() -> None:
    if _fork.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _fork.mask)


def _after_fork_in_child() -> None:
    if _fork.mask is not None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
