"""A dashboard in a process of its own, and browsers that look at it with a stop watch."""

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

# The frame that shows something has been drawn when the next one begins.
_PAINTED = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"

# Begins with the click or the end of a drag, as the browser has it, not as it was asked for.
_WATCH = """() => {
    window.benchBegan = undefined;
    for (const kind of ["pointerup", "mouseup", "click"])
        window.addEventListener(kind, (event) => {
            if (window.benchBegan === undefined) window.benchBegan = event.timeStamp;
        }, { capture: true, once: true });
}"""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that listens."""

    url: str
    pid: int

    @property
    def resident_bytes(self) -> int:
        """What it and its children have in memory now (VmRSS)."""
        return sum(_resident_bytes(pid) for pid in _family(self.pid))


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def _family(pid: int) -> list[int]:
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += _family(int(child))
    return found


@contextmanager
def served(store: Path) -> Iterator[Served]:
    """`radt dashboard` over the store's folder, as a process of its own."""
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
    """Debian's chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def has_chromium() -> bool:
    """Return whether there is one to measure with."""
    return os.access(CHROMIUM, os.X_OK)


@contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    """A page of a browser with an empty cache."""
    context = browser.new_context(
        viewport={"width": _VIEWPORT_WIDTH, "height": _VIEWPORT_HEIGHT},
    )
    try:
        yield context.new_page()
    finally:
        context.close()


def watch_opening(page: Page, selector: str) -> None:
    """From now on each page that is opened notes when what ``selector`` finds is painted."""
    # Playwright's own waiting looks every half second in the end.
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
    """Seconds from navigation until what is watched for is painted."""
    page.goto(url, wait_until="commit")
    wait_for(page, "window.benchOpenedMs")
    return float(page.evaluate("() => window.benchOpenedMs")) / 1000


def watch(page: Page) -> None:
    """The next click, or end of a drag, starts the stop watch."""
    page.evaluate(_WATCH)


def painted_s(page: Page, wanted: str, limit_s: float = 60) -> float | None:
    """Seconds from the click until ``wanted``, an expression, is true and painted; None: never."""
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


def wait_for(page: Page, wanted: str) -> None:
    """Until an expression is true; Playwright's own way needs what the pages forbid."""
    page.evaluate(
        f"""async () => {{
            while (!({wanted})) await new Promise(done => requestAnimationFrame(done));
        }}"""
    )


def median_and_worst(times_s: Sequence[float]) -> tuple[str, str]:
    """In ms, for a table."""
    return f"{statistics.median(times_s) * 1e3:,.0f}", f"{max(times_s) * 1e3:,.0f}"
