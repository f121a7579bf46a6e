"""The server's time for a chart: from the store to the figure's JSON, without a browser."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.dashboard import stores
from benchmarks.dashboard.stores import EXPERIMENT, Size
from benchmarks.results import Bar, Findings, Table
from radt.frontend.charts.timeseries import Look, figure
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.chart_data import chart_data
from radt.frontend.data.spec import AxisRange, BoardSpec, ChartSpec, Level, Pick
from radt.frontend.pages.compare import facts_answer, figure_answer
from radt.frontend.selection import SelectedRuns, read_selection
from radt.frontend.view import View

# Half of the limit from click to painted: the browser needs the other half.
MOST_WIDE_S, MOST_LONG_S, MOST_ZOOM_S = 0.25, 0.5, 0.075
#: A row of small charts comes into view at once.
MOST_SMALL_S, SMALL_RUNS = 0.2, 8
_REPEAT = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One chart: its settings, and its visible part (shares of the whole)."""

    name: str
    spec: ChartSpec
    part: tuple[float, float] | None = None


def measure(folder: Path, size: Size) -> Findings:
    """Measure wide runs and a long series, each read for the first time and again."""
    found = Findings()
    wide, long = folder / "wide" / "radt.db", folder / "long" / "radt.db"
    metric = stores.METRIC
    table = _table(f"{size.wide_runs} runs × {size.points:,} points")
    for case in (
        Case("runs", ChartSpec(metric, level=Level.RUN)),
        Case("workloads, mean and band", ChartSpec(metric, level=Level.WORKLOAD)),
        Case("runs, smoothed", ChartSpec(metric, level=Level.RUN, smoothing_pct=5)),
        Case("runs, a tenth", ChartSpec(metric, level=Level.RUN), (0.4, 0.5)),
        Case("runs, a hundredth", ChartSpec(metric, level=Level.RUN), (0.40, 0.41)),
    ):
        first_s = _row(table, wide, case)
        if case.part is None and case.spec.smoothing_pct is None:
            promise = f"{table.title}, {case.name}: 250 ms on the server"
            found.bars.append(_bar(promise, first_s, MOST_WIDE_S))
    found.tables.append(table)
    found.tables.append(_table_long(found, long, size))
    found.tables.append(_small(found, wide))
    found.tables.append(_growth(folder / "live" / "radt.db"))
    return found


def _table_long(found: Findings, long: Path, size: Size) -> Table:
    table = _table(f"One series of {size.long_points:,} points")
    spec = ChartSpec(stores.LONG_METRIC, level=Level.RUN)
    first_s = _row(table, long, Case("all of it", spec))
    promise = f"{size.long_points / 1e6:g} M points: 500 ms on the server"
    found.bars.append(_bar(promise, first_s, MOST_LONG_S))
    at = size.spike_at / size.long_points
    for share, name in ((0.25, "a quarter"), (0.1, "a tenth"), (0.01, "a hundredth")):
        case = Case(name, spec, (at - share / 2, at + share / 2))
        warm_s = _zoomed_s(long, case)
        _row(table, long, case)
        promise = f"  zoom to {name}: 75 ms on the server"
        found.bars.append(_bar(promise, warm_s, MOST_ZOOM_S))
    seen = all(_shows_spike(long, spec, at, 4.0**-zoom) for zoom in range(10))
    found.bars.append(Bar("one spike seen at ten zooms", "seen" if seen else "LOST", seen))
    return table


def _small(found: Findings, wide: Path) -> Table:
    """Return the time of the small charts of all metrics of a few runs, as they come into view."""
    source = CachedStore(wide)
    picks = [Pick.run(EXPERIMENT, run_id) for run_id in list(_selection(source).runs)[:SMALL_RUNS]]
    view = {"picks": [str(pick) for pick in picks]}
    facts = facts_answer(source, {"view": view})
    assert facts is not None
    metrics = [one["metric"] for one in facts["facts"]["metrics"]]
    table = _table(f"Small charts of {len(metrics)} metrics of {len(picks)} runs, each")
    cells = []
    for _ in range(2):
        start = time.perf_counter()
        length = 0
        for metric in metrics:
            asked = {"view": {**view, "charts": [{"metric": metric}]}, "small": True}
            answer = figure_answer(source, {**asked, "width_px": 300, "height_px": 200})
            length += len(json.dumps(answer, separators=(",", ":")))
        cells.append((time.perf_counter() - start) / len(metrics))
    source.close()
    first_s, again_s = cells
    sizes = (
        f"{first_s * 1e3:,.0f}",
        f"{again_s * 1e3:,.0f}",
        f"{length / len(metrics) / 1e3:,.0f}",
    )
    table.rows.append(("", *sizes))
    found.bars.append(_bar("a small chart of 8 runs: 200 ms on the server", first_s, MOST_SMALL_S))
    return table


def _table(title: str) -> Table:
    return Table(title, ("", "first, ms", "again, ms", "JSON, KB"))


def _row(table: Table, path: Path, case: Case) -> float:
    """Add a row with the first time, read by a new source, and the next; return the first."""
    firsts, agains, length = [], [], 0
    for _ in range(_REPEAT):
        source = CachedStore(path)
        selection = _selection(source)
        window = _window(source, selection, case)
        fresh = CachedStore(path)
        selection = _selection(fresh)
        duration_s, length = _drawn(fresh, selection, case.spec, window)
        firsts.append(duration_s)
        agains.append(_drawn(fresh, selection, case.spec, window)[0])
        source.close()
        fresh.close()
    first_s, again_s = statistics.median(firsts), statistics.median(agains)
    cells = (f"{first_s * 1e3:,.0f}", f"{again_s * 1e3:,.0f}", f"{length / 1e3:,.0f}")
    table.rows.append((case.name, *cells))
    return first_s


def _zoomed_s(path: Path, case: Case) -> float:
    """Return the time of a zoom into a shown chart."""

    def once() -> float:
        source = CachedStore(path)
        selection = _selection(source)
        window = _window(source, selection, case)
        duration_s, _ = _drawn(source, selection, case.spec, window)
        source.close()
        return duration_s

    return statistics.median(once() for _ in range(_REPEAT))


def _growth(live: Path) -> Table:
    """Return the times of updates with a new point in each run, an open page's cost per second."""
    title = "A new point in each of the runs, which go on"
    table = Table(title, ("", "chart again, ms"))
    source = CachedStore(live)
    selection = _selection(source)
    run_ids = list(selection.runs)
    for level in (Level.RUN, Level.WORKLOAD):
        spec = ChartSpec(stores.METRIC, level=level)
        _drawn(source, selection, spec, None)
        times = []
        for _ in range(_REPEAT):
            stores.grow(live, run_ids)
            known = source.revision()
            while source.revision() == known:  # it polls less often after expensive reads
                time.sleep(0.02)
            times.append(_drawn(source, selection, spec, None)[0])
        table.rows.append((f"{level}s", f"{statistics.median(times) * 1e3:,.0f}"))
    source.close()
    return table


def _selection(source: CachedStore) -> SelectedRuns:
    source.revision()
    return read_selection(source, View(picks=(Pick(stores.EXPERIMENT),)))


def _window(source: CachedStore, selection: SelectedRuns, case: Case) -> AxisRange | None:
    """Return the case's window; the whole chart is drawn first, as before a user's zoom."""
    if case.part is None:
        return None
    data = chart_data(source, selection, case.spec, BoardSpec(), None)
    assert data is not None
    end = data.window.end
    return AxisRange(case.part[0] * end, case.part[1] * end)


def _drawn(
    source: CachedStore, selection: SelectedRuns, spec: ChartSpec, window: AxisRange | None
) -> tuple[float, int]:
    """Return the seconds until the figure's JSON is complete, and its length."""
    start = time.perf_counter()
    data = chart_data(source, selection, spec, BoardSpec(), window)
    assert data is not None
    length = len(json.dumps(figure(data, Look()), separators=(",", ":")))
    return time.perf_counter() - start, length


def _shows_spike(path: Path, spec: ChartSpec, at: float, share: float) -> bool:
    source = CachedStore(path)
    selection = _selection(source)
    window = _window(source, selection, Case("", spec, (at - share / 3, at + share / 3)))
    data = chart_data(source, selection, spec, BoardSpec(), window)
    source.close()
    assert data is not None
    line = data.lines[0]
    return bool(np.nanmax(line.curve.values if line.high is None else line.high) == stores.SPIKE)


def _bar(promise: str, measured_s: float, most_s: float) -> Bar:
    return Bar(promise, f"{measured_s * 1e3:,.0f} ms", measured_s <= most_s)
