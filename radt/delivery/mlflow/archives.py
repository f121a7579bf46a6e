"""Upload the archives of runs, and start the processes that export runs for people without radt.

A running run gets a bundle every quarter of an hour, an ended run its last one at once. Samples and
description of all runs that have ended by then are exported together, because a process takes half
a second to start.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from radt import settings
from radt.delivery.archive import ARCHIVE_FOLDER, DESCRIPTION_FILE
from radt.delivery.archive.locations import location_of
from radt.delivery.archive.spool import ArchiveSpool, Written, progress_of
from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.target import MlflowTarget
from radt.errors import ArchiveError, CodecError, RadtError, UsageError
from radt.home import RunDir
from radt.processes import command
from radt.store import bundle
from radt.store.copy import Position, PrunedError
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter

log = logging.getLogger(__name__)

#: Prefix of the store's names for uploaded parts of an archive, which are not artifact paths.
_DELIVERED = f"/{ARCHIVE_FOLDER}/"
#: A slower process indicates a disk problem.
_LONGEST_S = 3600.0
#: A run whose export is killed this often, usually for lack of memory, is not exported.
_MOST_KILLS = 5
#: Maximum number of runs that one process exports.
MAX_RUNS = 64


class ArchiveUploader:
    """Uploads archives for `radt.delivery.mlflow.uploader.Uploader`; equally thread-safe.

    ``interval_s`` is the time between two bundles of a running run.
    """

    def __init__(
        self, target: MlflowTarget, reader: StoreReader, writer: StoreWriter, interval_s: float
    ) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self._interval_s = interval_s
        self._exporter = Exporter(writer.path)
        #: Ensures that points of only one run at a time are in memory.
        self._writing = threading.Lock()
        #: Time of the last attempt at a bundle of each running run, in seconds of the wall clock.
        self._tried_s: dict[str, float] = {}
        #: Last message about each running run, so that an outage is not logged repeatedly.
        self._logged: dict[str, str] = {}

    def close(self) -> None:
        """Stop the export process; the next uploader starts its own."""
        self._exporter.close()

    def keep_up(self, run: RunRecord, mlflow_id: str) -> None:
        """Upload the next bundle of a running run when it is due.

        Raises:
            DeliveryError: MLflow is unreachable or no longer has the run. Other failures are logged
                and retried, because a running run does not wait for its archive.
        """
        if not run.spool:
            return
        try:
            if self.is_due(run) and not self._writing.locked():
                self._tried_s[run.run_id] = time.time()
                self._write(run, mlflow_id)
            self._send_bundles(run, mlflow_id)
        except DeliveryError as error:
            if error.kind in (ErrorKind.UNREACHABLE, ErrorKind.GONE):
                raise
            self._log_problem(run, error.message)
        except (ArchiveError, UsageError, OSError) as error:
            self._log_problem(run, error.message if isinstance(error, RadtError) else str(error))
        else:
            self._logged.pop(run.run_id, None)

    def is_due(self, run: RunRecord) -> bool:
        """Return whether the next bundle of a running run is due.

        An earlier process may have written the last one.
        """
        since_ns = run.started_ns or run.created_ns
        with suppress(OSError):  # no bundle so far
            since_ns = archive_spool(run).written_file.stat().st_mtime_ns
        now_s = time.time()
        times = (since_ns / 1e9, self._tried_s.get(run.run_id, 0.0))
        # A time in the future was taken before the clock was set back.
        last_s = max((time_s for time_s in times if time_s <= now_s), default=0.0)
        return now_s - last_s >= self._interval_s

    def _log_problem(self, run: RunRecord, problem: str) -> None:
        if self._logged.get(run.run_id) != problem:
            self._logged[run.run_id] = problem
            log.warning("the archive of run %s waits: %s", run.run_id, problem)

    def complete(self, run: RunRecord, mlflow_id: str) -> str:
        """Upload the rest of an ended run's archive; return why that will never work, if so.

        Raises:
            DeliveryError: It failed and must be retried.
        """
        if not run.spool:
            return ""
        self._logged.pop(run.run_id, None)
        self._tried_s.pop(run.run_id, None)
        try:
            self._write(run, mlflow_id)
            self._send_bundles(run, mlflow_id)
            self._exporter.export(run.run_id, partial(self._unexported, run))
            self._send_export(run, mlflow_id)
        except UnarchivableError as error:
            return error.message
        except DeliveryError as error:
            if error.kind is not ErrorKind.REFUSED:
                raise
            log.warning("the archive of run %s is refused: %s", run.run_id, error.message)
            return f"archive refused: {error.message}"
        except (ArchiveError, UsageError) as error:
            raise DeliveryError(ErrorKind.BUSY, f"archive: {error.message}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise DeliveryError(ErrorKind.BUSY, f"archive: {reason}") from error
        return ""

    # -- bundles ----------------------------------------------------------------------------------

    def _write(self, run: RunRecord, mlflow_id: str) -> None:
        """Write the next bundle.

        Raises:
            UnarchivableError: A series of the run is damaged, or the run was pruned.
            RadtError: It cannot be written now.
            OSError: The same.
        """
        self._restore(run, mlflow_id)
        with self._writing:
            try:
                archive_spool(run).write_bundle(self._reader, run.run_id)
            except (CodecError, PrunedError) as error:
                raise UnarchivableError(f"not archived: {error.message}") from error

    def _restore(self, run: RunRecord, mlflow_id: str) -> None:
        """Continue from the last uploaded bundle if the run's folder was lost or cleaned.

        Raises:
            ArchiveError: The bundle cannot be fetched now.
            OSError: The folder cannot be written.
        """
        spool = archive_spool(run)
        if spool.written() is not None:
            return
        delivered = self._reader.delivered_artifacts(run.run_id)
        named = (bundle.number_of(path.removeprefix(_DELIVERED)) for path in delivered)
        last = max((number for run_id, number in filter(None, named)), default=0)
        if not last:
            return
        self._writer.check_in_place()
        name = bundle.name_of(run.run_id, last)
        place = location_of(f"runs:/{mlflow_id}/{ARCHIVE_FOLDER}", self._target.uri)
        until, problem = Position(), f"{name} is gone"
        if name in place.sizes():
            with tempfile.TemporaryDirectory(prefix="radt-archive-") as folder:
                place.fetch(name, Path(folder) / name)
                try:
                    with bundle.open(Path(folder) / name) as opened:
                        until, problem = opened.until, ""
                except ArchiveError as error:
                    problem = error.message
        if problem:  # the next bundle contains the whole run
            log.warning("run %s is archived from the start: %s", run.run_id, problem)
        spool.note(Written(last, until))

    def _send_bundles(self, run: RunRecord, mlflow_id: str) -> None:
        """Upload the waiting bundles.

        Raises:
            DeliveryError: MLflow failed.
            OSError: A file cannot be read, or local artifacts cannot be written.
        """
        for file in archive_spool(run).waiting(run.run_id):
            self._send(mlflow_id, file)
            self._writer.mark_artifacts(run.run_id, [f"{_DELIVERED}{file.name}"])
            file.unlink()

    def _send(self, mlflow_id: str, file: Path) -> None:
        self._writer.check_in_place()
        self._target.log_artifact(mlflow_id, file, ARCHIVE_FOLDER)

    # -- export -----------------------------------------------------------------------------------

    def _unexported(self, run: RunRecord) -> list[str]:
        """Return an ended run and others to export with it; none if it is already exported."""
        if self._is_exported(run):
            return []
        others = (
            other.run_id
            for other in self._reader.runs_to_deliver(run.tracking_uri)
            if other.run_id != run.run_id
            and other.status.ended
            and other.spool
            and not self._is_exported(other)
        )
        return [run.run_id, *islice(others, MAX_RUNS - 1)]

    def _is_exported(self, run: RunRecord) -> bool:
        revision = progress_of(self._reader, run.run_id).revision
        if archive_spool(run).exported(revision):
            return True
        return _export_mark(revision) in self._reader.delivered_artifacts(run.run_id)

    def _send_export(self, run: RunRecord, mlflow_id: str) -> None:
        """Upload the files for people without radt.

        Raises:
            DeliveryError: MLflow failed, or the run was written since it was exported.
            OSError: A file cannot be read, or local artifacts cannot be written.
        """
        revision = progress_of(self._reader, run.run_id).revision
        files, mark = archive_spool(run).exported(revision), _export_mark(revision)
        if files:
            for file in files:
                self._send(mlflow_id, file)
            self._writer.mark_artifacts(run.run_id, [mark])
            shutil.rmtree(files[0].parent, ignore_errors=True)
        elif mark not in self._reader.delivered_artifacts(run.run_id):
            raise DeliveryError(ErrorKind.BUSY, "archive: the run was written during its export")


def _export_mark(revision: int) -> str:
    return f"{_DELIVERED}{DESCRIPTION_FILE}@{revision}"


class UnarchivableError(ArchiveError):
    """A run can never be archived, even with retries."""


def archive_interval_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the interval of archiving running runs; None for none (``RADT_ARCHIVE_S=0``)."""
    setting = settings.variable(settings.ARCHIVE_S, environ)
    if setting.problem is not None:
        log.warning("%s; the default is used", setting.problem)
    return setting.value or None


def archive_spool(run: RunRecord) -> ArchiveSpool:
    """Return the spool of a run's archive."""
    return ArchiveSpool.of(RunDir(Path(run.spool)))


class Exporter:
    """Starts the processes that export runs that have ended. Thread-safe."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._exporting = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        #: Number of times that the process was killed while it exported a run.
        self._kills: Counter[str] = Counter()

    def export(self, run_id: str, wanted: Callable[[], Sequence[str]]) -> None:
        """Export an ended run before returning.

        `wanted` returns the ids of all runs to export, this run's first; none if it is already
        exported. It is called when no other process is exporting.

        Raises:
            UnarchivableError: The run can never be exported.
            ArchiveError: The export failed and may be retried.
        """
        with self._exporting:
            if not (run_ids := wanted()):
                return
            self._process = self._start(run_ids)
            outcomes = _outcomes(self._process)
            was_killed = self._process.returncode < 0
            self._process = None
        if run_id not in outcomes:
            problem = "the export process was killed" if was_killed else "the export process failed"
            self._kills[run_id] += was_killed
            if self._kills[run_id] >= _MOST_KILLS:
                raise UnarchivableError(f"not exported: {problem} {_MOST_KILLS} times")
            raise ArchiveError(problem)
        self._kills.pop(run_id, None)
        problem, is_final = outcomes[run_id]
        if is_final:
            raise UnarchivableError(f"not exported: {problem}")
        if problem:
            raise ArchiveError(problem)

    def close(self) -> None:
        if (process := self._process) is not None:
            process.kill()

    def _start(self, run_ids: Sequence[str]) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                command("radt.delivery.archive", "--store", str(self._store), *run_ids),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # its own session, for its own weight (`give_way`)
            )
        except OSError as error:
            raise ArchiveError(f"cannot start the export process: {error.strerror}") from error


def _outcomes(process: subprocess.Popen[str]) -> dict[str, tuple[str, bool]]:
    """Wait for the process; return problems by run, empty for none, and whether they are final."""
    try:
        output, _ = process.communicate(timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    outcomes = {}
    for line in output.splitlines():
        with suppress(ValueError, TypeError):  # killed in mid-line, or a library's output
            run_id, problem, is_final = json.loads(line)
            outcomes[run_id] = (problem, is_final)
    if process.returncode:
        log.warning("the process that exports archives ended with %d", process.returncode)
    return outcomes
