"""The page in a real browser."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs

import numpy as np
import pytest
from playwright.sync_api import expect

from radt.model import RunStatus, Scope, SeriesKind
from radt.store.records import SeriesRecord

PULSE = re.compile(r"revision\.data")
CHART = '.card[data-metric="{}"] .js-plotly-plot'


def open_page(watched, url):
    watched.page.goto(url)
    expect(watched.page.locator(".card")).to_have_count(4)
    for card in watched.page.locator(".card").all():
        expect(card.locator(".main-svg").first).to_be_visible()


def traces(watched, metric="loss"):
    """Name and number of points of the lines of a chart."""
    found = watched.page.locator(CHART.format(metric)).evaluate(
        "g => (g._fullData || []).map(t => [t.name, t.x.length])"
    )
    return [(name, count) for name, count in found if name not in ("epochs", "")]


def x_range(watched, metric="loss"):
    return watched.page.locator(CHART.format(metric)).evaluate("g => g._fullLayout.xaxis.range")


def query(watched):
    search = watched.page.evaluate("location.search")
    return parse_qs(search.lstrip("?"), keep_blank_values=True)


def row(watched, title):
    return watched.page.locator(".picker-row").filter(
        has=watched.page.locator(f'.picker-label[title^="{title}"]')
    )


def box(watched, title):
    return row(watched, title).locator(".picker-box")


def test_first_sight(demo, serve, watched):
    """The latest experiment with its runs ticked and four charts, from this machine alone."""
    demo.quickstart("older")
    demo.quickstart()
    url = serve()
    open_page(watched, url)
    page = watched.page
    expect(page.locator("h1")).to_have_text("quickstart")
    expect(page.locator("#facts")).to_have_text("3 workloads · 6 runs · 1 failed")
    expect(page.locator("#runs-count")).to_have_text("6 of 6 runs")
    expect(page.locator("#live")).to_have_text("idle")
    names = [name for name, _ in traces(watched)]
    assert names == [
        "solo  cnn-small",
        "three a  cnn-small",
        "three b  cnn-small",
        "three c  cnn-small",
        "mix a  cnn-small",
        "mix b  cnn-large",
    ]
    expect(page.locator('.card[data-metric="process.memory.rss"] .unit').first).to_have_text("MB")
    foreign = [u for u in watched.requests if not u.startswith((url, "data:", "blob:"))]
    assert foreign == []
    assert watched.errors == []
    config = page.locator(CHART.format("loss")).evaluate("g => g._context.showSendToCloud")
    assert config is False


def test_ticking_runs_is_three_state_and_kept_in_the_address(demo, serve, watched, wait_until):
    demo.quickstart()
    open_page(watched, serve())
    expect(box(watched, "workload three")).to_have_attribute("aria-checked", "true")
    row(watched, "three b").click()
    expect(box(watched, "workload three")).to_have_attribute("aria-checked", "mixed")
    wait_until(lambda: len(traces(watched)) == 5, "five lines")
    box(watched, "workload mix").click()
    wait_until(lambda: len(traces(watched)) == 3, "three lines")
    expect(watched.page.locator("#runs-count")).to_have_text("3 of 6 runs")
    wanted = {demo.run_ids[name][:12] for name in ("solo a", "three a", "three c")}
    wait_until(lambda: set(query(watched).get("r", [""])[0].split(",")) == wanted, "the address")

    watched.page.reload()
    expect(box(watched, "workload three")).to_have_attribute("aria-checked", "mixed")
    expect(box(watched, "workload mix")).to_have_attribute("aria-checked", "false")
    wait_until(lambda: len(traces(watched)) == 3, "three lines after a reload")
    assert watched.errors == []


def test_zoom_is_shared_and_asks_for_full_resolution(demo, serve, watched, wait_until):
    demo.quickstart()
    run_id = demo.run_ids["solo a"]
    origin_ns = demo.origin_ns(run_id)
    at_s = np.arange(200_000) / 1000 + 30
    demo.append(run_id, origin_ns, 0, at_s, np.sin(at_s), np.arange(200_000))
    demo.writer.update_run(run_id, ended_ns=origin_ns + 230 * 10**9)
    open_page(watched, serve())
    assert x_range(watched) == pytest.approx([0, 230])
    assert traces(watched)[0][1] < 5_000

    chart = watched.page.locator(CHART.format("loss")).locator(".nsewdrag").first
    frame = chart.bounding_box()
    at_y = frame["y"] + frame["height"] / 2
    watched.page.mouse.move(frame["x"] + frame["width"] * 0.5, at_y)
    watched.page.mouse.down()
    watched.page.mouse.move(frame["x"] + frame["width"] * 0.503, at_y, steps=4)
    watched.page.mouse.move(frame["x"] + frame["width"] * 0.55, at_y, steps=4)
    watched.page.mouse.up()
    wait_until(lambda: x_range(watched)[1] < 150, "the zoom")
    start_s, end_s = x_range(watched)
    assert 110 < start_s < end_s < 132
    wait_until(
        lambda: x_range(watched, "process.memory.rss") == x_range(watched), "the other charts"
    )
    # Only the run that is there; its points come at the resolution that the chart can show.
    wait_until(lambda: traces(watched)[0][1] > 1_000, "points in the zoom")
    expect(watched.page.locator("#zoom-text")).to_contain_text("full resolution")
    wait_until(lambda: "t" in query(watched), "the zoom in the address")

    watched.page.locator("#zoom-reset").click()
    wait_until(lambda: x_range(watched) == pytest.approx([0, 230]), "the whole again")
    expect(watched.page.locator("#zoom")).to_be_hidden()
    assert watched.errors == []


def test_runs_become_workloads(demo, serve, watched, wait_until):
    demo.quickstart()
    open_page(watched, serve())
    watched.page.get_by_text("Workloads", exact=True).click()
    metric = "process.memory.rss"
    wait_until(lambda: traces(watched, metric)[0][0] == "solo", "lines by workload")
    assert "three  sum of 3" in [name for name, _ in traces(watched, metric)]
    card = watched.page.locator(f'.card[data-metric="{metric}"]')
    card.get_by_text("mean").click()
    wait_until(lambda: "three  mean of 3" in [n for n, _ in traces(watched, metric)], "the mean")
    wait_until(lambda: query(watched).get("mean") == [metric], "the aggregate in the address")
    assert query(watched)["level"] == ["workload"]
    assert watched.errors == []


def test_charts_come_and_go(demo, serve, watched, wait_until):
    demo.quickstart()
    open_page(watched, serve())
    page = watched.page
    last = page.locator(CHART.format("process.memory.rss"))
    last.evaluate("g => { g.dataset.kept = 'yes' }")
    page.get_by_role("button", name="Remove accuracy").click()
    expect(page.locator(".card")).to_have_count(3)
    page.locator("#add-metric").click()
    page.get_by_role("option", name="system.cpu.utilization").click()
    expect(page.locator(".card")).to_have_count(4)
    metric = "system.cpu.utilization"
    expect(page.locator(f'.card[data-metric="{metric}"] .main-svg').first).to_be_visible()
    wait_until(lambda: len(traces(watched, metric)) == 3, "a line a machine and workload")
    # The charts that stayed were left alone.
    expect(last).to_have_attribute("data-kept", "yes")
    wait_until(lambda: query(watched).get("m", [""])[0].endswith(metric), "the address")
    assert watched.errors == []


def test_new_points_appear_without_flicker(demo, serve, watched, wait_until):
    running = demo.run("a", "cnn-small", 4.0, status=RunStatus.RUNNING)
    demo.workload("live", "now", [running])
    open_page(watched, serve())
    expect(watched.page.locator("#live")).to_have_text("1 run live")
    chart = watched.page.locator(CHART.format("loss"))
    # A chart that is made anew loses the mark; one that is emptied meanwhile is noticed.
    chart.evaluate(
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
    expect(chart).to_have_attribute("data-kept", "yes")
    assert chart.evaluate("g => g.emptied") == 0

    demo.writer.end_run(running.run_id, RunStatus.FINISHED, origin_ns + 60 * 10**9, 0)
    expect(watched.page.locator("#live")).to_have_text("idle")
    assert watched.errors == []


def test_a_new_workload_joins_by_itself(demo, serve, watched, wait_until):
    demo.quickstart()
    open_page(watched, serve())
    demo.workload("quickstart", "fourth", [demo.run("a", "cnn-small", 3.0)])
    expect(row(watched, "fourth")).to_be_visible(timeout=20_000)
    expect(box(watched, "fourth")).to_have_attribute("aria-checked", "true")
    wait_until(lambda: "fourth  cnn-small" in [n for n, _ in traces(watched)], "its line")
    assert watched.errors == []


def rest(watched, wait_until):
    """Wait until a page only asks for news; returns the outputs that it asks for from then on."""
    asked = []

    def note(request):
        if "_dash-update-component" in request.url:
            asked.append(json.loads(request.post_data)["output"])

    def quiet():
        watched.page.wait_for_timeout(50)
        return len(asked) >= 2 and all(PULSE.search(output) for output in asked[-2:])

    watched.page.on("request", note)
    wait_until(quiet, "two pulses without anything between")
    asked.clear()
    return asked


def test_nothing_is_asked_for_while_nothing_changes(demo, serve, watched, wait_until):
    """A page that is left open asks whether there is news, and for nothing else."""
    demo.quickstart()
    open_page(watched, serve())
    asked = rest(watched, wait_until)
    wait_until(lambda: watched.page.wait_for_timeout(50) or len(asked) >= 2, "more pulses")
    assert all(PULSE.search(output) for output in asked)


def test_charts_of_ended_runs_are_not_drawn_again(demo, serve, watched, wait_until):
    """Somebody else's run writes every second; what cannot have changed is not sent again."""
    demo.quickstart()
    open_page(watched, serve())
    rest(watched, wait_until)
    answers = []

    def note(response):
        if "_dash-update-component" not in response.url:
            return
        output = json.loads(response.request.post_data)["output"]
        if '"type":"chart"' in output:
            answers.append(response.status)

    watched.page.on("response", note)
    demo.quickstart("another")
    wait_until(lambda: watched.page.wait_for_timeout(50) or len(answers) >= 4, "the charts to ask")
    assert set(answers) == {204}


def test_an_address_opens_what_it_says_and_stays(demo, serve, watched, wait_until):
    demo.quickstart("older")
    demo.quickstart()
    address = "/?e=older&m=loss,accuracy&level=workload&t=10,40&sum=loss"
    watched.page.goto(serve() + address)
    expect(watched.page.locator("h1")).to_have_text("older")
    expect(watched.page.locator(".card")).to_have_count(2)
    wait_until(
        lambda: (
            [name for name, _ in traces(watched)] == ["solo", "three  sum of 3", "mix  sum of 2"]
        ),
        "the sums",
    )
    assert x_range(watched) == pytest.approx([10, 40])
    asked = []
    watched.page.on("request", lambda request: asked.append(request.url))
    wait_until(lambda: watched.page.wait_for_timeout(50) or len(asked) >= 3, "three pulses")
    assert query(watched) == {
        "e": ["older"],
        "m": ["loss,accuracy"],
        "level": ["workload"],
        "t": ["10,40"],
        "sum": ["loss"],
    }


def test_the_list_works_by_keyboard_and_shows_the_focus(demo, serve, watched, wait_until):
    demo.quickstart()
    open_page(watched, serve())
    page = watched.page
    page.locator("#query").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    focused = page.locator("li:focus > .picker-row")
    expect(focused.locator(".picker-label")).to_have_text("a")
    assert focused.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    page.keyboard.press("Space")
    expect(box(watched, "three a")).to_have_attribute("aria-checked", "false")
    wait_until(lambda: len(traces(watched)) == 5, "one line less")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(row(watched, "three a")).to_have_count(0)


def test_search_narrows_the_list_and_keeps_the_selection(demo, serve, watched):
    demo.quickstart()
    open_page(watched, serve())
    watched.page.locator("#query").fill("status:failed")
    expect(watched.page.locator(".picker-row")).to_have_count(1)
    expect(row(watched, "mix b")).to_be_visible()
    expect(watched.page.locator("#runs-count")).to_have_text("6 of 6 runs")
    watched.page.locator("#query").fill("nothing like this")
    expect(watched.page.locator("#runs-none")).to_be_visible()


def test_another_experiment_is_another_page_and_back_leads_back(demo, serve, watched):
    demo.quickstart("first")
    demo.quickstart("second")
    open_page(watched, serve())
    expect(watched.page.locator("h1")).to_have_text("second")
    watched.page.locator("#experiment").click()
    watched.page.get_by_role("option", name="first").click()
    expect(watched.page.locator("h1")).to_have_text("first")
    watched.page.go_back()
    expect(watched.page.locator("h1")).to_have_text("second")


def test_long_lists_come_in_pages(demo, serve, watched):
    with demo.writer.transaction():
        for number in range(120):
            demo.workload("many", f"w{number:03}", [demo.run("a", "n", 0.2, epochs=1)])
    url = serve()
    watched.page.goto(url)
    expect(watched.page.locator(".picker-row")).to_have_count(50)
    expect(watched.page.locator(".picker-label").first).to_have_text("w119")
    expect(watched.page.locator("#runs-count")).to_have_text("8 of 120 runs")
    watched.page.locator("#runs-page").get_by_text("3", exact=True).click()
    expect(watched.page.locator(".picker-row")).to_have_count(20)
    row(watched, "w000").click()
    expect(watched.page.locator("#runs-count")).to_have_text("9 of 120 runs")
    assert watched.errors == []


def test_an_empty_place_says_what_fills_it_and_fills_by_itself(store_path, serve, watched, request):
    watched.page.goto(serve())
    expect(watched.page.get_by_role("status").locator("pre")).to_have_text("radt train.py")
    request.getfixturevalue("demo").quickstart()
    expect(watched.page.locator("h1")).to_have_text("quickstart", timeout=20_000)


def test_a_damaged_store_is_named_with_its_remedy(store_path, serve, watched):
    store_path.parent.mkdir(parents=True)
    store_path.write_bytes(b"no database at all" * 100)
    watched.page.goto(serve())
    expect(watched.page.get_by_role("alert")).to_contain_text(str(store_path))
    expect(watched.page.get_by_role("alert").locator("p").first).not_to_be_empty()


@pytest.mark.parametrize("width", [900, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_charts_have_the_colours_of_the_page(demo, serve, watched, width, scheme):
    demo.quickstart()
    watched.page.emulate_media(color_scheme=scheme)
    watched.page.set_viewport_size({"width": width, "height": 900})
    open_page(watched, serve())
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    card = watched.page.locator(".card").first
    paper = card.evaluate("e => getComputedStyle(e).backgroundColor")
    drawn = card.locator(".js-plotly-plot").evaluate("g => g._fullLayout.paper_bgcolor")
    channels = tuple(int(drawn[i : i + 2], 16) for i in (1, 3, 5))
    assert paper == f"rgb{channels}".replace("'", "")
    watched.page.locator("#scheme").click()
    expect(card).not_to_have_css("background-color", paper)
    expect(card.locator(".main-svg").first).not_to_have_css(
        "background", re.compile(re.escape(paper))
    )


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
    page.goto(f"{serve()}/?m=process.gpu.energy&level=workload")
    card = page.locator(".card")
    expect(card.locator(".unit").first).to_have_text("W")
    expect(card.locator(".subtitle")).to_have_text("estimated rate · process tree")
    how = card.locator(".how")
    how.focus()
    expect(page.get_by_text("Share of the card's energy by SM time.")).to_be_visible()
    shown = page.locator(CHART.format("process.gpu.energy"))
    values = "g => Array.from((g._fullData || []).filter(t => t.name == 'solo')[0].y)"
    assert shown.evaluate(values)[1] == pytest.approx(90.0)
    assert watched.errors == []
