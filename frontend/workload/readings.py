"""Readings of series over the time since a workload's barrier, with their gaps, and on a grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radt.frontend.catalog import RunEntry
from radt.frontend.charts.spec import Window
from radt.frontend.source import Source, Stretch
from radt.store.reader import StoreReader
from radt.store.records import Float64Array, GapRecord, SeriesRecord, SummaryRecord

BoolArray = npt.NDArray[np.bool_]
SeriesKey = tuple[str, int]
Summaries = Mapping[SeriesKey, SummaryRecord]
#: A pause longer than this many intervals is a gap, not jitter; as in all charts.
GAP_INTERVALS = 3.5
#: Of longer stretches extremes are read instead of every point.
_MAX_POINTS = 400_000
_ENVELOPE_POINTS = 4_000
_SAME_INSTANT_S = 1e-6


@dataclass(frozen=True, slots=True)
class Readings:
    """Points in time order: seconds since the barrier (N,), values (N,); NaN is a gap.

    ``interval_s`` is None for what is read now and then.
    """

    at_s: Float64Array
    values: Float64Array
    interval_s: float | None = None

    @property
    def known_s(self) -> Float64Array:
        """When there was a value."""
        found: Float64Array = self.at_s[np.isfinite(self.values)]
        return found


def summaries_of(source: Source, run_ids: tuple[str, ...]) -> Summaries:
    """What is known of each series without reading it.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> Summaries:
        return {(s.series.run_id, s.series.series_no): s for s in reader.summary(run_ids)}

    return source.remember(("workload-summaries", run_ids), read)


def read(
    source: Source,
    run: RunEntry,
    record: SeriesRecord,
    summary: SummaryRecord | None,
    gaps: Iterable[GapRecord],
    *,
    origin_ns: int,
    window: Window | None,
) -> Readings | None:
    """One series, in a window or whole, broken where it has gaps; None without any value.

    Raises:
        StoreError: The store cannot be read.
    """
    if summary is None:
        return None
    stretch = _stretch(record, summary, origin_ns, window)
    samples = source.samples(stretch, ended=run.record.status.ended)
    if not len(samples):
        return None
    found = Readings((samples.times_ns - origin_ns) / 1e9, samples.values, record.interval_s)
    holes_s = [
        (gap.start_ns - origin_ns) / 1e9
        for gap in gaps
        if gap.run_id == record.run_id
        and gap.listener == record.listener
        and gap.series_no in (-1, record.series_no)
    ]
    thinned_s = 0.0
    if stretch.max_points is not None:
        # Of each part two points are kept; only a pause much wider than one is surely empty.
        thinned_s = 6 * float(found.at_s[-1] - found.at_s[0]) / stretch.max_points
    return broken(found, holes_s, thinned_s)


def _stretch(
    record: SeriesRecord, summary: SummaryRecord, origin_ns: int, window: Window | None
) -> Stretch:
    expected = float(summary.count)
    start_ns = end_ns = None
    if window is not None:
        span_s = max((summary.last_ns - summary.first_ns) / 1e9, 1e-9)
        # A little more than is seen, so that lines run to the edges.
        margin_s = max(4 * (record.interval_s or 0.0), 0.05 * (window.end - window.start))
        start_ns = origin_ns + round((window.start - margin_s) * 1e9)
        end_ns = origin_ns + round((window.end + margin_s) * 1e9)
        expected *= (window.end - window.start + 2 * margin_s) / span_s
    max_points = None if expected <= _MAX_POINTS else _ENVELOPE_POINTS
    return Stretch(record, start_ns, end_ns, max_points)


def broken(found: Readings, holes_s: Sequence[float], thinned_s: float = 0.0) -> Readings:
    """With a NaN in long pauses and in recorded gaps, which begin at ``holes_s``."""
    at_s = found.at_s
    if len(at_s) < 2:
        return found
    breaks: BoolArray = np.zeros(len(at_s) - 1, dtype=bool)
    if found.interval_s is not None:
        breaks |= np.diff(at_s) > max(GAP_INTERVALS * found.interval_s, thinned_s)
    for hole_s in holes_s:
        # The reading at which the gap was noticed may carry the gap's own time.
        place = int(np.searchsorted(at_s, hole_s, "right")) - 1
        if 0 <= place < len(breaks):
            breaks[place] = True
    where = np.flatnonzero(breaks) + 1
    if not len(where):
        return found
    middles = (at_s[where - 1] + at_s[where]) / 2
    return Readings(
        np.insert(at_s, where, middles), np.insert(found.values, where, np.nan), found.interval_s
    )


def united(several: Sequence[Readings]) -> Readings:
    """What several runs have read of the same device as one; equal instants count once."""
    if len(several) == 1:
        return several[0]
    at_s = np.concatenate([one.at_s for one in several])
    values = np.concatenate([one.values for one in several])
    # Where one of them has no value another may have one: a gap is where all have none.
    known = np.isfinite(values)
    at_s, values = at_s[known], values[known]
    order = np.argsort(at_s, kind="stable")
    at_s, values = at_s[order], values[order]
    first = np.diff(at_s, prepend=-np.inf) > _SAME_INSTANT_S
    intervals = [one.interval_s for one in several if one.interval_s is not None]
    merged = Readings(at_s[first], values[first], max(intervals, default=None))
    return broken(merged, [])


def added(several: Sequence[Readings]) -> Readings:
    """Several series of one run, such as of its MIG instances, at the instants of the first."""
    first = several[0]
    values = first.values.copy()
    for other in several[1:]:
        values += np.interp(first.at_s, other.at_s, other.values, left=0.0, right=0.0)
    return Readings(first.at_s, values, first.interval_s)


def on_cells(found: Readings, edges_s: Float64Array) -> Float64Array:
    """Means of the cells between the edges (M,); between readings straight lines; NaN in gaps,
    before the first reading and after the last one."""
    count = len(edges_s) - 1
    middle_s = (edges_s[:-1] + edges_s[1:]) / 2
    known = np.isfinite(found.values)
    at_s, values = found.at_s[known], found.values[known]
    if not len(at_s):
        return np.full(count, np.nan)
    cell = np.searchsorted(edges_s, at_s, "right") - 1
    inside = (cell >= 0) & (cell < count)
    hits = np.bincount(cell[inside], minlength=count)
    with np.errstate(invalid="ignore"):
        middle: Float64Array = (
            np.bincount(cell[inside], weights=values[inside], minlength=count) / hits
        )
    empty = hits == 0
    middle[empty] = np.interp(middle_s, at_s, values, left=np.nan, right=np.nan)[empty]
    for place in np.flatnonzero(~known):
        if 0 < place < len(known) - 1:
            within = (middle_s > found.at_s[place - 1]) & (middle_s < found.at_s[place + 1])
            middle[within & empty] = np.nan
    return middle
