"""Import one run: missing points, parameters, tags, files and status.

The store's own counts are the position in each series; later points are added in batches, as with
every copy of a run (`radt.store.copy`). If the last stored point is not at its place in the source,
points came late: that series is read completely, and its missing points are added.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np

from radt.files import whole_file
from radt.home import Home
from radt.importers.files import rewritten
from radt.importers.placing import Placed
from radt.importers.source import ImportSource, Media, RunFacts, SourcePiece, SourceSeries
from radt.model import NO_STEP, Scope, SeriesKind
from radt.store.applying import OtherRunError, apply
from radt.store.chunks import joined
from radt.store.copy import Batch, Piece, Position, RunRows
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesRecord
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED

#: Approximate number of points in a batch.
_BATCH_POINTS = 400_000
#: Maximum number of restarts for a run that another importer changes meanwhile.
_TRIES = 5
#: Errors of an untrusted path rather than of the disk.
_OF_ONE_FILE = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ELOOP, errno.EINVAL, errno.ENAMETOOLONG}
    | {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}
)


@dataclass(slots=True)
class _Series:
    """A series of the run: ``stored`` points are in the store, and further ones are held."""

    record: SeriesRecord
    stored: int = 0
    last: Samples | None = None
    held: list[Samples] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.stored + sum(map(len, self.held))

    def hold(self, samples: Samples) -> int:
        """Hold points that the store lacks; return their number."""
        if len(samples):
            self.held.append(samples)
            self.last = samples[-1:]
        return len(samples)


class RunImport:
    """Imports one run, and provides its source with the store's state of it (`Stored`).

    Args:
        source: Source of the run.
        writer: The store.
        reader: Reader of the same store.
        place: The run and its place in the store.
    """

    def __init__(
        self, source: ImportSource, writer: StoreWriter, reader: StoreReader, place: Placed
    ) -> None:
        self._source, self._writer, self._reader = source, writer, reader
        self._place = place
        self._run_id = place.record.run_id
        self._series: dict[tuple[str, ...], _Series] = {}
        self._late: dict[SourceSeries, None] = {}
        self._held = 0

    def run(self) -> RunFacts:
        """Import the run's new data; restart if another importer was faster.

        Raises:
            OtherRunError: Other processes import the same run all the time.
        """
        for left in reversed(range(_TRIES)):
            facts = RunFacts()
            try:
                for batch in self._batches(facts):
                    apply(self._writer, batch, is_original=True)
            except OtherRunError:
                if not left:
                    raise
            else:
                break
        return facts

    def _batches(self, facts: RunFacts) -> Iterator[Batch]:
        """Yield the missing data; each batch must be stored before the next one is requested."""
        self._load()
        self._late = {}
        for piece in self._source.read(self._place.run, self, facts):
            if isinstance(piece, Media):
                self._keep_or_name(piece, facts)
                continue
            self._take(piece)
            if self._held >= _BATCH_POINTS:
                yield self._batch(RunRows(self._place.record), is_last=False)
                self._load()
        if self._late:
            self._take_late()
        if facts.is_empty and any(series.stored for series in self._series.values()):
            raise rewritten(self._place.run, "it is empty")
        if not facts.is_empty or self._reader.runs(run_ids=[self._run_id]):
            yield self._batch(self._rows(facts), is_last=True)

    # -- state of the store -----------------------------------------------------------------------

    def count(self, series: SourceSeries) -> int:
        """Return the number of stored points."""
        return self._of(series).count

    def has_steps(self, series: SourceSeries) -> bool:
        """Return whether the last stored point has a step."""
        last = self._last(self._of(series))
        return last is not None and last.steps is not None

    def has(self, series: SourceSeries, point: Samples) -> bool:
        """Return whether the store has a point, at any position."""
        at_ns = int(point.times_ns[0])
        number = self._of(series).record.series_no
        stored = self._reader.samples(self._run_id, number, start_ns=at_ns, end_ns=at_ns)
        return _points(point)[0] in _points(stored)

    def _load(self) -> None:
        counts = self._reader.point_counts(self._run_id)
        self._series = {
            record.identity: _Series(record, counts.get(record.series_no, 0))
            for record in self._reader.series([self._run_id])
        }
        self._held = 0

    def _of(self, series: SourceSeries) -> _Series:
        """Return a series of the source; a new one gets the next number."""
        entity, record = series.entity, self._place.record
        if series.scope is not Scope.RUN and record.workload_id != record.run_id:
            # No source records which runs of a workload share a machine.
            entity = f"{entity} {record.letter}".strip()
        number = max((known.record.series_no for known in self._series.values()), default=-1) + 1
        new = SeriesRecord(
            *(self._run_id, number, series.listener, series.metric, series.unit, series.scope),
            SeriesKind.GAUGE,
            entity,
            method=series.method,
        )
        return self._series.setdefault(new.identity, _Series(new))

    def _last(self, series: _Series) -> Samples | None:
        """Return the last point that is stored or held."""
        if series.last is None and series.count:
            series.last = self._reader.points_after(
                self._run_id, series.record.series_no, series.count - 1, 1
            )
        return series.last

    # -- points -----------------------------------------------------------------------------------

    def _take(self, piece: SourcePiece) -> None:
        """Hold the points of a piece that the store lacks."""
        if piece.series in self._late:
            return
        series, samples = self._of(piece.series), piece.samples
        if count := series.count:
            at = count - 1 - piece.first
            if at >= len(samples):
                return
            last = self._last(series)
            assert last is not None
            point = samples[at : at + 1]
            if _points(point, piece.has_times) != _points(last, piece.has_times):
                self._late[piece.series] = None
                return
            samples = samples[at + 1 :]
        self._held += series.hold(samples)

    def _take_late(self) -> None:
        """Hold the missing points of series with late points, at any position.

        Raises:
            SourceError: The run differs from the imported one.
        """
        pieces: dict[SourceSeries, list[SourcePiece]] = {series: [] for series in self._late}
        for late in self._source.read(self._place.run, self, RunFacts(), self._late):
            if isinstance(late, SourcePiece) and (of_series := pieces.get(late.series)) is not None:
                # Pieces may overlap.
                seen = of_series[-1].first + len(of_series[-1].samples) if of_series else 0
                samples = late.samples[max(0, seen - late.first) :]
                of_series.append(replace(late, first=max(seen, late.first), samples=samples))
        for series, of_series in pieces.items():
            own_series = self._of(series)
            has_times = all(piece.has_times for piece in of_series)
            number = own_series.record.series_no
            had = self._reader.points_after(self._run_id, number, 0, own_series.stored)
            stored = Counter(_points(joined([had, *own_series.held]), has_times))
            samples = joined([piece.samples for piece in of_series])
            lacking = np.zeros(len(samples), dtype=np.bool_)
            for place, point in enumerate(_points(samples, has_times)):
                lacking[place] = not stored[point]
                stored[point] -= 1
            if self._source.grows_only and any(left > 0 for left in stored.values()):
                raise rewritten(self._place.run, f"{series.metric} has other values")
            steps = None if samples.steps is None else samples.steps[lacking]
            own_series.hold(Samples(samples.times_ns[lacking], samples.values[lacking], steps))

    # -- batches ----------------------------------------------------------------------------------

    def _batch(self, rows: RunRows, *, is_last: bool) -> Batch:
        """Return the held points as a batch; a source may add series at any time."""
        series = list(self._series.values())
        points = {each.record.series_no: each.count for each in series}
        pieces = [
            Piece(each.record.series_no, each.stored, joined(each.held))
            for each in series
            if each.held
        ]
        rows = replace(rows, series=[each.record for each in series], points=points)
        return Batch(rows, Position(points), pieces, is_last=is_last)

    def _rows(self, facts: RunFacts) -> RunRows:
        """Return run, workload, parameters and tags."""
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
        digest = facts.digest or self._place.run.digest
        tags = {**facts.tags, IMPORTED: digest}
        return RunRows(record, workload, params=facts.params, tags=tags)

    # -- files ------------------------------------------------------------------------------------

    def _keep_or_name(self, media: Media, facts: RunFacts) -> None:
        """Put a file among the run's artifacts, or report why that is not possible."""
        try:
            self._keep(media)
        except OSError as error:
            if error.errno not in _OF_ONE_FILE:
                raise
            named = facts.left_out if error.errno == errno.ENOENT else facts.problems
            named.append(f"{self._place.run.where}: {media.shown}: {error.strerror}; left out")

    def _keep(self, media: Media) -> None:
        """Put a file among the run's artifacts, if the store is a file.

        Raises:
            OSError: The file cannot be read or written.
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
            with whole_file(path) as partial, partial.open("wb") as target:
                shutil.copyfileobj(stream, target)


def _below(folder: Path, path: str) -> Path:
    """Return a path that stays inside the folder, for any untrusted file name."""
    return folder.joinpath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))


def _points(samples: Samples, has_times: bool = True) -> list[tuple[int, int, int]]:
    """Return points as time, value (its bits) and step; a missing step is 0, as in MLflow."""
    values = np.where(np.isnan(samples.values), np.nan, samples.values) + 0.0
    steps = np.zeros(len(samples), dtype=np.int64) if samples.steps is None else samples.steps
    steps = np.where(steps == NO_STEP, 0, steps)
    bits = values.view(np.int64)
    times_ns = samples.times_ns if has_times else np.zeros_like(samples.times_ns)
    return list(zip(times_ns.tolist(), bits.tolist(), steps.tolist(), strict=True))
