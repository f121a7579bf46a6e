"""Import runs from MLflow into the store, incrementally and repeatedly.

A run is imported under MLflow's id, with points in MLflow's order. The store's counts show the
progress of each metric, so a killed import resumes. The tag `radt.tags.IMPORTED` comes last: it
holds a digest of MLflow's completely imported run, and a run with the same digest is not read
again. Runs that radt recorded are imported from their archives, in full resolution, unless the
store has them from elsewhere. Runs deleted in MLflow stay in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from radt.delivery.archive.importing import import_archive
from radt.delivery.archive.locations import FileMissingError
from radt.delivery.archive.read import Archive
from radt.errors import ArchiveError, CodecError
from radt.importers.known import is_ours, known_runs
from radt.importers.mlflow import RUNS_PER_BULK, MlflowReader, RefusedError
from radt.importers.mlflow_runs import MlflowRun, Placed, place_runs
from radt.importers.run_import import THREADS, RunImport
from radt.importers.status import ImportResult
from radt.store.reader import StoreReader
from radt.store.records import Samples
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED

_INCOMPLETE = "incomplete"


class MlflowImport:
    """Imports from one MLflow into one store; `run` may be called repeatedly.

    Args:
        source: A connected reader.
        writer: The store.
        experiments: Names of the experiments to import; empty for all.
        progress: Called with the numbers of finished and of all runs.
    """

    def __init__(
        self,
        source: MlflowReader,
        writer: StoreWriter,
        experiments: Sequence[str] = (),
        progress: Callable[[int, int], object] = lambda _done, _total: None,
    ) -> None:
        self._source = source
        self._writer = writer
        self._experiments = experiments
        self._progress = progress
        #: Digests of ended runs without an archive, which should precede a run's end in MLflow.
        self._without_archive: dict[str, str] = {}

    def run(self) -> ImportResult:
        """Import new data, the newest runs first and archives last.

        Raises:
            TrackingError: MLflow does not respond.
            StoreError: The store cannot be written.
        """
        result = ImportResult()
        with StoreReader(self._writer.address) as reader, ThreadPoolExecutor(THREADS) as pool:
            known = known_runs(reader)
            placed, archived = self._listed(reader, known)
            total = len(placed) + len(archived)
            changed = [
                place for place in placed if known.get(place.record.run_id) != place.mlflow.digest
            ]
            changed.sort(key=lambda one: one.record.created_ns, reverse=True)
            result.unchanged = len(placed) - len(changed)
            for start in range(0, len(changed), RUNS_PER_BULK):
                group = changed[start : start + RUNS_PER_BULK]
                histories = self._histories(
                    pool, [p for p in group if p.record.run_id not in known]
                )
                for place in group:
                    self._progress(result.done, total)
                    run_id = place.record.run_id
                    points = histories.get(run_id, {})
                    try:
                        RunImport(self._source, self._writer, reader, pool, place, points).run()
                    except (RefusedError, CodecError) as error:  # concerns only this run
                        result.failed.append((run_id, error))
                    else:
                        result.updated += run_id in known
                        result.imported += run_id not in known
            self._update_workloads(reader, placed)
            for run in sorted(archived, key=lambda one: one.started_ns, reverse=True):
                self._progress(result.done, total)
                self._import_archive(run, known, result)
            self._progress(total, total)
        return result

    def _histories(
        self, pool: ThreadPoolExecutor, places: Sequence[Placed]
    ) -> dict[str, dict[str, Samples]]:
        """Return the points of new runs by run and metric if few requests return them all."""
        run_ids: dict[str, list[str]] = {}
        for place in places:
            for metric in place.mlflow.metrics:
                run_ids.setdefault(metric, []).append(place.record.run_id)
        several = {metric: ids for metric, ids in run_ids.items() if len(ids) > 1}
        answers = pool.map(self._source.histories, several.values(), several)
        histories: dict[str, dict[str, Samples]] = {}
        for metric, answer in zip(several, answers, strict=True):
            for run_id, samples in answer.items():
                histories.setdefault(run_id, {})[metric] = samples
        return histories

    def _listed(
        self, reader: StoreReader, known: Mapping[str, str | None]
    ) -> tuple[list[Placed], list[MlflowRun]]:
        """Return the runs to import from MLflow's metrics, and those to import from archives.

        A run in the store that was not imported was recorded there and is skipped.
        """
        placed: list[Placed] = []
        archived: list[MlflowRun] = []
        workloads = reader.workloads()
        for name, experiment_id in self._source.experiments().items():
            if self._experiments and name not in self._experiments:
                continue
            runs = list(self._source.runs(experiment_id, name))
            archived += [run for run in runs if run.radt_run_id and is_ours(run.radt_run_id, known)]
            foreign = [run for run in runs if not run.is_of_radt]
            # An experiment may have been renamed since.
            stored = reader.runs(run_ids=[run.mlflow_id for run in foreign])
            stored += reader.runs(experiment=name)
            placed += (
                place
                for place in place_runs(foreign, stored, workloads, self._source.where)
                if is_ours(place.mlflow.mlflow_id, known)
            )
        return placed, archived

    def _update_workloads(self, reader: StoreReader, placed: Sequence[Placed]) -> None:
        """Write workloads whose status changed although none of their runs did."""
        stored = {workload.workload_id: workload for workload in reader.workloads()}
        wanted = {place.workload.workload_id: place.workload for place in placed}
        for workload in wanted.values():
            known = stored.get(workload.workload_id)
            if known is not None and known != workload:
                self._writer.put_workload(workload)

    def _import_archive(
        self, run: MlflowRun, known: Mapping[str, str | None], result: ImportResult
    ) -> None:
        run_id, ended = run.radt_run_id, run.run_status.ended
        before = known.get(run_id)
        if ended and before == run.digest:
            result.unchanged += 1
            return
        if ended and self._without_archive.get(run.mlflow_id) == run.digest:
            result.without_archive += 1
            return
        try:
            archive = Archive.open(f"runs:/{run.mlflow_id}", self._source.uri)
            manifest = archive.manifest
            _check_is_of(run_id, archive)
            state = f"{_INCOMPLETE} {manifest.written_ns}"
            if before == state and not manifest.complete:
                result.unchanged += 1
                return
            # First: a run without this tag counts as recorded here.
            self._writer.put_tags(run_id, {IMPORTED: _INCOMPLETE})
            imported = import_archive(archive, self._writer)
            self._writer.put_tags(run_id, {IMPORTED: run.digest if manifest.complete else state})
        except FileMissingError:
            self._without_archive[run.mlflow_id] = run.digest
            result.without_archive += 1
        except ArchiveError as error:
            result.failed.append((run_id, error))
        else:
            result.imported += imported.new
            result.updated += not imported.new


def _check_is_of(run_id: str, archive: Archive) -> None:
    """Raises:
    ArchiveError: The archive belongs to another run.
    """
    archived_id = archive.manifest.run.run_id
    if archived_id != run_id:
        raise ArchiveError(
            f"expected the archive of run {run_id} in {archive.location}, "
            f"got that of {archived_id}",
            "Delete the copied artifacts (folder radt) in MLflow",
        )
