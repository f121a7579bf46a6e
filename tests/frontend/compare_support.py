"""What tests of the Compare page ask the page."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from playwright.sync_api import Locator

from tests.frontend.conftest import Watched, bounds

PULSE = re.compile(r"revision\.data")
CHART = '.card[data-metric="{}"] .js-plotly-plot'
#: The user's charts, without the small ones of all other metrics.
CARDS = "#charts .card:not([hidden])"
#: Of a graph: the traces that are lines (or their bands), in JavaScript.
LINES = "(g._fullData || []).filter(t => t.meta && t.meta.key && t.yaxis !== 'y2')"


def open_page(watched: Watched, url: str, query: str = "", cards: int = 4) -> None:
    """Open the page and wait until its charts are drawn."""
    watched.page.goto(f"{url}/compare{query}")
    drawn(watched, cards)


def drawn(watched: Watched, cards: int) -> None:
    """Wait until so many charts are drawn; only those near the window are."""
    watched.page.wait_for_function(
        """([selector, count]) => {
          const cards = [...document.querySelectorAll(selector)];
          if (cards.length !== count) return false;
          const next = cards.find(card => !card.querySelector(".main-svg")?.checkVisibility());
          if (next) next.scrollIntoView();
          else scrollTo(0, 0);
          return !next;
        }""",
        arg=[CARDS, cards],
    )


def card(watched: Watched, metric: str) -> Locator:
    return watched.page.locator(f'.card[data-metric="{metric}"]')


def chart(watched: Watched, metric: str) -> Locator:
    return watched.page.locator(CHART.format(metric))


def traces(watched: Watched, metric: str = "loss") -> list[tuple[str, int]]:
    """Name and number of points of the lines of a chart."""
    found = chart(watched, metric).evaluate(
        f"g => {LINES}.filter(t => t.fill !== 'toself').map(t => [t.name, t.x.length])"
    )
    return [(name, count) for name, count in found]


def names(watched: Watched, metric: str = "loss") -> list[str]:
    return [name for name, _ in traces(watched, metric)]


def x_range(watched: Watched, metric: str = "loss") -> list[float]:
    found = chart(watched, metric).evaluate("g => g._fullLayout ? g._fullLayout.xaxis.range : []")
    return [float(end) for end in found]


def query(watched: Watched) -> dict[str, list[str]]:
    search = watched.page.evaluate("location.search")
    return defaultdict(list, parse_qs(search.lstrip("?"), keep_blank_values=True))


def order(watched: Watched) -> list[str]:
    """The metrics as they are seen, line by line."""
    found: list[str] = watched.page.evaluate(
        """[...document.querySelectorAll('#charts .card:not([hidden])')]
             .map((e) => [e.getBoundingClientRect(), e.dataset.metric])
             .sort(([a], [b]) => a.top - b.top || a.left - b.left).map(([, metric]) => metric)"""
    )
    return found


def row(watched: Watched, title: str) -> Locator:
    """A row of the list, by what it says when pointed at."""
    return watched.page.locator(".pick").filter(
        has=watched.page.locator(f'.pick-label[title^="{title}"], .pick-name[title^="{title}"]')
    )


def drag_zoom(watched: Watched, metric: str, start: float, end: float) -> None:
    """Draw a zoom from one share of a chart's width to another."""
    frame = bounds(chart(watched, metric).locator(".nsewdrag").first)
    at_y = frame["y"] + frame["height"] / 2
    mouse = watched.page.mouse
    mouse.move(frame["x"] + frame["width"] * start, at_y)
    mouse.down()
    mouse.move(frame["x"] + frame["width"] * (start + (end - start) / 4), at_y, steps=4)
    mouse.move(frame["x"] + frame["width"] * end, at_y, steps=4)
    mouse.up()


def rest(watched: Watched, wait_until: Callable[..., None]) -> list[str]:
    """Wait until a page only asks for news; returns what it asks for from then on."""
    asked: list[str] = []

    def note(request: Any) -> None:
        if "_dash-update-component" in request.url:
            asked.append(json.loads(request.post_data)["output"])
        elif request.method == "POST":
            asked.append(request.url)

    def quiet() -> bool:
        watched.page.wait_for_timeout(50)
        return len(asked) >= 2 and all(PULSE.search(output) for output in asked[-2:])

    watched.on("request", note)
    wait_until(quiet, "two pulses without anything between")
    asked.clear()
    return asked
