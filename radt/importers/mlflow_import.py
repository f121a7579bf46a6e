"""Import runs from MLflow; those that radt recorded come from their archives, in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from radt.delivery.archive.importing import import_archive
from radt.delivery.archive.locations import FileMissingError
from radt.delivery.archive.read import Archive
from radt.errors import ArchiveError
from radt.importers.importing import Import, Progress
from radt.importers.known import is_ours, known_runs
from radt.importers.mlflow import MlflowReader, MlflowRun
from radt.importers.mlflow_source import THREADS, MlflowSource
from radt.importers.status import ImportResult
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED

_INCOMPLETE = "incomplete"


class MlflowImport:
    """Imports from one MLflow into one store; `run` may be called again and again.

    Args:
        source: Connected.
        writer: The store.
        experiments: Names of those to import; all without any.
        progress: Called with the number of runs that are done, and of all.
    """

    def __init__(
        self,
        source: MlflowReader,
        writer: StoreWriter,
        experiments: Sequence[str] = (),
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        self._source = source
        self._writer = writer
        self._experiments = experiments
        self._progress = progress
        #: Digests of ended runs without an archive, which comes before a run ends in MLflow.
        self._without_archive: dict[str, str] = {}

    def run(self) -> ImportResult:
        """Import what is new, the newest runs first and archives last.

        A run that the store has and that was not imported is recorded there: it is left alone.

        Raises:
            TrackingError: MLflow does not answer.
            StoreError: The store cannot be written.
        """
        with ThreadPoolExecutor(THREADS) as pool:
            source = MlflowSource(self._source, pool, self._experiments)
            result = Import(source, self._writer, self._progress).run()
        with StoreReader(self._writer.address) as reader:
            known = known_runs(reader)
        recorded = [run for run in source.recorded if is_ours(run.radt_run_id, known)]
        done = result.done
        for run in sorted(recorded, key=lambda candidate: candidate.started_ns, reverse=True):
            self._progress(result.done, done + len(recorded))
            self._import_archive(run, known, result)
        self._progress(done + len(recorded), done + len(recorded))
        return result

    def _import_archive(
        self, run: MlflowRun, known: Mapping[str, str | None], result: ImportResult
    ) -> None:
        run_id, ended = run.radt_run_id, run.ended_ns is not None
        before = known.get(run_id)
        if ended and before == run.digest:
            result.unchanged += 1
            return
        if ended and self._without_archive.get(run.run_id) == run.digest:
            result.without_archive += 1
            return
        try:
            archive = Archive.open(f"runs:/{run.run_id}", self._source.uri)
            manifest = archive.manifest
            _check_is_of(run_id, archive)
            state = f"{_INCOMPLETE} {manifest.written_ns}"
            if before == state and not manifest.complete:
                result.unchanged += 1
                return
            # First of all: a run without this tag is taken for one that was recorded here.
            self._writer.put_tags(run_id, {IMPORTED: _INCOMPLETE})
            imported = import_archive(archive, self._writer)
            self._writer.put_tags(run_id, {IMPORTED: run.digest if manifest.complete else state})
        except FileMissingError:
            self._without_archive[run.run_id] = run.digest
            result.without_archive += 1
        except ArchiveError as error:
            result.failed.append((f"run {run_id}", error))
        else:
            result.imported += imported.new
            result.updated += not imported.new


def _check_is_of(run_id: str, archive: Archive) -> None:
    """
    Raises:
        ArchiveError: Somebody has copied the archive of another run there.
    """
    archived_id = archive.manifest.run.run_id
    if archived_id != run_id:
        raise ArchiveError(
            f"expected the archive of run {run_id} in {archive.location}, "
            f"got that of {archived_id}",
            "Delete the copied artifacts (folder radt) in MLflow",
        )
