"""Start, notify, restart and end the processes that upload a store to MLflow and Postgres.

MLflow is far heavier than the whole collector, so it has its own processes: one per store and
tracking server. So has Postgres, so that its network waits block nothing else. A deliverer reads
its standard input: a line announces new data, end of file asks it to finish and exit.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from radt.collector.protocol import ENV_PREFIXES, Registration
from radt.home import STORE_VARIABLE, TRACKING_VARIABLE

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 60.0
#: A deliverer that lived this long did not die of the same cause as the one before.
_STABLE_S = 60.0


class Way(Enum):
    """A kind of destination: its name in messages, its module, and the variable with the URI."""

    MLFLOW = ("delivery to MLflow", "radt.delivery.mlflow", TRACKING_VARIABLE)
    POSTGRES = ("replication to Postgres", "radt.delivery.postgres", STORE_VARIABLE)

    def __init__(self, work: str, module: str, variable: str) -> None:
        self.work = work
        self.module = module
        self.variable = variable


@dataclass(frozen=True, slots=True)
class Destination:
    """A store and the address that its runs are uploaded to."""

    store: Path
    uri: str
    way: Way = Way.MLFLOW

    def command(self) -> list[str]:
        return [sys.executable, "-P", "-m", self.way.module, "--store", str(self.store)]

    def environment(self) -> dict[str, str]:
        """Return the URI as a variable, as the process list would show its password."""
        return {self.way.variable: self.uri}


class Deliverer:
    """One upload process. Thread-safe; no method blocks."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._env: dict[str, str] = {}
        self._backoff_s = _FIRST_BACKOFF_S
        self._started_s = 0.0
        self._start_at_s = 0.0
        self._closing = False
        self._news = False

    @property
    def running(self) -> bool:
        with self._lock:
            return self._process is not None

    @property
    def pid(self) -> int | None:
        """Return the process id; None if no process runs at the moment."""
        with self._lock:
            return None if self._process is None else self._process.pid

    @property
    def gone(self) -> bool:
        """Return whether it was closed and has exited."""
        with self._lock:
            return self._closing and self._process is None

    def ensure(self, env: Mapping[str, str]) -> None:
        """Keep it running with the environment of `delivery_env`; restart it if that changed."""
        with self._lock:
            if env and dict(env) != self._env:
                self._env = dict(env)
                self._end_input()
                self._start_at_s = 0.0
            self._closing = False
            self._news = True
            self._advance()

    def poke(self) -> None:
        """Notify it of new data."""
        with self._lock:
            self._news = True
            self._advance()

    def close(self) -> None:
        """Let it finish; `running` shows when it has."""
        with self._lock:
            self._closing = True
            self._end_input()

    def check(self) -> None:
        """Reap it if it has exited, restart it when due. Called about every second."""
        with self._lock:
            self._advance()

    def kill(self) -> None:
        """Kill it at once; the next deliverer uploads the rest."""
        with self._lock:
            self._closing = True
            self._end_input()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None

    def _advance(self) -> None:
        now_s = time.monotonic()
        if self._process is not None and (code := self._process.poll()) is not None:
            self._ended(code, now_s)
        if self._process is None and not self._closing and self._news:
            if now_s < self._start_at_s:
                return
            self._start(now_s)
        self._notify()

    def _ended(self, code: int, now_s: float) -> None:
        lived_s = now_s - self._started_s
        expected = self._process is not None and self._process.stdin is None
        self._end_input()
        self._process = None
        if expected or self._closing:
            return
        self._news = True  # undelivered data may remain
        if lived_s > _STABLE_S:
            self._backoff_s = _FIRST_BACKOFF_S
        log.warning(
            "%s exited with code %s, restarting in %.0f s",
            self._destination.way.work,
            code,
            self._backoff_s,
        )
        self._retry_later(now_s)

    def _retry_later(self, now_s: float) -> None:
        self._start_at_s = now_s + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)

    def _start(self, now_s: float) -> None:
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIXES)
        }
        if not self._env:  # registered before this worker started: keep the first client's
            env = dict(os.environ)
        try:
            self._process = subprocess.Popen(
                self._destination.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=env | self._env | self._destination.environment(),
                bufsize=0,
                start_new_session=True,
            )
        except OSError:
            log.exception("%s cannot be started", self._destination.way.work)
            self._retry_later(now_s)
            return
        self._started_s = now_s
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def _notify(self) -> None:
        if not self._news or self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(b"\n")
        except BlockingIOError:
            pass  # the previous notification is still unread, which is enough
        except BrokenPipeError:
            return  # it has died; the next check detects it
        self._news = False

    def _end_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.stdin = None


class Deliverers:
    """All upload processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deliverers: dict[Destination, Deliverer] = {}
        #: Stores without runs being recorded, whose deliverers finish.
        self._released: set[Path] = set()

    def of(self, registration: Registration) -> list[Deliverer]:
        """Return the deliverers that upload a run."""
        store = Path(registration.store_path)
        destinations = [
            Destination(store, uri, way)
            for way, uri in (
                (Way.MLFLOW, registration.tracking_uri),
                (Way.POSTGRES, registration.store_uri),
            )
            if uri
        ]
        with self._lock:
            self._released.discard(store)
            return [self._deliverers.setdefault(key, Deliverer(key)) for key in destinations]

    @property
    def pids(self) -> list[int]:
        """Return the ids of the running processes."""
        return [pid for deliverer in self._all() if (pid := deliverer.pid) is not None]

    def check(self) -> None:
        """Check all of them; remove those that were closed."""
        with self._lock:
            self._finish_released()
        for deliverer in self._all():
            deliverer.check()
        with self._lock:
            self._deliverers = {
                key: deliverer for key, deliverer in self._deliverers.items() if not deliverer.gone
            }
            self._released &= {key.store for key in self._deliverers}

    def close(self) -> bool:
        """Let all finish; return whether all have. Call it again until they have."""
        with self._lock:
            self._released |= {key.store for key in self._deliverers}
        self.check()
        return not any(deliverer.running for deliverer in self._all())

    def release(self, store: Path) -> None:
        """Let the deliverers of a store without recorded runs finish."""
        with self._lock:
            self._released.add(store)
            self._finish_released()

    def _finish_released(self) -> None:
        """Close released deliverers, Postgres last because MLflow's ids go there too."""
        delivering = {
            key.store
            for key, deliverer in self._deliverers.items()
            if key.way is Way.MLFLOW and deliverer.running
        }
        for key, deliverer in self._deliverers.items():
            last = key.way is Way.POSTGRES and key.store in delivering
            if key.store in self._released and not last:
                deliverer.close()

    def kill(self) -> None:
        for deliverer in self._all():
            deliverer.kill()

    def _all(self) -> list[Deliverer]:
        with self._lock:
            return list(self._deliverers.values())
