"""Bytes that a browser with an empty cache receives for each page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from benchmarks.dashboard.stores import Size
from benchmarks.dashboard.visiting import CHROMIUM, chromium, has_chromium, new_page, served
from benchmarks.results import Bar, Findings, Table
from radt.frontend.app import PAGES
from radt.frontend.static_files import STATIC

MOST_PAGE_BYTES = 1.2e6
#: Charts arrive after their page.
_QUIET_MS = 1500


def measure(folder: Path, size: Size) -> Findings:
    """Measure the first visit of each page; nothing without a browser."""
    del size
    found = Findings()
    if not has_chromium():
        found.tables.append(Table(f"Not measured: there is no {CHROMIUM}", ("in the browser",)))
        return found
    table = Table("First visit, bytes over the network", ("page", "files", "data", "requests"))
    with served(folder / "wide" / "radt.db") as server, chromium() as browser:
        weights = {page.title: weigh(browser, f"{server.url}/{page.path}") for page in PAGES}
    for title, weight in weights.items():
        table.rows.append(
            (title, f"{weight.file_bytes:,}", f"{weight.data_bytes:,}", f"{weight.requests}")
        )
    found.tables.append(table)
    first = weights[PAGES[0].title]
    most = max(weight.file_bytes for weight in weights.values())
    for promise, measured in (
        ("first page", first.file_bytes + first.data_bytes),
        ("files of any page", most),
    ):
        found.bars.append(
            Bar(f"{promise}: 1.2 MB", f"{measured / 1e6:.2f} MB", measured <= MOST_PAGE_BYTES)
        )
    return found


@dataclass(slots=True)
class Weight:
    """Bytes of answers with their headers, as transferred.

    Attributes:
        file_bytes: Scripts and styles, which the browser keeps.
        data_bytes: The page and its data.
    """

    file_bytes: int = 0
    data_bytes: int = 0
    requests: int = 0


def weigh(browser: Browser, address: str) -> Weight:
    """Return the weight of a visit with an empty cache."""
    weight, addresses = Weight(), dict[str, str]()

    def finished(event: dict[str, Any]) -> None:
        size = event["encodedDataLength"]
        weight.requests += 1
        if any(part in addresses[event["requestId"]] for part in STATIC):
            weight.file_bytes += size
        else:
            weight.data_bytes += size

    with new_page(browser) as page:
        network = page.context.new_cdp_session(page)
        network.send("Network.enable")
        network.on(
            "Network.requestWillBeSent",
            lambda event: addresses.update({event["requestId"]: event["request"]["url"]}),
        )
        network.on("Network.loadingFinished", finished)
        page.goto(address)
        page.locator("main#content > *").first.wait_for()
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(_QUIET_MS)
    return weight
