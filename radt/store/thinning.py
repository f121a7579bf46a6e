"""Select the points of a run to keep when only its summaries are kept.

Each series keeps a few hundred points and the headers that describe all of it: count, mean,
extremes, first and last value stay exact. So does the mean over the epochs in reports, because a
series is cut at their beginning and end. The kept points are real points and include peaks
(`radt.store.cells.kept`). For a counter, both sides of every fall are kept, so that its total
increase stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from radt.model import MarkerKind, SeriesKind
from radt.store import chunks
from radt.store.cells import kept_places
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, Samples, SeriesRecord
from radt.store.summaries import Summary, joined, summarised, to_header
from radt.store.tables import Value

#: Approximate number of points kept of a series: enough for a chart on a page of many.
KEPT_POINTS = 240
#: Maximum number of falls of a counter whose two sides are kept.
_MAX_FALLS = 1000
#: Points in memory at a time.
_PAGE_POINTS = 1_000_000

Row = dict[str, Value]


@dataclass(slots=True)
class _Stretch:
    """Part of a series: the summary of all its points, and candidate points to keep."""

    summary: Summary
    parts: list[Samples]


@dataclass(frozen=True, slots=True)
class ThinnedRun:
    """Result of thinning; ``rows`` replace all of a run's chunks."""

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
    """Return the times to cut series at: start and end of all epochs but the first."""
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
    # A point exactly at the end of an epoch belongs to it.
    return sorted({counted[0].start_ns, end_ns + 1})


def _thin_series(
    reader: StoreReader, series: SeriesRecord, cuts_ns: Sequence[int]
) -> Iterator[Row]:
    counter = series.kind is SeriesKind.COUNTER
    stretches: dict[int, _Stretch] = {}
    for page in reader.pages(series, _PAGE_POINTS):
        places = np.searchsorted(np.asarray(cuts_ns, dtype=np.int64), page.times_ns, side="right")
        for place in np.unique(places).tolist():
            part = page[places == place]
            summary: Summary = summarised(series, part)
            stretch = stretches.setdefault(place, _Stretch(summary, []))
            if stretch.parts:
                stretch.summary = joined(stretch.summary, summary, series)
            # Keeps more points per page than in the end, so that the final selection treats all
            # pages alike.
            stretch.parts.append(_thinned(chunks.time_sorted(part), 4 * KEPT_POINTS, counter))
    points = sum(stretch.summary.count for stretch in stretches.values())
    for number, place in enumerate(sorted(stretches)):
        stretch = stretches[place]
        samples = chunks.time_sorted(chunks.joined(stretch.parts))
        count = stretch.summary.count
        share = KEPT_POINTS * count / points
        kept = samples if points <= KEPT_POINTS else _thinned(samples, math.ceil(share), counter)
        header = to_header(stretch.summary)
        row = chunks.thinned_row(series.run_id, series.series_no, number, kept, header)
        if len(kept) == count:
            row["kept_count"] = None
        yield row


def _thinned(samples: Samples, max_points: int, counter: bool) -> Samples:
    """Return the points to keep; the given points are in time order."""
    chosen = kept_places(samples.values, max_points)
    if counter:
        # Both sides of each reset.
        readings = np.flatnonzero(np.isfinite(samples.values))
        fell = np.flatnonzero(np.diff(samples.values[readings]) < 0)[:_MAX_FALLS]
        chosen = np.union1d(chosen, np.union1d(readings[fell], readings[fell + 1]))
    return samples[chosen]


def _integer(value: Value) -> int:
    assert isinstance(value, int)
    return value
