"""What the Compare page makes of what a figure says about itself: unit, time of day, dashes."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from playwright.sync_api import expect

import radt
from tests.frontend.compare_support import CHART, card, chart, open_page, query, row, x_range
from tests.frontend.conftest import BEGAN_NS, bounds

RSS = "process.memory.rss"


@pytest.mark.long
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


@pytest.mark.long
def test_the_pointer_shows_times_of_day_in_all_charts(site, watched, wait_until):
    open_page(watched, site.url, "?x=wall")
    expect(card(watched, "loss").locator(".xaxislayer-above text").first).to_contain_text(":")
    start, end = x_range(watched)
    assert start <= BEGAN_NS / 1e9 < end
    frame = bounds(chart(watched, "loss").locator(".nsewdrag").first)
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


@pytest.mark.long
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


def test_one_metric_over_another_beside_a_second_and_logarithmic(site, watched, wait_until):
    open_page(watched, site.url)
    page = watched.page
    page.get_by_label("Settings of loss").click()
    page.get_by_label("x axis", exact=True).select_option(f"over {RSS}")
    title = chart(watched, "loss").locator(".xtitle")
    expect(title).to_have_text(f"{RSS} (MB)")
    chips = card(watched, "loss").locator(".chip")
    expect(chips).to_have_text([f"over {RSS}"])
    for axis in "xy":
        page.get_by_label(f"Log scale of {axis}").check()
    expect(chips).to_have_text([f"over {RSS}", "log x", "log"])
    page.keyboard.press("Escape")
    wait_until(lambda: f"loss;over={RSS};logx=1;log=1" in query(watched)["c"], "the address")
    wait_until(
        lambda: chart(watched, "loss").evaluate("g => g.layout.xaxis.type === 'log'"), "drawn"
    )

    # Each drawn point is a pair of recorded values; the tooltip has both, in the drawn units.
    run_id = site.demo.run_ids["solo a"]
    loss, rss = (
        radt.load(run_id, home=site.demo.store.parent, metrics=metric).value.to_numpy()
        for metric in ("loss", RSS)
    )
    points = chart(watched, "loss").evaluate(
        "g => g._fullData.filter(t => t.name.startsWith('solo') && t.meta && t.fill !== 'toself')"
        ".map(t => Array.from(t.x, (x, i) => [x, t.y[i]]))[0]"
    )
    assert len(points) > 40
    assert {x for x, _ in points} <= set(rss)
    assert {y for _, y in points} <= set(loss)
    frame = bounds(chart(watched, "loss").locator(".nsewdrag").first)
    page.mouse.move(frame["x"] + frame["width"] - 30, frame["y"] + 40)
    page.mouse.move(frame["x"] + frame["width"] - 40, frame["y"] + 40)
    at = page.locator(".tip-at").first
    expect(at).to_have_text(re.compile(rf"{RSS} 2\d\d(\.\d)? MB"))

    before = x_range(watched)
    page.mouse.move(5, 5)
    card(watched, "loss").locator(".card-body").focus()
    page.keyboard.press("+")
    wait_until(lambda: f"t.over.{RSS}" in query(watched), "a zoom of its own")
    width = before[1] - before[0]
    inner = [before[0] + 0.2 * width, before[1] - 0.2 * width]
    wait_until(lambda: x_range(watched) == pytest.approx(inner), "zoomed in decades")
    expect(page.locator("#zoom-text")).to_have_text(re.compile(rf"Zoom {RSS} [\d.]+ – [\d.]+ MB"))
    page.keyboard.press("0")
    wait_until(lambda: x_range(watched) == pytest.approx(before), "everything")

    # A second metric has the axis at the right, and its own part of the tooltip.
    page.get_by_label("Settings of loss").click()
    page.get_by_label("Second y axis").select_option("accuracy")
    expect(chart(watched, "loss").locator(".y3title")).to_have_text("accuracy")
    page.keyboard.press("Escape")
    card(watched, "loss").get_by_role("button", name=f"Reset over {RSS}").click()
    expect(chart(watched, "loss").locator(".xtitle")).to_have_text("step")
    wait_until(lambda: "loss;and=accuracy;logx=1;log=1" in query(watched)["c"], "the address")
    frame = bounds(chart(watched, "loss").locator(".nsewdrag").first)
    page.mouse.move(frame["x"] + frame["width"] * 0.1, frame["y"] + 40)
    page.mouse.move(frame["x"] + frame["width"] * 0.2, frame["y"] + 40)
    expect(page.locator(".tip .tip-of")).to_have_text(["loss", "accuracy"])
    recorded = radt.load(
        list(site.demo.run_ids.values()), home=site.demo.store.parent, metrics="accuracy"
    ).value
    rows = page.locator(".tip .tip-of").last.locator("~ tr td:nth-child(3)").all_inner_texts()
    assert rows
    assert {f"{float(text):.4g}" for text in rows} <= {f"{value:.4g}" for value in recorded}
    page.mouse.move(5, 5)
    card(watched, "loss").get_by_role("button", name="Reset and accuracy").click()
    expect(chart(watched, "loss").locator(".y3title")).to_have_count(0)
    assert watched.errors == []


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_chart_that_cannot_be_drawn_says_so_and_the_others_are_drawn(site, watched, when):
    open_page(watched, site.url)
    page = watched.page
    page.evaluate(
        """(when) => {
          const { react } = Plotly;
          window.mend = () => { Plotly.react = react; };
          Plotly.react = (graph, ...figure) => {
            const isBroken = graph.closest("[data-metric=loss]");
            if (isBroken && when === "at once") throw new Error("no room");
            const step = react(graph, ...figure);
            return isBroken ? step.then(() => { throw new Error("no room"); }) : step;
          };
        }""",
        when,
    )
    note = card(watched, "loss").locator(".card-note")

    page.get_by_role("button", name="Mono").click()
    expect(note).to_have_text("This chart cannot be drawn.no room")
    strokes = f"document.querySelector('{CHART.format(RSS)}').layout.meta.lines.map(l => l.stroke)"
    page.wait_for_function(f"() => new Set({strokes}).size > 1")
    page.evaluate("mend()")
    page.get_by_role("button", name="Mono").click()
    page.wait_for_selector(f"{CHART.format('loss')} .scatterlayer .trace", state="attached")
    expect(note).to_be_hidden()
    assert watched.errors == []
