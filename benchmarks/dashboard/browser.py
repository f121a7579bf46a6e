"""Time from a click to the painted chart in headless Chromium, and the server's memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, Page

from benchmarks.dashboard import stores
from benchmarks.dashboard.stores import EXPERIMENT, Size
from benchmarks.dashboard.visiting import (
    CHROMIUM,
    chromium,
    has_chromium,
    median_and_worst,
    new_page,
    opened_s,
    painted_s,
    served,
    wait_for,
    watch,
    watch_opening,
)
from benchmarks.results import Bar, Findings, Table
from radt.frontend.data.spec import BoardSpec, ChartSpec, Level, Pick
from radt.frontend.view import View

MOST_PAGE_S, MOST_WIDE_S, MOST_LONG_S, MOST_ZOOM_S = 1.0, 0.5, 1.0, 0.15
MOST_SERVER_BYTES = 400e6
_REPEAT, _PAGES = 7, 10
#: The share of the visible range that each zoom shows; seven zooms lead to single points of 10 M.
_ZOOM_SHARE, _ZOOMS = 0.2, 7

_ROW = ".runs-body .runs-row:not([data-loading])"
_GRAPH = ".card[data-metric='{}'] .js-plotly-plot"


def measure(folder: Path, size: Size) -> Findings:
    """Measure start page, first charts, zoom and memory; nothing without a browser."""
    found = Findings()
    if not has_chromium():
        found.tables.append(Table(f"Not measured: there is no {CHROMIUM}", ("in the browser",)))
        return found
    start_page(found, folder / "many" / "radt.db", size.runs)
    _wide(found, folder / "wide" / "radt.db", size)
    _long(found, folder / "long" / "radt.db", size)
    return found


def click_to_painted(page: Page, metric: str) -> float:
    """Add a chart from the list of metrics; return the seconds until its first line is painted."""
    page.click("#compare-add")
    entry = page.locator(f".metric-row input[data-focus='{metric}']")
    entry.scroll_into_view_if_needed()
    watch(page)
    entry.click()
    duration_s = painted_s(page, drawn(_GRAPH.format(metric)))
    page.keyboard.press("Escape")
    return math.inf if duration_s is None else duration_s


def drawn(graph: str) -> str:
    """Return a JavaScript expression that finds a graph's line path."""
    return f'document.querySelector("{graph} .scatterlayer path.js-line[d]")'


def highest(page: Page, graph: str) -> float:
    """Return the highest value that Plotly draws in a graph."""
    # Plotly gets long arrays as {dtype, bdata}; the decoded arrays are in `_fullData`.
    found = page.evaluate(
        """(one) => document.querySelector(one)._fullData
            .flatMap(({ y }) => Array.from(y || []))
            .reduce((most, y) => (y > most ? y : most), -Infinity)""",
        graph,
    )
    return -math.inf if found is None else float(found)


def start_page(found: Findings, store: Path, runs: int) -> None:
    """Measure the server's first page, browsers with an empty cache, and a returning browser."""
    table = _table(f"Start page with {runs:,} runs, ms from navigation to painted rows")
    with served(store) as server, chromium() as browser:
        firsts = _visits(browser, server.url, 1)
        new = [one for _ in range(_REPEAT) for one in _visits(browser, server.url, 1)]
        again = _visits(browser, server.url, 1 + _REPEAT)[1:]
    for name, times in (
        ("a server's first page", firsts),
        ("a browser with an empty cache", new),
        ("a browser that was there before", again),
    ):
        table.rows.append((name, *median_and_worst(times)))
    found.tables.append(table)
    found.bars.append(_bar(f"{runs:,} runs: start page in 1 s, empty cache", new, MOST_PAGE_S))


def _visits(browser: Browser, url: str, count: int) -> list[float]:
    with new_page(browser) as page:
        watch_opening(page, _ROW)
        return [opened_s(page, url) for _ in range(count)]


def _wide(found: Findings, store: Path, size: Size) -> None:
    """Measure first charts of metrics that were not read before, and ten pages at once."""
    what = f"{size.wide_runs} runs × {size.points:,} points"
    table = _table(f"{what}, ms from click to painted chart")
    others = [f"process.metric{number:02}" for number in range(1, size.wide_series)]
    with served(store) as server, chromium() as browser:
        names = {"one line a run": Level.RUN, "one line a workload": Level.WORKLOAD}
        for (name, level), metrics in zip(
            names.items(), (others[0::2][:_REPEAT], others[1::2][:_REPEAT]), strict=True
        ):
            address = _compare(server.url, level)
            # The first chart of each metric; then again in a server that has read them.
            for when in ("first", "again"):
                times = _first_charts(browser, address, metrics)
                table.rows.append((f"{name}, {when}", *median_and_worst(times)))
                if when == "first":
                    promise = f"{what}, {name}: painted in 500 ms"
                    found.bars.append(_bar(promise, times, MOST_WIDE_S))
    found.tables.append(table)
    _memory(found, store, what)


def _first_charts(browser: Browser, address: str, metrics: Sequence[str]) -> list[float]:
    """Add each chart to a page without charts; return the times."""
    times = []
    with new_page(browser) as page:
        _open_empty(page, address)
        for metric in metrics:
            times.append(click_to_painted(page, metric))
            page.click("#compare-add")
            page.locator(f".metric-row input[data-focus='{metric}']").click()
            page.keyboard.press("Escape")
            wait_for(page, "!document.querySelector('.card:not([hidden])')")
    return times


def _open_empty(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#compare-add")
    page.evaluate("async () => { await window.radt.plotly(); }")


def _compare(url: str, level: Level = Level.RUN, charts: Sequence[str] | None = ()) -> str:
    """Return an address; without charts, the small ones of all metrics are closed."""
    view = View(
        (Pick(EXPERIMENT),),
        charts=None if charts is None else tuple(map(ChartSpec, charts)),
        board=BoardSpec(level=level),
        options={} if charts is None else {"compare.closed": "process"},
    )
    return f"{url}/compare?{view.to_query()}"


def _memory(found: Findings, store: Path, what: str) -> None:
    table = Table(f"The server with {_PAGES} open pages, {what}", ("", "MB"))
    with served(store) as server, chromium() as browser:
        table.rows.append(("before the first page", _megabytes(server.resident_bytes)))
        contexts = [browser.new_context() for _ in range(_PAGES)]
        for number, context in enumerate(contexts, 1):
            page = context.new_page()
            page.goto(_compare(server.url, Level.AUTO, None))
            page.wait_for_selector(".card:not([hidden]) .scatterlayer path.js-line")
            if number in (1, _PAGES):
                table.rows.append((f"{number} open", _megabytes(server.resident_bytes)))
        resident_bytes = server.resident_bytes
        for context in contexts:
            context.close()
    found.tables.append(table)
    promise = f"server with {_PAGES} open pages: 400 MB"
    measured = f"{_megabytes(resident_bytes)} MB"
    found.bars.append(Bar(promise, measured, resident_bytes <= MOST_SERVER_BYTES))


def _long(found: Findings, store: Path, size: Size) -> None:
    what = f"{size.long_points / 1e6:g} M points"
    table = _table(f"One series of {what}, ms to the painted chart")
    graph = _GRAPH.format(stores.LONG_METRIC)
    firsts, seen = [], []
    for _ in range(_REPEAT):
        with served(store) as server, chromium() as browser, new_page(browser) as page:
            _open_empty(page, _compare(server.url))
            firsts.append(click_to_painted(page, stores.LONG_METRIC))
            seen.append(highest(page, graph))
    table.rows.append(("click, a new server", *median_and_worst(firsts)))
    found.bars.append(_bar(f"{what}: painted in 1 s", firsts, MOST_LONG_S))
    zooms: list[float] = []
    with served(store) as server, chromium() as browser, new_page(browser) as page:
        for _ in range(3):
            _open_empty(page, _compare(server.url))
            click_to_painted(page, stores.LONG_METRIC)
            for _ in range(_ZOOMS):
                zooms.append(_zoom(page, graph, size))
                seen.append(highest(page, graph))
    table.rows.append((f"zoom by drag, {_ZOOMS} times to a fifth", *median_and_worst(zooms)))
    found.bars.append(_bar(f"{what}: zoom repainted in 150 ms", zooms, MOST_ZOOM_S))
    kept = sum(one == stores.SPIKE for one in seen)
    promise = "the spike is drawn at each zoom, in the page"
    found.bars.append(Bar(promise, f"{kept} of {len(seen)}", kept == len(seen)))
    found.tables.append(table)


def _zoom(page: Page, graph: str, size: Size) -> float:
    """Drag over the fifth around the spike; return the seconds until full resolution is painted."""
    box = page.evaluate(
        """([one, at]) => {
            const graph = document.querySelector(one);
            const { _offset, _length, range } = graph._fullLayout.xaxis;
            const area = graph.getBoundingClientRect();
            const share = (at - range[0]) / (range[1] - range[0]);
            window.benchData = graph.data;
            return [area.left + _offset, _length, share, area.top + area.height / 2];
        }""",
        [graph, size.spike_at / 1000],
    )
    left, width, share, top = box
    start = min(max(share - _ZOOM_SHARE / 2, 0.02), 0.98 - _ZOOM_SHARE)
    page.mouse.move(left + start * width, top)
    page.mouse.down()
    page.mouse.move(left + (start + _ZOOM_SHARE / 2) * width, top, steps=2)
    page.mouse.move(left + (start + _ZOOM_SHARE) * width, top, steps=2)
    watch(page)
    page.mouse.up()
    duration_s = painted_s(page, f'document.querySelector("{graph}").data !== window.benchData')
    return math.inf if duration_s is None else duration_s


def _table(title: str) -> Table:
    return Table(title, ("", "median", "worst"))


def _bar(promise: str, times_s: Sequence[float], most_s: float) -> Bar:
    median_s = statistics.median(times_s)
    return Bar(promise, f"{median_s * 1e3:,.0f} ms", median_s <= most_s)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f}"
