"""The page Runs in a real browser."""

from __future__ import annotations

import csv
import re
from contextlib import suppress
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Error, expect

import radt
from radt.frontend.pages.runs import MAX_ROWS
from radt.model import RunStatus
from radt.store.notes import RunNotes, read_notes
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from tests.frontend.conftest import bounds, shown
from tests.frontend.test_accessibility import findings

PULSE = re.compile(r'"output":"..revision')
HTML = "<img src=x onerror=alert(1)>"
BODY = ".runs-body .runs-row"


def rows(watched):
    return watched.page.locator(BODY)


def row(watched, name):
    """The row with this name."""
    exactly = re.compile(f"^{re.escape(name)}$")
    link = watched.page.locator(".runs-link", has_text=exactly)
    return rows(watched).filter(has=link)


def box(watched, name):
    return row(watched, name).locator(".runs-box")


def names(watched):
    return watched.page.locator(f"{BODY} .runs-link")


def head(watched, label):
    return watched.page.locator(".runs-columns").get_by_role("button", name=label, exact=True)


def cells(watched, label):
    """The cells of a column, from top to bottom."""
    place = head(watched, label).evaluate("b => b.closest('[aria-colindex]').ariaColIndex")
    return watched.page.locator(f"{BODY} .runs-cell:nth-child({place})")


def open_page(watched, url, query=""):
    watched.page.goto(url + query)
    shown(watched.page, BODY)


def query(watched):
    search = watched.page.evaluate("location.search")
    return parse_qs(search.lstrip("?"), keep_blank_values=True)


def test_the_best_run_is_found_by_its_metric(site, watched, wait_until):
    """Sort, search, columns and the file, with the values that `radt.load` has."""
    page = watched.page
    open_page(watched, site.url, "?o.runs.group=none")
    expect(rows(watched)).to_have_count(6)
    frame = radt.load(list(site.demo.run_ids.values()), home=site.demo.store.parent)
    best = frame[frame["metric"] == "accuracy"].groupby("run_id")["value"].max()
    short = {run_id: name for name, run_id in site.demo.run_ids.items()}
    in_order = [
        short[run_id].removesuffix(" a") if short[run_id] == "solo a" else short[run_id]
        for run_id in best.sort_values(ascending=False).index
    ]
    head(watched, "accuracy max").click()
    expect(names(watched)).to_have_text(in_order)  # the highest first, without another click
    expect(page.locator(".runs-columns [aria-sort]")).to_have_attribute("aria-sort", "descending")
    expect(rows(watched).first.locator("[data-best]").first).to_have_text(f"{best.max():.4f}")
    wait_until(lambda: query(watched).get("o.runs.sort") == ["-accuracy.max"], "the order")
    # Another column as well, before the table of the first has come.
    head(watched, "model").evaluate(
        """(model, best) => {
            model.click();
            best.dispatchEvent(new MouseEvent("click", { bubbles: true, shiftKey: true }));
        }""",
        head(watched, "accuracy max").element_handle(),
    )
    models = cells(watched, "model")
    expect(models).to_have_text(["cnn-large"] + ["cnn-small"] * 5)
    small = [name for name in in_order if name != "mix b"]
    expect(names(watched)).to_have_text(["mix b", *small])
    # What is found, and the file of it.
    limit = float(best.sort_values().iloc[2])
    page.keyboard.press("/")
    page.keyboard.type(f"accuracy.max > {limit!r} state = finished")
    found = [name for name in in_order[:3] if name != "mix b"]
    expect(page.locator("#runs-count")).to_have_text(f"{len(found)} of 6 runs")
    expect(names(watched)).to_have_text(found)
    expect(page.get_by_role("link", name="CSV")).to_have_attribute("href", re.compile("q=accuracy"))
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    with download.value.path().open() as file:
        written = {line["run_id"]: line["accuracy.max"] for line in csv.DictReader(file)}
    assert len(written) == len(found)
    assert all(float(value) == best[run_id] for run_id, value in written.items())
    assert watched.errors == []


def test_columns_are_chosen_moved_and_resized_and_kept_in_the_address(site, watched, wait_until):
    page = watched.page
    open_page(watched, site.url)
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("group", name="process.memory.rss").get_by_label("max").check()
    expect(head(watched, "process.memory.rss max, MB")).to_be_visible()
    page.get_by_label("Filter columns").fill("batch")
    page.get_by_label("batch-size").check()
    expect(head(watched, "batch-size")).to_be_visible()
    page.keyboard.press("Escape")
    frame = radt.load(site.demo.run_ids["mix a"], home=site.demo.store.parent)
    peak = frame[frame["metric"] == "process.memory.rss"]["value"].max() / 1e6
    expect(cells(watched, "process.memory.rss max, MB").nth(1)).to_have_text(f"{peak:.1f}")

    def keys():
        return [text.partition("~")[0] for text in query(watched).get("col", [])]

    heads = page.locator(".runs-columns .runs-cell")
    wait_until(lambda: keys()[-2:] == ["process.memory.rss.max", "param.batch-size"], "two more")
    head(watched, "batch-size").focus()
    page.keyboard.press("Alt+ArrowLeft")
    wait_until(lambda: keys()[-1:] == ["process.memory.rss.max"], "moved by a key")
    expect(heads.last).to_contain_text("process.memory.rss")
    expect(head(watched, "batch-size")).to_be_focused()
    state = bounds(head(watched, "State"))
    took = bounds(head(watched, "Took"))
    page.mouse.move(state["x"] + 5, state["y"] + 5)
    page.mouse.down()
    page.mouse.move(took["x"] + took["width"] - 5, took["y"] + 5, steps=4)
    page.mouse.up()
    wait_until(lambda: keys()[:2] == ["duration", "status"], "moved by the mouse")
    assert "o.runs.sort" not in query(watched)  # moving does not sort
    expect(heads.nth(2)).to_contain_text("Took")  # the address is there first
    handle = bounds(heads.nth(2).locator(".runs-handle"))
    page.mouse.move(handle["x"] + 3, handle["y"] + 5)
    page.mouse.down()
    page.mouse.move(handle["x"] + 63, handle["y"] + 5, steps=4)
    page.mouse.up()
    wait_until(lambda: query(watched)["col"][0] == "duration~140", "wider")
    expect(heads.nth(2)).to_have_css("width", "140px")
    held = []
    page.route("**/runs/rows", lambda route: held.append(route))
    head(watched, "Took").focus()
    for _ in range(2):  # faster than the server answers
        page.keyboard.press("Shift+ArrowLeft")
    wait_until(lambda: query(watched)["col"][0] == "duration~108", "narrower")
    page.unroute("**/runs/rows")
    for route in held:
        with suppress(Error):  # the page has given up the older one
            route.continue_()
    head(watched, "Took").focus()
    page.keyboard.press("Shift+ArrowRight")
    wait_until(lambda: query(watched)["col"][0] == "duration~124", "wider by a key")
    page.reload()
    shown(page, BODY)
    expect(heads.nth(2)).to_contain_text("Took")
    assert bounds(heads.nth(2))["width"] == 124
    head(watched, "Took").focus()
    page.keyboard.press("Delete")
    wait_until(lambda: "duration" not in keys(), "removed")
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("button", name="Automatic").click()
    wait_until(lambda: "col" not in query(watched), "the dashboard's choice")
    assert watched.errors == []


def test_a_heading_moves_only_if_it_is_dropped_and_an_aborted_drag_does_not_sort(
    site, watched, wait_until
):
    page = watched.page
    open_page(watched, site.url)
    state, took = bounds(head(watched, "State")), bounds(head(watched, "Took"))
    first = page.locator(".runs-columns .runs-cell").nth(2)
    width = bounds(first)["width"]

    handle = bounds(first.locator(".runs-handle"))
    page.mouse.move(handle["x"] + 3, handle["y"] + 5)
    page.mouse.down(button="right")
    page.mouse.move(handle["x"] + 63, handle["y"] + 5, steps=4)
    assert bounds(first)["width"] == width
    page.mouse.up(button="right")
    page.keyboard.press("Escape")  # closes the browser's menu

    def dragged():
        page.mouse.move(state["x"] + 5, state["y"] + 5)
        page.mouse.down()
        page.mouse.move(took["x"] + took["width"] - 5, took["y"] + 5, steps=4)
        expect(page.locator("[data-drop]")).to_have_count(1)

    dragged()
    page.keyboard.press("Escape")
    expect(page.locator("[data-drop]")).to_have_count(0)
    page.mouse.move(state["x"] + 9, state["y"] + 5)
    page.mouse.up()
    dragged()
    page.evaluate("document.querySelector('.runs-columns').replaceChildren()")
    page.mouse.up()
    assert not {"col", "o.runs.sort"} & query(watched).keys()

    page.reload()
    shown(page, BODY)
    dragged()
    page.keyboard.press("Escape")
    page.mouse.move(state["x"] + 9, state["y"] + 5)
    page.mouse.up()
    head(watched, "State").press("Enter")
    wait_until(lambda: "o.runs.sort" in query(watched), "sorted by the keyboard")
    assert "col" not in query(watched)
    assert watched.errors == []


def test_boxes_have_three_states_and_compare_takes_what_is_ticked(site, watched, wait_until):
    page = watched.page
    open_page(watched, site.url)
    box(watched, "three").click()
    expect(page.locator(".runs-picked")).to_have_text("3 runs ticked")
    expect(page.get_by_label("All runs listed")).to_have_attribute("aria-checked", "mixed")
    three = rows(watched).filter(has_text="cnn-small").locator(".runs-box[aria-checked=true]")
    expect(three).to_have_count(4)
    box(watched, "c").click()
    expect(box(watched, "three")).to_have_attribute("aria-checked", "mixed")
    wanted = "quickstart:" + ",".join(f"r{site.demo.run_ids[f'three {x}'][:12]}" for x in "ab")
    wait_until(lambda: query(watched).get("s") == [wanted], "the address")
    page.reload()
    expect(box(watched, "three")).to_have_attribute("aria-checked", "mixed")
    page.get_by_role("link", name="Compare ticked").click()
    wait_until(lambda: page.evaluate("location.pathname") == "/compare", "Compare")
    assert query(watched)["s"] == [wanted]
    page.go_back()
    expect(box(watched, "three")).to_have_attribute("aria-checked", "mixed")
    page.get_by_role("button", name="Clear").click()
    wait_until(lambda: "s" not in query(watched), "nothing in the address")
    # Without a tick, what is found.
    page.locator("#runs-search").fill("model:cnn-large")
    expect(rows(watched)).to_have_count(2)
    page.get_by_role("link", name="Compare these").click()
    wait_until(lambda: page.evaluate("location.pathname") == "/compare", "Compare")
    found = f"quickstart:r{site.demo.run_ids['mix b'][:12]}"
    wait_until(lambda: query(watched)["s"] == [found], "what was found")
    assert watched.errors == []


@pytest.mark.long
def test_runs_get_stars_and_are_archived(demo, serve, watched):
    demo.quickstart()
    page = watched.page
    open_page(watched, serve(), "?o.runs.group=none")
    page.locator("#runs-grid").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("s")
    expect(page.locator(".runs-star[data-on]")).to_have_text("★")
    page.locator("#runs-search").fill("starred:yes")
    expect(names(watched)).to_have_text(["mix b"])
    row(watched, "mix b").locator(".runs-star").click()
    expect(rows(watched)).to_have_count(0)
    page.locator("#runs-search").fill("")
    box(watched, "solo").click()
    page.get_by_role("button", name="Archive").click()
    expect(page.locator("#runs-count")).to_have_text("5 of 6 runs")
    expect(row(watched, "solo")).to_have_count(0)
    expect(page.locator(".runs-picked")).to_have_text("1 run archived")
    page.keyboard.press("Enter")  # the focus is on Undo
    expect(page.locator("#runs-count")).to_have_text("6 runs")
    expect(box(watched, "solo")).to_have_attribute("aria-checked", "true")
    page.get_by_role("button", name="Archive").click()
    expect(page.locator("#runs-count")).to_have_text("5 of 6 runs")
    page.locator("#runs-search").fill("archived:yes")
    expect(names(watched)).to_have_text(["solo"])
    assert watched.errors == []


def test_name_notes_and_tags_are_written_in_the_table(demo, serve, watched):
    demo.quickstart()
    page = watched.page
    columns = "&col=name&col=description&col=tag.team"
    open_page(watched, serve(), f"?o.runs.group=none{columns}")
    grid = page.get_by_role("treegrid", name="Runs")
    grid.focus()
    active = rows(watched).first
    run_id = demo.run_ids["mix a"]
    page.keyboard.press("F2")
    name = page.get_by_label("Name of the run")
    expect(name).to_be_focused()
    assert findings(page) == []
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("the baseline")
    page.keyboard.press("Enter")
    expect(page.locator(".notes-panel [role=status]")).to_have_text("Saved")
    expect(active.locator(".runs-detail")).to_have_text("the baseline")
    expect(cells(watched, "Name").first).to_have_text("the baseline")
    tag = page.get_by_label("New tag")
    tag.fill("radt.team=x")
    tag.press("Enter")
    refused = page.locator(".notes-panel [role=status]")
    expect(refused).to_contain_text("Expected a tag of your own, got 'radt.team'")
    expect(tag).to_be_focused()
    (refusal,) = watched.errors
    assert "400" in refusal
    watched.errors.clear()
    tag.fill("team=vision")
    tag.press("Enter")
    expect(cells(watched, "team").first).to_have_text("vision")
    page.keyboard.press("Escape")
    expect(page.locator(".notes-panel")).to_have_count(0)
    expect(grid).to_be_focused()
    # A double click begins with what the cell has; what was typed stays when the panel closes.
    cells(watched, "team").first.dblclick()
    expect(tag).to_be_focused()
    page.keyboard.type("speech")
    page.keyboard.press("Enter")
    expect(cells(watched, "team").first).to_have_text("speech")
    page.keyboard.press("Escape")
    cells(watched, "Description").first.dblclick()
    expect(page.get_by_role("textbox", name="Notes", exact=True)).to_be_focused()
    page.keyboard.type("diverges with a larger batch")
    page.locator("#runs-count").click()
    expect(page.locator(".notes-panel")).to_have_count(0)
    expect(cells(watched, "Description").first).to_have_text("diverges with a larger batch")
    with StoreReader(demo.store) as reader:
        assert read_notes(reader, run_id) == RunNotes(
            "the baseline", "diverges with a larger batch", {"team": "speech"}
        )
    page.locator("#runs-search").fill("description:diverges")
    expect(page.locator("#runs-count")).to_have_text("1 of 6 runs")
    row(watched, "mix a").hover()
    row(watched, "mix a").get_by_role("button", name="Edit name, notes and tags").click()
    expect(page.get_by_role("dialog", name="Notes of")).to_be_visible()
    assert watched.errors == []


@pytest.mark.long
def test_quick_clicks_all_count(site, watched, wait_until):
    open_page(watched, site.url, "?o.runs.group=none")
    expect(rows(watched)).to_have_count(6)
    watched.page.evaluate(
        "() => document.querySelectorAll('.runs-body .runs-box').forEach(box => box.click())"
    )
    wait_until(lambda: query(watched).get("s", [""])[0].count(",") == 5, "six in the address")
    expect(watched.page.get_by_label("All runs listed")).to_have_attribute("aria-checked", "true")
    watched.page.get_by_label("All runs listed").press(" ")
    wait_until(lambda: "s" not in query(watched), "none")
    assert watched.errors == []


def test_groups_by_a_parameter_and_the_experiment_as_a_filter(demo, serve, watched, wait_until):
    demo.quickstart("older")
    demo.quickstart()
    page = watched.page
    open_page(watched, serve())
    expect(page.locator("#runs-count")).to_have_text("12 runs")
    page.get_by_label("Group by", exact=True).select_option(label="model")
    expect(names(watched)).to_have_text(["cnn-large", "cnn-small"])
    expect(cells(watched, "accuracy max").last).to_contain_text(" ± ")
    row(watched, "cnn-large").click()
    expect(names(watched)).to_have_text(["cnn-large", "mix b", "mix b", "cnn-small"])
    page.get_by_label("Experiment", exact=True).select_option("older")
    expect(page.locator("#runs-count")).to_have_text("6 runs")
    expect(page.locator(".filter-chip")).to_have_text(["finished5", "failed1"])
    wait_until(
        lambda: query(watched) == {"e": ["older"], "o.runs.group": ["param.model"]}, "the address"
    )
    page.get_by_role("button", name="Open all").click()
    expect(rows(watched)).to_have_count(8)
    page.get_by_label("Group by", exact=True).select_option(label="workload")
    expect(names(watched)).to_have_text(["mix", "a", "b", "three", "a", "b", "c", "solo"])
    page.get_by_role("button", name="Close all").click()
    expect(names(watched)).to_have_text(["mix", "three", "solo"])
    assert watched.errors == []


@pytest.mark.long
def test_the_search_says_what_it_cannot_read(site, watched):
    page = watched.page
    open_page(watched, site.url)
    page.locator("#runs-search").fill("cnn-large modl:x lr>")
    expect(page.locator(".runs-problems")).to_contain_text("expected a value after >")
    expect(page.locator(".runs-problems")).to_contain_text("did you mean model?")
    expect(page.locator(".runs-none")).to_have_text("No run matches.")
    page.locator("#runs-search").press("Escape")
    expect(page.locator(".runs-problems")).to_be_hidden()
    page.get_by_role("button", name=re.compile("failed")).click()
    expect(names(watched)).to_have_text(["mix", "b"])
    assert watched.errors == []


def test_unknown_experiments_and_windows_are_named(site, watched):
    page = watched.page
    page.goto(f"{site.url}/?e=quickstrat&t.barrier=10-20")
    problems = page.locator(".runs-problems")
    expect(problems).to_contain_text("quickstrat is not an experiment in")
    expect(page.locator(".address-problems")).to_contain_text("“t.barrier=10-20” is ignored")
    expect(page.locator("#runs-count")).to_have_text("0 runs")
    expect(page.locator(".filter-chip")).to_have_count(0)
    for path, selector in (("/run", "#run-facts dd"), ("/workload", "#workload-facts dd")):
        page.goto(f"{site.url}{path}?e=quickstrat")
        expect(page.locator("#content")).to_contain_text("No experiment quickstrat in")
        page.goto(f"{site.url}{path}?t.barrier=10-20")
        expect(page.locator(".address-problems")).to_contain_text("“t.barrier=10-20” is ignored")
        shown(page, selector)
    assert watched.errors == []


@pytest.mark.long
def test_everything_by_keyboard(site, watched, wait_until):
    page = watched.page
    open_page(watched, site.url)
    grid = page.get_by_role("treegrid", name="Runs")
    grid.focus()
    page.keyboard.press("ArrowLeft")
    expect(names(watched).nth(1)).to_have_text("three")  # the first workload is closed
    page.keyboard.press("ArrowRight")
    expect(names(watched).nth(1)).to_have_text("a")
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    wanted = f"quickstart:r{site.demo.run_ids['mix a'][:12]}"
    wait_until(lambda: query(watched).get("s") == [wanted], "the run")
    page.keyboard.press("End")
    expect(page.locator(f"#{grid.get_attribute('aria-activedescendant')}")).to_contain_text("solo")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    wait_until(lambda: page.evaluate("location.pathname") == "/workload", "the workload")
    assert watched.errors == []


def many(demo, count, first=0):
    """Workloads of one run without samples."""
    with demo.writer.transaction():
        for number in range(first, first + count):
            identity = f"{number:012x}".ljust(32, "0")
            at_ns = demo.now_ns + number * 10**9
            demo.writer.put_workload(WorkloadRecord(identity, "many", f"w{number}", at_ns))
            demo.writer.put_run(
                RunRecord(
                    *(identity, identity, "many", f"w{number}", "a", "net", at_ns),
                    status=RunStatus.FINISHED,
                    started_ns=at_ns,
                    ended_ns=at_ns + 10**9,
                )
            )


@pytest.mark.long
def test_a_long_table_holds_only_the_rows_in_sight(demo, serve, watched):
    many(demo, 1200)
    page = watched.page
    open_page(watched, serve())
    grid = page.locator("#runs-grid")
    expect(grid).to_have_attribute("aria-rowcount", "1201")
    assert rows(watched).count() < 100
    assert bounds(rows(watched).first)["height"] == 24
    grid.evaluate("grid => { grid.scrollTop = 24 * 600; }")
    expect(row(watched, "w595")).to_be_visible()
    assert rows(watched).count() < 100
    expect(grid.locator("[data-loading]")).to_have_count(0)
    # What comes before the rows in sight does not move them.
    before = bounds(row(watched, "w590"))
    many(demo, 5, first=1200)
    expect(grid).to_have_attribute("aria-rowcount", "1206")
    expect(row(watched, "w590")).to_be_visible()
    assert bounds(row(watched, "w590")) == before
    # Paper has more than the rows in sight.
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert rows(watched).count() == MAX_ROWS
    expect(page.locator(".runs-rest")).to_have_text(
        f"The first {MAX_ROWS} of 1,205 rows. The CSV file has all of them."
    )
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert rows(watched).count() < 100
    assert bounds(row(watched, "w590")) == before
    page.get_by_label("All runs listed").click()
    expect(page.locator(".runs-picked")).to_have_text(
        "1,205 runs ticked · 1,005 runs left out: a chart shows at most 200"
    )
    page.get_by_role("button", name="Clear").click()
    page.locator("#runs-search").fill("-w0")
    expect(page.locator("#runs-count")).to_have_text("1,204 of 1,205 runs")
    page.get_by_label("All runs listed").click()
    expect(page.locator(".runs-picked")).to_contain_text("at most 500 picks, got 1,204")
    expect(page.get_by_label("All runs listed")).to_have_attribute("aria-checked", "false")
    assert watched.errors == []


@pytest.mark.long
def test_texts_are_texts(demo, serve, watched):
    run = demo.run("a", HTML, 1.0)
    demo.workload(HTML, HTML, [run, demo.run("b", "net", 1.0)])
    demo.writer.put_params(run.run_id, {HTML: HTML})
    open_page(watched, serve(), "?col=name&col=experiment")
    watched.page.locator("#runs-search").fill(f'name:"{HTML}"')
    expect(rows(watched)).to_have_count(2)
    expect(rows(watched).last).to_contain_text(HTML)
    watched.page.get_by_role("button", name="Columns").click()
    expect(watched.page.get_by_role("checkbox", name=HTML, exact=True)).to_be_visible()
    assert watched.page.locator(".runs img, .panel img").count() == 0
    assert watched.errors == []


@pytest.mark.long
def test_running_runs_move_and_new_ones_join(demo, serve, watched, wait_until):
    demo.quickstart()
    demo.workload("quickstart", "now", [demo.run("a", "n", 9.0, status=RunStatus.RUNNING)])
    asks, pulses = [], []
    watched.on("request", lambda r: asks.append(r) if r.url.endswith("/runs/rows") else None)
    watched.on("request", lambda r: pulses.append(r) if PULSE.search(r.post_data or "") else None)
    open_page(watched, serve())
    running = row(watched, "now")
    took = running.locator("[data-format=clock]")
    first = took.inner_text()
    handle = running.element_handle()
    wait_until(lambda: took.inner_text() != first and len(pulses) > 2, "the clock")
    assert len(asks) == 1  # time passes by itself
    demo.writer.update_run(demo.run_ids["now a"], status=RunStatus.FINISHED, ended_ns=demo.now_ns)
    expect(running.locator("[data-format=status]")).to_have_text("finished")
    assert handle.evaluate("row => row.isConnected")  # the same element, changed
    demo.workload("quickstart", "new", [demo.run("a", "n", 9.0)])
    expect(row(watched, "new")).to_be_visible()
    assert watched.errors == []


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("width", [3840, 900])
def test_the_table_fits_every_window_and_the_names_stay(site, watched, width):
    page = watched.page
    page.set_viewport_size({"width": width, "height": 800})
    open_page(watched, site.url)
    expect(rows(watched)).to_have_count(8)
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator(".runs-compare")).to_be_in_viewport()
    page.locator("#runs-grid").evaluate("grid => { grid.scrollLeft = 10_000; }")
    assert bounds(box(watched, "solo"))["x"] < 40
    expect(row(watched, "solo").locator(".runs-link")).to_be_in_viewport()
