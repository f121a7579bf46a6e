"""Tables of runs in the browser: radt's with 10,000 and 100,000 runs, and MLflow's.

Times are from the click, or from the last key of a search, to painted rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from playwright.sync_api import Page

from benchmarks.dashboard.stores import Size
from benchmarks.dashboard.visiting import (
    CHROMIUM,
    Served,
    chromium,
    has_chromium,
    new_page,
    opened_s,
    painted_s,
    served,
    wait_for,
    watch,
    watch_opening,
)
from benchmarks.results import Bar, Findings, Table

FIRST, SORT, SEARCH, GROUP, LAST = (
    "first rows of a new server",
    "sorted by a metric",
    "searched by a metric and a param",
    "grouped by a param",
    "the last row",
)
EXPLORE, REPORT = "Explore", "Report, its table"
MOST_FIRST_S, MOST_CLICK_S = 1.0, 0.2
#: What "still usable" is taken for with ten times as many runs.
MOST_VAST_FIRST_S, MOST_VAST_CLICK_S = 5.0, 1.0
PATIENCE_S = 60.0
#: A report of more runs takes minutes.
MOST_REPORTED = 20_000
_PAGES = (
    (EXPLORE, "/explore", "#explore-scatter canvas[aria-label]"),
    (REPORT, "/report", "#report-table tbody tr"),
)
_ROW = ".runs-body .runs-row:not([data-loading])"
_HEAD = ".runs-cell{} > [data-focus='accuracy.max']"
#: The heading after each click on it.
_ORDERS = ("[aria-sort=descending]", "[aria-sort=ascending]", ":not([aria-sort])")


@dataclass
class Steps:
    """Seconds until each step was painted, and CPU seconds of the server meanwhile, by name."""

    server: Served
    wall_s: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)

    def take(self, name: str, act: Callable[[], float | None]) -> None:
        """Take a step; ``act`` returns its seconds, None if it was not painted."""
        before_s = self.server.cpu_s
        duration_s = act()
        self.wall_s.setdefault(name, []).append(PATIENCE_S if duration_s is None else duration_s)
        self.cpu_s.setdefault(name, []).append(self.server.cpu_s - before_s)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the medians of each step in ms, for a table."""
        both = (self.wall_s, self.cpu_s)
        return [
            (name, *(f"{statistics.median(times[name]) * 1e3:,.0f}" for times in both))
            for name in self.wall_s
        ]


def measure(folder: Path, size: Size) -> Findings:
    """Measure radt's table with many and very many runs."""
    found = Findings()
    if not has_chromium():
        found.tables.append(Table(f"Not measured: there is no {CHROMIUM}", ("in the browser",)))
        return found
    for name, runs, first_s, click_s in (
        ("many", size.runs, MOST_FIRST_S, MOST_CLICK_S),
        ("vast", size.vast_runs, MOST_VAST_FIRST_S, MOST_VAST_CLICK_S),
    ):
        _radt(found, folder / name / "radt.db", runs, first_s, click_s)
    return found


def _radt(found: Findings, store: Path, runs: int, first_s: float, click_s: float) -> None:
    table = Table(
        f"radt's pages with {runs:,} runs",
        ("", "ms to painted", "ms of the server's CPU", "server, MB"),
    )
    with served(store) as server, chromium() as browser:
        steps = Steps(server)
        with new_page(browser) as page:
            watch_opening(page, _ROW)
            steps.take(FIRST, lambda: opened_s(page, server.url))
            memory = {FIRST: server.resident_bytes}
            wait_for(page, f'document.querySelector("{_HEAD.format("")}")')
            for turn in range(len(_ORDERS)):
                _turn(page, steps, turn)
            memory[LAST] = server.resident_bytes
        for name, path, selector in _PAGES if runs <= MOST_REPORTED else _PAGES[:1]:
            with new_page(browser) as page:
                watch_opening(page, selector)
                steps.take(name, partial(opened_s, page, server.url + path))
                memory[name] = server.resident_bytes
    for row in steps.rows():
        table.rows.append((*row, f"{memory[row[0]] / 1e6:,.0f}" if row[0] in memory else ""))
    found.tables.append(table)
    slowest = max((SORT, SEARCH, GROUP), key=lambda name: statistics.median(steps.wall_s[name]))
    for promise, name, most_s in (
        ("first rows", FIRST, first_s),
        ("sorted, searched, grouped", slowest, click_s),
    ):
        taken_s = statistics.median(steps.wall_s[name])
        found.bars.append(
            Bar(
                f"{runs:,} runs, {promise}: {most_s:g} s",
                f"{taken_s:.2f} s",
                taken_s <= most_s,
            )
        )


def _turn(page: Page, steps: Steps, turn: int) -> None:
    """Sort, search, group and scroll, and go back."""
    head = _HEAD.format(_ORDERS[turn])

    def done(wanted: str) -> float | None:
        return painted_s(page, wanted, PATIENCE_S)

    def sort() -> float | None:
        watch(page)
        page.click(_HEAD.format(""))
        return done(f'document.querySelector("{head}")')

    def search() -> float | None:
        count = page.inner_text("#runs-count")
        watch(page)
        page.fill("#runs-search", f"accuracy.max > 0.{75 + turn} depth = 8")
        page.keyboard.press("Enter")  # without waiting for another key
        return done(f'document.querySelector("#runs-count").textContent !== "{count}"')

    def group(key: str, opened: str) -> float | None:
        watch(page)
        page.select_option("select[aria-label='Group by']", key)
        return done(f"""document.querySelector(".runs-row[aria-expanded='{opened}']")""")

    def last() -> float | None:
        index = page.get_attribute("#runs-grid", "aria-rowcount")
        watch(page)
        page.focus("#runs-grid")
        page.keyboard.press("End")
        row = f".runs-row[aria-rowindex='{index}']:not([data-loading])"
        return done(f'document.querySelector("{row}")')

    steps.take(SORT, sort)
    steps.take(SEARCH, search)
    page.fill("#runs-search", "")
    wait_for(page, "!document.querySelector('#runs-count').textContent.includes(' of ')")
    steps.take(GROUP, lambda: group("param.depth", "false"))
    group("workload", "true")
    steps.take(LAST, last)
    page.keyboard.press("Home")
