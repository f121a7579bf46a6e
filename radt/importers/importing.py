"""Import runs from MLflow into the store: incrementally, and as often as one likes.

A run is imported under MLflow's id, points in MLflow's order. The store's own counts say how far
each metric is, so an import that was killed goes on where it was. The tag
`radt.tags.IMPORTED` comes last: it says what MLflow's run looked like when all of it was
here, and a run that still looks like that is not read again. Runs that radt recorded are imported
from their archives, in full resolution, unless the store has them from elsewhere. What is deleted
in MLflow stays in the store.
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
        progress: Callable[[int, int], object] = lambda _done, _total: None,
    ) -> None:
        self._source = source
        self._writer = writer
        self._experiments = experiments
        self._progress = progress
        #: Digests of ended runs without an archive, which comes before a run ends in MLflow.
        self._without_archive: dict[str, str] = {}

    def run(self) -> ImportResult:
        """Import what is new, the newest runs first and archives last.

        Raises:
            TrackingError: MLflow does not answer.
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
                    except (RefusedError, CodecError) as error:  # of this run only
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
        """Return the points of new runs by run and metric, where few requests give them."""
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

        A run that the store has and that was not imported is recorded there: it is left alone.
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
        """Write the workloads whose status changed though none of their runs did."""
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
            # First of all: a run without this tag is taken for one that was recorded here.
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
