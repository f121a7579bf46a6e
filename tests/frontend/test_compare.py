"""The Compare page in a real browser: what is shown, zoomed, live, and addressed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import radt
from radt.model import RunStatus, Scope, SeriesKind
from radt.store.records import SeriesRecord
from tests.frontend.compare_support import (
    CARDS,
    LINES,
    PULSE,
    card,
    chart,
    drag_zoom,
    drawn,
    names,
    open_page,
    query,
    rest,
    row,
    traces,
    x_range,
)
from tests.frontend.conftest import bounds, patient

RSS = "process.memory.rss"


def test_first_sight(demo, serve, watched):
    """The newest runs and four charts, from this machine alone."""
    demo.quickstart("older")
    demo.quickstart()
    url = serve()
    open_page(watched, url)
    page = watched.page
    expect(page.locator("h1")).to_have_text("quickstart")
    expect(page.locator("#facts")).to_have_text("3 workloads · 6 runs · 1 failed")
    expect(page.get_by_text("picked automatically")).to_be_visible()
    expect(page.locator("#live")).to_have_text("idle")
    assert names(watched) == [
        "solo  cnn-small",
        "three a  cnn-small",
        "three b  cnn-small",
        "three c  cnn-small",
        "mix a  cnn-small",
        "mix b  cnn-large",
    ]
    expect(card(watched, RSS).locator(".unit").first).to_have_text("MB")
    expect(row(watched, "mix b").locator(".pick-note")).to_have_text("failed")
    foreign = [u for u in watched.requests if not u.startswith((url, "data:", "blob:"))]
    assert foreign == []
    assert watched.errors == []
    assert chart(watched, "loss").evaluate("g => g._context.showSendToCloud") is False


@pytest.mark.long
def test_every_metric_is_there_in_sections(site, watched, wait_until):
    """Below the charts on top; closed and filtered sections stay so, as the address has them."""
    open_page(watched, site.url)
    page = watched.page
    # The list has the colours of the lines.
    drawn_in = chart(watched, "loss").evaluate(
        f"g => Object.fromEntries({LINES}.map(t => [t.name, t.line.color]))"
    )
    for title, colour in drawn_in.items():
        channels = ", ".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
        swatch = row(watched, title).locator(".swatch")
        expect(swatch).to_have_css("border-top-color", f"rgb({channels})")

    other = card(watched, "system.cpu.utilization")
    expect(page.locator(".section-toggle")).to_have_text(["host1"])
    other.scroll_into_view_if_needed()
    expect(other.locator(".main-svg").first).to_be_visible()
    # What scripts log with steps is drawn over them, hardware over time.
    assert x_range(watched) == pytest.approx([1, 120])
    assert x_range(watched, RSS)[0] == 0

    page.locator(".section-toggle").click()
    expect(other).to_have_count(0)
    page.get_by_label("Filter charts").fill("cpu util")
    expect(page.locator(CARDS)).to_have_count(1)
    wait_until(lambda: query(watched)["o.compare.find"] == ["cpu util"], "the address")
    page.reload()
    drawn(watched, 1)
    expect(page.get_by_label("Filter charts")).to_have_value("cpu util")
    expect(page.locator(".section-toggle")).to_have_attribute("aria-expanded", "false")
    page.locator(".section-toggle").click()
    other.get_by_role("button", name="Show system.cpu.utilization at the top").click()
    drawn(watched, 2)
    expect(page.locator(".section-toggle")).to_have_count(0)
    page.locator("#compare-add").click()
    page.locator(".metric-row input[data-focus='accuracy']").uncheck()
    page.locator(".metric-row input[data-focus='accuracy']").check()
    expect(page.get_by_label("Filter charts")).to_have_value("")  # it would hide what is new
    drawn(watched, 5)
    assert watched.errors == []


def test_zoom_is_shared_and_asks_for_full_resolution(demo, serve, watched, wait_until):
    demo.quickstart()
    run_id = demo.run_ids["solo a"]
    origin_ns = demo.origin_ns(run_id)
    at_s = np.arange(200_000) / 1000 + 30
    demo.append(run_id, origin_ns, 0, at_s, np.sin(at_s), np.arange(200_000))
    demo.writer.update_run(run_id, ended_ns=origin_ns + 230 * 10**9)
    open_page(watched, serve(), "?x=barrier")
    assert x_range(watched) == pytest.approx([0, 230])
    assert traces(watched)[0][1] < 5_000

    each = card(watched, "loss").locator(".subtitle").inner_text()
    assert re.search(r"mean of [\d,]+ samples a point, band min–max", each)
    drag_zoom(watched, "loss", 0.5, 0.55)
    wait_until(lambda: x_range(watched)[1] < 150, "the zoom")
    start_s, end_s = x_range(watched)
    assert 110 < start_s < end_s < 132
    wait_until(lambda: x_range(watched, RSS) == pytest.approx(x_range(watched)), "other charts")
    # Only the run that is there; its points come at the resolution that the chart can show.
    subtitle = card(watched, "loss").locator(".subtitle")
    wait_until(lambda: subtitle.inner_text() != each, "points in the zoom")
    expect(watched.page.locator("#zoom-text")).to_contain_text("full resolution")
    wait_until(lambda: "t.barrier" in query(watched), "the zoom in the address")

    watched.page.reload()
    drawn(watched, 4)
    wait_until(lambda: x_range(watched) == pytest.approx([start_s, end_s]), "the same zoom")
    watched.page.locator("#zoom-reset").click()
    wait_until(lambda: x_range(watched) == pytest.approx([0, 230]), "the whole again")
    expect(watched.page.locator("#zoom-text")).to_have_count(0)

    drag_zoom(watched, RSS, 0.2, 0.4)
    wait_until(lambda: x_range(watched)[1] < 150, "a zoom from another chart")

    def double_clicked() -> bool:
        """On a busy machine, Plotly may see two clicks that are 300 ms apart."""
        chart(watched, RSS).locator(".nsewdrag").first.dblclick()
        return bool(watched.page.evaluate("window.radt.compare.window('barrier') === null"))

    wait_until(double_clicked, "the double click")
    wait_until(lambda: x_range(watched) == pytest.approx([0, 230]), "a double click resets")
    # Where nothing is zoomed it leaves the charts as they are.
    chart(watched, RSS).locator(".nsewdrag").first.dblclick()
    wait_until(lambda: x_range(watched, RSS) == pytest.approx([0, 230]), "still the whole")
    wait_until(lambda: query(watched) == {"x": ["barrier"]}, "an address without a zoom")
    assert watched.errors == []


@pytest.mark.long
def test_pointing_at_runs_and_at_charts(site, watched, wait_until):
    """One fades the other runs, the other shows a cursor with values in all charts."""
    open_page(watched, site.url, "?x=barrier")
    fade = (
        f"g => Object.fromEntries({LINES}.map(t => [t.name,"
        " g.querySelector('.scatterlayer .trace' + t.uid).style.opacity]))"
    )

    def plain(metric: str) -> list[str]:
        faded = chart(watched, metric).evaluate(fade)
        return [name for name, opacity in faded.items() if not opacity]

    row(watched, "three b").hover()
    for metric in ("loss", RSS):
        wait_until(lambda m=metric: plain(m) == ["three b  cnn-small"], "the other runs faded")
    watched.page.locator(".wordmark").hover()
    wait_until(lambda: len(plain("loss")) == 6, "all runs as before")

    asked = []
    watched.on("request", lambda request: asked.append(request.url))
    frame = bounds(chart(watched, "loss").locator(".nsewdrag").first)
    # Once: a tooltip that is about to move says now this, now that.
    watched.page.mouse.move(frame["x"] + frame["width"] / 3, frame["y"] + 40)
    cursor = card(watched, RSS).locator(".cursor")
    expect(cursor).to_be_visible()
    # Six runs, of which solo is nearly over, in MB.
    values = [float(text) for text in cursor.locator("span").all_inner_texts()]
    assert len(values) in (5, 6)
    assert all(150 < value < 260 for value in values)
    # Beside the pointer the names too, of which the nearest line is bold in the chart and the list.
    tip = watched.page.locator(".tip")
    expect(tip.locator("tr")).to_have_count(6)
    shown = tip.locator("td:nth-child(3)").all_inner_texts()
    assert [float(text) for text in shown] == sorted(map(float, shown), reverse=True)
    box = bounds(tip)
    assert box["x"] > frame["x"] + frame["width"] / 3
    bold = tip.locator("[data-nearest] .tip-name").inner_text()
    expect(watched.page.locator(".pick[data-lit]")).to_have_count(1)
    wide = chart(watched, "loss").evaluate(
        f"g => {LINES}.filter(t => g.querySelector('.trace' + t.uid + ' .js-line')"
        ".style.strokeWidth === '2.8px').map(t => t.name)"
    )
    assert [name.split("  ")[0] for name in wide] == [bold]
    watched.page.mouse.move(5, 5)
    expect(cursor).to_be_hidden()
    expect(tip).to_be_hidden()
    widths = chart(watched, "loss").evaluate(
        "g => [...g.querySelectorAll('.js-line')].map((line) => line.style.strokeWidth)"
    )
    assert set(widths) == {"1.4px"}
    assert [url for url in asked if "figure" in url] == []


@pytest.mark.long
def test_values_are_those_that_are_loaded_and_keys_zoom(site, watched, wait_until):
    open_page(watched, site.url, "?level=group&by=model&band=range")
    page = watched.page
    loaded = [
        radt.load(run_id, home=site.demo.store.parent, metrics="loss")
        for name, run_id in site.demo.run_ids.items()
        if name != "mix b"  # the only one of the large model
    ]
    frame = bounds(chart(watched, "loss").locator(".nsewdrag").first)
    page.mouse.move(frame["x"] + frame["width"] / 3, frame["y"] + 40)
    tip = page.locator(".tip")
    small = tip.locator("tr").filter(has_text="cnn-small").locator("td")
    mean, band = small.nth(2).inner_text(), small.nth(3).inner_text()
    step = int(tip.locator(".tip-at").first.inner_text().removeprefix("step "))
    low, high = map(float, band.split(" – "))
    # Lines are drawn over a fine grid: the pointer is between two steps.
    near = [frame.value[abs(frame.step - step) <= 1] for frame in loaded]
    assert min(map(min, near)) * 0.999 <= low <= float(mean) <= high <= max(map(max, near)) * 1.001
    page.mouse.move(5, 5)

    body = card(watched, "loss").locator(".card-body")
    body.focus()
    page.keyboard.press("+")
    wait_until(lambda: x_range(watched) == pytest.approx([24.8, 96.2]), "a zoom by a key")
    page.keyboard.press("ArrowRight")
    wait_until(lambda: x_range(watched) == pytest.approx([39.08, 110.48]), "moved by a key")
    wait_until(lambda: "t.step" in query(watched), "the address")
    page.keyboard.press("0")
    wait_until(lambda: x_range(watched) == pytest.approx([1, 120]), "everything")
    assert watched.errors == []


def test_new_points_appear_without_flicker(demo, serve, watched, wait_until):
    running = demo.run("a", "cnn-small", 4.0, status=RunStatus.RUNNING)
    demo.workload("live", "now", [running])
    open_page(watched, serve())
    expect(watched.page.locator("#live")).to_have_text("1 run live")
    graph = chart(watched, "loss")
    # A chart that is made anew loses the mark; one that is emptied meanwhile is noticed.
    graph.evaluate(
        """g => { g.dataset.kept = 'yes'; g.emptied = 0;
            new MutationObserver(() => { if (!g.querySelector('.lines path')) g.emptied++; })
              .observe(g, { childList: true, subtree: true }); }"""
    )
    ((_, before),) = traces(watched)
    end_s = x_range(watched)[1]
    origin_ns = demo.origin_ns(running.run_id)
    for step in range(3):
        at_s = np.array([end_s + 1 + step])
        demo.append(running.run_id, origin_ns, 0, at_s, [0.1], [1000 + step])
        wait_until(lambda n=step: traces(watched)[0][1] == before + n + 1, "one more point")
    assert x_range(watched)[1] > end_s
    expect(graph).to_have_attribute("data-kept", "yes")
    assert graph.evaluate("g => g.emptied") == 0

    demo.writer.end_run(running.run_id, RunStatus.FINISHED, origin_ns + 60 * 10**9, 0)
    expect(watched.page.locator("#live")).to_have_text("idle")
    expect(row(watched, "now").locator(".pick-note")).to_have_text("60.0 s")
    assert watched.errors == []


@pytest.mark.long
def test_a_zoom_that_is_being_drawn_is_not_disturbed_by_news(demo, serve, watched, wait_until):
    running = demo.run("a", "cnn-small", 4.0, status=RunStatus.RUNNING)
    demo.workload("live", "now", [running])
    open_page(watched, serve())
    frame = bounds(chart(watched, "loss").locator(".nsewdrag").first)
    at_y = frame["y"] + frame["height"] / 2
    mouse = watched.page.mouse
    mouse.move(frame["x"] + frame["width"] * 0.2, at_y)
    mouse.down()
    mouse.move(frame["x"] + frame["width"] * 0.4, at_y, steps=8)
    before = traces(watched)
    at_s = x_range(watched)[1] + 5
    with watched.page.expect_response(
        lambda answer: (
            "figure" in answer.url
            and answer.status == 200
            and "loss" in answer.request.post_data
            and "rss" not in answer.request.post_data
        )
    ):
        origin_ns = demo.origin_ns(running.run_id)
        demo.append(running.run_id, origin_ns, 0, np.array([at_s]), [0.1], [9999])
    wait_until(lambda: names(watched, RSS), "the other charts go on")
    assert traces(watched) == before
    expect(chart(watched, "loss").locator(".zoombox")).to_have_count(1)
    mouse.up()
    wait_until(lambda: x_range(watched)[1] < at_s / 2, "the zoom that was drawn")
    assert watched.errors == []


@pytest.mark.long
def test_what_plotly_says_late_of_a_live_chart_is_no_zoom(demo, serve, watched, wait_until):
    running = demo.run("a", "cnn-small", 5.0, status=RunStatus.RUNNING)
    demo.workload("live", "now", [running])
    open_page(watched, serve())
    # As after drawing: the range of an earlier drawing, of a chart that has grown since.
    chart(watched, "loss").evaluate("g => g.emit('plotly_relayout', {'xaxis.range': [0, 3.5]})")
    demo.append(running.run_id, demo.origin_ns(running.run_id), 0, np.array([40.0]), [0.1], [9999])
    wait_until(lambda: x_range(watched)[1] >= 40, "the chart goes on growing")
    expect(watched.page.locator("#compare-zoom")).to_be_hidden()
    assert "t.barrier" not in query(watched)


@pytest.mark.long
def test_a_new_workload_joins_by_itself(demo, serve, watched, wait_until):
    demo.quickstart()
    open_page(watched, serve())
    demo.workload("quickstart", "fourth", [demo.run("a", "cnn-small", 3.0)])
    expect(row(watched, "fourth")).to_be_visible(timeout=120_000)
    wait_until(lambda: "fourth  cnn-small" in names(watched), "its line")
    assert watched.errors == []


@pytest.mark.long
def test_only_what_may_have_changed_is_asked_for(demo, serve, watched, wait_until):
    """A page left open only asks whether there is news; nor do charts of ended runs change."""
    demo.quickstart()
    open_page(watched, serve(), f"?s=quickstart:w{'0' * 3},r{demo.run_ids['solo a'][:12]}")
    asked = rest(watched, wait_until)
    wait_until(lambda: watched.page.wait_for_timeout(50) or len(asked) >= 2, "more pulses")
    assert all(PULSE.search(output) for output in asked)
    demo.quickstart("another")
    wait_until(
        lambda: watched.page.wait_for_timeout(50) or any("facts" in one for one in asked),
        "the page to ask about its runs",
    )
    rest(watched, wait_until)
    assert not [one for one in asked if "figure" in one]


def test_an_address_opens_what_it_says_and_stays(demo, serve, watched, wait_until):
    demo.quickstart("older")
    demo.quickstart()
    address = "?s=older&x=barrier&level=workload&t.barrier=10,40&c=loss;agg=sum&c=accuracy"
    open_page(watched, serve(), address, cards=2)
    expect(watched.page.locator("h1")).to_have_text("older")
    wait_until(
        lambda: {name.split("  ")[0] for name in names(watched)} == {"solo", "three", "mix"},
        "a line a workload",
    )
    expect(card(watched, "loss").locator(".subtitle")).to_contain_text("sum of runs")
    assert x_range(watched) == pytest.approx([10, 40])
    asked = []
    watched.on("request", lambda request: asked.append(request.url))
    wait_until(lambda: watched.page.wait_for_timeout(50) or len(asked) >= 3, "three pulses")
    assert query(watched) == {
        "s": ["older"],
        "x": ["barrier"],
        "level": ["workload"],
        "t.barrier": ["10,40"],
        "c": ["loss;agg=sum", "accuracy"],
    }


@pytest.mark.long
def test_back_leads_back_to_the_same_charts(site, watched, wait_until):
    open_page(watched, site.url, "?c=loss", cards=1)
    card(watched, "loss").locator(".card-head h2").hover()
    watched.page.locator(".levels").get_by_text("Workloads").click()
    wait_until(lambda: "solo" in names(watched), "lines by workload")
    wait_until(lambda: query(watched).get("level") == ["workload"], "the address")
    watched.page.get_by_role("link", name="System").click()
    expect(watched.page.locator(CARDS)).to_have_count(0)
    watched.page.go_back()
    drawn(watched, 1)
    wait_until(lambda: "solo" in names(watched), "the same lines")
    assert query(watched) == {"c": ["loss"], "level": ["workload"]}
    assert watched.errors == []


@pytest.mark.long
def test_two_browsers_do_not_disturb_each_other(site, watched, wait_until, browser):
    url = site.url
    open_page(watched, url)
    other = patient(browser.new_page())
    other.goto(f"{url}/compare?level=workload&c=accuracy")
    expect(other.locator(CARDS)).to_have_count(1)
    expect(other.locator(".main-svg").first).to_be_visible()
    drag_zoom(watched, "loss", 0.2, 0.4)
    wait_until(lambda: x_range(watched)[1] < 60, "the zoom")
    expect(other.locator("#zoom-text")).to_have_count(0)
    assert other.evaluate("location.search") == "?level=workload&c=accuracy"
    other.close()


@pytest.mark.long
def test_nothing_picked_leads_on(site, watched):
    watched.page.goto(f"{site.url}/compare?s=")
    expect(watched.page.get_by_text("Nothing is selected")).to_be_visible()
    link = watched.page.locator(".compare-empty").get_by_role("link", name="Runs")
    expect(link).to_be_visible()
    watched.page.get_by_role("button", name="Show the newest runs").click()
    drawn(watched, 4)
    expect(watched.page.get_by_text("Nothing is selected")).to_be_hidden()
    assert watched.errors == []


@pytest.mark.long
def test_what_is_missing_is_said(site, watched):
    run = site.demo.run_ids["solo a"][:12]
    picks = f"quickstart:r{run},r{'0' * 12},w{'0' * 12}"
    watched.page.goto(f"{site.url}/compare?s={picks}&c=loss&c=no.such.metric")
    drawn_note = card(watched, "no.such.metric").locator(".card-note")
    expect(drawn_note).to_have_text("The selected runs do not have this metric")
    expect(watched.page.locator("#compare-notes")).to_have_text("2 picks not in this store")
    expect(card(watched, "loss").locator(".main-svg").first).to_be_visible()


@pytest.mark.long
def test_names_are_shown_as_text(demo, serve, watched):
    evil = '<img src=x onerror="window.evil=1">'
    demo.workload(evil, f"{evil}&amp;", [demo.run("a", evil, 1.0), demo.run("b", "<b>b</b>", 1.0)])
    run_id = demo.run_ids[f"{evil}&amp; a"]
    gauge = SeriesKind.GAUGE
    demo.writer.add_series([SeriesRecord(run_id, 7, evil, evil, evil, Scope.PROCESS, gauge)])
    demo.append(run_id, demo.origin_ns(run_id), 7, np.arange(9.0), np.arange(9.0))
    open_page(watched, serve())
    page = watched.page
    expect(page.locator("h1")).to_have_text(evil)
    page.get_by_role("button", name="Metric", exact=True).click()
    page.get_by_role("checkbox", name=evil).check()
    drawn(watched, 5)
    page.keyboard.press("Escape")
    page.get_by_label(f"Settings of {evil}").click()
    expect(page.locator(".panel .metric-name").first).to_contain_text(evil)
    assert page.evaluate("window.evil") is None
    assert page.locator("main img, .panel img").count() == 0


def test_a_dashboard_that_is_gone_is_said_and_awaited(site, watched, wait_until):
    open_page(watched, site.url, "?c=loss", cards=1)
    context = watched.page.context
    context.set_offline(True)
    watched.page.locator(".levels").get_by_text("Workloads").click()
    note = card(watched, "loss").locator(".card-note")
    expect(note).to_contain_text("does not answer")
    assert names(watched)[0] == "solo  cnn-small"  # what was there stays
    context.set_offline(False)
    expect(note).to_be_hidden()
    expect(card(watched, "loss").locator(".card-body")).to_have_attribute("data-state", "drawn")
    wait_until(lambda: names(watched)[0] == "solo", "the chart by workload")


@pytest.mark.long
def test_only_charts_near_the_window_are_asked_for(site, watched):
    charts = "".join("&c=loss;rows=3" for _ in range(8))
    asked = []
    watched.on(
        "request", lambda one: asked.append(one.url) if one.url.endswith("/figure") else None
    )
    watched.page.goto(f"{site.url}/compare?{charts[1:]}")
    expect(watched.page.locator(CARDS)).to_have_count(8)
    expect(watched.page.locator(CARDS).first.locator(".main-svg").first).to_be_visible()
    assert len(asked) < 5
    last = watched.page.locator(CARDS).last
    last.scroll_into_view_if_needed()
    expect(last.locator(".main-svg").first).to_be_visible()


@pytest.mark.long
def test_all_charts_are_printed_as_wide_as_the_paper(site, watched, wait_until):
    page = watched.page
    page.add_init_script("window.print = () => { window.isPrinted = true; }")
    page.goto(f"{site.url}/compare?{'&c=loss;rows=3' * 8}")
    expect(page.locator(CARDS).first.locator(".main-svg").first).to_be_visible()
    left_out = page.locator(f"{CARDS}:not(:has(.main-svg))")
    assert left_out.count() > 0
    page.emulate_media(media="print")
    expect(left_out.first).to_be_hidden()
    page.emulate_media(media="screen")
    page.keyboard.press("Control+p")
    page.wait_for_function("() => window.isPrinted")
    assert left_out.count() == 0
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 1000})
    wider = """[...document.querySelectorAll("#charts .main-svg")]
        .map(svg => [svg, svg.closest(".card")].map(one => one.getBoundingClientRect().right))
        .some(([drawing, card]) => drawing > card)"""
    assert page.evaluate(wider) is False
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    expect(page.locator("#charts [viewBox].main-svg")).to_have_count(0)
    page.emulate_media(media="screen")
    assert watched.errors == []


@pytest.mark.long
def test_a_counter_says_what_is_drawn_and_how_it_was_measured(demo, serve, watched):
    """By pointing at it and by the keyboard, and though the head has no room for all of it."""
    demo.quickstart()
    run_id = demo.run_ids["solo a"]
    method = "share of the card's energy by SM time"
    fields = {"interval_s": 1.0, "method": method, "estimated": True}
    demo.writer.add_series(
        [
            SeriesRecord(
                *(run_id, 5, "smi", "process.gpu.energy", "J", Scope.PROCESS),
                SeriesKind.COUNTER,
                **fields,
            )
        ]
    )
    at_s = np.arange(20.0)
    demo.append(run_id, demo.origin_ns(run_id), 5, at_s, 90 * at_s)
    page = watched.page
    page.set_viewport_size({"width": 900, "height": 900})
    open_page(watched, serve(), "?c=process.gpu.energy&level=workload", cards=1)
    shown = card(watched, "process.gpu.energy")
    expect(shown.locator(".unit").first).to_have_text("W")
    expect(shown.locator(".subtitle")).to_contain_text("estimated rate · process tree")
    shown.locator(".how").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Share of the card's energy by SM time.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(shown.locator(".how")).to_be_focused()
    values = (
        "g => Array.from(g._fullData.filter(t => t.meta && t.meta.key && t.yaxis !== 'y2')[0].y)"
    )
    assert chart(watched, "process.gpu.energy").evaluate(values)[1] == pytest.approx(90.0)
    assert watched.errors == []
