"""What the Compare page makes of what a figure says about itself: unit, time of day, dashes."""

from __future__ import annotations

import re
from datetime import datetime

from playwright.sync_api import expect

from tests.frontend.compare_support import card, chart, open_page, row, x_range
from tests.frontend.conftest import BEGAN_NS

RSS = "process.memory.rss"


def test_ends_of_the_axis_are_typed_in_the_unit_that_is_drawn(site, watched):
    open_page(watched, site.url)
    expect(card(watched, RSS).locator(".unit").first).to_have_text("MB")
    watched.page.get_by_label(f"Settings of {RSS}").click()
    field = watched.page.get_by_label("Maximum")
    field.fill("500")
    field.press("Enter")
    watched.page.wait_for_function(
        f"""() => {{
          const graph = document.querySelector('.card[data-metric="{RSS}"] .js-plotly-plot');
          return graph._fullLayout.yaxis.range[1] === 500;
        }}"""
    )
    expect(field).to_have_value("500")
    watched.page.wait_for_url("**500000000**")  # bytes, whatever unit is drawn later


def test_the_pointer_shows_times_of_day_in_all_charts(site, watched, wait_until):
    open_page(watched, site.url, "?x=wall")
    expect(card(watched, "loss").locator(".xaxislayer-above text").first).to_contain_text(":")
    start, end = x_range(watched)
    assert start <= BEGAN_NS / 1e9 < end
    frame = chart(watched, "loss").locator(".nsewdrag").first.bounding_box()
    watched.page.mouse.move(frame["x"] + frame["width"] / 3, frame["y"] + 40)
    watched.page.mouse.move(frame["x"] + frame["width"] / 2, frame["y"] + 40)
    middle = datetime.fromtimestamp((start + end) / 2).astimezone()
    time = watched.page.locator(".tip-at").first
    expect(time).to_be_visible()

    def off_s() -> float:
        shown = re.fullmatch(r"(\d\d):(\d\d):(\d\d)", time.inner_text())
        assert shown is not None, time.inner_text()
        hours, minutes, seconds = map(int, shown.groups())
        moment = middle.replace(hour=hours, minute=minutes, second=seconds)
        return abs((moment - middle).total_seconds())

    # It was there since the first move, and follows the second with the next frame.
    wait_until(lambda: off_s() <= (end - start) / 50 + 1, "the time in the middle")
    expect(card(watched, "loss").locator(".cursor-values")).to_be_hidden()
    expect(card(watched, RSS).locator(".cursor-values")).to_be_visible()
    assert watched.errors == []


def test_the_list_has_the_dashes_of_the_lines(site, watched, wait_until):
    open_page(watched, site.url)
    swatch = row(watched, "three b").locator(".swatch")
    assert swatch.get_attribute("data-stroke") is None
    watched.page.get_by_role("button", name="Mono").click()
    expect(swatch).to_have_attribute("data-stroke", re.compile(r"^\d+px,\d+px"))

    def strokes() -> list[str | None]:
        found: list[str | None] = chart(watched, "loss").evaluate(
            "g => g.layout.meta.lines.map((line) => line.stroke)"
        )
        return found

    # Another chart may have been drawn before this one, and told the list.
    wait_until(lambda: strokes()[2] == swatch.get_attribute("data-stroke"), "the same dashes")
    assert len(set(strokes())) == 6
