"""Upload the archives of runs, and start the processes that write them.

The archive of a running run is written every quarter of an hour in the background. That of an ended
run is written at once, together with those of all others ended by then, as a process takes half a
second to start.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from radt import settings
from radt.delivery.archive.locations import FileMissingError, location_of
from radt.delivery.archive.manifest import ARCHIVE_FOLDER, MANIFEST_FILE
from radt.delivery.archive.spool import ArchiveBusyError, ArchiveSpool, Outcome, progress_of
from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.target import MlflowTarget
from radt.errors import ArchiveError
from radt.home import RunDir
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter

log = logging.getLogger(__name__)

#: Name of a delivered archive in the store's list of artifacts; not a path.
_DELIVERED = f"/{ARCHIVE_FOLDER}/{MANIFEST_FILE}"
#: A slower process indicates a disk problem; the next one continues its work.
_LONGEST_S = 3600.0
#: Maximum number of runs that one process archives.
MAX_RUNS = 64


class ArchiveUploader:
    """Uploads archives for `radt.delivery.mlflow.uploader.Uploader`; equally thread-safe.

    ``before_request`` is called before each request and may block until others are done.
    """

    def __init__(
        self,
        target: MlflowTarget,
        reader: StoreReader,
        archiver: Archiver,
        before_request: Callable[[], object],
        writer: StoreWriter,
    ) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self._archiver = archiver
        self._before_request = before_request
        #: Last message about each running run, so that an outage is not logged every turn.
        self._logged: dict[str, str] = {}

    def keep_up(self, run: RunRecord, mlflow_id: str) -> None:
        """Upload a running run's archived files, and archive more of it when due.

        Raises:
            DeliveryError: MLflow is unreachable or no longer has the run. Other failures are logged
                and retried, as a running run does not wait for its archive.
        """
        if not run.spool:
            return
        try:
            self._restore(run, mlflow_id)
            self._archiver.keep_up(run)
            self._send(run, mlflow_id)
        except ArchiveBusyError:
            pass  # being written: uploaded next turn
        except (ArchiveError, OSError) as error:
            self._log_problem(run, str(error))
        except DeliveryError as error:
            if error.kind in (ErrorKind.UNREACHABLE, ErrorKind.GONE):
                raise
            self._log_problem(run, error.message)
        else:
            self._logged.pop(run.run_id, None)

    def _log_problem(self, run: RunRecord, problem: str) -> None:
        if self._logged.get(run.run_id) != problem:
            self._logged[run.run_id] = problem
            log.warning("the archive of run %s waits: %s", run.run_id, problem)

    def complete(self, run: RunRecord, mlflow_id: str) -> str:
        """Archive the rest of an ended run and upload it; return why that will never work, if so.

        Raises:
            DeliveryError: The upload failed and must be retried.
        """
        if not run.spool:
            return ""
        self._logged.pop(run.run_id, None)
        try:
            self._restore(run, mlflow_id)
            self._archiver.complete(run, partial(self._incomplete, run))
            self._send(run, mlflow_id)
        except UnarchivableError as error:
            return f"not archived: {error.message}"
        except ArchiveError as error:
            raise DeliveryError(ErrorKind.BUSY, f"archive: {error.message}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise DeliveryError(ErrorKind.BUSY, f"archive: {reason}") from error
        except DeliveryError as error:
            if error.kind is not ErrorKind.REFUSED:
                raise
            log.warning("the archive of run %s is refused: %s", run.run_id, error.message)
            return f"archive refused: {error.message}"
        return ""

    def _incomplete(self, run: RunRecord) -> list[str]:
        """Return an ended run and others with incomplete archives; none if its own is complete."""
        if self._is_complete(run):
            return []
        others = (
            other.run_id
            for other in self._reader.runs_to_deliver(run.tracking_uri)
            if other.run_id != run.run_id
            and other.status.ended
            and other.spool
            # A run whose archive must be restored has its own turn.
            and not self._is_lost(other)
            and not self._is_complete(other)
        )
        return [run.run_id, *islice(others, MAX_RUNS - 1)]

    def _is_complete(self, run: RunRecord) -> bool:
        return archive_spool(run).is_complete(
            run.run_id, progress_of(self._reader, run.run_id).revision
        )

    def _is_lost(self, run: RunRecord) -> bool:
        """Return whether an archive was delivered of which the spool has no record."""
        if archive_spool(run).manifest_file.exists():
            return False
        return _DELIVERED in self._reader.delivered_artifacts(run.run_id)

    def _restore(self, run: RunRecord, mlflow_id: str) -> None:
        """Restore the spool from MLflow's archive if the spool was lost or cleaned.

        Parts written from the start would overwrite listed ones and leave unlisted ones behind.

        Raises:
            ArchiveError: The archive cannot be fetched now.
            ArchiveBusyError: The archive is being written.
            OSError: The spool cannot be written.
        """
        if not self._is_lost(run):
            return
        self._before_request()
        with tempfile.TemporaryDirectory(prefix="radt-archive-") as folder:
            file = Path(folder) / MANIFEST_FILE
            try:
                place = location_of(f"runs:/{mlflow_id}/{ARCHIVE_FOLDER}", self._target.uri)
                place.fetch(MANIFEST_FILE, file)
            except FileMissingError as error:
                log.warning("run %s is archived from the start: %s", run.run_id, error.message)
                return
            spool = archive_spool(run)
            with spool.locked():
                spool.restore(file.read_bytes())

    def _send(self, run: RunRecord, mlflow_id: str) -> None:
        """Upload the pending files, the manifest after the files that it lists.

        Raises:
            DeliveryError: MLflow failed.
            ArchiveBusyError: The archive is being written.
            OSError: A file cannot be read, or local artifacts cannot be written.
        """
        spool = archive_spool(run)
        if not spool.manifest_file.exists():
            return
        with spool.locked():
            for waiting in spool.waiting():
                self._before_request()
                self._target.log_artifact(mlflow_id, waiting.file, waiting.path.rpartition("/")[0])
                if waiting.file == spool.manifest_file:
                    self._writer.mark_artifacts(run.run_id, [_DELIVERED])
                spool.delivered(waiting)


class UnarchivableError(ArchiveError):
    """A run will never have an archive, even with retries."""


def archive_interval_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the interval of archiving running runs; None for none (``RADT_ARCHIVE_S=0``)."""
    setting = settings.variable(settings.ARCHIVE_S, environ)
    if setting.problem is not None:
        log.warning("%s; the default is used", setting.problem)
    return setting.value or None


def archive_spool(run: RunRecord) -> ArchiveSpool:
    """Return the spool of a run's archive."""
    return ArchiveSpool.of(RunDir(Path(run.spool)))


class Archiver:
    """Starts the archive processes of one store, one at a time. Thread-safe.

    ``interval_s`` is the time between two archives of a running run.
    """

    def __init__(self, store: Path, interval_s: float) -> None:
        self._store = store
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._due_s: dict[str, float] = {}

    def keep_up(self, run: RunRecord) -> None:
        """Archive a running run in the background if due; failures are logged."""
        if not self._lock.acquire(blocking=False):
            return  # ended runs come first
        try:
            now_s = time.monotonic()
            if run.run_id not in self._due_s:
                self._due_s[run.run_id] = now_s + (self._interval_s - self._age_s(run))
            if self._reap() and now_s >= self._due_s[run.run_id]:
                self._process = self._start(["--when-idle", run.run_id])
                self._due_s[run.run_id] = now_s + self._interval_s
        finally:
            self._lock.release()

    def complete(self, run: RunRecord, wanted: Callable[[], Sequence[str]]) -> None:
        """Complete the archive of an ended run before returning.

        `wanted` returns the ids of all runs whose archives must be completed, this run's first;
        none if it is complete. It is called when no other process is archiving ended runs.

        Raises:
            UnarchivableError: There will never be an archive.
            ArchiveError: Archiving failed and may be retried.
        """
        with self._lock:
            self._due_s.pop(run.run_id, None)
            if not (run_ids := wanted()):
                return
            if self._process is not None and not self._reap():
                self._process.kill()  # beside busy programs it may take for ever
                self._wait()
            self._process = self._start(run_ids)
            outcome = self._wait().get(run.run_id)
        if outcome is None:
            raise ArchiveError("the archive process was killed")
        if outcome.problem:
            raise (UnarchivableError if outcome.final else ArchiveError)(outcome.problem)

    def close(self) -> None:
        """Stop the running process; the next uploader resumes its work."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._wait()

    def _age_s(self, run: RunRecord) -> float:
        """Return the age of the archive, which an earlier process may have written."""
        since_ns = run.started_ns or run.created_ns
        try:
            since_ns = archive_spool(run).manifest_file.stat().st_mtime_ns
        except OSError:
            pass  # none so far
        return min(max(0.0, (time.time_ns() - since_ns) / 1e9), self._interval_s)

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "radt.delivery.archive", "--store", str(self._store)]
        try:
            return subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # whose weight is its own (`run_when_idle`)
            )
        except OSError as error:
            raise ArchiveError(f"cannot start the archive process: {error.strerror}") from error

    def _reap(self) -> bool:
        """Return whether no process is running (any more)."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            return False
        for outcome in self._wait().values():
            if outcome.problem:
                log.warning("run %s is not archived yet: %s", outcome.run_id, outcome.problem)
        return True

    def _wait(self) -> dict[str, Outcome]:
        """Wait for the process and return its outcomes."""
        assert self._process is not None
        process, self._process = self._process, None
        try:
            output, _ = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        if process.returncode:
            log.warning("the archive process ended with exit code %d", process.returncode)
        outcomes: dict[str, Outcome] = {}
        for line in output.splitlines():
            try:
                outcome = Outcome.parse(line)
            except ValueError:
                log.warning("unexpected output of the archive process: %.200r", line)
                continue
            outcomes[outcome.run_id] = outcome
        return outcomes
