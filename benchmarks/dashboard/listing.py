"""The page Select with many runs: what a request takes, and when its rows are painted."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from benchmarks.dashboard.stores import EXPERIMENT, Size
from benchmarks.storage.results import Bar, Findings, Table
from radt.frontend.pages.select_answer import answer
from radt.frontend.picks import Pick
from radt.frontend.source import Source
from radt.frontend.view import View

MOST_PAGE_S, MOST_REQUEST_S = 1.0, 0.05
_REPEAT = 7
_CHROMIUM = "/usr/bin/chromium"
_ROW = "#select-runs .select-body .select-row:not([data-loading])"

#: What somebody may look for; parameters are read for the second and later ones.
_VIEWS = {
    "all runs": View(),
    "status:finished": View(search="status:finished"),
    "a word": View(search="train"),
    "three terms": View(search="train -status:failed duration>10s"),
    "sorted by duration": View(options={"select.sort": "-duration"}),
    "picked: everything": View(picks=(Pick(EXPERIMENT),)),
}


def measure(folder: Path, size: Size) -> Findings:
    """Requests on the server, first and again; then the page in a browser."""
    path = folder / "many" / "radt.db"
    found = Findings()
    table, slowest_s = _requests(path, size)
    found.tables.append(table)
    found.bars.append(
        Bar(
            f"rows of {size.runs:,} runs asked for again: {MOST_REQUEST_S * 1e3:.0f} ms",
            f"{slowest_s * 1e3:.0f} ms",
            slowest_s <= MOST_REQUEST_S,
        )
    )
    table, page_s = _pages(path, size)
    found.tables.append(table)
    found.bars.append(
        Bar(
            f"start page with {size.runs:,} runs: {MOST_PAGE_S:.0f} s",
            f"{page_s:.2f} s",
            page_s <= MOST_PAGE_S,
        )
    )
    return found


def _requests(path: Path, size: Size) -> tuple[Table, float]:
    """What the server takes for one, from the view to JSON; and the slowest of those repeated."""
    table = Table(f"Rows of {size.runs:,} runs, ms on the server", ("", "first", "again", "KB"))
    source = Source(path)
    source.revision()
    slowest_s = 0.0
    for name, view in _VIEWS.items():
        first_s, text = _timed(source, view)
        again_s = statistics.median(_timed(source, view)[0] for _ in range(_REPEAT))
        slowest_s = max(slowest_s, again_s)
        row = (name, f"{first_s * 1e3:.0f}", f"{again_s * 1e3:.0f}", f"{len(text) / 1e3:.0f}")
        table.rows.append(row)
    source.close()
    return table, slowest_s


def _timed(source: Source, view: View) -> tuple[float, str]:
    ask: dict[str, Any] = {"n": 1, "runs": {"start": 0, "count": 120}}
    began = time.perf_counter()
    text = json.dumps(answer(source, view, ask))
    return time.perf_counter() - began, text


def _pages(path: Path, size: Size) -> tuple[Table, float]:
    """From navigation to painted rows: the server's first page, browsers that know nothing, and
    one that was there before."""
    table = Table(
        f"Start page with {size.runs:,} runs, s from navigation to painted rows",
        ("", "median", "slowest"),
    )
    with served(path) as url, chromium() as browser:
        first_s = _painted_s(browser, url, 1)
        new_s = [one for _ in range(_REPEAT) for one in _painted_s(browser, url, 1)]
        again_s = _painted_s(browser, url, 1 + _REPEAT)[1:]
    for name, times in (
        ("a server's first page", first_s),
        ("a browser with an empty cache", new_s),
        ("a browser that was there before", again_s),
    ):
        table.rows.append((name, f"{statistics.median(times):.2f}", f"{max(times):.2f}"))
    return table, statistics.median(new_s)


def _painted_s(browser: Browser, url: str, visits: int) -> list[float]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    times = []
    for _ in range(visits):
        began = time.perf_counter()
        page.goto(url, wait_until="commit")
        page.wait_for_selector(_ROW)
        # The frame that shows the rows has been drawn when the next one begins.
        page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        times.append(time.perf_counter() - began)
    context.close()
    return times


@contextmanager
def served(store: Path) -> Iterator[str]:
    """`radt dashboard` over the store's folder, as a process of its own; its address."""
    command = [sys.executable, "-m", "radt", "dashboard", "--home", str(store.parent)]
    with subprocess.Popen(
        [*command, "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield next(line.strip() for line in process.stdout if "http://" in line)
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()
