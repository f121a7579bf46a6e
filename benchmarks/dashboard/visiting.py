"""A dashboard in its own process, and browsers that visit it and measure times."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
_VIEWPORT_WIDTH, _VIEWPORT_HEIGHT = 1440, 900

# The frame that shows an element has been drawn when the next one begins.
_PAINTED = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"

# Starts with the browser's own time of the click, key or end of a drag, not that of the request.
_WATCH = """() => {
    window.benchBegan = undefined;
    for (const kind of ["pointerup", "mouseup", "click", "input", "keydown"])
        window.addEventListener(kind, (event) => {
            if (window.benchBegan === undefined) window.benchBegan = event.timeStamp;
        }, { capture: true, once: true });
}"""


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    url: str
    pid: int

    @property
    def resident_bytes(self) -> int:
        """Return the memory of the server and its children now (VmRSS)."""
        return sum(_resident_bytes(pid) for pid in _family(self.pid))

    @property
    def cpu_s(self) -> float:
        """Return the CPU time that the server and its children have taken."""
        return sum(_cpu_s(pid) for pid in _family(self.pid))


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += _family(int(child))
    return found


@contextmanager
def served(store: Path) -> Iterator[Served]:
    """Run `radt dashboard` over the store's folder, in its own process."""
    command = [sys.executable, "-m", "radt", "dashboard", "--home", str(store.parent)]
    with subprocess.Popen(
        [*command, "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            url = next(line.strip() for line in process.stdout if "http://" in line)
            yield Served(url.rstrip("/"), process.pid)
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's chromium, headless."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def has_chromium() -> bool:
    """Return whether chromium is installed."""
    return os.access(CHROMIUM, os.X_OK)


@contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    """Open a page of a browser with an empty cache."""
    context = browser.new_context(
        viewport={"width": _VIEWPORT_WIDTH, "height": _VIEWPORT_HEIGHT},
    )
    try:
        yield context.new_page()
    finally:
        context.close()


def watch_opening(page: Page, selector: str) -> None:
    """Make each page opened from now on record when ``selector`` is painted."""
    # Playwright's own waiting ends up polling every half second.
    page.add_init_script(
        f"""(async () => {{
            const wanted = {json.dumps(selector)};
            while (!document.querySelector(wanted))
                await new Promise(done => requestAnimationFrame(done));
            {_PAINTED}
            window.benchOpenedMs = performance.now();
        }})()"""
    )


def opened_s(page: Page, url: str) -> float:
    """Return the seconds from navigation until the watched element is painted."""
    page.goto(url, wait_until="commit")
    wait_for(page, "window.benchOpenedMs")
    return float(page.evaluate("() => window.benchOpenedMs")) / 1000


def watch(page: Page) -> None:
    """Start the stopwatch at the next click, key or end of a drag."""
    page.evaluate(_WATCH)


def painted_s(page: Page, wanted: str, limit_s: float = 60) -> float | None:
    """Return the seconds from the click until the expression ``wanted`` is true and painted, or
    None.
    """
    return page.evaluate(  # type: ignore[no-any-return]
        f"""async () => {{
            const there = () => window.benchBegan !== undefined && ({wanted});
            const end = performance.now() + {limit_s * 1e3};
            while (!there()) {{
                if (performance.now() > end) return null;
                await new Promise(done => requestAnimationFrame(done));
            }}
            {_PAINTED}
            return (performance.now() - window.benchBegan) / 1000;
        }}"""
    )


def wait_for(page: Page, wanted: str, limit_s: float = 60) -> None:
    """Wait until an expression is true; the pages' policy forbids Playwright's own way."""
    page.evaluate(
        f"""async () => {{
            const end = performance.now() + {limit_s * 1e3};
            while (!({wanted})) {{
                if (performance.now() > end) throw new Error("not in {limit_s} s");
                await new Promise(done => requestAnimationFrame(done));
            }}
        }}"""
    )


def median_and_worst(times_s: Sequence[float]) -> tuple[str, str]:
    """Return median and maximum in ms, for a table."""
    return f"{statistics.median(times_s) * 1e3:,.0f}", f"{max(times_s) * 1e3:,.0f}"
