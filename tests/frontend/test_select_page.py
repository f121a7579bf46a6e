"""The page Select in a real browser."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from playwright.sync_api import expect

from radt.model import RunStatus
from radt.store.records import RunRecord, WorkloadRecord
from tests.frontend.conftest import shown

ASKS = re.compile(r'"output":"select-answer')
PULSE = re.compile(r'"output":"..revision')
HTML = "<img src=x onerror=alert(1)>"


def pane(watched, name):
    return watched.page.locator(f"#select-{name}")


def row(watched, name, text):
    """The row of a pane whose first cell is this text."""
    return (
        pane(watched, name)
        .locator(".select-body .select-row")
        .filter(
            has=watched.page.locator(".select-cell:nth-child(2)", has_text=re.compile(f"^{text}$"))
        )
    )


def box(watched, name, text):
    return row(watched, name, text).locator(".select-box")


def open_page(watched, url):
    watched.page.goto(url)
    shown(watched.page, "#select-runs .select-body .select-row")


def query(watched):
    search = watched.page.evaluate("location.search")
    return parse_qs(search.lstrip("?"), keep_blank_values=True)


def basket(watched):
    return watched.page.locator(".select-picks li .select-label").all_inner_texts()


def test_first_sight(demo, serve, watched):
    demo.quickstart("older")
    demo.quickstart()
    open_page(watched, serve())
    page = watched.page
    expect(page.locator("#select-count")).to_have_text("12 runs")
    expect(row(watched, "experiments", "quickstart")).to_have_attribute("aria-selected", "true")
    names = pane(watched, "runs").locator(".select-body .select-cell:nth-child(2)")
    expect(names).to_have_text(["mix a", "mix b", "three a", "three b", "three c", "solo"])
    expect(row(watched, "workloads", "mix")).to_contain_text("cnn-small + cnn-large")
    expect(row(watched, "workloads", "mix").locator("[data-status=FAILED]")).to_have_text("failed")
    expect(row(watched, "workloads", "solo")).to_contain_text("23.4 s")
    expect(page.locator(".select-automatic")).to_contain_text("Picked automatically")
    expect(page.locator(".select-picks li .select-label")).to_have_text(["solo", "three", "mix"])
    assert query(watched) == {}
    assert watched.errors == []


def test_boxes_have_three_states_and_picks_are_in_the_address(site, watched, wait_until):
    open_page(watched, site.url)
    box(watched, "workloads", "three").click()
    for letter in "abc":
        expect(box(watched, "runs", f"three {letter}")).to_have_attribute("aria-checked", "true")
    expect(box(watched, "experiments", "quickstart")).to_have_attribute("aria-checked", "mixed")
    wait_until(lambda: basket(watched) == ["three"], "the workload in the basket")

    box(watched, "runs", "three b").click()
    expect(box(watched, "workloads", "three")).to_have_attribute("aria-checked", "mixed")
    wait_until(lambda: basket(watched) == ["three a", "three c"], "the others")
    wanted = "quickstart:" + ",".join(f"r{site.demo.run_ids[f'three {x}'][:12]}" for x in "ac")
    wait_until(lambda: query(watched).get("s") == [wanted], "the address")

    watched.page.reload()
    expect(box(watched, "workloads", "three")).to_have_attribute("aria-checked", "mixed")
    watched.page.get_by_label("Remove three c").click()
    wait_until(lambda: basket(watched) == ["three a"], "one less")
    expect(box(watched, "runs", "three c")).to_have_attribute("aria-checked", "false")
    box(watched, "experiments", "quickstart").click()
    wait_until(lambda: basket(watched) == ["everything"], "all of it")
    expect(box(watched, "runs", "solo")).to_have_attribute("aria-checked", "true")
    watched.page.get_by_role("button", name="Clear").click()
    wait_until(lambda: query(watched).get("s") == [""], "nothing in the address")
    expect(watched.page.locator(".select-compare")).to_have_attribute("aria-disabled", "true")
    watched.page.get_by_role("button", name="Automatic").click()
    wait_until(lambda: basket(watched) == ["solo", "three", "mix"], "the dashboard's choice")
    watched.page.get_by_role("button", name="Keep these").click()
    expect(box(watched, "experiments", "quickstart")).to_have_attribute("aria-checked", "true")
    assert watched.errors == []


def test_quick_clicks_all_count(site, watched, wait_until):
    open_page(watched, site.url)
    pane(watched, "runs").evaluate(
        "grid => grid.querySelectorAll('.select-body .select-box').forEach(box => box.click())"
    )
    wait_until(lambda: len(basket(watched)) == 6, "six picks")
    expect(box(watched, "workloads", "three")).to_have_attribute("aria-checked", "true")
    # The address follows with an answer of its own.
    wait_until(lambda: query(watched).get("s", [""])[0].count(",") == 5, "six in the address")
    assert watched.errors == []


def test_the_boxes_above_lists_pick_what_is_listed(site, watched, wait_until):
    open_page(watched, site.url + "?q=model:cnn-large%20workload:mix")
    watched.page.get_by_label("All runs listed").click()
    wait_until(lambda: basket(watched) == ["mix b"], "what was found")
    expect(watched.page.get_by_label("All runs listed")).to_have_attribute("aria-checked", "true")
    watched.page.get_by_label("All runs listed").press(" ")
    wait_until(lambda: basket(watched) == [], "none")
    watched.page.get_by_label("All workloads listed").click()
    wait_until(lambda: basket(watched) == ["mix"], "the whole workload")
    assert watched.errors == []


def test_what_is_in_focus_is_listed_and_in_the_address(demo, serve, watched, wait_until):
    demo.quickstart("older")
    demo.quickstart()
    open_page(watched, serve())
    row(watched, "experiments", "older").click()
    wait_until(lambda: query(watched) == {"e": ["older"]}, "the experiment")
    row(watched, "workloads", "mix").click()
    names = pane(watched, "runs").locator(".select-body .select-cell:nth-child(2)")
    expect(names).to_have_text(["mix a", "mix b"])
    expect(watched.page.get_by_role("link", name="Open workload")).to_be_visible()
    wait_until(lambda: "w" in query(watched), "the workload")
    watched.page.reload()
    expect(row(watched, "workloads", "mix")).to_have_attribute("aria-selected", "true")
    expect(names).to_have_count(2)
    watched.page.get_by_label("Show the runs of all workloads").click()
    expect(names).to_have_count(6)
    assert watched.errors == []


def test_the_search_narrows_all_lists_and_says_what_it_cannot_read(
    demo, serve, watched, wait_until
):
    demo.quickstart("older")
    demo.quickstart()
    open_page(watched, serve())
    page = watched.page
    page.keyboard.press("/")
    expect(page.locator("#select-search")).to_be_focused()
    page.keyboard.type("cnn-large lr> modl:x")
    expect(page.locator(".select-problems")).to_contain_text("expected a value after >")
    expect(page.locator(".select-problems")).to_contain_text("did you mean model?")
    expect(page.locator("#select-count")).to_have_text("0 of 12 runs")
    expect(page.locator(".select-none").nth(2)).to_have_text("No run matches.")
    page.locator("#select-search").fill("cnn-large")
    expect(page.locator("#select-count")).to_have_text("2 of 12 runs")
    expect(page.locator(".select-problems")).to_be_hidden()
    names = pane(watched, "runs").locator(".select-body .select-cell:nth-child(2)")
    expect(names).to_have_text(["mix b"])
    wait_until(lambda: query(watched) == {"q": ["cnn-large"]}, "the search in the address")
    assert basket(watched) == ["solo", "three", "mix"]  # what is picked stays
    page.reload()
    expect(page.locator("#select-search")).to_have_value("cnn-large")
    page.locator("#select-search").press("Escape")
    expect(names).to_have_count(6)
    assert watched.errors == []


def test_states_and_columns_are_chosen_by_buttons(site, watched, wait_until):
    open_page(watched, site.url)
    page = watched.page
    names = pane(watched, "runs").locator(".select-body .select-cell:nth-child(2)")
    failed = page.get_by_role("button", name=re.compile("failed"))
    failed.click()
    expect(names).to_have_text(["mix b"])
    expect(failed).to_have_attribute("aria-pressed", "true")
    wait_until(lambda: query(watched) == {"o.select.status": ["FAILED"]}, "the state")
    page.get_by_role("button", name=re.compile("failed")).click()
    expect(names).to_have_count(6)
    took = pane(watched, "runs").get_by_role("button", name="Took")
    took.click()
    expect(names.first).to_have_text("solo")
    expect(pane(watched, "runs").locator("[aria-sort]")).to_have_attribute("aria-sort", "ascending")
    took.click()
    expect(names.first).to_have_text("three c")
    wait_until(lambda: query(watched) == {"o.select.sort": ["-duration"]}, "the order")
    expect(took).to_be_focused()
    took.click()
    expect(names.first).to_have_text("mix a")
    assert watched.errors == []


def test_everything_by_keyboard(site, watched, wait_until):
    open_page(watched, site.url)
    page = watched.page
    pane(watched, "experiments").focus()
    for key in ("ArrowRight", "ArrowDown", " "):
        page.keyboard.press(key)
    expect(pane(watched, "workloads")).to_be_focused()
    wait_until(lambda: basket(watched) == ["three"], "the second workload")
    active = pane(watched, "workloads").get_attribute("aria-activedescendant")
    expect(page.locator(f"#{active}")).to_contain_text("three")
    page.keyboard.press("Enter")
    names = pane(watched, "runs").locator(".select-body .select-cell:nth-child(2)")
    expect(names).to_have_text(["three a", "three b", "three c"])
    for key in ("ArrowRight", "End", " "):
        page.keyboard.press(key)
    wait_until(lambda: basket(watched) == ["three a", "three b"], "without the last")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    wait_until(lambda: basket(watched) == ["three b"], "enter ticks runs")
    page.locator(".select-compare").focus()
    page.keyboard.press("Enter")
    wait_until(lambda: page.evaluate("location.pathname") == "/compare", "Compare")
    assert "s" in query(watched)
    page.go_back()
    expect(names).to_have_count(3)
    wait_until(lambda: basket(watched) == ["three b"], "what was picked")
    assert watched.errors == []


def test_texts_are_texts(demo, serve, watched):
    run = demo.run("a", HTML, 1.0)
    demo.workload(HTML, HTML, [run])
    demo.workload(HTML, "other", [demo.run("a", "net", 1.0)])
    demo.writer.put_params(run.run_id, {HTML: HTML})
    open_page(watched, serve())
    expect(row(watched, "experiments", re.escape(HTML))).to_be_visible()
    watched.page.locator("#select-search").fill(f'name:"{HTML}"')
    expect(pane(watched, "runs").locator(".select-body .select-row")).to_have_count(1)
    watched.page.get_by_label("All runs listed").click()
    expect(watched.page.locator(".select-picks")).to_contain_text(HTML)
    assert watched.page.locator(".select img").count() == 0
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
                    identity,
                    identity,
                    "many",
                    f"w{number}",
                    "a",
                    "net",
                    at_ns,
                    status=RunStatus.FINISHED,
                    started_ns=at_ns,
                    ended_ns=at_ns + 10**9,
                )
            )


def test_long_lists_hold_only_the_rows_in_sight(demo, serve, watched, wait_until):
    many(demo, 1200)
    open_page(watched, serve())
    grid = pane(watched, "runs")
    expect(grid).to_have_attribute("aria-rowcount", "1201")
    rows = grid.locator(".select-body .select-row")
    assert rows.count() < 100
    grid.evaluate("grid => { grid.scrollTop = 24 * 600; }")
    expect(row(watched, "runs", "w595")).to_be_visible()
    assert rows.count() < 100
    expect(grid.locator("[data-loading]")).to_have_count(0)
    grid.focus()
    watched.page.keyboard.press("End")
    expect(row(watched, "runs", "w0")).to_be_visible()

    # What comes before the rows in sight does not move them.
    grid.evaluate("grid => { grid.scrollTop = 24 * 400; }")
    expect(row(watched, "runs", "w790")).to_be_visible()
    before = row(watched, "runs", "w790").bounding_box()
    many(demo, 5, first=1200)
    expect(grid).to_have_attribute("aria-rowcount", "1206")
    expect(row(watched, "runs", "w790")).to_be_visible()
    assert row(watched, "runs", "w790").bounding_box() == before
    assert watched.errors == []


def test_too_many_picks_are_refused_with_a_remedy(demo, serve, watched):
    many(demo, 600)
    open_page(watched, serve())
    watched.page.get_by_label("All runs listed").click()
    expect(watched.page.locator(".select-problem")).to_contain_text("at most 500 picks, got 600")
    expect(watched.page.get_by_label("All runs listed")).to_have_attribute("aria-checked", "false")
    assert watched.errors == []


def test_running_runs_move_and_new_ones_join(demo, serve, watched, wait_until):
    demo.quickstart()
    demo.workload("quickstart", "now", [demo.run("a", "n", 9.0, status=RunStatus.RUNNING)])
    open_page(watched, serve())
    running = row(watched, "runs", "now")
    took = running.locator("[data-kind=clock]")
    first = took.inner_text()
    handle = running.element_handle()
    asks = []
    watched.on("request", lambda r: asks.append(r) if ASKS.search(r.post_data or "") else None)
    wait_until(lambda: took.inner_text() != first, "the clock")
    assert asks == []  # time passes by itself
    demo.writer.update_run(demo.run_ids["now a"], status=RunStatus.FINISHED, ended_ns=demo.now_ns)
    expect(running.locator("[data-kind=status]")).to_have_text("finished")
    assert handle.evaluate("row => row.isConnected")  # the same element, changed
    demo.workload("quickstart", "new", [demo.run("a", "n", 9.0)])
    expect(row(watched, "workloads", "new")).to_be_visible()
    wait_until(lambda: basket(watched)[-1:] == ["new"], "the choice goes on")
    assert watched.errors == []


def test_nothing_is_asked_while_nothing_changes(site, watched, wait_until):
    pulses, asks = [], []

    def note(request):
        body = request.post_data or ""
        if ASKS.search(body):
            asks.append(body)
        elif PULSE.search(body):
            pulses.append(body)

    watched.on("request", note)
    open_page(watched, site.url)
    # Requests are noted while the page is asked something.
    wait_until(lambda: watched.page.evaluate("1") and len(pulses) > 2, "some pulses")
    assert asks == []
    assert watched.errors == []


def test_all_lists_fit_every_window(site, watched):
    page = watched.page
    open_page(watched, site.url)
    for width in (3840, 1440, 900):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function("width => innerWidth === width", arg=width)
        expect(page.locator("#select-runs .select-body .select-row")).to_have_count(6)
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
        expect(page.locator(".select-compare")).to_be_in_viewport()
        page.wait_for_function(
            """() => innerWidth < 1440 || ["experiments", "workloads", "runs"].every((name) => {
              const grid = document.getElementById("select-" + name);
              return grid.scrollWidth <= grid.clientWidth;
            })"""
        )
