"""Client of the collector. Imports the standard library only.

It reconnects after a restart of the collector: it registers its runs again, reports which have
started, and repeats the current request. After a failure to reach the collector, requests fail
without waiting for a while, so that a caller that continues without it loses no time.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, TypeVar

from radt import settings
from radt.collector.protocol import (
    Begun,
    CollectorStatus,
    LiveView,
    Op,
    RefusalCode,
    RefusedError,
    Registration,
    RunRequest,
    decode,
    delivery_env,
    encode,
    from_json,
    short_address,
    socket_path,
)
from radt.collector.start import log_path, start_guardian, starting
from radt.errors import CollectorError, RadtError
from radt.files import identity
from radt.model import RunStatus
from radt.processes import peer_of
from radt.procfs import process_stat

#: How often to check whether a starting collector is listening.
_POLL_S = 0.01
#: A guardian that is started while its predecessor is about to exit exits at once, too.
_START_AGAIN_S = 2.0
#: How long `begin` waits for a busy store; the rows are written as soon as the store is free.
_STORE_TIMEOUT_S = 5.0
#: How long a runner waits for its rows to be written to a busy store, as long as its own writes
#: would.
_ROWS_TIMEOUT_S = 60.0
#: More than the collector needs for a request that does not wait for a store.
_ANSWER_TIMEOUT_S = 15.0

#: How long a runner waits for a collector that it has started.
_START_TIMEOUT_S = 15.0
#: Delay before retrying a collector that could not be reached, and how long that retry waits.
RETRY_S = 3.0
_RETRY_TIMEOUT_S = 1.0
#: How often to check, while waiting for an answer, whether the collector is stopped.
_LOOK_S = 0.5

AnswerT = TypeVar("AnswerT")


class _StoppedError(TimeoutError):
    """The collector is suspended: by SIGSTOP, or Ctrl-Z if it runs in the foreground."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} is stopped")
        self.pid = pid


class CollectorClient:
    """A connection to the user's collector. Thread-safe.

    The runs registered through a client belong to its process and are ended when it dies. It
    connects with the first request, or with `reach`.

    Args:
        start: Start a collector if none listens; otherwise raise an error.
        timeout_s: How long to wait for it to listen, at each connection.
        patience_s: How long to wait for a greeting or an answer, which a suspended collector never
            gives.
        deadline_s: Limit for all of these; afterwards the attribute of that name.

    Raises:
        CollectorError: From all methods but `close`, if the collector refuses or cannot be reached.
    """

    def __init__(
        self,
        *,
        start: bool = True,
        timeout_s: float = 15.0,
        patience_s: float = _ANSWER_TIMEOUT_S,
        deadline_s: float = math.inf,
    ) -> None:
        #: Time on the monotonic clock at which all waiting ends, regardless of other timeouts. The
        #: collector still handles a request that was sent before, once it continues.
        self.deadline_s = deadline_s
        self._start = start
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._received = b""
        self._registrations: dict[str, Registration] = {}
        self._started: dict[str, dict[str, Any]] = {}
        self._away: CollectorError | None = None
        self._again_s = 0.0
        #: Earliest time to start another guardian: one that was just started is about to listen.
        self._start_again_s = -math.inf

    @classmethod
    def for_runner(cls) -> CollectorClient:
        """Return a runner's client, which starts a collector and connects while the runner loads.

        Requests and `reach` wait until that has finished, and raise its error.
        """
        patience_s = float(settings.variable(settings.COLLECTOR_PATIENCE_S, os.environ).value)
        timeout_s = max(_START_TIMEOUT_S, patience_s)
        client = cls(start=True, timeout_s=timeout_s, patience_s=patience_s)

        def reach() -> None:
            with suppress(RadtError, OSError):  # the first request raises it
                client.reach()

        threading.Thread(target=reach, name="reaching the collector", daemon=True).start()
        return client

    def knock(self) -> bool:
        """Return whether a collector listens; if not, start one without waiting for it."""
        with self._lock:
            with self._connected() or nullcontext() as connection:
                if connection is not None:
                    return True
            with starting(self.deadline_s):
                self._start_guardian()
        return False

    def reach(self) -> Self:
        """Connect unless already connected."""
        with self._lock:
            self._reach(lambda: None, self._timeout_s)
        return self

    @property
    def away(self) -> CollectorError | None:
        """Return why the last attempt to reach the collector failed; None if it succeeded."""
        return self._away

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, registration: Registration) -> list[str]:
        """Register a run; return warnings about listeners that will not record it.

        If the collector cannot be reached, the run is registered at the next reconnection.
        """
        try:
            answer = self._ask(Op.REGISTER, {"registration": asdict(registration)})
        except RefusedError:
            raise
        except CollectorError:
            self._registrations[registration.run_id] = registration
            raise
        self._registrations[registration.run_id] = registration
        return [str(warning) for warning in answer["warnings"]]

    def record(self, runs: Sequence[RunRequest]) -> list[str]:
        """Write the rows of runs that the caller will start, all in one store; return their names.

        Raises:
            CollectorError: The store may or may not have the rows; the caller may write them again.
        """
        request = {"runs": [asdict(run) for run in runs]}
        answer = self._ask(Op.RECORD, request, patience_s=_ROWS_TIMEOUT_S)
        return [str(name) for name in answer["names"]]

    def begin(self, run: RunRequest) -> Begun:
        """Register a run without a runner, which is already running."""
        timeout_s = self._answered_within(_STORE_TIMEOUT_S)
        answer = self._ask(Op.BEGIN, {"run": asdict(run), "timeout_s": timeout_s})
        self._registrations[run.registration.run_id] = run.registration
        return from_json(Begun, answer)

    def started(
        self, run_id: str, pid: int, monotonic_ns: int, devices: Sequence[str] | None = None
    ) -> None:
        """Report that a registered run passed its barrier; sampling begins.

        If the collector cannot be reached, this is reported at the next reconnection.

        Args:
            run_id: The run.
            pid: Its process.
            monotonic_ns: The monotonic time of its start.
            devices: The run's GPUs, if they differ from those at registration: MIG instances are
                created in between.
        """
        request = {"run_id": run_id, "pid": pid, "monotonic_ns": monotonic_ns}
        request |= {"devices": None if devices is None else list(devices)}
        self._started[run_id] = request
        self._ask(Op.STARTED, request)

    def finish(
        self,
        run_id: str,
        status: RunStatus | None = None,
        exit_code: int | None = None,
        reason: str = "",
        timeout_s: float = 10.0,
        *,
        ended_ns: int | None = None,
    ) -> None:
        """End a run; return when the store has all of it and its row has the final status.

        Args:
            run_id: The run.
            status: Its final status; None to use that in the script's journal.
            exit_code: Its exit code.
            reason: Why it ended, for display.
            timeout_s: How long to wait for the store.
            ended_ns: The monotonic time of its end; None for now.

        Raises:
            CollectorError: The store does not have all of the run within ``timeout_s``; the
                collector keeps retrying.
        """
        ended_ns = time.monotonic_ns() if ended_ns is None else ended_ns
        timeout_s = self._answered_within(timeout_s)
        registration = self._registrations.get(run_id)
        arguments = {
            "run_id": run_id,
            "status": None if status is None else str(status),
            "exit_code": exit_code,
            "reason": reason,
            "monotonic_ns": ended_ns,
            "timeout_s": timeout_s,
            "registration": asdict(registration) if registration is not None else None,
        }
        try:
            self._ask(Op.FINISH, arguments, patience_s=timeout_s)
        except RefusedError as refusal:
            if refusal.code is not RefusalCode.UNFINISHED:
                self.forget(run_id)
            raise
        self.forget(run_id)

    def forget(self, run_id: str) -> None:
        """Stop tracking a run: it has ended, or another process is responsible for it."""
        self._registrations.pop(run_id, None)
        self._started.pop(run_id, None)

    def live(self, run_ids: Sequence[str]) -> dict[str, LiveView]:
        """Return the current values of the given runs that are being recorded."""
        answer = self._ask(Op.LIVE, {"run_ids": list(run_ids)})
        return {run_id: LiveView(**view) for run_id, view in answer["live"].items()}

    def flush(self, store: Path) -> dict[str, str]:
        """Upload the data of a store at once, because somebody waits for it.

        Returns:
            Why an upload process is not running, "" if it is, by
            `radt.collector.delivery.Destination.label`.
        """
        answer = self._ask(Op.FLUSH, {"store_path": str(store)})
        problems = answer.get("problems", {})  # collectors of earlier builds do not report them
        return {str(label): str(problem) for label, problem in problems.items()}

    def deliver(self, store: Path, tracking_uri: str, store_uri: str) -> None:
        """Upload a store that has runs of other machines; "" for no MLflow or no Postgres."""
        registration = Registration(
            run_id="",
            store_path=str(store),
            spool="",
            tracking_uri=tracking_uri,
            store_uri=store_uri,
            env=delivery_env(os.environ),
        )
        self._ask(Op.DELIVER, {"registration": asdict(registration)})

    def status(self) -> CollectorStatus:
        """Return the collector's own status."""
        return from_json(CollectorStatus, self._ask(Op.STATUS, {})["status"])

    def close(self) -> None:
        """Close the connection. Unfinished runs belong to this process until it exits."""
        with self._lock:
            self._drop()

    def _ask(self, op: Op, arguments: dict[str, Any], patience_s: float = 0.0) -> dict[str, Any]:
        """Send a request and return the response, over a new connection if this one is broken."""
        self._forget_parents_connection()
        with self._lock:
            return self._reach(
                lambda: self._exchange(op, arguments, patience_s + self._patience_s),
                self._timeout_s + patience_s,
            )

    def _reach(self, talk: Callable[[], AnswerT], timeout_s: float) -> AnswerT:
        """Call ``talk`` unless the collector is known to be away; remember if it was reached."""
        now_s = time.monotonic()
        if self._away is not None:
            if now_s < self._again_s:
                raise self._away
            timeout_s = min(timeout_s, _RETRY_TIMEOUT_S)
        try:
            answer = self._persistently(talk, now_s + timeout_s)
        except RefusedError:
            self._away = None
            raise
        except CollectorError as error:
            self._away, self._again_s = error, time.monotonic() + RETRY_S
            raise
        self._away = None
        return answer

    def _persistently(self, talk: Callable[[], AnswerT], deadline: float) -> AnswerT:
        """Call ``talk``, reconnecting when the connection breaks (a collector may exit)."""
        while True:
            try:
                if self._socket is None or not self._is_ours(self._socket):
                    self._drop()
                    self._open(deadline)
                return talk()
            except OSError as error:
                self._drop()
                if isinstance(error, TimeoutError) or time.monotonic() >= self._at_most(deadline):
                    raise _silence(error) from error

    def _exchange(self, op: Op, arguments: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._socket is not None
        give_up_s = self._at_most(time.monotonic() + timeout_s)
        # Above 0, which means something else to a socket.
        self._socket.settimeout(max(1e-3, give_up_s - time.monotonic()))
        self._socket.sendall(encode({"op": str(op)} | arguments))
        while b"\n" not in self._received:
            self._check_runs()
            left_s = give_up_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no answer within {timeout_s:g} s")
            self._socket.settimeout(min(left_s, _LOOK_S))
            try:
                piece = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            if not piece:
                raise ConnectionResetError("connection closed")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        answer = decode(line)
        if not answer.get("ok"):
            raise RefusedError(
                str(answer.get("error")), answer.get("remedy"), RefusalCode(answer.get("code", ""))
            )
        return answer

    def _check_runs(self) -> None:
        """Raise _StoppedError if the collector is suspended and cannot answer."""
        assert self._socket is not None
        pid, _ = peer_of(self._socket)
        stat = process_stat(pid) if pid else None
        if stat is not None and stat.state == "T":
            raise _StoppedError(pid)

    def _open(self, deadline: float) -> None:
        """Connect, register all runs again, and ensure that the worker has a guardian."""
        deadline = self._at_most(deadline)
        self._socket = self._connected()
        if self._socket is None and self._start:
            with starting(self.deadline_s):
                self._socket = self._connected()
                while self._socket is None:
                    if time.monotonic() >= self._start_again_s:
                        self._start_guardian()
                    now_s = time.monotonic()
                    self._socket = self._connected(min(deadline, self._start_again_s))
                    if now_s >= deadline:
                        break
        elif self._socket is None and self._registrations:
            self._socket = self._connected(deadline)  # its guardian is about to restart it
        if self._socket is None:
            raise CollectorError(
                "the collector does not listen" if self._start else "no collector is running",
                f"Look into {log_path()}" if self._start else "It starts with the next run",
            )
        hello = self._exchange(Op.HELLO, {}, self._patience_s)
        if hello["guardian_pid"] is None and self._start:
            with starting(self.deadline_s):
                start_guardian(self.deadline_s)
        for registration in list(self._registrations.values()):
            # A run that is refused now (its store was deleted) must not prevent the recording of
            # the others; the call that finishes it raises the error.
            with suppress(RefusedError):
                self._exchange(
                    Op.REGISTER, {"registration": asdict(registration)}, _ANSWER_TIMEOUT_S
                )
                if started := self._started.get(registration.run_id):
                    self._exchange(Op.STARTED, started, _ANSWER_TIMEOUT_S)

    def _start_guardian(self) -> None:
        start_guardian(self.deadline_s)
        self._start_again_s = time.monotonic() + _START_AGAIN_S

    def _connected(self, deadline: float = 0.0) -> socket.socket | None:
        """Return a connection; retry until the deadline, then return None."""
        path = socket_path()
        give_up_s = self._at_most(time.monotonic() + self._patience_s)
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with short_address(path) as address:
                    connection.settimeout(0.0)
                    connection.connect(address)
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
            except BlockingIOError as error:  # the queue of pending connections is full
                connection.close()
                if time.monotonic() >= give_up_s:
                    raise TimeoutError("it accepts nobody") from error
                time.sleep(_POLL_S)
                continue
            except OSError as error:
                connection.close()
                raise CollectorError(
                    f"the collector's socket {path} cannot be used: {error.strerror or error}",
                    "Set RADT_RUNTIME_DIR to a folder with a short path that is yours",
                ) from error
            else:
                self._identity = identity(connection.fileno())
                return connection
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)  # nothing to wait on before it listens

    def _answered_within(self, timeout_s: float) -> float:
        """Limit a timeout so that the collector's answer or error arrives before the deadline."""
        return max(0.0, min(timeout_s, 0.8 * (self.deadline_s - time.monotonic())))

    def _at_most(self, deadline: float) -> float:
        return min(deadline, self.deadline_s)

    def _forget_parents_connection(self) -> None:
        """Drop the parent's connection after a fork: two processes cannot share one."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()  # another thread of the parent may have held it
            self._drop()
            self._registrations = {}
            self._started = {}

    def _is_ours(self, connection: socket.socket) -> bool:
        """Return False if the script has closed the connection, and may have reused its number."""
        return identity(connection.fileno()) == self._identity

    def _drop(self) -> None:
        if self._socket is not None:
            if self._is_ours(self._socket):
                self._socket.close()
            self._socket.detach()
        self._socket = None
        self._received = b""


def _silence(error: OSError) -> CollectorError:
    """Return the error for a collector that exists but does not answer."""
    if isinstance(error, _StoppedError):
        return CollectorError(
            f"the collector is stopped (process {error.pid})",
            f"Run `kill -CONT {error.pid}` to let it go on",
        )
    return CollectorError(f"the collector does not answer: {error}", f"Look into {log_path()}")


def flush_uploads(store: Path) -> None:
    """Ask the collector, if one answers, to upload the data of a store now instead of later."""
    # Without this request, the collector uploads the data later.
    with (
        suppress(CollectorError),
        CollectorClient(start=False, timeout_s=0.0, patience_s=1.0).reach() as client,
    ):
        client.flush(store)
