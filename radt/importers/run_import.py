"""Import one run: points that the store lacks, parameters, tags, files and status.

The store's own counts say how far each series is. Where the last stored point is not at its place
in the source, points came late: that series is read as a whole, and what the store lacks of it is
added.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np

from radt.errors import StoreError
from radt.home import Home
from radt.importers.files import rewritten
from radt.importers.placing import Placed
from radt.importers.source import Media, Piece, RunFacts, Source, SourceSeries
from radt.model import NO_STEP, Scope, SeriesKind
from radt.store.chunks import joined, sliced
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch, SeriesRecord
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED

#: Points that are held in memory and written in one transaction, about.
_POINTS_PER_TRANSACTION = 400_000
#: Maximum number of restarts for a run that another importer changes meanwhile.
_TRIES = 5
#: Errors of a path that others chose, not of the disk.
_OF_ONE_FILE = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ELOOP, errno.EINVAL, errno.ENAMETOOLONG}
    | {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}
)


class _ChangedError(StoreError):
    """Another process imports the same run."""


@dataclass(slots=True)
class _Series:
    """A series of the run, and how many of its points are stored or held."""

    record: SeriesRecord
    count: int
    is_new: bool
    last: Samples | None = None
    held: list[Samples] = field(default_factory=list)


class RunImport:
    """Imports one run, and tells its source what the store has of it (`Stored`).

    Args:
        source: Has the run.
        writer: The store.
        reader: Of the same store.
        place: The run and where it belongs.
    """

    def __init__(
        self, source: Source, writer: StoreWriter, reader: StoreReader, place: Placed
    ) -> None:
        self._source, self._writer, self._reader = source, writer, reader
        self._place = place
        self._run_id = place.record.run_id
        self._series: dict[tuple[str, ...], _Series] = {}
        self._counts: dict[int, int] = {}
        self._late: dict[SourceSeries, None] = {}
        self._held = 0

    def run(self) -> RunFacts:
        """Import its new data; restart if another importer was faster."""
        for left in reversed(range(_TRIES)):
            try:
                return self._import()
            except _ChangedError:
                if not left:
                    raise
        raise AssertionError

    def _import(self) -> RunFacts:
        self._load()
        self._late = {}
        facts = RunFacts()
        for piece in self._source.read(self._place.run, self, facts):
            if isinstance(piece, Media):
                try:
                    self._keep(piece)
                except OSError as error:
                    if error.errno not in _OF_ONE_FILE:
                        raise
                    is_gone = error.errno == errno.ENOENT
                    named = facts.left_out if is_gone else facts.problems
                    named.append(
                        f"{self._place.run.where}: {piece.shown}: {error.strerror}; left out"
                    )
                continue
            self._take(piece)
            if self._held >= _POINTS_PER_TRANSACTION:
                with self._writer.transaction():
                    self._write_points()
                self._load()
        if self._late:
            self._take_late()
        known = next(iter(self._reader.runs(run_ids=[self._run_id])), None)
        if facts.is_empty and known is None:
            return facts
        if facts.is_empty and self._counts:
            raise rewritten(self._place.run, "it is empty")
        with self._writer.transaction():
            has_new = bool(self._held)
            self._write_points()
            ended = self._write_rows(facts)
            if ended and has_new:
                self._writer.seal(self._run_id)
        return facts

    # -- what the store has -----------------------------------------------------------------------

    def count(self, series: SourceSeries) -> int:
        """Return the number of points that the store has."""
        return self._of(series).count

    def has_steps(self, series: SourceSeries) -> bool:
        """Return whether the last of them has a step."""
        last = self._last(self._of(series))
        return last is not None and last.steps is not None

    def has(self, series: SourceSeries, point: Samples) -> bool:
        """Return whether the store has a point, wherever."""
        at_ns = int(point.times_ns[0])
        number = self._of(series).record.series_no
        stored = self._reader.samples(self._run_id, number, start_ns=at_ns, end_ns=at_ns)
        return _points(point)[0] in _points(stored)

    def _load(self) -> None:
        self._counts = self._reader.point_counts(self._run_id)
        self._series = {
            _identity(record): _Series(record, self._counts.get(record.series_no, 0), is_new=False)
            for record in self._reader.series([self._run_id])
        }
        self._held = 0

    def _of(self, series: SourceSeries) -> _Series:
        """Return a series of the source; a new one gets the next number."""
        entity, record = series.entity, self._place.record
        if series.scope is not Scope.RUN and record.workload_id != record.run_id:
            # No source says which runs of a workload share a machine.
            entity = f"{entity} {record.letter}".strip()
        number = max((known.record.series_no for known in self._series.values()), default=-1) + 1
        new = SeriesRecord(
            *(self._run_id, number, series.listener, series.metric, series.unit, series.scope),
            SeriesKind.GAUGE,
            entity,
            method=series.method,
        )
        return self._series.setdefault(_identity(new), _Series(new, 0, is_new=True))

    def _last(self, series: _Series) -> Samples | None:
        """Return the last point that is stored or held."""
        if series.last is None and series.count:
            series.last = self._reader.points_after(
                self._run_id, series.record.series_no, series.count - 1, 1
            )
        return series.last

    # -- points -----------------------------------------------------------------------------------

    def _take(self, piece: Piece) -> None:
        """Hold the points that the store lacks."""
        if piece.series in self._late:
            return
        series, samples = self._of(piece.series), piece.samples
        if series.count:
            at = series.count - 1 - piece.first
            if at >= len(samples):
                return
            last = self._last(series)
            assert last is not None
            point = sliced(samples, at, at + 1)
            if _points(point, piece.has_times) != _points(last, piece.has_times):
                self._late[piece.series] = None
                return
            samples = sliced(samples, at + 1)
        self._hold(series, samples)

    def _hold(self, series: _Series, samples: Samples) -> None:
        if len(samples):
            series.held.append(samples)
            series.count += len(samples)
            series.last = sliced(samples, len(samples) - 1)
            self._held += len(samples)

    def _take_late(self) -> None:
        """Hold what the store lacks of series with points that came late, wherever it is.

        Raises:
            SourceError: The run is not the one that was imported.
        """
        pieces: dict[SourceSeries, list[Piece]] = {series: [] for series in self._late}
        for late in self._source.read(self._place.run, self, RunFacts(), self._late):
            if isinstance(late, Piece) and (of_series := pieces.get(late.series)) is not None:
                # Pieces may overlap.
                seen = of_series[-1].first + len(of_series[-1].samples) if of_series else 0
                samples = sliced(late.samples, max(0, seen - late.first))
                of_series.append(replace(late, first=max(seen, late.first), samples=samples))
        for series, of_series in pieces.items():
            own_series = self._of(series)
            has_times = all(piece.has_times for piece in of_series)
            committed = self._counts.get(own_series.record.series_no, 0)
            had = self._reader.points_after(self._run_id, own_series.record.series_no, 0, committed)
            stored = Counter(_points(joined([had, *own_series.held]), has_times))
            samples = joined([piece.samples for piece in of_series])
            lacking = np.zeros(len(samples), dtype=np.bool_)
            for place, point in enumerate(_points(samples, has_times)):
                lacking[place] = not stored[point]
                stored[point] -= 1
            if self._source.grows_only and any(left > 0 for left in stored.values()):
                raise rewritten(self._place.run, f"{series.metric} has other values")
            steps = None if samples.steps is None else samples.steps[lacking]
            self._hold(
                own_series, Samples(samples.times_ns[lacking], samples.values[lacking], steps)
            )

    # -- writing ----------------------------------------------------------------------------------

    def _write_points(self) -> None:
        """
        Raises:
            _ChangedError: Another importer has written points of the run since it was read.
        """
        self._writer.append(self._run_id, [])  # locks the run
        if self._reader.point_counts(self._run_id) != self._counts:
            raise _ChangedError(
                f"run {self._run_id} is being imported by several processes", "Wait for the others"
            )
        series = list(self._series.values())
        self._writer.add_series([record.record for record in series if record.is_new])
        self._writer.append(
            self._run_id,
            [
                SeriesBatch(record.record.series_no, joined(record.held))
                for record in series
                if record.held
            ],
        )

    def _write_rows(self, facts: RunFacts) -> bool:
        """Write run, workload, parameters and tags; return whether the run has ended."""
        known = next(iter(self._reader.runs(run_ids=[self._run_id])), None)
        began_ns = facts.started_ns or 0
        record = replace(
            self._place.record,
            created_ns=self._place.record.created_ns or began_ns,
            status=facts.status,
            started_ns=facts.started_ns,
            ended_ns=facts.ended_ns,
            end_reason=facts.end_reason,
            exit_code=facts.exit_code,
            command=facts.command or self._place.record.command,
        )
        workload = self._place.workload
        if workload.workload_id == self._run_id:
            workload = replace(
                workload,
                created_ns=workload.created_ns or began_ns,
                status=facts.status,
                ended_ns=facts.ended_ns,
            )
        self._writer.put_workload(workload)
        self._writer.put_params(self._run_id, facts.params)
        digest = facts.digest or self._place.run.digest
        self._writer.put_tags(self._run_id, {**facts.tags, IMPORTED: digest})
        if record != known:
            self._writer.put_run(record)
        # It came from elsewhere: nothing of it is delivered to MLflow.
        self._writer.mark_workload_delivered(record.workload_id)
        self._writer.mark_run_delivered(self._run_id)
        return facts.status.ended

    def _keep(self, media: Media) -> None:
        """Put a file among the run's artifacts, beside a store that is a file.

        Raises:
            OSError: It cannot be read or written.
        """
        store = self._writer.address.path
        if store is None:
            return
        folder = Home(store.parent).run_dir(self._run_id)
        path = _below(folder.path, media.path)
        with media.open() as stream:
            size_bytes = stream.seek(0, os.SEEK_END)
            if path.exists() and path.stat().st_size == size_bytes:
                return
            stream.seek(0)
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                with partial.open("wb") as target:
                    shutil.copyfileobj(stream, target)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)


def _below(folder: Path, path: str) -> Path:
    """Return a path that stays in the folder, whatever others call their files."""
    return folder.joinpath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))


def _identity(series: SeriesRecord) -> tuple[str, ...]:
    return series.listener, series.metric, series.scope, series.entity


def _points(samples: Samples, has_times: bool = True) -> list[tuple[int, int, int]]:
    """Return points as time, value (its bits) and step, with 0 for a missing step as in MLflow."""
    values = np.where(np.isnan(samples.values), np.nan, samples.values) + 0.0
    steps = np.zeros(len(samples), dtype=np.int64) if samples.steps is None else samples.steps
    steps = np.where(steps == NO_STEP, 0, steps)
    bits = values.view(np.int64)
    times_ns = samples.times_ns if has_times else np.zeros_like(samples.times_ns)
    return list(zip(times_ns.tolist(), bits.tolist(), steps.tolist(), strict=True))
