"""Upload the archives of runs, and start the processes that export runs for people without radt.

A running run gets a bundle every quarter of an hour, an ended run its last one at once. All ended
runs that wait by then are exported by one process, because its start takes half a second.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from radt import settings
from radt.delivery.archive import ARCHIVE_FOLDER, DESCRIPTION_FILE
from radt.delivery.archive.locations import location_of
from radt.delivery.archive.spool import ArchiveSpool, Written, progress_of
from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.target import MlflowTarget
from radt.errors import ArchiveError, CodecError, UsageError
from radt.home import RunDir
from radt.processes import command
from radt.store import bundle
from radt.store.copy import PrunedError
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
        self.interval_s = interval_s
        self._target = target
        self._reader = reader
        self._writer = writer
        #: Ensures that points of only one run at a time are in memory.
        self._writing = threading.Lock()
        self._exporting = threading.Lock()
        #: Number of times that the export process was killed while it exported a run.
        self._kills: Counter[str] = Counter()

    def keep_up(self, run: RunRecord) -> None:
        """Upload the next bundle of a running run.

        Raises:
            DeliveryError: It failed and must be retried.
        """
        assert run.mlflow_run_id is not None
        with _retried():
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
                    self._export(run)
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
            self._send(mlflow_id, file)
            self._writer.mark_artifacts(run.run_id, [f"{_DELIVERED}{file.name}"])
            file.unlink()

    def _send(self, mlflow_id: str, file: Path) -> None:
        self._writer.check_in_place()
        self._target.log_artifact(mlflow_id, file, ARCHIVE_FOLDER)

    # -- export -----------------------------------------------------------------------------------

    def _export(self, run: RunRecord) -> None:
        """Export an ended run, and others that wait for it.

        Raises:
            UnarchivableError: The run can never be exported.
            ArchiveError: The export failed and may be retried.
        """
        with self._exporting:
            if not (run_ids := self._unexported(run)):
                return
            outcomes, was_killed = export_runs(self._writer.path, run_ids)
        if run.run_id in outcomes:
            problem, is_final = outcomes[run.run_id]
        else:
            self._kills[run.run_id] += was_killed
            is_final = self._kills[run.run_id] >= _MOST_KILLS
            problem = "the export process " + ("was killed" if was_killed else "failed")
            problem += f" {_MOST_KILLS} times" if is_final else ""
        if is_final:
            raise UnarchivableError(f"not exported: {problem}")
        if problem:
            raise ArchiveError(problem)

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


@contextmanager
def _retried() -> Iterator[None]:
    """Turn failures of this machine into a `DeliveryError`, so that the archive is retried."""
    try:
        yield
    except (ArchiveError, UsageError) as error:
        raise DeliveryError(ErrorKind.BUSY, f"archive: {error.message}") from error
    except OSError as error:
        raise DeliveryError(ErrorKind.BUSY, f"archive: {error.strerror or error}") from error


def export_runs(store: Path, run_ids: Sequence[str]) -> tuple[dict[str, tuple[str, bool]], bool]:
    """Export runs that have ended in a separate process.

    Return the problem of each run that it came to (empty for none) and whether it is final, and
    whether the process was killed.

    Raises:
        ArchiveError: The process cannot be started.
    """
    try:
        process = subprocess.run(
            command("radt.delivery.archive", "--store", str(store), *run_ids),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=_LONGEST_S,
            start_new_session=True,  # its own session, for its own weight (`give_way`)
        )
    except OSError as error:
        raise ArchiveError(f"cannot start the export process: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ArchiveError(f"the export process took more than {_LONGEST_S:.0f} s") from error
    if process.returncode:
        log.warning("the process that exports archives ended with %d", process.returncode)
    return outcomes_in(process.stdout), process.returncode < 0


def outcomes_in(output: str) -> dict[str, tuple[str, bool]]:
    """Parse the lines of an export process, without those of a library or cut by a kill."""
    outcomes = {}
    for line in output.splitlines():
        with suppress(ValueError, TypeError):
            run_id, problem, is_final = json.loads(line)
            outcomes[run_id] = (problem, is_final)
    return outcomes
