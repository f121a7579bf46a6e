"""Select the points to keep of a run when only its summaries are kept.

Each series keeps a few hundred points and the headers that describe all of it: count, mean,
extremes, first and last value stay exact. So does the mean over the epochs in reports, because a
series is cut at their beginnings and ends. The kept points are real and include peaks
(`radt.store.overview`). For a counter, both sides of every fall are kept, so that its total
increase stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from radt.model import MarkerKind, SeriesKind
from radt.store import chunks
from radt.store.overview import envelope_indices
from radt.store.reader import StoreReader
from radt.store.records import Int64Array, MarkerRecord, Samples, SeriesRecord
from radt.store.tables import Value

#: Approximate number of points kept of a series: enough for a chart on a page of many.
KEPT_POINTS = 240
#: Maximum number of falls of a counter whose two sides are kept.
_MAX_FALLS = 1000
#: Points in memory at a time.
_PAGE_POINTS = 1_000_000

Row = dict[str, Value]


@dataclass(slots=True)
class _Header:
    """Header of all points of a stretch, accumulated page by page."""

    point_count: int = 0
    finite_count: int = 0
    first_ns: int = 0
    last_ns: int = 0
    first_value: float | None = None
    last_value: float | None = None
    value_min: float | None = None
    value_max: float | None = None
    value_sum: float | None = None

    def add(self, row: Row) -> None:
        """Add the header (as in `chunks`) of later points of the stretch."""
        first_ns, last_ns = _integer(row["first_ns"]), _integer(row["last_ns"])
        if not self.point_count or first_ns < self.first_ns:
            self.first_ns, self.first_value = first_ns, _number(row["first_value"])
        if not self.point_count or last_ns >= self.last_ns:
            self.last_ns, self.last_value = last_ns, _number(row["last_value"])
        self.point_count += _integer(row["point_count"])
        self.finite_count += _integer(row["finite_count"])
        self.value_min = _of(min, self.value_min, _number(row["value_min"]))
        self.value_max = _of(max, self.value_max, _number(row["value_max"]))
        self.value_sum = _of(_sum, self.value_sum, _number(row["value_sum"]))

    def columns(self) -> Row:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Stretch:
    """Part of a series: the header of all its points, and the points that may be kept."""

    header: _Header
    parts: list[Samples]


@dataclass(frozen=True, slots=True)
class ThinnedRun:
    """``rows`` replace all of a run's chunks."""

    rows: Sequence[Row]
    point_count: int
    kept_count: int


def thin_run(reader: StoreReader, run_id: str) -> ThinnedRun:
    """Read a run and select the points to keep, without writing.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    cuts_ns = _cuts(reader.markers([run_id]))
    rows: list[Row] = []
    total = 0
    for series in reader.series([run_id]):
        made = list(_thin_series(reader, series, cuts_ns))
        rows += made
        total += sum(_integer(row["point_count"]) for row in made)
    kept = sum(
        _integer(row["point_count"] if row["kept_count"] is None else row["kept_count"])
        for row in rows
    )
    return ThinnedRun(rows, total, kept)


def _cuts(markers: Sequence[MarkerRecord]) -> Sequence[int]:
    """Return the times to cut series at: begin and end of the counted epochs, all but the first."""
    epochs = [
        marker
        for marker in markers
        if marker.kind is MarkerKind.EPOCH and marker.end_ns is not None and not marker.process
    ]
    counted = epochs[1:] or epochs
    if not counted:
        return ()
    end_ns = counted[-1].end_ns
    assert end_ns is not None
    # A point at the very end of an epoch belongs to it.
    return sorted({counted[0].start_ns, end_ns + 1})


def _thin_series(
    reader: StoreReader, series: SeriesRecord, cuts_ns: Sequence[int]
) -> Iterator[Row]:
    counter = series.kind is SeriesKind.COUNTER
    stretches: dict[int, _Stretch] = {}
    for page in _pages(reader, series):
        places = np.searchsorted(np.asarray(cuts_ns, dtype=np.int64), page.times_ns, side="right")
        for place in np.unique(places).tolist():
            part = _taken(page, np.flatnonzero(places == place))
            stretch = stretches.setdefault(place, _Stretch(_Header(), []))
            stretch.header.add(chunks.header_of(part))
            # Keeps more points per page than in the end, so that the final choice treats pages
            # alike.
            stretch.parts.append(_thinned(chunks.time_sorted(part), 4 * KEPT_POINTS, counter))
    points = sum(stretch.header.point_count for stretch in stretches.values())
    for number, place in enumerate(sorted(stretches)):
        stretch = stretches[place]
        samples = chunks.time_sorted(chunks.joined(stretch.parts))
        share = KEPT_POINTS * stretch.header.point_count / points
        kept = samples if points <= KEPT_POINTS else _thinned(samples, math.ceil(share), counter)
        header = stretch.header.columns()
        row = chunks.thinned_row(series.run_id, series.series_no, number, kept, header)
        if len(kept) == stretch.header.point_count:
            row["kept_count"] = None
        yield row


def _pages(reader: StoreReader, series: SeriesRecord) -> Iterator[Samples]:
    """Yield all points in the order of writing."""
    done = 0
    while len(page := reader.points_after(series.run_id, series.series_no, done, _PAGE_POINTS)):
        yield page
        done += len(page)


def _thinned(samples: Samples, max_points: int, counter: bool) -> Samples:
    """Return the points to keep; the given points are in time order."""
    chosen = envelope_indices(samples, max_points)
    if len(chosen) == len(samples):
        return samples
    if counter:
        chosen = np.union1d(chosen, _falls(samples))
    return _taken(samples, chosen)


def _falls(samples: Samples) -> Int64Array:
    """Return the indices of both sides of each reset of a counter."""
    readings = np.flatnonzero(np.isfinite(samples.values))
    fell = np.flatnonzero(np.diff(samples.values[readings]) < 0)[:_MAX_FALLS]
    return np.union1d(readings[fell], readings[fell + 1])


def _taken(samples: Samples, chosen: Int64Array) -> Samples:
    if len(chosen) == len(samples):
        return samples
    steps = samples.steps
    return Samples(
        samples.times_ns[chosen], samples.values[chosen], None if steps is None else steps[chosen]
    )


def _sum(left: float, right: float) -> float:
    """Return the sum, infinite on overflow as in `chunks`; never NaN."""
    total = left + right
    return total if math.isfinite(total) else math.inf


def _of(
    choose: Callable[[float, float], float], left: float | None, right: float | None
) -> float | None:
    if left is None or right is None:
        return right if left is None else left
    return choose(left, right)


def _integer(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _number(value: Value) -> float | None:
    assert value is None or isinstance(value, float | int)
    return value
