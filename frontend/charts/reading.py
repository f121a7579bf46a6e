"""From the series of a line to its cells on the x axis of a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from radt.frontend.catalog import RunEntry
from radt.frontend.charts.axes import Axis
from radt.frontend.charts.cells import Cells, united
from radt.frontend.charts.lines import Feed
from radt.frontend.charts.spec import Window
from radt.frontend.charts.track import GAP_INTERVALS
from radt.frontend.charts.tracks import Ask
from radt.frontend.source import Source
from radt.store.records import GapRecord, SeriesRecord


def read(
    source: Source, feed: Feed, axis: Axis, gaps: Sequence[GapRecord], window: Window | None
) -> Cells:
    """The cells of a feed; around ``window`` every point, if there are not too many.

    Raises:
        StoreError: The store cannot be read; or a chunk is damaged.
    """
    parts = []
    longest = math.inf
    # What several runs saw of one device has the place that it has for the first of them.
    first = feed.parts[0][0]
    start, end = axis.asked(first, window)
    for run, record in feed.parts:
        ask = Ask(record, run.origin_ns, start, end, axis.by_step, run.pruned)
        cells = source.cells(ask, ended=run.record.status.ended)
        if holes := _holes(run, record, gaps):
            cells = cells.broken_at(holes)
        parts.append(axis.place(first, cells))
        if record.interval_s is not None and axis.is_time:
            longest = GAP_INTERVALS * record.interval_s
    return united(parts, longest)


def _holes(run: RunEntry, record: SeriesRecord, gaps: Sequence[GapRecord]) -> list[float]:
    """Seconds at which a recorded gap of this series begins."""
    return [
        (gap.start_ns - run.origin_ns) / 1e9
        for gap in gaps
        if gap.run_id == record.run_id
        and gap.listener == record.listener
        and gap.series_no in (-1, record.series_no)
    ]
