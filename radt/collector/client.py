"""Client of the collector. Imports the standard library only.

It reconnects automatically after the collector restarts: it registers its runs again and repeats
the pending request.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from radt.collector.protocol import (
    CollectorStatus,
    LiveView,
    Op,
    RefusalCode,
    Registration,
    StandaloneRun,
    decode,
    encode,
    short_address,
    socket_path,
)
from radt.collector.start import log_path, start_guardian, starting
from radt.errors import CollectorError
from radt.model import RunStatus

#: How often to check whether a starting collector already listens.
_POLL_S = 0.01
#: A guardian started while its predecessor is about to exit exits at once, too.
_START_AGAIN_S = 2.0
#: More than the collector needs for a request that does not wait for a store.
_ANSWER_TIMEOUT_S = 15.0

AnswerT = TypeVar("AnswerT")


class _RefusedError(CollectorError):
    """The collector refused a request."""

    def __init__(self, message: str, remedy: str | None, code: RefusalCode) -> None:
        super().__init__(message, remedy)
        self.code = code


class CollectorClient:
    """One connection to the user's collector. Thread-safe.

    The runs registered through a client belong to its process and are ended when it dies. Create
    one with `connect`.

    Raises:
        CollectorError: From all methods but `close`, if the collector refuses or cannot be reached.
    """

    def __init__(self, *, start: bool, timeout_s: float, patience_s: float) -> None:
        self._start = start
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        self._received = b""
        self._registrations: dict[str, Registration] = {}

    @classmethod
    def connect(
        cls,
        *,
        start: bool = True,
        timeout_s: float = 15.0,
        patience_s: float = _ANSWER_TIMEOUT_S,
    ) -> CollectorClient:
        """Connect to the collector.

        Args:
            start: Whether to start one if none listens; else that is an error.
            timeout_s: How long to wait until it listens, now and at each reconnection.
            patience_s: How long to wait for the greeting of a listening collector: a stopped one
                sends none.
        """
        client = cls(start=start, timeout_s=timeout_s, patience_s=patience_s)
        with client._lock:
            client._persistently(lambda: None, time.monotonic() + timeout_s)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, registration: Registration) -> list[str]:
        """Register a run; return warnings about listeners that will not record it."""
        answer = self._ask(Op.REGISTER, {"registration": registration.to_json()})
        self._registrations[registration.run_id] = registration
        return [str(warning) for warning in answer["warnings"]]

    def begin(self, run: StandaloneRun) -> list[str]:
        """Register a run without a runner, which has already started; return warnings."""
        answer = self._ask(Op.BEGIN, {"run": run.to_json()})
        self._registrations[run.registration.run_id] = run.registration
        return [str(warning) for warning in answer["warnings"]]

    def started(
        self, run_id: str, pid: int, monotonic_ns: int, devices: Sequence[str] | None = None
    ) -> None:
        """Report that a registered run passed its barrier; sampling begins.

        Args:
            devices: The run's GPUs, if they differ from those at registration: MIG instances are
                created in between.
        """
        request = {"run_id": run_id, "pid": pid, "monotonic_ns": monotonic_ns}
        self._ask(Op.STARTED, request | {"devices": None if devices is None else list(devices)})

    def finish(
        self,
        run_id: str,
        status: RunStatus | None = None,
        exit_code: int | None = None,
        reason: str = "",
        timeout_s: float = 10.0,
        patience_s: float | None = None,
    ) -> None:
        """End a run; return when the store has all of it and its row has the final status.

        Args:
            status: Final status; None for the one in the script's journal.
            patience_s: If the collector does not greet within this time, leave the request without
                waiting for the response.

        Raises:
            CollectorError: The run is not in the store within ``timeout_s``; the collector keeps
                retrying.
        """
        ended_ns = time.monotonic_ns()
        registration = self._registrations.get(run_id)
        arguments = {
            "run_id": run_id,
            "status": None if status is None else str(status),
            "exit_code": exit_code,
            "reason": reason,
            "monotonic_ns": ended_ns,
            "timeout_s": timeout_s,
            "registration": registration.to_json() if registration is not None else None,
        }
        try:
            if patience_s is not None:
                self._greet(patience_s, Op.FINISH, arguments)
            self._ask(Op.FINISH, arguments, patience_s=timeout_s)
        except _RefusedError as refusal:
            if refusal.code is not RefusalCode.UNFINISHED:
                self._registrations.pop(run_id, None)
            raise
        self._registrations.pop(run_id, None)

    def live(self, run_ids: Sequence[str]) -> dict[str, LiveView]:
        """Return the current values of the given runs that are being recorded."""
        answer = self._ask(Op.LIVE, {"run_ids": list(run_ids)})
        return {run_id: LiveView.from_json(view) for run_id, view in answer["live"].items()}

    def status(self) -> CollectorStatus:
        """Return the collector's own status."""
        return CollectorStatus.from_json(self._ask(Op.STATUS, {})["status"])

    def close(self) -> None:
        """Close the connection. Unfinished runs belong to this process until it exits."""
        with self._lock:
            self._drop()

    def _ask(self, op: Op, arguments: dict[str, Any], patience_s: float = 0.0) -> dict[str, Any]:
        """Send a request and return the response, over a new connection if this one is broken."""
        deadline = time.monotonic() + self._timeout_s + patience_s
        self._forget_parents_connection()
        with self._lock:
            return self._persistently(
                lambda: self._exchange(op, arguments, patience_s + _ANSWER_TIMEOUT_S), deadline
            )

    def _greet(self, patience_s: float, op: Op, arguments: dict[str, Any]) -> None:
        """Raise CollectorError if the collector does not greet; leave the request for it."""
        self._forget_parents_connection()
        with self._lock:
            if self._socket is None:
                return
            try:
                self._exchange(Op.HELLO, {}, patience_s)
            except TimeoutError as error:
                with suppress(OSError):  # the socket has room for it, unless much is pending
                    self._socket.settimeout(0.0)
                    self._socket.sendall(encode({"op": str(op)} | arguments))
                self._drop()
                raise CollectorError(
                    "the collector does not answer",
                    f"It goes on where it stopped, or the next one does; look into {log_path()}",
                ) from error
            except OSError:
                self._drop()  # it has exited; the request is for the next one

    def _persistently(self, talk: Callable[[], AnswerT], deadline: float) -> AnswerT:
        """Talk over the connection, reconnecting when it breaks (a collector may exit)."""
        while True:
            try:
                if self._socket is None:
                    self._open(deadline)
                return talk()
            except OSError as error:
                self._drop()
                if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                    raise CollectorError(
                        f"the collector did not answer: {error}", f"Look into {log_path()}"
                    ) from error

    def _exchange(self, op: Op, arguments: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._socket is not None
        self._socket.settimeout(timeout_s)
        self._socket.sendall(encode({"op": str(op)} | arguments))
        while b"\n" not in self._received:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionResetError("connection closed")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        answer = decode(line)
        if not answer.get("ok"):
            raise _RefusedError(
                str(answer.get("error")), answer.get("remedy"), RefusalCode(answer.get("code", ""))
            )
        return answer

    def _open(self, deadline: float) -> None:
        """Connect, register all runs again, and ensure that the worker has a guardian."""
        self._socket = self._connected()
        if self._socket is None and self._start:
            with starting():
                self._socket = self._connected()
                while self._socket is None:
                    start_guardian()
                    now_s = time.monotonic()
                    self._socket = self._connected(min(deadline, now_s + _START_AGAIN_S))
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
            with starting():
                start_guardian()
        for registration in list(self._registrations.values()):
            # A run that is refused now (its store was deleted) must not keep the others from being
            # recorded; the call that finishes it gets the error.
            with suppress(_RefusedError):
                self._exchange(
                    Op.REGISTER, {"registration": registration.to_json()}, _ANSWER_TIMEOUT_S
                )

    def _connected(self, deadline: float = 0.0) -> socket.socket | None:
        """Return a connection; retry until the deadline, then return None."""
        path = socket_path()
        give_up_s = time.monotonic() + self._patience_s
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with short_address(path) as address:
                    connection.settimeout(0.0)
                    connection.connect(address)
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
            except BlockingIOError as error:  # the queue of waiting connections is full
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
                return connection
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)  # there is nothing to wait on before it listens

    def _forget_parents_connection(self) -> None:
        """Drop the parent's connection after a fork: two processes cannot share one."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()  # another thread of the parent may have held it
            self._drop()
            self._registrations = {}

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._received = b""
