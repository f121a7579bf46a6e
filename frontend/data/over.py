"""Charts over another metric: loss over energy, accuracy over loss.

A point of such a chart is two recorded values of the same run. Each value of the shorter series is
paired with the value of the other series that was recorded nearest to it in time, unless there is a
gap (`radt.analysis.lines.paired`). A counter, such as energy, counts by its growth since the run's
first reading. Nothing is interpolated, except where runs become one line (workloads, groups) or a
line is smoothed: these values are computed as over time.

Points are joined in the order of x, so that a line never turns back even if the other metric does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from radt.analysis.lines import digest, paired
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.lines import SeriesGroup
from radt.frontend.data.metrics import quantity_of
from radt.frontend.data.series_cache import Ask
from radt.model import SeriesKind
from radt.store.cells import GAP_INTERVALS, NO_CELLS, Cells, of_points
from radt.store.counters import increases
from radt.store.reader import StoreReader
from radt.store.records import SeriesRecord

#: Above this number of pairs, only a digest is kept.
MAX_PAIRS = 500_000


class OtherMetric:
    """The metric of a chart's x axis. ``series`` are all of its series, ``runs`` those drawn.

    ``unit`` is that of x.
    """

    def __init__(
        self, source: CachedStore, runs: Mapping[str, RunEntry], series: Sequence[SeriesRecord]
    ) -> None:
        self._source, self._runs = source, runs
        self._of_run: dict[str, list[SeriesRecord]] = {}
        for record in series:
            self._of_run.setdefault(record.run_id, []).append(record)
        self.is_counter = any(record.kind is SeriesKind.COUNTER for record in series)
        quantity = quantity_of(series)
        self.unit = quantity.unit if self.is_counter else quantity.drawn_unit
        self._without: dict[str, None] = {}
        self._one_of_several: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on omissions and choices for the lines placed so far."""
        return (
            *(f"{name} has no values for the x axis" for name in self._without),
            *(f"{name} for the x axis, of several devices" for name in self._one_of_several),
        )

    def place(self, group: SeriesGroup, cells: Cells) -> Cells:
        """Return the values of a line, given over seconds, over the values of this metric.

        Raises:
            StoreError: The store cannot be read, or a chunk is damaged.
        """
        record = self._beside(group)
        if record is None:
            self._without[group.short] = None
            return NO_CELLS
        intervals = [one.interval_s for one in (record, group.parts[0][1]) if one.interval_s]
        farthest_s = GAP_INTERVALS * max(intervals, default=math.inf)
        points = paired(cells, self._cells(record), farthest_s)
        return digest(points) if len(points) > MAX_PAIRS else points

    def _beside(self, group: SeriesGroup) -> SeriesRecord | None:
        """Return the series of the same run: of the same device, or else the total."""
        for run, drawn in group.parts:
            known = self._of_run.get(run.run_id, ())
            there = drawn.entity_there
            same = [one for one in known if one.entity_there == there]
            whole = [one for one in known if not one.entity_there]
            for found in (same, whole, known):
                if found:
                    if found is known and len(known) > 1:
                        self._one_of_several[f"{run.short}: {known[0].entity_there}"] = None
                    return found[0]
        return None

    def _cells(self, record: SeriesRecord) -> Cells:
        run = self._runs[record.run_id]
        if record.kind is SeriesKind.COUNTER:
            key = ("growth", record, run.pruned)
            return self._source.remember(key, lambda reader: _growth(reader, record, run.origin_ns))
        ask = Ask(record, run.origin_ns, every_point=True, variant=run.pruned)
        return self._source.cells(ask, ended=run.record.status.ended, revision=run.revision)


def _growth(reader: StoreReader, record: SeriesRecord, base_ns: int) -> Cells:
    """Return the growth of a counter since its first reading, at each reading."""
    samples = reader.samples(record.run_id, record.series_no)
    grown = increases(samples.times_ns, samples.values, record.wraps_at)
    times_ns = np.concatenate((grown.start_ns[:1], grown.end_ns))
    total = np.concatenate((np.zeros(len(grown.start_ns[:1])), np.cumsum(grown.amounts)))
    return of_points((times_ns - base_ns) / 1e9, total)
