"""Import runs of a source into the store: incrementally, and as often as one likes.

A run keeps its source's id, points their order. The store's own counts say how far each series is,
so an import that was killed goes on where it was. The tag `radt.tags.IMPORTED` comes last: it says
what the run looked like when all of it was here, and a run that still looks like that is not read
again. What is deleted in the source stays in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from radt.errors import CodecError, SourceError
from radt.importers.known import is_ours, known_runs
from radt.importers.placing import Placed, place_runs
from radt.importers.run_import import RunImport
from radt.importers.source import RefusedError, Source, SourceRun
from radt.importers.status import ImportResult
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter

Progress = Callable[[int, int], object]
#: New runs that a source may read ahead together.
RUNS_PER_GROUP = 100


class Import:
    """Imports from one source into one store; `run` may be called again and again.

    Args:
        source: The runs.
        writer: The store.
        progress: Called with the number of runs that are done, and of all.
    """

    def __init__(
        self,
        source: Source,
        writer: StoreWriter,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        self._source = source
        self._writer = writer
        self._progress = progress

    def run(self) -> ImportResult:
        """Import what is new, the newest runs first; of a damaged run what is not damaged.

        Raises:
            UsageError: There is nothing to import.
            TrackingError: MLflow does not answer.
            StoreError: The store cannot be written.
        """
        result = ImportResult(left_out=[*self._source.left_out])
        with StoreReader(self._writer.address) as reader:
            known = known_runs(reader)
            placed = [
                place for place in self._placed(reader) if is_ours(place.record.run_id, known)
            ]
            changed = [
                entry for entry in placed if known.get(entry.record.run_id) != entry.run.digest
            ]
            changed.sort(key=lambda entry: entry.record.created_ns, reverse=True)
            result.unchanged = len(placed) - len(changed)
            for start in range(0, len(changed), RUNS_PER_GROUP):
                group = changed[start : start + RUNS_PER_GROUP]
                self._source.prepare(
                    [entry.run for entry in group if entry.record.run_id not in known]
                )
                for place in group:
                    self._progress(result.done, len(placed))
                    self._import(place, reader, result, is_known=place.record.run_id in known)
            self._update_workloads(reader, placed)
            self._progress(len(placed), len(placed))
        return result

    def _placed(self, reader: StoreReader) -> list[Placed]:
        by_experiment: dict[str, list[SourceRun]] = {}
        for run in self._source.runs():
            by_experiment.setdefault(run.experiment, []).append(run)
        workloads = reader.workloads()
        placed = []
        for name, runs in by_experiment.items():
            # An experiment may have been renamed since.
            stored = reader.runs(run_ids=[run.run_id for run in runs])
            stored += reader.runs(experiment=name)
            placed += place_runs(runs, stored, workloads)
        return placed

    def _import(
        self, place: Placed, reader: StoreReader, result: ImportResult, *, is_known: bool
    ) -> None:
        try:
            facts = RunImport(self._source, self._writer, reader, place).run()
        except (RefusedError, SourceError, CodecError) as error:  # of this run only
            result.failed.append((place.run.where, error))
        except OSError as error:
            problem = f"cannot import {error.filename or place.run.where}: {error.strerror}"
            result.failed.append((place.run.where, SourceError(problem)))
        else:
            result.damaged += facts.problems
            result.left_out += facts.left_out
            if facts.is_empty and not is_known:
                result.empty += 1
            elif is_known:
                result.updated += 1
            else:
                result.imported += 1

    def _update_workloads(self, reader: StoreReader, placed: Sequence[Placed]) -> None:
        """Write workloads whose status changed although none of their runs did."""
        stored = {workload.workload_id: workload for workload in reader.workloads()}
        heads = {place.record.run_id for place in placed}
        wanted = {place.workload.workload_id: place.workload for place in placed}
        for workload_id, workload in wanted.items():
            known = stored.get(workload_id)
            # The workload of a run that is its head was written with the run.
            if known is not None and known != workload and workload_id not in heads:
                self._writer.put_workload(workload)
