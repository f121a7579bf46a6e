"""Import runs from files of other trackers into the store, repeatedly.

A changed file is read from its start, skipping as many points as the store has. The tag
`radt.tags.IMPORTED` holds the digest of the imported files, so that unchanged files are not read.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from radt.errors import SourceError
from radt.importers.known import is_ours, known_runs
from radt.importers.mlflow_runs import labels
from radt.importers.status import ImportResult
from radt.model import NO_STEP, SOFTWARE, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesBatch, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED

#: Points held in memory and written in one transaction.
_POINTS_PER_TRANSACTION = 200_000
NS_PER_S = 1_000_000_000
#: Metric, time in ns since the epoch, value, step or `NO_STEP`.
Point = tuple[str, int, float, int]


@dataclass(frozen=True, slots=True)
class FileRun:
    """A run in files. ``key`` identifies it and determines the run's id in the store."""

    key: str
    experiment: str
    name: str
    files: tuple[Path, ...]

    @property
    def run_id(self) -> str:
        return hashlib.blake2b(self.key.encode(), digest_size=16).hexdigest()

    def digest(self) -> str:
        """Return a digest that changes with the files."""
        stats = [
            (str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in self.files
        ]
        return hashlib.blake2b(json.dumps(stats).encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class Facts:
    """Properties of a file besides its points, filled in by its reader.

    ``started_ns`` and ``ended_ns`` stay None if the points determine them. ``problems`` describe
    damage.
    """

    status: RunStatus = RunStatus.FINISHED
    started_ns: int | None = None
    ended_ns: int | None = None
    end_reason: str = ""
    host: str = ""
    command: str = ""
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class FileSource(Protocol):
    """Files of one tracker."""

    @property
    def where(self) -> str:
        """Return the user's text for the place."""
        ...

    def runs(self) -> Sequence[FileRun]:
        """Return all runs.

        Raises:
            UsageError: There are no runs.
        """
        ...

    def points(self, run: FileRun, facts: Facts) -> Iterator[Point]:
        """Yield the points of a run, each metric in a fixed order, and fill in ``facts``.

        Raises:
            SourceError: The run is unreadable.
        """
        ...


class FileImport:
    """Imports from files into one store.

    Args:
        source: The files.
        writer: The store.
        progress: Called with the numbers of finished and of all runs.
    """

    def __init__(
        self,
        source: FileSource,
        writer: StoreWriter,
        progress: Callable[[int, int], object] = lambda _done, _total: None,
    ) -> None:
        self._source = source
        self._writer = writer
        self._progress = progress

    def run(self) -> ImportResult:
        """Import new data; of a damaged file, the part before the damage.

        Raises:
            UsageError: There is nothing to import.
            StoreError: The store cannot be written.
        """
        result = ImportResult()
        runs = self._source.runs()
        with StoreReader(self._writer.address) as reader:
            known = known_runs(reader)
            used = {(one.experiment, one.label) for one in reader.workloads()}
            for run in runs:
                self._progress(result.done, len(runs))
                if not is_ours(run.run_id, known):
                    result.unchanged += 1
                    continue
                try:
                    digest = run.digest()
                    if known.get(run.run_id) == digest:
                        result.unchanged += 1
                        continue
                    facts = _RunImport(self._source, self._writer, reader, run, digest).run(used)
                except (SourceError, OSError) as error:
                    failure = error if isinstance(error, SourceError) else _unreadable(run, error)
                    result.failed.append((str(run.files[0]), failure))
                    continue
                result.updated += run.run_id in known
                result.imported += run.run_id not in known
                result.damaged += facts.problems
            self._progress(len(runs), len(runs))
        return result


def _unreadable(run: FileRun, error: OSError) -> SourceError:
    return SourceError(f"cannot read {error.filename or run.files[0]}: {error.strerror}")


class _Columns:
    """Points of one metric that are not yet written."""

    def __init__(self) -> None:
        self.times, self.values, self.steps = array("q"), array("d"), array("q")

    def samples(self) -> Samples:
        steps = np.array(self.steps, dtype=np.int64)
        return Samples(
            np.array(self.times, dtype=np.int64),
            np.array(self.values, dtype=np.float64),
            steps if (steps != NO_STEP).any() else None,
        )


class _RunImport:
    def __init__(
        self,
        source: FileSource,
        writer: StoreWriter,
        reader: StoreReader,
        run: FileRun,
        digest: str,
    ) -> None:
        self._source, self._writer, self._reader = source, writer, reader
        self._run, self._digest = run, digest
        self._numbers = {one.metric: one.series_no for one in reader.series([run.run_id])}
        self._stored = reader.point_counts(run.run_id)
        self._seen: dict[int, int] = {}
        self._new: list[SeriesRecord] = []
        self._columns: dict[int, _Columns] = {}

    def run(self, used: set[tuple[str, str]]) -> Facts:
        facts = Facts()
        first_ns: int | None = None
        last_ns: int | None = None
        held = 0
        for metric, time_ns, value, step in self._source.points(self._run, facts):
            first_ns = time_ns if first_ns is None else min(first_ns, time_ns)
            last_ns = time_ns if last_ns is None else max(last_ns, time_ns)
            held += self._take(metric, time_ns, value, step)
            if held >= _POINTS_PER_TRANSACTION:
                with self._writer.transaction():
                    self._write()
                held = 0
        if first_ns is None and not facts.params and facts.problems:
            raise SourceError("; ".join(facts.problems))
        modified_ns = max(path.stat().st_mtime_ns for path in self._run.files)
        if facts.started_ns is None:
            facts.started_ns = modified_ns if first_ns is None else first_ns
        if facts.ended_ns is None and facts.status.ended:
            facts.ended_ns = max(facts.started_ns, facts.started_ns if last_ns is None else last_ns)
        with self._writer.transaction():
            self._write()
            self._write_rows(facts, used)
            self._writer.seal(self._run.run_id)
        return facts

    def _take(self, metric: str, time_ns: int, value: float, step: int) -> int:
        """Keep a point if it is new; return how many were kept.

        Raises:
            SourceError: The file is not the imported one.
        """
        number = self._numbers.get(metric)
        if number is None:
            number = self._numbers[metric] = len(self._numbers)
            self._new.append(
                SeriesRecord(
                    *(self._run.run_id, number, SOFTWARE, metric, ""), Scope.RUN, SeriesKind.GAUGE
                )
            )
        place = self._seen.get(number, 0)
        self._seen[number] = place + 1
        stored = self._stored.get(number, 0)
        if place < stored:
            if place == stored - 1:
                self._check(number, place, value)
            return 0
        columns = self._columns.setdefault(number, _Columns())
        columns.times.append(time_ns)
        columns.values.append(value)
        columns.steps.append(step)
        return 1

    def _check(self, number: int, place: int, value: float) -> None:
        last = self._reader.points_after(self._run.run_id, number, place, place + 1)
        if not np.array_equal(last.values, [value], equal_nan=True):
            raise SourceError(
                f"{self._run.files[0]} was rewritten since it was imported",
                "Give the new file another name to import it as a new run",
            )

    def _write(self) -> None:
        run_id = self._run.run_id
        self._writer.append(run_id, [])  # locks the run
        counts = self._reader.point_counts(run_id)
        if any(counts.get(one, 0) > self._stored.get(one, 0) for one in counts):
            raise SourceError(
                f"{self._run.files[0]} is being imported by several processes", "Import again"
            )
        self._writer.add_series(self._new)
        batches = [SeriesBatch(one, columns.samples()) for one, columns in self._columns.items()]
        self._writer.append(run_id, batches)
        for batch in batches:
            self._stored[batch.series_no] = self._stored.get(batch.series_no, 0) + len(
                batch.samples
            )
        self._new, self._columns = [], {}

    def _write_rows(self, facts: Facts, used: set[tuple[str, str]]) -> None:
        run, run_id = self._run, self._run.run_id
        started_ns = facts.started_ns or 0
        record = next(iter(self._reader.runs(run_ids=[run_id])), None)
        if record is None:
            label = next(one for one in labels(run.name) if (run.experiment, one) not in used)
            used.add((run.experiment, label))
            record = RunRecord(
                *(run_id, run_id, run.experiment, label, "a", run.name, started_ns), devices=""
            )
        record = replace(
            record,
            status=facts.status,
            command=facts.command,
            host=facts.host,
            started_ns=started_ns,
            ended_ns=facts.ended_ns,
            end_reason=facts.end_reason,
        )
        self._writer.put_workload(
            WorkloadRecord(
                *(run_id, run.experiment, record.workload, record.created_ns, facts.status),
                ended_ns=facts.ended_ns,
            )
        )
        self._writer.put_params(run_id, facts.params)
        self._writer.put_tags(run_id, {**facts.tags, IMPORTED: self._digest})
        self._writer.put_run(record)
        self._writer.mark_workload_delivered(run_id)
        self._writer.mark_run_delivered(run_id)


def flattened(data: object, prefix: str = "") -> Iterable[tuple[str, object]]:
    """Yield the leaves of nested dicts with their keys joined by dots.

    >>> dict(flattened({"a": {"b": 1}}))
    {'a.b': 1}
    """
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flattened(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, data
