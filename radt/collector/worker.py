"""The collector's worker: does all the work, until there has been none for a while.

Run by the guardian as ``python -m radt.collector.worker``.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import threading
import time

from radt.collector.heartbeat import Heartbeat, heartbeat_path, unclean_path
from radt.collector.server import Server
from radt.collector.service import Service
from radt.collector.settings import CollectorSettings
from radt.collector.start import worker_lock

log = logging.getLogger(__name__)


class Worker:
    """Everything of one worker, and when it ends."""

    def __init__(self, settings: CollectorSettings) -> None:
        self._settings = settings
        self._heartbeat = Heartbeat(heartbeat_path())
        if unclean_path().exists():
            self._heartbeat.count_strikes()
        unclean_path().touch()
        self._stop = threading.Event()
        self._service = Service(settings, self._heartbeat)
        self._server = Server(self._service)
        self._leaving_since_s: float | None = None

    def stop(self) -> None:
        """End soon; runs stay remembered for the next worker."""
        self._stop.set()

    def run(self) -> None:
        """Work until idle or stopped."""
        self._service.resume()
        self._server.open()
        log.info("collector is up")
        try:
            while not self._stop.wait(self._settings.supervise_s):
                self._heartbeat.beat()
                self._service.supervise()
                if self._nothing_left() and self._close_door():
                    break
        finally:
            self._server.close()
            self._service.close()
        unclean_path().unlink(missing_ok=True)  # after an exception it stays: that is a death too
        log.info("collector ends")

    def _nothing_left(self) -> bool:
        """Whether nothing has been asked for a while and all is delivered."""
        now_s = time.monotonic()
        quiet = not self._service.busy and not self._server.connected
        if not quiet or now_s - self._server.last_used_s < self._settings.idle_s:
            self._leaving_since_s = None
            return False
        self._leaving_since_s = self._leaving_since_s or now_s
        if self._service.delivered():
            return True
        return now_s - self._leaving_since_s > self._settings.delivery_grace_s

    def _close_door(self) -> bool:
        """Stop listening; False, and listen again, if somebody came in at the last moment."""
        self._server.close()
        if self._service.busy or self._server.connected:
            self._server.open()
            return False
        self._service.abandon_delivery()
        return True


def main() -> int:
    """Run the worker, unless there is one."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    faulthandler.register(signal.SIGUSR1)  # where all threads are, into the log, for bug reports
    lock = worker_lock()
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
