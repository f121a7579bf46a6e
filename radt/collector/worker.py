"""The collector's worker and its socket, with a thread per connection.

Each connection handles one request at a time. The guardian runs the worker as
``python -m radt.collector.worker``; it exits after it has been idle for a while.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radt.collector.guardian import Heartbeat, heartbeat_path, unclean_path
from radt.collector.processes import own_cpu_s
from radt.collector.protocol import (
    MAX_LINE_BYTES,
    CollectorStatus,
    Op,
    RefusalCode,
    RefusedError,
    Registration,
    RunRequest,
    decode,
    encode,
    from_json,
    short_address,
    socket_path,
)
from radt.collector.runs import RunEnding
from radt.collector.start import CollectorSettings, guardian_lock, worker_lock
from radt.errors import RadtError
from radt.lazy import large_import
from radt.model import RunStatus
from radt.processes import peer_of
from radt.procfs import ProcessId, process_stat

if TYPE_CHECKING:
    from radt.collector.service import Service

log = logging.getLogger(__name__)

#: How long a collector may take to store the remaining data after its owner process has died.
_OWNER_GRACE_S = 10.0

Answer = dict[str, Any]


class CollectorServer:
    """Accepts clients until closed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._guardian = guardian_lock()
        self._begun_s = time.monotonic()
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._listener: socket.socket | None = None
        #: Monotonic time when a client was last connected.
        self.last_used_s = time.monotonic()

    def open(self) -> None:
        """Listen. This worker holds the lock, so an existing socket file is stale."""
        path = socket_path()
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_address(path) as address:
            listener.bind(address)
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="accept", daemon=True).start()

    def close(self) -> None:
        """Stop listening; open connections stay. Late clients retry."""
        listener, self._listener = self._listener, None
        if listener is not None:
            socket_path().unlink(missing_ok=True)
            listener.shutdown(socket.SHUT_RDWR)  # wakes up the accepting thread
            listener.close()

    @property
    def connected(self) -> bool:
        with self._lock:
            if self._connections:
                self.last_used_s = time.monotonic()
            return bool(self._connections)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                if listener is not self._listener:
                    return
                log.exception("accepting a client")
                time.sleep(0.1)  # out of file descriptors: other clients will close theirs
                continue
            try:
                connection = _Connection(peer, self)
            except OSError:  # its process cannot be identified now; the client reconnects
                log.exception("accepting a client")
                peer.close()
                continue
            with self._lock:
                self._connections.add(connection)
            self._service.hold_clock()
            threading.Thread(target=connection.serve, name="client", daemon=True).start()

    def closed(self, connection: _Connection) -> None:
        """Remove a client; if its process died, end its runs."""
        with self._lock:
            self._connections.discard(connection)
            self.last_used_s = time.monotonic()
        self._service.check_owners()
        if connection.owner is None:
            self._service.owned_without_process(connection.run_ids)

    def answer(self, request: Mapping[str, Any], connection: _Connection) -> Answer:
        """Handle a request; raise RadtError if it is refused, ValueError if it is invalid."""
        try:
            handler = _HANDLERS[Op(request["op"])]
            return handler(self._service, request, connection) if handler else self._about(request)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a request: {error!r}") from error

    def _about(self, request: Mapping[str, Any]) -> Answer:
        guardian_pid = self._guardian.holder()
        if request["op"] == Op.HELLO:
            return {"guardian_pid": guardian_pid}
        pids = [os.getpid(), *([guardian_pid] if guardian_pid else [])]
        stats = [stat for pid in pids if (stat := process_stat(pid)) is not None]
        status = CollectorStatus(
            pid=os.getpid(),
            guardian_pid=guardian_pid,
            uptime_s=time.monotonic() - self._begun_s,
            cpu_s=own_cpu_s(self._service.deliverers.pids, guardian_pid),
            rss_bytes=sum(stat.rss_bytes for stat in stats),
            runs=self._service.run_ids,
            listeners=self._service.pool.names(),
            problems=self._service.problems,
        )
        return {"status": asdict(status)}


class _Connection:
    """Connection of one client."""

    def __init__(self, peer: socket.socket, server: CollectorServer) -> None:
        self._peer = peer
        self._server = server
        pid, self._uid = peer_of(peer)
        #: The client's process; None if it runs in a container and is not visible.
        self.owner = ProcessId.of(pid) if pid else None
        self.run_ids: set[str] = set()

    def serve(self) -> None:
        try:
            if self._uid == os.getuid():  # second check: the folder is private already
                self._talk()
        except OSError as error:
            log.info("a client went away: %s", error)
        finally:
            self._peer.close()
            self._server.closed(self)

    def _talk(self) -> None:
        received = b""
        while True:
            line, separator, rest = received.partition(b"\n")
            if separator:
                received = rest
                self._peer.sendall(encode(self._answer(line)))
                continue
            piece = self._peer.recv(1 << 16)
            if not piece or len(received) > MAX_LINE_BYTES:
                return
            received += piece

    def _answer(self, line: bytes) -> Answer:
        try:
            return {"ok": True} | self._server.answer(decode(line), self)
        except RadtError as error:
            code = error.code if isinstance(error, RefusedError) else RefusalCode.NONE
            return _refusal(error.message, error.remedy, code)
        except ValueError as error:
            return _refusal(str(error))
        except Exception as error:  # report a bug to the client instead of leaving it waiting
            log.exception("answering a client")
            return _refusal(f"the collector failed: {type(error).__name__}: {error}")


def _refusal(error: str, remedy: str | None = None, code: RefusalCode = RefusalCode.NONE) -> Answer:
    return {"ok": False, "error": error, "remedy": remedy, "code": str(code)}


def _record(service: Service, request: Mapping[str, Any], _: _Connection) -> Answer:
    return {"names": service.record([from_json(RunRequest, run) for run in request["runs"]])}


def _register(service: Service, request: Mapping[str, Any], connection: _Connection) -> Answer:
    registration = from_json(Registration, request["registration"])
    connection.run_ids.add(registration.run_id)
    return {"warnings": service.register(registration, connection.owner)}


def _begin(service: Service, request: Mapping[str, Any], connection: _Connection) -> Answer:
    run = from_json(RunRequest, request["run"])
    connection.run_ids.add(run.registration.run_id)
    return asdict(service.begin(run, connection.owner, float(request["timeout_s"])))


def _started(service: Service, request: Mapping[str, Any], _: _Connection) -> Answer:
    devices = request.get("devices")
    service.started(
        str(request["run_id"]),
        int(request["pid"]),
        int(request["monotonic_ns"]),
        None if devices is None else tuple(str(device) for device in devices),
    )
    return {}


def _finish(service: Service, request: Mapping[str, Any], connection: _Connection) -> Answer:
    status, registration = request["status"], request["registration"]
    exit_code = request["exit_code"]
    service.finish(
        str(request["run_id"]),
        RunEnding(
            ended_ns=int(request["monotonic_ns"]),
            status=None if status is None else RunStatus(status),
            exit_code=None if exit_code is None else int(exit_code),
            reason=str(request["reason"]),
        ),
        float(request["timeout_s"]),
        None if registration is None else from_json(Registration, registration),
        connection.owner,
    )
    return {}


def _live(service: Service, request: Mapping[str, Any], _: _Connection) -> Answer:
    views = service.live([str(run_id) for run_id in request["run_ids"]])
    return {"live": {run_id: view.to_json() for run_id, view in views.items()}}


def _flush(service: Service, request: Mapping[str, Any], _: _Connection) -> Answer:
    return {"problems": service.deliverers.flush(Path(str(request["store_path"])))}


def _deliver(service: Service, request: Mapping[str, Any], _: _Connection) -> Answer:
    service.deliverers.ensure(from_json(Registration, request["registration"]))
    return {}


_Handler = Callable[["Service", Mapping[str, Any], _Connection], Answer]
_HANDLERS: dict[Op, _Handler | None] = {
    Op.HELLO: None,
    Op.STATUS: None,
    Op.REGISTER: _register,
    Op.RECORD: _record,
    Op.BEGIN: _begin,
    Op.STARTED: _started,
    Op.FINISH: _finish,
    Op.LIVE: _live,
    Op.FLUSH: _flush,
    Op.DELIVER: _deliver,
}


class Worker:
    """A worker, which runs until it is idle or stopped."""

    def __init__(self, settings: CollectorSettings) -> None:
        from radt.collector.service import Service

        self._settings = settings
        self._heartbeat = Heartbeat(heartbeat_path())
        if unclean_path().exists():
            self._heartbeat.count_strikes()
        unclean_path().touch()
        self._stop = threading.Event()
        self._service = Service(settings, self._heartbeat)
        self._server = CollectorServer(self._service)
        owner_pid = settings.owner_pid
        self._owner = None if owner_pid is None else ProcessId.of(owner_pid)
        self._has_owner = owner_pid is not None
        self._orphaned_since_s: float | None = None

    def stop(self) -> None:
        """End soon; the next worker continues the runs."""
        self._stop.set()

    def run(self) -> None:
        """Run until idle or stopped."""
        self._service.resume()
        self._server.open()
        log.info("collector is up")
        try:
            while not self._stop.wait(self._settings.supervise_s):
                self._heartbeat.beat()
                self._service.supervise()
                self._service.release_clock(lambda: self._server.connected)
                if self._orphaned() or (self._nothing_left() and self._close_door()):
                    break
        finally:
            self._server.close()
            self._service.close()
        unclean_path().unlink(missing_ok=True)  # after an exception it stays: a death too
        if self._owner_is_dead:
            _clean_up_after_owner()
        log.info("collector ends")

    @property
    def _owner_is_dead(self) -> bool:
        return self._has_owner and (self._owner is None or not self._owner.alive)

    def _orphaned(self) -> bool:
        """Return whether the collector's owner process is dead and its runs are stored."""
        if not self._owner_is_dead:
            return False
        now_s = time.monotonic()
        self._orphaned_since_s = self._orphaned_since_s or now_s
        if self._service.run_ids and now_s - self._orphaned_since_s < _OWNER_GRACE_S:
            return False
        self._service.deliverers.kill()  # their successors continue
        return True

    def _nothing_left(self) -> bool:
        """Return whether there has been no request for a while and no upload makes progress."""
        quiet = not self._service.run_ids and not self._server.connected
        if not quiet or time.monotonic() - self._server.last_used_s < self._settings.idle_s:
            return False
        return self._service.deliverers.close(self._settings.delivery_stall_s)

    def _close_door(self) -> bool:
        """Stop listening; listen again and return False if a client has just connected."""
        self._server.close()
        if self._service.run_ids or self._server.connected:
            self._server.open()
            return False
        self._service.deliverers.kill()  # their successors continue
        return True


def _clean_up_after_owner() -> None:
    """End the MPS daemons of a killed runner of a job: without cgroups, nothing else does."""
    # Imported here, because other collectors do not need it.
    from radt.collocation.ledger import CreatedLedger
    from radt.collocation.setup import clean_up

    for problem in clean_up(CreatedLedger(), say=log.info):
        log.warning("%s", problem)


def main() -> int:
    """Run the worker, unless one is running."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    faulthandler.register(signal.SIGUSR1)  # logs the stacks of all threads, for bug reports
    lock = worker_lock()
    if lock.holder() is None:
        with large_import():  # before the lock is taken: its holder is expected to answer soon
            import_module("radt.collector.service")
    if not lock.acquire():
        log.info("another worker runs already")
        return 0
    worker = Worker(CollectorSettings.from_environment())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    worker.run()
    lock.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
