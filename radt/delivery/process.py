"""Common parts of upload processes: one per store and destination, a log, priority, retries."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TypeVar

from radt.home import runtime_dir
from radt.processes import Backoff, take_lock
from radt.settings import Setting, variable

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Number of attempts at a failing upload once the process has been asked to finish.
LAST_TRIES = 5
_LAST_PAUSE_S = 1.0
_LOG_LIMIT_BYTES = 5 * 2**20
_LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def run_alone(name: str, deliver: Callable[[], int]) -> int:
    """Call `deliver` while no other process of this name does, and return its exit code.

    All output goes to ``NAME.log`` in the runtime folder.
    """
    _log_to_file(runtime_dir() / f"{name}.log")
    # Ctrl-C is meant for the runner; the end of standard input stops this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (runtime_dir() / f"{name}.lock").open("a") as lock:
        take_lock(lock.fileno())
        return deliver()


#: Niceness of a process that gives way. No higher, and no SCHED_IDLE: a process that starves while
#: it holds a database's write lock blocks all other writers, first of all the collector. Beside
#: eight busy processes per core, this one is interrupted for up to 2 s (5 s with SCHED_IDLE) after
#: every few milliseconds of work.
_NICENESS = 10


def give_way() -> None:
    """Give other programs priority on CPU and disk (whose priority follows niceness)."""
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    with suppress(OSError):  # the kernel does not group processes by session
        # Linux may weigh sessions first (sched(7)), so this process's gets less weight, too.
        Path("/proc/self/autogroup").write_text(str(_NICENESS), encoding="ascii")


def _log_to_file(path: Path) -> None:
    """Redirect all output to a file: MLflow, Alembic and SQLAlchemy write to standard error too."""
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


def setting_or_default(setting: Setting[T]) -> T:
    """Return a setting of the environment; a typing error must not keep weeks of runs on a disk."""
    found = variable(setting)
    if found.problem is not None:
        log.warning("%s; the default is used", found.problem)
    return found.value


def last_tries() -> Iterator[None]:
    """Yield `LAST_TRIES` times, with pauses, for a process that has been asked to finish."""
    backoff = Backoff()
    for left in reversed(range(LAST_TRIES)):
        yield
        if left:
            time.sleep(min(backoff.next_s(), _LAST_PAUSE_S))


class _Blocked(MetaPathFinder):
    def __init__(self, names: Container[str]) -> None:
        self._names = names

    def find_spec(self, name: str, *_: object) -> None:
        if name in self._names:
            raise ModuleNotFoundError("not needed in this process", name=name)


def block_packages(*names: str) -> None:
    """Keep this process from importing packages that others use only if they are installed.

    Without pandas, MLflow's clients and Arrow need 48 MB and 0.4 s of CPU time less; without
    Pygments, which Alembic's templates use, MLflow's databases 0.06 s. A None in `sys.modules`
    would not do: Arrow would take it for pandas.
    """
    sys.meta_path.insert(0, _Blocked(names))


@dataclass(slots=True)
class _Retry:
    due_s: float
    backoff: Backoff


class Retries:
    """When tasks may start again (monotonic time), by key; those without an entry may at once.

    ``longest_s`` is the longest wait after a failure.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._retries: dict[str, _Retry] = {}

    def failed(self, key: str) -> None:
        """Delay a task after a failure, for longer after each one."""
        retry = self._retries.setdefault(key, _Retry(0.0, Backoff(longest_s=self._longest_s)))
        retry.due_s = time.monotonic() + retry.backoff.next_s()

    def succeeded(self, key: str, again_s: float = 0.0) -> None:
        """Forget the failures of a task, which may start again after ``again_s``."""
        self._retries.pop(key, None)
        if again_s:
            due_s = time.monotonic() + again_s
            self._retries[key] = _Retry(due_s, Backoff(longest_s=self._longest_s))

    def keep(self, keys: Container[str]) -> None:
        """Remove all other tasks: they have nothing left to upload."""
        self._retries = {key: retry for key, retry in self._retries.items() if key in keys}

    def flush(self) -> None:
        """Make all retries due now."""
        for retry in self._retries.values():
            retry.due_s = 0.0

    def wait_s(self, key: str) -> float:
        """Return the seconds until a task may start; 0 if it may now."""
        retry = self._retries.get(key)
        return 0.0 if retry is None else max(0.0, retry.due_s - time.monotonic())

    def __contains__(self, key: str) -> bool:
        return key in self._retries

    @property
    def next_s(self) -> float:
        """Return the time of the first retry; infinity without one."""
        return min((retry.due_s for retry in self._retries.values()), default=math.inf)
