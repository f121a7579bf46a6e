"""Upload the archives of runs, and export ended runs for people without radt.

A running run gets a bundle every quarter of an hour, an ended run its last one at once. An export
needs 110 MB for its duration, whatever the length of the run; MLflow has imported Arrow anyway.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow

from radt.delivery.archive import ARCHIVE_FOLDER, DESCRIPTION_FILE, SAMPLES_FILE
from radt.delivery.archive.locations import location_of
from radt.delivery.archive.spool import ArchiveSpool, Written, progress_of
from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.target import MlflowTarget
from radt.errors import ArchiveError, CodecError, UsageError
from radt.files import write_whole
from radt.store import bundle
from radt.store.copy import PrunedError
from radt.store.export import ExportFormat, describe_run, export_run
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter

log = logging.getLogger(__name__)

#: A run whose export is killed this often, usually for lack of memory, is not exported.
_MOST_KILLS = 5
#: Prefix of the store's names for uploaded parts of an archive, which are not artifact paths.
_DELIVERED = f"/{ARCHIVE_FOLDER}/"


class ArchiveUploader:
    """Uploads archives for `radt.delivery.mlflow.uploader.Uploader`; equally thread-safe.

    ``interval_s`` is the time between two bundles of a running run.
    """

    def __init__(
        self, target: MlflowTarget, reader: StoreReader, writer: StoreWriter, interval_s: float
    ) -> None:
        self.interval_s = interval_s
        self._target = target
        self._reader = reader
        self._writer = writer
        #: Ensures that points of only one run at a time are in memory.
        self._writing = threading.Lock()
        self._exporting = threading.Lock()

    def is_due(self, run: RunRecord) -> bool:
        """Return whether the next bundle of a running run is due, or one waits for its upload."""
        spool = archive_spool(run)
        last_ns = run.started_ns or run.created_ns
        with suppress(OSError):  # an earlier process may have written the last bundle
            last_ns = spool.written_file.stat().st_mtime_ns
        # A distant time in the future was taken before the clock was set back.
        is_over = abs(time.time_ns() - last_ns) / 1e9 >= self.interval_s
        return is_over or any(spool.waiting(run.run_id))

    def keep_up(self, run: RunRecord) -> None:
        """Upload the next bundle of a running run; one that is impossible is reported at its end.

        Raises:
            DeliveryError: It failed and must be retried.
        """
        assert run.mlflow_run_id is not None
        with _retried(), suppress(UnarchivableError):
            if not any(archive_spool(run).waiting(run.run_id)):
                self._write(run)
            self._send_bundles(run, run.mlflow_run_id)

    def complete(self, run: RunRecord, mlflow_id: str) -> str:
        """Upload the rest of an ended run's archive; return why that will never work, if so.

        Raises:
            DeliveryError: It failed and must be retried.
        """
        if not run.spool:
            return ""
        try:
            with _retried():
                try:
                    self._write(run)
                    self._send_bundles(run, mlflow_id)
                    self._send_export(run, mlflow_id)
                except UnarchivableError as error:
                    return error.message
        except DeliveryError as error:
            if error.kind is not ErrorKind.REFUSED:
                raise
            log.warning("the archive of run %s is refused: %s", run.run_id, error.message)
            return f"archive refused: {error.message}"
        return ""

    # -- bundles ----------------------------------------------------------------------------------

    def _write(self, run: RunRecord) -> None:
        """Write the next bundle.

        Raises:
            UnarchivableError: A series of the run is damaged, or the run was pruned.
            RadtError: It cannot be written now.
            OSError: The same.
        """
        spool = archive_spool(run)
        if spool.written() is None and (written := self._uploaded(run)):
            spool.note(written)
        with self._writing:
            try:
                spool.write_bundle(self._reader, run.run_id)
            except (CodecError, PrunedError) as error:
                raise UnarchivableError(f"not archived: {error.message}") from error

    def _uploaded(self, run: RunRecord) -> Written | None:
        """Return the state after the last uploaded bundle, for a spool that was lost or cleaned.

        Raises:
            ArchiveError: The bundle cannot be fetched now.
        """
        delivered = self._reader.delivered_artifacts(run.run_id)
        named = (bundle.number_of(path.removeprefix(_DELIVERED)) for path in delivered)
        last = max((number for _, number in filter(None, named)), default=0)
        if not last:
            return None
        self._writer.check_in_place()
        name = bundle.name_of(run.run_id, last)
        place = location_of(f"runs:/{run.mlflow_run_id}/{ARCHIVE_FOLDER}", self._target.uri)
        if name in place.sizes():
            with tempfile.TemporaryDirectory(prefix="radt-archive-") as folder:
                place.fetch(name, Path(folder) / name)
                try:
                    with bundle.open(Path(folder) / name) as opened:
                        return Written(last, opened.until)
                except ArchiveError as error:
                    log.warning("archiving run %s from the start: %s", run.run_id, error.message)
        return Written(last)  # the next bundle contains the whole run

    def _send_bundles(self, run: RunRecord, mlflow_id: str) -> None:
        """Upload the waiting bundles.

        Raises:
            DeliveryError: MLflow failed.
            OSError: A file cannot be read, or local artifacts cannot be written.
        """
        for file in archive_spool(run).waiting(run.run_id):
            self._target.log_artifact(mlflow_id, file, ARCHIVE_FOLDER)
            self._writer.mark_artifacts(run.run_id, [f"{_DELIVERED}{file.name}"])
            file.unlink()

    # -- export -----------------------------------------------------------------------------------

    def _send_export(self, run: RunRecord, mlflow_id: str) -> None:
        """Upload samples and description of an ended run for people without radt.

        Raises:
            UnarchivableError: A series of the run is damaged, or its export is always killed.
            DeliveryError: MLflow failed, or the run was written during its export.
            UsageError: The files cannot be written.
            OSError: The same, or local artifacts cannot be written.
        """
        revision = progress_of(self._reader, run.run_id).revision
        spool, mark = archive_spool(run), f"{_DELIVERED}{DESCRIPTION_FILE}@{revision}"
        if mark in self._reader.delivered_artifacts(run.run_id):
            return
        if not spool.exported(revision):
            self._export(run, spool.export_folder(revision))
            if progress_of(self._reader, run.run_id).revision != revision:
                message = "archive: the run was written during its export"
                raise DeliveryError(ErrorKind.BUSY, message)
        for file in spool.exported(revision):
            self._target.log_artifact(mlflow_id, file, ARCHIVE_FOLDER)
        self._writer.mark_artifacts(run.run_id, [mark])
        shutil.rmtree(spool.export_folder(revision), ignore_errors=True)

    def _export(self, run: RunRecord, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        spool = archive_spool(run)
        with self._exporting:
            if (kills := spool.export_kills) >= _MOST_KILLS:
                cause = f"the uploader was killed {kills} times in it, probably for lack of memory"
                raise UnarchivableError(f"not exported: {cause}")
            write_whole(spool.kills_file, str(kills + 1))
            try:
                self._write_export(run, folder)
            finally:
                spool.kills_file.unlink(missing_ok=True)

    def _write_export(self, run: RunRecord, folder: Path) -> None:
        try:
            export_run(self._reader, run, folder / SAMPLES_FILE, ExportFormat.PARQUET)
        except CodecError as error:
            raise UnarchivableError(f"not exported: {error.message}") from error
        finally:
            pyarrow.default_memory_pool().release_unused()
        describe_run(self._reader, run, folder / DESCRIPTION_FILE)


class UnarchivableError(ArchiveError):
    """A run can never be archived, even with retries."""


def archive_spool(run: RunRecord) -> ArchiveSpool:
    """Return the spool of a run's archive."""
    return ArchiveSpool(Path(run.spool) / "archive")


@contextmanager
def _retried() -> Iterator[None]:
    """Turn failures of this machine into a `DeliveryError`, so that the archive is retried."""
    try:
        yield
    except (ArchiveError, UsageError) as error:
        raise DeliveryError(ErrorKind.BUSY, f"archive: {error.message}") from error
    except OSError as error:
        raise DeliveryError(ErrorKind.BUSY, f"archive: {error.strerror or error}") from error
