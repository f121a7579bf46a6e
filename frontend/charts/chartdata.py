"""Everything one chart needs, read from the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from radt.frontend.catalog import RunEntry
from radt.frontend.charts.aggregate import workload_lines
from radt.frontend.charts.lines import EMPTY, Feed, Line, SeriesKey, feeds, lines
from radt.frontend.charts.quantity import Quantity
from radt.frontend.charts.spec import Aggregate, BoardSpec, ChartSpec, Level, Window, XAxis
from radt.frontend.charts.traces import Tick
from radt.frontend.chosen import Chosen
from radt.frontend.metrics import quantity_of, series_of
from radt.frontend.source import Source
from radt.model import SOFTWARE, MarkerKind
from radt.store.reader import StoreReader
from radt.store.records import SummaryRecord
from radt.units import duration

_SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True)
class ChartData:
    """All that a chart shows.

    ``x`` and ``level`` are what was decided for ``spec``; ``level`` is AUTO where there are lines
    of runs and of workloads; ``aggregate`` is how the latter came about, None where there is none.
    ``window`` is the visible part of the x axis, also when nobody zoomed. ``notes`` say in words
    what is not as one would expect.
    """

    quantity: Quantity
    spec: ChartSpec
    x: XAxis
    level: Level
    aggregate: Aggregate | None
    lines: Sequence[Line]
    ticks: Sequence[Tick]
    window: Window
    notes: tuple[str, ...] = ()


def axes_of(source: Source, chosen: Chosen, metric: str) -> tuple[XAxis, ...]:
    """The x axes that make sense for a metric of the chosen runs: times always, steps and epochs
    where there are any.

    Raises:
        StoreError: The store cannot be read.
    """
    found = [XAxis.BARRIER, XAxis.START, XAxis.WALL]
    if any(
        one.listener == SOFTWARE for one in series_of(source, tuple(chosen.runs)).get(metric, ())
    ):
        found.append(XAxis.STEP)
    if epochs(source, chosen.runs):
        found.append(XAxis.EPOCH)
    return tuple(found)


def chart_data(
    source: Source, chosen: Chosen, spec: ChartSpec, board: BoardSpec, window: Window | None
) -> ChartData | None:
    """What a chart shows of the chosen runs; None if none of them has the metric.

    ``window`` is the visible part of the chart's x axis, None for all.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = chosen.runs
    run_ids = tuple(runs)
    series = series_of(source, run_ids).get(spec.metric)
    if not series:
        return None
    quantity = quantity_of(series)
    aggregate = spec.aggregate
    if aggregate is Aggregate.AUTO:
        aggregate = quantity.default_aggregate
    together = chosen.drawn_at(spec.level_of(board))
    single: list[Feed] = []
    whole: list[Feed] = []
    for feed in feeds(runs, series):
        (whole if together[feed.parts[0][0].run_id] else single).append(feed)
    summaries = _summaries(source, run_ids)
    gaps = source.remember(("gaps", run_ids), lambda reader: reader.gaps(run_ids))
    drawn = (
        *lines(source, single, summaries, gaps, window),
        *workload_lines(source, whole, aggregate, window),
    )
    drawn = tuple(
        replace(line, hidden=True, curve=EMPTY, low=None, high=None, partial=None)
        if line.key in spec.hidden
        else line
        for line in drawn
    )
    ticks = () if whole else epochs(source, runs)
    return ChartData(
        quantity=quantity,
        spec=spec,
        x=XAxis.BARRIER,
        level=Level.AUTO if whole and single else Level.WORKLOAD if whole else Level.RUN,
        aggregate=aggregate if whole else None,
        lines=drawn,
        ticks=ticks,
        window=window or whole_window(runs, summaries.values()),
    )


def whole_window(runs: Mapping[str, RunEntry], summaries: Iterable[SummaryRecord]) -> Window:
    """From the start to the end of the run that took longest, or to its newest sample."""
    end_ns = {run_id: run.record.ended_ns or 0 for run_id, run in runs.items()}
    for summary in summaries:
        run_id = summary.series.run_id
        if runs[run_id].record.ended_ns is None:
            end_ns[run_id] = max(end_ns[run_id], summary.last_ns)
    longest_s = max(((end_ns[run_id] - run.origin_ns) / 1e9 for run_id, run in runs.items()))
    return Window(0.0, max(longest_s, _SHORTEST_S))


def _summaries(source: Source, run_ids: tuple[str, ...]) -> Mapping[SeriesKey, SummaryRecord]:
    def read(reader: StoreReader) -> Mapping[SeriesKey, SummaryRecord]:
        return {(s.series.run_id, s.series.series_no): s for s in reader.summary(run_ids)}

    return source.remember(("summaries", run_ids), read)


def epochs(source: Source, runs: Mapping[str, RunEntry]) -> Sequence[Tick]:
    """Where the epochs of the runs begin."""
    run_ids = tuple(runs)
    markers = source.remember(("markers", run_ids), lambda reader: reader.markers(run_ids))
    begins = [m for m in markers if m.kind is MarkerKind.EPOCH and not m.process]
    having = {marker.run_id for marker in begins}
    rows = {run_id: row for row, run_id in enumerate(r for r in run_ids if r in having)}
    ticks = []
    for marker in begins:
        run = runs[marker.run_id]
        number = marker.step if marker.step is not None else marker.name
        took = ""
        if marker.end_ns is not None:
            took = f" · {duration((marker.end_ns - marker.start_ns) / 1e9)}"
        ticks.append(
            Tick(
                rows[marker.run_id],
                run.ordinal,
                (marker.start_ns - run.origin_ns) / 1e9,
                f"{run.short} · epoch {number}{took}",
            )
        )
    return ticks
