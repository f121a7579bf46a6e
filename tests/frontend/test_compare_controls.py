"""The Compare page's controls: list, metrics, settings of charts, order and size."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.frontend.compare_support import (
    CARDS,
    card,
    chart,
    drawn,
    names,
    open_page,
    order,
    query,
    row,
)
from tests.frontend.conftest import bounds

RSS = "process.memory.rss"
CPU = "process.cpu.utilization"
HOST_CPU = "system.cpu.utilization"


def settings(watched, metric):
    watched.page.get_by_label(f"Settings of {metric}").click()
    return watched.page.get_by_role("dialog", name=f"Settings of {metric}")


def test_metrics_are_searched_and_added_several_at_once(site, watched, wait_until):
    open_page(watched, site.url)
    page = watched.page
    last = chart(watched, RSS)
    last.evaluate("g => { g.dataset.kept = 'yes' }")
    page.get_by_role("button", name="Metric", exact=True).click()
    dialog = page.get_by_role("dialog", name="Metrics")
    expect(dialog.get_by_label("Search metrics")).to_be_focused()
    expect(dialog.locator("h3")).to_have_text(["logged by the script", "top"])
    page.keyboard.type("system ratio")
    expect(dialog.locator(".metric-row:not([hidden])")).to_have_count(1)
    page.keyboard.press("Enter")
    drawn(watched, 5)
    dialog.get_by_label("Search metrics").fill("accuracy")
    dialog.get_by_role("checkbox", name="accuracy").uncheck()
    drawn(watched, 4)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Metric", exact=True)).to_be_focused()
    # The charts that stayed were left alone.
    expect(last).to_have_attribute("data-kept", "yes")
    wait_until(
        lambda: query(watched).get("c") == ["loss", CPU, RSS, "system.cpu.utilization"],
        "the address",
    )
    assert watched.errors == []


def test_runs_become_workloads_and_are_summed_otherwise(site, watched, wait_until):
    open_page(watched, site.url)
    watched.page.locator(".levels").get_by_text("Workloads").click()
    wait_until(lambda: names(watched, RSS)[0] == "solo", "lines by workload")
    subtitle = card(watched, RSS).locator(".subtitle")
    expect(subtitle).to_contain_text("sum of runs")
    dialog = settings(watched, RSS)
    dialog.get_by_label("Runs of a workload").select_option("mean")
    expect(subtitle).to_contain_text("mean of runs")
    chip = card(watched, RSS).get_by_role("button", name="Reset mean")
    wait_until(lambda: f"{RSS};agg=mean" in query(watched)["c"], "the aggregate in the address")
    assert query(watched)["level"] == ["workload"]
    watched.page.keyboard.press("Escape")
    chip.click()
    expect(subtitle).to_contain_text("sum of runs")
    wait_until(lambda: RSS in query(watched)["c"], "nothing special any more")
    assert watched.errors == []


def test_a_sweep_is_compared_as_runs_and_by_a_parameter(demo, serve, watched, wait_until):
    demo.sweep()
    rates = [f"lr {rate}" for rate in ("0.001", "0.003", "0.01", "0.03", "0.1", "0.3")]
    open_page(watched, serve(), "?s=sweep")
    wait_until(lambda: names(watched) == rates, "a line for each run")
    expect(watched.page.locator(".picks > li .pick-label")).to_have_text(rates)
    expect(watched.page.locator("#facts")).to_have_text("6 runs")
    last = watched.page.get_by_role("link", name="lr 0.3")
    expect(last).to_have_attribute("title", "Open workload 002")
    expect(last).to_have_attribute("href", re.compile(r"^\./workload\?w="))
    # Readings of the machine belong to the runs of a batch.
    batches = ("lr 0.001/0.003", "lr 0.01/0.03", "lr 0.1/0.3")
    assert names(watched, HOST_CPU) == [f"{batch}  bench-1" for batch in batches]
    tools = watched.page.locator("#compare-tools")
    tools.get_by_text("Workloads").click()
    means = [f"{label}  mean of 2" for label in ("000", "001", "002")]
    wait_until(lambda: names(watched) == means, "workloads, if asked for")
    tools.get_by_text("Groups").click()
    tools.get_by_label("by", exact=True).select_option("lr")
    wait_until(lambda: query(watched)["by"] == ["lr"], "the address")
    wait_until(lambda: names(watched) == rates, "a line for each learning rate")
    assert watched.errors == []


@pytest.mark.long
def test_one_chart_can_differ_from_the_page(site, watched, wait_until):
    open_page(watched, site.url)
    dialog = settings(watched, "accuracy")
    dialog.get_by_label("Lines", exact=True).select_option("workload")
    wait_until(lambda: "three" in " ".join(names(watched, "accuracy")), "lines by workload")
    dialog.get_by_role("checkbox", name="Log scale of y").check()
    dialog.get_by_label("Minimum of the y axis").fill("0.8")
    dialog.get_by_label("Maximum of the y axis").fill("0.9")
    dialog.get_by_label("Maximum of the y axis").press("Enter")
    expect(card(watched, "accuracy").locator(".chip")).to_have_text(
        ["by workload", "log", "y range"]
    )
    wait_until(
        lambda: "accuracy;level=workload;log=1;min=0.8;max=0.9" in query(watched)["c"],
        "the address",
    )
    assert len(names(watched, "loss")) == 6
    dialog.get_by_role("button", name="Duplicate").click()
    expect(watched.page.locator(CARDS)).to_have_count(5)
    dialog.get_by_role("button", name="Reset").click()
    expect(card(watched, "accuracy").first.locator(".chip")).to_have_count(0)
    expect(card(watched, "accuracy").last.locator(".chip")).to_have_count(3)
    dialog.get_by_role("button", name="Remove accuracy").click()
    expect(watched.page.locator(CARDS)).to_have_count(4)
    assert watched.errors == []


@pytest.mark.long
def test_lines_are_hidden_in_all_charts_and_in_one(site, watched, wait_until):
    open_page(watched, site.url)
    row(watched, "three b").hover()
    row(watched, "three b").get_by_role("button", name="Show b cnn-small").click()
    for metric in ("loss", RSS):
        wait_until(
            lambda m=metric: (
                len(names(watched, m)) == 5 and "three b  cnn-small" not in names(watched, m)
            ),
            "five lines",
        )
    wait_until(lambda: query(watched) != {}, "an address with it")
    with_one = query(watched)
    row(watched, "workload mix").hover()
    row(watched, "workload mix").locator(".eye").click()
    wait_until(lambda: len(names(watched)) == 3, "three lines")
    wait_until(lambda: query(watched) != with_one, "an address with both")
    watched.page.reload()
    drawn(watched, 4)
    wait_until(lambda: len(names(watched)) == 3, "three lines after a reload")
    # One run of the hidden workload comes back alone.
    row(watched, "mix a").locator(".eye").click()
    wait_until(lambda: len(names(watched)) == 4, "four lines")
    assert "mix b  cnn-large" not in names(watched)
    watched.page.get_by_role("button", name="Show all").click()
    wait_until(lambda: len(names(watched)) == 6, "all lines")
    wait_until(lambda: query(watched) == {}, "an address without it")

    dialog = settings(watched, "loss")
    dialog.get_by_role("checkbox", name="three b").uncheck()
    wait_until(lambda: len(names(watched)) == 5, "one line less")
    assert "three b  cnn-small" not in names(watched)
    assert len(names(watched, RSS)) == 6
    dialog.get_by_role("button", name="Show all lines").click()
    wait_until(lambda: len(names(watched)) == 6, "all lines")
    assert watched.errors == []


@pytest.mark.long
def test_what_is_picked_can_be_removed(site, watched, wait_until):
    open_page(watched, site.url, "?s=quickstart")
    wait_until(lambda: len(names(watched)) > 3, "the lines")
    row(watched, "three b").hover()
    row(watched, "three b").get_by_role("button", name="Remove b cnn-small").click()
    expect(row(watched, "three b")).to_have_count(0)
    row(watched, "workload mix").hover()
    row(watched, "workload mix").get_by_role("button", name="Remove mix").click()
    expect(watched.page.locator("#facts")).to_have_text("2 workloads · 3 runs")
    wanted = [site.demo.run_ids[name][:12] for name in ("three a", "three c")]
    wait_until(
        lambda: query(watched)["s"][0].endswith(",".join(f"r{one}" for one in wanted)), "address"
    )
    assert watched.errors == []


@pytest.mark.long
def test_a_long_list_is_searched(demo, serve, watched):
    for number in range(12):
        demo.workload("many", f"w{number:02}", [demo.run("a", "n", 0.2, epochs=1)])
    open_page(watched, serve(), "?s=many")
    watched.page.get_by_label("Find in the list").fill("w07")
    expect(watched.page.locator(".picks > li:not([hidden])")).to_have_count(1)
    watched.page.get_by_label("Find in the list").fill("nowhere")
    expect(watched.page.get_by_text("No run matches.")).to_be_visible()


def test_charts_are_moved_by_pointer_and_keyboard(site, watched, wait_until):
    open_page(watched, site.url)
    before = ["loss", "accuracy", CPU, RSS]
    assert order(watched) == before
    graph = chart(watched, "loss")
    graph.evaluate("g => { g.dataset.kept = 'yes' }")
    head = bounds(card(watched, "loss").locator(".card-head"))
    goal = bounds(card(watched, RSS))
    mouse = watched.page.mouse
    mouse.move(head["x"] + head["width"] - 80, head["y"] + 12)
    mouse.down()
    mouse.move(goal["x"] + 60, goal["y"] + 60, steps=10)
    mouse.up()
    after = ["accuracy", CPU, RSS, "loss"]
    wait_until(lambda: order(watched) == after, "the new order")
    wait_until(lambda: query(watched).get("c") == after, "the address")
    expect(graph).to_have_attribute("data-kept", "yes")

    watched.page.get_by_role("button", name="Move loss").focus()
    watched.page.keyboard.press("ArrowLeft")
    moved = ["accuracy", CPU, "loss", RSS]
    wait_until(lambda: order(watched) == moved, "one place to the left")
    expect(watched.page.get_by_role("button", name="Move loss")).to_be_focused()
    expect(watched.page.locator("#compare-status")).to_have_text("Chart 3 of 4")
    watched.page.keyboard.press("ArrowLeft")
    wait_until(lambda: order(watched)[1] == "loss", "and another")

    # What is given up leaves all as it was.
    head = bounds(card(watched, "loss").locator(".card-head"))
    goal = bounds(card(watched, RSS))
    mouse.move(head["x"] + head["width"] - 80, head["y"] + 12)
    mouse.down()
    mouse.move(goal["x"] + 60, goal["y"] + 60, steps=10)
    watched.page.keyboard.press("Escape")
    mouse.up()
    wait_until(lambda: order(watched)[1] == "loss", "the order as it was")
    assert watched.errors == []


@pytest.mark.long
def test_charts_are_sized_by_pointer_and_keyboard(site, watched, wait_until):
    open_page(watched, site.url)
    shown = card(watched, "accuracy")
    box = bounds(shown)
    shown.hover()
    mouse = watched.page.mouse
    mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] - 8)
    mouse.down()
    mouse.move(box["x"] + box["width"] - 8, box["y"] + 2 * box["height"], steps=6)
    mouse.up()
    wait_until(lambda: bounds(shown)["height"] > 1.9 * box["height"], "two rows")
    wait_until(lambda: "accuracy;rows=2" in query(watched)["c"], "the address")
    graph = chart(watched, "accuracy")
    wait_until(lambda: graph.evaluate("g => g._fullLayout.height") > 500, "the chart fills it")
    watched.page.get_by_role("button", name="Size of accuracy: 1 by 2").focus()
    watched.page.keyboard.press("ArrowRight")
    wait_until(lambda: bounds(shown)["width"] > 1.9 * box["width"], "two columns")
    watched.page.keyboard.press("ArrowUp")
    wait_until(lambda: "accuracy;cols=2" in query(watched)["c"], "one row again")
    assert watched.errors == []


@pytest.mark.long
def test_the_bar_sets_what_all_charts_share(site, watched, wait_until):
    open_page(watched, site.url, "?c=loss&c=accuracy", cards=2)
    tools = watched.page.locator("#compare-tools")
    tools.get_by_label("x", exact=True).select_option("wall")
    tools.get_by_label("Values").select_option("ratio")
    expect(tools.get_by_label("to", exact=True)).to_be_visible()
    solo = f"quickstart:r{site.demo.run_ids['solo a'][:12]}"
    three = f"quickstart:r{site.demo.run_ids['three b'][:12]}"
    wait_until(lambda: query(watched).get("base") == [solo], "the first is the baseline")
    tools.get_by_label("to", exact=True).select_option(label="three b")
    slider = tools.get_by_label("Smoothing in per cent of the x axis")
    slider.focus()
    watched.page.keyboard.press("ArrowRight")
    watched.page.keyboard.press("ArrowRight")
    tools.get_by_role("button", name="Mono").click()
    wanted = {
        "c": ["loss", "accuracy"],
        "x": ["wall"],
        "rel": ["ratio"],
        "base": [three],
        "smooth": ["1"],
        "mono": ["1"],
    }
    wait_until(lambda: query(watched) == wanted, "the address")
    watched.page.reload()
    drawn(watched, 2)
    expect(tools.get_by_label("Values")).to_have_value("ratio")
    expect(tools.get_by_label("x", exact=True)).to_have_value("wall")
    expect(tools.get_by_label("to", exact=True)).to_have_value(three)
    expect(slider).to_have_value("1")
    expect(tools.get_by_role("button", name="Mono")).to_have_attribute("aria-pressed", "true")
    tools.get_by_label("Values").select_option("off")
    expect(tools.get_by_label("to", exact=True)).to_be_hidden()
    assert watched.errors == []


@pytest.mark.long
def test_a_narrow_window_folds_the_list(site, watched):
    watched.page.set_viewport_size({"width": 900, "height": 900})
    open_page(watched, site.url)
    expect(row(watched, "three b")).to_be_hidden()
    toggle = watched.page.get_by_role("button", name="Runs", exact=True)
    expect(toggle).to_have_attribute("aria-expanded", "false")
    toggle.click()
    expect(row(watched, "three b")).to_be_visible()
    toggle.click()
    expect(row(watched, "three b")).to_be_hidden()


@pytest.mark.long
def test_addresses_that_make_no_sense_show_what_can_be_shown(site, watched):
    open_page(watched, site.url, "?level=nonsense&t.barrier=5,5&x=<b>")
    page = watched.page
    ignored = page.get_by_text("“t.barrier=5,5” is ignored: expected an axis")
    expect(ignored).to_be_visible()
    page.goto(f"{site.url}/compare?c=")
    expect(ignored).to_have_count(0)
    expect(page.get_by_text("No charts")).to_be_visible()
    page.get_by_role("button", name="Choose for me").click()
    drawn(watched, 4)
    assert watched.errors == []
