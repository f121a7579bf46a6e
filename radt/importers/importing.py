"""Import runs of a source into the store, incrementally and repeatedly.

A run keeps its source's id, its points their order. The store's own counts are the position in each
series, so a killed import continues there. The tag `radt.tags.IMPORTED` is written last: it records
the state of the run in the source when everything was imported. A run that is still in that state
is not read again. Runs that are deleted in the source stay in the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Self

from sqlalchemy import text

from radt.errors import CodecError, RadtError, SourceError
from radt.importers.placing import Placed, place_runs
from radt.importers.run_import import RunImport
from radt.importers.source import ImportSource, MlflowRefusedError, SourceRun
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED
from radt.units import plural

Progress = Callable[[int, int], object]
#: Number of new runs for which a source may read ahead together.
RUNS_PER_GROUP = 100
_KNOWN = text(
    "SELECT run.run_id, run.mlflow_run_id, tag.value FROM run "
    "LEFT JOIN tag ON tag.run_id = run.run_id AND tag.key = :key"
)
_PRUNED = text("SELECT run_id FROM pruned")


@dataclass(slots=True)
class ImportResult:
    """Number of runs imported for the first time, updated, and unchanged.

    ``without_archive`` are runs that radt recorded and that have no archive yet; ``empty`` runs
    have no data yet; ``failed`` are names and errors of single runs; ``damaged`` describes
    unreadable parts of imported runs, ``left_out`` data that radt does not import.
    """

    imported: int = 0
    updated: int = 0
    unchanged: int = 0
    without_archive: int = 0
    empty: int = 0
    failed: list[tuple[str, RadtError]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Return the number of checked runs."""
        counts = (self.imported, self.updated, self.unchanged, self.without_archive, self.empty)
        return sum(counts) + len(self.failed)

    def __str__(self) -> str:
        parts = [
            f"imported {plural(self.imported, 'run')}, {self.updated:,} updated, "
            f"{self.unchanged:,} unchanged"
        ]
        if self.without_archive:
            parts.append(f"{self.without_archive:,} without an archive yet")
        if self.empty:
            parts.append(f"{self.empty:,} empty")
        if self.failed:
            parts.append(f"{len(self.failed):,} failed")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ImportStatus:
    """One line from the process that imports for a dashboard.

    ``summary`` is empty during an import and after an error; ``error`` is empty without an error.
    """

    done: int = 0
    total: int = 0
    summary: str = ""
    error: str = ""
    remedy: str = ""

    @classmethod
    def of_result(cls, result: ImportResult) -> Self:
        return cls(result.done, result.done, str(result), *_first_error(result.failed))

    @classmethod
    def of_error(cls, error: RadtError) -> Self:
        return cls(error=error.message, remedy=error.remedy or "")

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, line: str) -> Self:
        """Parse a line.

        Raises:
            ValueError: The line is not a status.
        """
        try:
            return cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(f"expected the status of an import, got {line[:200]!r}") from error


def _first_error(failed: Sequence[tuple[str, RadtError]]) -> tuple[str, str]:
    if not failed:
        return "", ""
    where, error = failed[0]
    more = f" (and {len(failed) - 1:,} more)" if len(failed) > 1 else ""
    return f"{where}{more}: {error.message}", error.remedy or ""


def ignore(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(slots=True)
class Import:
    """Imports from one source into one store; `run` may be called repeatedly.

    Attributes:
        source: The runs.
        writer: The store.
        progress: Called with the number of finished runs and of all runs.
    """

    source: ImportSource
    writer: StoreWriter
    progress: Progress = ignore

    def run(self) -> ImportResult:
        """Import new data, the newest runs first; of a damaged run, import the intact parts.

        Raises:
            UsageError: There is nothing to import.
            TrackingError: MLflow does not answer.
            StoreError: The store cannot be written.
        """
        result = ImportResult(left_out=[*self.source.left_out])
        with StoreReader(self.writer.address) as reader:
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
                self.source.prepare(
                    [entry.run for entry in group if entry.record.run_id not in known]
                )
                for place in group:
                    self.progress(result.done, len(placed))
                    self._import(place, reader, result, is_known=place.record.run_id in known)
            self._update_workloads(reader, placed)
            self.progress(len(placed), len(placed))
        return result

    def _placed(self, reader: StoreReader) -> list[Placed]:
        by_experiment: dict[str, list[SourceRun]] = {}
        for run in self.source.runs():
            by_experiment.setdefault(run.experiment, []).append(run)
        workloads = reader.workloads()
        placed = []
        for name, runs in by_experiment.items():
            # An experiment may have been renamed since the last import.
            stored = reader.runs(run_ids=[run.run_id for run in runs])
            stored += reader.runs(experiment=name)
            placed += place_runs(runs, stored, workloads)
        return placed

    def _import(
        self, place: Placed, reader: StoreReader, result: ImportResult, *, is_known: bool
    ) -> None:
        try:
            facts = RunImport(self.source, self.writer, reader, place).run()
        except (MlflowRefusedError, SourceError, CodecError) as error:  # concerns only this run
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
            # If the run that names the workload changed, the workload was written with it.
            if known is not None and known != workload and workload_id not in heads:
                self.writer.put_workload(workload)


def known_runs(reader: StoreReader) -> dict[str, str | None]:
    """Return the value of the tag IMPORTED by run id; None for runs that were not imported.

    MLflow's ids of recorded runs, and pruned runs, also count as recorded.
    """
    known: dict[str, str | None] = {}
    with reader.snapshot() as connection:
        for (run_id,) in connection.execute(_PRUNED):
            known[str(run_id)] = None
        for run_id, mlflow_run_id, value in connection.execute(_KNOWN, {"key": IMPORTED}):
            if value is None and mlflow_run_id:
                known[str(mlflow_run_id)] = None
            if str(run_id) not in known:
                known[str(run_id)] = value
    return known


def is_ours(run_id: str, known: Mapping[str, str | None]) -> bool:
    """Return whether the store lacks a run, or has it from an import."""
    return run_id not in known or known[run_id] is not None
