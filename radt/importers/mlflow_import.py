"""Import runs from MLflow; those that radt recorded come completely from their archives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radt.delivery.archive import FileMissingError
from radt.delivery.archive.read import Archive, find_archive, import_archive
from radt.errors import ArchiveError
from radt.importers.importing import Import, ImportResult, Progress, ignore, is_ours, known_runs
from radt.importers.mlflow import MlflowRun, MlflowSource
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED

_INCOMPLETE = "incomplete"


@dataclass(slots=True)
class MlflowImport:
    """Imports from one MLflow into one store; `run` may be called repeatedly.

    Attributes:
        source: A connected MLflow.
        writer: The store.
        progress: Called with the number of finished runs and of all runs.
    """

    source: MlflowSource
    writer: StoreWriter
    progress: Progress = ignore

    def run(self) -> ImportResult:
        """Import new data, the newest runs first and archives last.

        A run that is in the store without having been imported was recorded there and is left
        unchanged.

        Raises:
            TrackingError: MLflow does not answer.
            StoreError: The store cannot be written.
        """
        result = Import(self.source, self.writer, self.progress).run()
        with StoreReader(self.writer.address) as reader:
            known = known_runs(reader)
        recorded = [run for run in self.source.recorded if is_ours(run.radt_run_id, known)]
        done = result.done
        for run in sorted(recorded, key=lambda candidate: candidate.started_ns, reverse=True):
            self.progress(result.done, done + len(recorded))
            self._import_archive(run, known, result)
        self.progress(done + len(recorded), done + len(recorded))
        return result

    def _import_archive(
        self, run: MlflowRun, known: Mapping[str, str | None], result: ImportResult
    ) -> None:
        run_id, ended = run.radt_run_id, run.ended_ns is not None
        before = known.get(run_id)
        if ended and before == run.digest:
            result.unchanged += 1
            return
        try:
            archive = find_archive(f"runs:/{run.run_id}", self.source.uri)
            _check_is_of(run_id, archive)
            state = f"{_INCOMPLETE} {archive.version}"
            if before == state:
                result.unchanged += 1
                return
            # Written first: a run without this tag would count as recorded here.
            self.writer.put_tags(run_id, {IMPORTED: _INCOMPLETE})
            imported = import_archive(archive, self.writer)
            self.writer.put_tags(run_id, {IMPORTED: run.digest if imported.is_complete else state})
        except FileMissingError:
            result.without_archive += 1
        except ArchiveError as error:
            result.failed.append((f"run {run_id}", error))
        else:
            result.imported += imported.is_new
            result.updated += not imported.is_new


def _check_is_of(run_id: str, archive: Archive) -> None:
    """Check that an archive belongs to a run.

    Raises:
        ArchiveError: The archive is that of another run, which somebody has copied there.
    """
    if archive.run_id != run_id:
        raise ArchiveError(
            f"expected the archive of run {run_id} in {archive.location}, "
            f"got that of {archive.run_id}",
            "Delete the copied artifacts (folder radt) in MLflow",
        )
