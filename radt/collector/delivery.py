"""Start, notify, restart and end the processes that upload a store to MLflow and Postgres.

MLflow is far heavier than the whole collector, so uploads to it run in separate processes: one per
store and tracking server. So do uploads to Postgres, whose network waits must not delay anything
else. An upload process reads its standard input: a line means new data, end of file means finish
and exit.

Uploads give way to runs: the processes are nice (`radt.delivery.process.give_way`). While a run is
active, uploads to MLflow, whose start alone takes seconds of CPU time, are delayed for a while
unless somebody waits for them (`Deliverer.flush`).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from radt.collector.protocol import ENV_PREFIXES, Registration
from radt.home import STORE_VARIABLE, TRACKING_VARIABLE, runtime_dir
from radt.masking import is_masked, masked
from radt.processes import Backoff, command

log = logging.getLogger(__name__)

_LONGEST_BACKOFF_S = 60.0
#: Changes with what MLflow and Postgres have of a store, and not with failed attempts.
_PROGRESS = (
    "SELECT (SELECT TOTAL(delivered) FROM delivery), (SELECT COUNT(*) FROM artifact_delivered), "
    "(SELECT TOTAL(revision) FROM replicated), COUNT(mlflow_run_id), COUNT(delivery_done_ns) "
    "FROM run"
)


class DestinationKind(Enum):
    """A kind of destination.

    Attributes:
        work: Name in messages.
        module: Module of the upload process.
        variable: Environment variable with the URI.
        waits_for_runs: True if starting it takes so much CPU time that active runs delay it.
    """

    MLFLOW = ("delivery to MLflow", "radt.delivery.mlflow", TRACKING_VARIABLE, True)
    POSTGRES = ("replication to Postgres", "radt.delivery.postgres", STORE_VARIABLE, False)

    def __init__(self, work: str, module: str, variable: str, waits_for_runs: bool) -> None:
        self.work = work
        self.module = module
        self.variable = variable
        self.waits_for_runs = waits_for_runs


@dataclass(frozen=True, slots=True)
class Destination:
    """A store and the address that its runs are uploaded to."""

    store: Path
    uri: str
    kind: DestinationKind = DestinationKind.MLFLOW

    def command(self) -> list[str]:
        """Return the command line of the upload process, without ``--give-way-s``."""
        return command(self.kind.module, "--store", str(self.store))

    @property
    def label(self) -> str:
        """Return the name for messages, without passwords."""
        return f"{self.kind.work} at {masked(self.uri)}"

    @property
    def is_gone(self) -> bool:
        """Return whether the store was deleted or moved; it is then uploaded from its new place."""
        try:
            self.store.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            pass  # this does not say whether the file still exists
        return False

    def environment(self) -> dict[str, str]:
        """Return the URI as a variable: the process list would show a password in arguments."""
        return {self.kind.variable: self.uri}


class Deliverer:
    """One upload process. Thread-safe; no method blocks.

    Args:
        destination: The store and the address to upload to.
        wait_s: How long new data may wait while a run is active; 0 for not at all.
        run_is_on: Returns whether a run is active.
    """

    def __init__(
        self,
        destination: Destination,
        wait_s: float = 0.0,
        run_is_on: Callable[[], bool] = lambda: False,
    ) -> None:
        self._destination = destination
        self._wait_s = wait_s
        self._run_is_on = run_is_on
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._env: dict[str, str] = {}
        self._backoff = Backoff(longest_s=_LONGEST_BACKOFF_S)
        self._started_s = 0.0
        self._start_at_s = 0.0
        #: Whether the store has existed: a script may begin before its collector creates the store.
        self._has_been_there = False
        self._closing = False
        self._news = False
        self._news_since_s = 0.0
        #: Whether somebody waits for the upload of new data.
        self._urgent = False
        #: Whether the current process was started as one that gives way.
        self._gives_way = False
        #: Why no process runs although one should; empty if one runs.
        self.problem = ""

    @property
    def pid(self) -> int | None:
        """Return the process id; None if no process runs at the moment."""
        process = self._process
        return None if process is None else process.pid

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def gone(self) -> bool:
        """Return whether it was closed and has exited."""
        with self._lock:
            return self._closing and self._process is None

    def ensure(self, env: Mapping[str, str], uri: str = "") -> None:
        """Keep the process running with the environment of `delivery_env`; restart it on changes.

        Args:
            env: The environment; empty to keep the current one.
            uri: The URI, whose user and password may have changed; empty to keep the current one.
        """
        with self._lock:
            if (env and dict(env) != self._env) or uri not in ("", self._destination.uri):
                self._env = dict(env) or self._env
                self._destination = replace(self._destination, uri=uri or self._destination.uri)
                self._end_input()
                self._start_at_s = 0.0
            self._closing = False
            self._have_news()
            self._advance()

    def notify(self) -> None:
        """Notify the process of new data."""
        with self._lock:
            self._have_news()
            self._advance()

    def flush(self) -> None:
        """Upload now because somebody waits: with a process that does not give way."""
        with self._lock:
            if self._closing:
                return
            if self._process is not None and self._gives_way:
                # A user cannot raise a lowered priority again, so a new process is needed.
                self._end()
                self._start_at_s = 0.0
            self._urgent = True
            self._have_news()
            self._advance()

    def close(self) -> None:
        """Ask it to finish, even if it has not started yet; `running` is False once it has."""
        with self._lock:
            now_s = time.monotonic()
            waiting = self._news and self._process is None and not self._closing
            if waiting and now_s >= self._start_at_s:
                self._start(now_s)
            if self._process is not None and self._process.stdin is not None:
                self._news = False  # the process checks for data once more at the end of its input
            self._closing = True
            self._end_input()

    def check(self) -> None:
        """Reap the process if it has exited; restart it if needed. Called about every second."""
        with self._lock:
            self._advance()

    def kill(self) -> None:
        """Kill it at once; the next deliverer uploads the rest."""
        with self._lock:
            self._closing = True
            self._end()

    def _end(self) -> None:
        self._end_input()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _have_news(self) -> None:
        if not self._news:
            self._news, self._news_since_s = True, time.monotonic()

    def _held(self, now_s: float) -> bool:
        """Return whether new data has to wait for active runs."""
        if not self._destination.kind.waits_for_runs:
            return False
        waited = now_s >= self._news_since_s + self._wait_s
        return not (self._urgent or waited) and self._run_is_on()

    def _advance(self) -> None:
        now_s = time.monotonic()
        if self._process is not None and (code := self._process.poll()) is not None:
            self._ended(code, now_s)
        if self._held(now_s):
            return
        if self._process is None and not self._closing and self._news:
            if now_s < self._start_at_s:
                return
            self._start(now_s)
        self._write_notice()

    def _ended(self, code: int, now_s: float) -> None:
        expected = self._process is not None and self._process.stdin is None
        self._end_input()
        self._process = None
        if self._closing and self._news:  # data that came after the end of its input
            self._start(now_s)
            self._news = False
            self._end_input()
            return
        if expected or self._closing:
            return
        self._have_news()  # the data that it had not uploaded yet
        delay_s = self._backoff.next_s(now_s - self._started_s)
        self._start_at_s = now_s + delay_s
        self.problem = f"the process exited with code {code}; its log is in {runtime_dir()}"
        work = self._destination.kind.work
        log.warning("%s exited with code %s, restarting in %.0f s", work, code, delay_s)

    def _start(self, now_s: float) -> None:
        is_gone = self._destination.is_gone
        if is_gone and self._has_been_there:
            log.warning("%s ends: %s is gone", self._destination.kind.work, self._destination.store)
            self._closing, self._news = True, False
            return
        self._has_been_there |= not is_gone
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIXES)
        }
        if not self._env:  # registered before this worker started: keep the first client's
            env = dict(os.environ)
        arguments = self._destination.command()
        self._gives_way = self._wait_s > 0 and not self._urgent
        if self._gives_way:
            arguments += ["--give-way-s", f"{self._wait_s:g}"]
        try:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=env | self._env | self._destination.environment(),
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            log.exception("%s cannot be started", self._destination.kind.work)
            self.problem = f"the process cannot be started: {error.strerror}"
            self._start_at_s = now_s + self._backoff.next_s()
            return
        self._started_s, self.problem = now_s, ""
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def _write_notice(self) -> None:
        if not self._news or self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(b"\n")
        except BlockingIOError:
            pass  # the previous notification is still unread, which is enough
        except BrokenPipeError:
            return  # it has died; the next check notices
        self._news = self._urgent = False

    def _end_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.stdin = None


class Deliverers:
    """All upload processes.

    Args:
        wait_s: How long new data may wait while a run is active; 0 for not at all.
        run_is_on: Returns whether a run is active.
    """

    def __init__(self, wait_s: float = 0.0, run_is_on: Callable[[], bool] = lambda: False) -> None:
        self._wait_s = wait_s
        self._run_is_on = run_is_on
        #: Whether a run was active at the last check. Short pauses between workloads are not idle
        #: time.
        self._run_was_on = False
        self._lock = threading.Lock()
        #: By destination without password, so that a changed password does not create a second
        #: deliverer.
        self._deliverers: dict[Destination, Deliverer] = {}
        #: Stores without active runs, whose deliverers finish.
        self._released: set[Path] = set()
        #: The result of `_progress` for each store during `close`, and when it last changed.
        self._progress: dict[Path, object] = {}
        self._progressed_s = 0.0

    def of(self, registration: Registration) -> list[Deliverer]:
        """Return the deliverers that upload a run."""
        return [deliverer for deliverer, _ in self._of(registration)]

    def ensure(self, registration: Registration) -> None:
        """Keep the deliverers of a run running, with its environment, users and passwords."""
        self._progress = {}  # an idle time that follows is another one
        for deliverer, uri in self._of(registration):
            deliverer.ensure(registration.env, "" if is_masked(uri) else uri)

    def _of(self, registration: Registration) -> list[tuple[Deliverer, str]]:
        """Return the deliverers and the URIs of a registration.

        A run that was found by its folder has lost its passwords. It is uploaded by the deliverer
        that knows them, once there is one.
        """
        store = Path(registration.store_path)
        deliverers = []
        with self._lock:
            self._released.discard(store)
            for kind, uri in (
                (DestinationKind.MLFLOW, registration.tracking_uri),
                (DestinationKind.POSTGRES, registration.store_uri),
            ):
                key = Destination(store, masked(uri), kind)
                if uri and not is_masked(uri):
                    known = replace(key, uri=uri)
                    new = Deliverer(
                        known, self._wait_s, lambda: self._run_is_on() or self._run_was_on
                    )
                    self._deliverers.setdefault(key, new)
                if key in self._deliverers:
                    deliverers.append((self._deliverers[key], uri))
        return deliverers

    def flush(self, store: Path) -> dict[str, str]:
        """Upload a store at once; return the problems of its deliverers by `Destination.label`."""
        with self._lock:
            of_store = {key: each for key, each in self._deliverers.items() if key.store == store}
        for deliverer in of_store.values():
            deliverer.flush()
        return {key.label: deliverer.problem for key, deliverer in of_store.items()}

    @property
    def pids(self) -> list[int]:
        """Return the ids of the running processes."""
        return [pid for deliverer in self._all() if (pid := deliverer.pid) is not None]

    def check(self) -> None:
        """Check all deliverers; remove those that were closed."""
        with self._lock:
            self._finish_released()
        for deliverer in self._all():
            deliverer.check()
        self._run_was_on = self._run_is_on()
        with self._lock:
            self._deliverers = {
                key: deliverer for key, deliverer in self._deliverers.items() if not deliverer.gone
            }
            self._released &= {key.store for key in self._deliverers}

    def close(self, stall_s: float) -> bool:
        """Let all finish. Call it again until it returns True.

        Args:
            stall_s: How long to wait without progress.

        Returns:
            Whether all have finished, or none has made progress for this long.
        """
        with self._lock:
            stores = {key.store for key in self._deliverers}
            self._released |= stores
        self.check()
        if not any(deliverer.running for deliverer in self._all()):
            return True
        now_s, progress = time.monotonic(), {store: _progress(store) for store in stores}
        if progress != self._progress:
            self._progress, self._progressed_s = progress, now_s
        return now_s - self._progressed_s > stall_s

    def release(self, store: Path) -> None:
        """Let the deliverers of a store without active runs finish."""
        with self._lock:
            self._released.add(store)
            self._finish_released()

    def _finish_released(self) -> None:
        """Close released deliverers; Postgres last, because it also gets MLflow's ids."""
        delivering = {
            key.store
            for key, deliverer in self._deliverers.items()
            if key.kind is DestinationKind.MLFLOW and deliverer.running
        }
        for key, deliverer in self._deliverers.items():
            last = key.kind is DestinationKind.POSTGRES and key.store in delivering
            if key.store in self._released and not last:
                deliverer.close()

    def kill(self) -> None:
        """Kill all; the next collector's deliverers upload the rest."""
        for deliverer in self._all():
            deliverer.kill()

    def _all(self) -> list[Deliverer]:
        with self._lock:
            return list(self._deliverers.values())


def _progress(store: Path) -> object:
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(_PROGRESS).fetchone()
    except sqlite3.Error:
        return None
