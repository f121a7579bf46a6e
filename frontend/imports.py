"""The process that imports runs from MLflow while the dashboard runs (`radt.importers`)."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from dataclasses import dataclass, field

from radt.errors import RadtError, TrackingError
from radt.importers.importing import ImportStatus
from radt.masking import masked
from radt.processes import command
from radt.store.backend import StoreAddress

log = logging.getLogger(__name__)

#: Delay before an importer that ended by itself is restarted.
RESTART_S = 60.0


@dataclass(frozen=True, slots=True)
class ImportNews:
    """Last status of the import, and time of the last complete import; None for never."""

    where: str
    status: ImportStatus = field(default_factory=ImportStatus)
    complete_ns: int | None = None


class MlflowImports:
    """Starts the process, and restarts it when it ends. Thread-safe.

    Args:
        tracking_uri: MLflow's server, database or folder.
        store: The store; for Postgres, with a role that may write.
    """

    def __init__(self, tracking_uri: str, store: StoreAddress) -> None:
        self.where = masked(tracking_uri)
        self._task = {"tracking_uri": tracking_uri, "store": store.uri or str(store.path)}
        self._news = ImportNews(self.where)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="imports", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The id of the importing process; None if it is not running."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def news(self) -> ImportNews:
        """Return the progress of the import."""
        return self._news

    @property
    def problem(self) -> TrackingError | None:
        """Error that prevents the import from starting. The System page shows later errors."""
        news = self._news
        if not news.status.error or news.complete_ns is not None:
            return None
        return TrackingError(news.status.error, news.status.remedy)

    def close(self) -> None:
        """End the process, even during the import of a run: the next import resumes there."""
        with self._lock:
            self._closed.set()
            if self._process is not None:
                self._process.kill()
        self._thread.join()

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                code = self._follow()
            except OSError as error:
                self._take(ImportStatus.of_error(RadtError(f"cannot start the import: {error}")))
            else:
                self._take(
                    ImportStatus.of_error(
                        RadtError(
                            f"the process that imports ended (exit code {code})",
                            "See the terminal of `radt dashboard`; it starts again in a minute",
                        )
                    )
                )
            self._closed.wait(RESTART_S)

    def _follow(self) -> int:
        """Start the process, read its status lines, and return its exit code.

        Raises:
            OSError: The process cannot be started.
        """
        with self._lock:
            if self._closed.is_set():
                return 0
            process = self._process = subprocess.Popen(
                command("radt.importers"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C reaches only the dashboard, which ends this one
            )
        with process:
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps(self._task) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # the process has ended, and nobody reads the pipe
            for line in process.stdout:
                try:
                    self._take(ImportStatus.parse(line))
                except ValueError:
                    log.warning("the process that imports printed %r", line[:200])
        return process.returncode

    def _take(self, status: ImportStatus) -> None:
        complete_ns = time.time_ns() if status.summary else self._news.complete_ns
        self._news = ImportNews(self.where, status, complete_ns)
