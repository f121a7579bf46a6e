"""The page Report in a real browser: sorted, chosen, followed, live, by keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, Error, Page, expect

from radt.analysis.report import read_report
from radt.errors import StoreError
from radt.model import RunStatus
from radt.render.files import ReportFormat, rendered
from radt.render.report_content import Content
from radt.store.reader import StoreReader
from tests.frontend.conftest import patient, shown
from tests.frontend.report_support import Planted, Study
from tests.report.series_support import repeats

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def study(store_path: Path) -> Iterator[Study]:
    """One run alone, two that share a card, seven of which one did not fit."""
    store_path.parent.mkdir(parents=True)
    made = Study(store_path)
    made.workload("solo", [Planted("a", 2.0)])
    made.workload("pair", [Planted("a", 3.0, watts=250.0), Planted("b", 3.6, watts=250.0)])
    seven = [Planted(letter, 6.0) for letter in "abcdef"]
    made.workload("seven", [*seven, Planted("g", 6.0, status=RunStatus.OOM)])
    yield made
    made.writer.close()


def content_of(study: Study) -> Content:
    """The report as the terminal has it."""
    with StoreReader(study.store) as reader:
        return Content.of(read_report(reader, study.experiment))


def names(page: Page) -> Any:
    return page.locator("#report-table tbody th a")


def options(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_charts_links_files_interference_and_a_table_that_sorts(study, serve, watched):
    page = watched.page
    page.goto(f"{serve()}/report")
    shown(page, ".report-chart svg rect")
    heights = page.locator("#report-table tbody tr").evaluate_all(
        "rows => rows.map(row => row.getBoundingClientRect().height)"
    )
    assert max(heights) < 80
    charts = page.locator(".report-chart")
    expect(charts.locator("h2")).to_have_text(
        [
            "time/epoch",
            "vs solo",
            "makespan",
            "samples/s",
            "samples/s per run",
            "cpu",
            "RSS",
        ]  # the others have a single bar, which the table has
    )
    # solo, pair, seven; the seventh of them is a word.
    first = charts.first
    expect(first.locator("svg rect")).to_have_count(3)
    expect(first.locator("svg text.end")).to_have_text("OOM")
    expect(first.locator("svg title").nth(1)).to_contain_text("runs 3.00 s to 3.60 s")
    with page.expect_download() as waiting:
        first.get_by_role("link", name="SVG").click()
    assert waiting.value.suggested_filename == "radt-study-time_per_epoch.svg"
    root = ElementTree.parse(waiting.value.path()).getroot()
    assert "study · all epochs after the first" in {one.text for one in root.iter()}

    link = names(page).nth(1)
    expect(link).to_have_text("pair")
    query = parse_qs(urlsplit(link.get_attribute("href") or "").query)
    assert query["w"] == [("00000002" + "0" * 24)[:8] + query["w"][0][8:]]
    assert query["e"] == ["study"]
    compare = page.get_by_role("link", name="Compare →")
    (picks,) = parse_qs(urlsplit(compare.get_attribute("href") or "").query)["s"]
    assert picks.startswith("study:w00000001")
    assert picks.count(",w") == 2
    with page.expect_download() as waiting:
        page.get_by_role("link", name="CSV").click()
    text = Path(waiting.value.path()).read_text()
    assert text.startswith("experiment,workload,")
    assert waiting.value.suggested_filename == "radt-study-report.csv"
    assert text == rendered(content_of(study), ReportFormat.CSV)

    section = page.locator(".report-interference")
    expect(section.get_by_role("heading")).to_have_text("Interference")
    expect(section.locator("tbody td")).to_have_text(["1.65×"])
    # No value has repeats, so nothing explains intervals.
    expect(page.locator(".report-notes")).to_have_text("The start skew is unknown: pair, seven.")

    # The address keeps the order.
    head = page.locator("th", has=page.get_by_role("button", name="time/epoch"))
    expect(head).to_have_attribute("aria-sort", "none")
    button = head.get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(names(page)).to_have_text(["seven", "pair", "solo"])
    page.wait_for_url("**o.report.sort=-time_per_epoch**")

    page.reload()
    expect(names(page)).to_have_text(["seven", "pair", "solo"])
    expect(head).to_have_attribute("aria-sort", "descending")
    head.get_by_role("button").click()
    expect(names(page)).to_have_text(["solo", "pair", "seven"])
    expect(page).not_to_have_url(re.compile("report.sort"))
    expect(page.get_by_text("OOM").first).to_be_visible()
    assert watched.errors == []


def test_columns_and_experiment_are_chosen(store_path, study, serve, watched):
    other = Study(store_path, "other")
    other.workload(HOSTILE, [Planted("a", 4.0, name=HOSTILE)])
    page = watched.page
    page.goto(f"{serve()}/report?e=study")
    expect(names(page)).to_have_count(3)
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="cpu").click()
    expect(page.locator("th", has_text="cpu")).to_have_count(0)
    page.get_by_role("checkbox", name="RSS", exact=True).click()
    expect(page.locator("thead").get_by_role("button", name="RSS GB", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    page.wait_for_url("**o.report.columns=**memory**")

    page.get_by_role("combobox", name="Experiment").click()
    page.get_by_role("option", name="other").click()
    expect(names(page)).to_have_text([HOSTILE])
    page.wait_for_url("**e=other**")
    expect(page.locator("main img")).to_have_count(0)
    assert watched.errors == []
    other.writer.close()


@pytest.mark.long
def test_the_window_is_in_the_address_and_what_is_not_understood_is_said(study, serve, watched):
    page = watched.page
    page.goto(f"{serve()}/report")
    facts = page.locator("#report-facts")
    expect(facts).to_contain_text("all epochs after the first")
    field = page.get_by_role("combobox", name="Part of each run that counts")
    field.fill("epoch:1")
    expect(facts).to_contain_text("epoch 1")
    page.wait_for_url("**o.report.window=epoch**")
    expect(page.locator("#report-table tbody tr").first).to_contain_text("9.00")
    page.get_by_role("button", name="only overlap").press("Space")
    expect(facts).to_contain_text("epoch 1, while all runs of the workload ran")
    page.wait_for_url("**o.report.overlap=1**")
    page.reload()
    expect(field).to_have_value("epoch:1")
    overlap = page.get_by_role("button", name="only overlap")
    expect(overlap).to_have_attribute("aria-pressed", "true")
    field.fill("epoch:x")
    expect(page.locator(".report-head")).to_contain_text("'epoch:x' names no epochs")
    expect(facts).to_contain_text("all epochs after the first")
    field.fill("")
    expect(page).not_to_have_url(re.compile("report.window"))
    overlap.press("Space")
    expect(facts).not_to_contain_text("while")
    assert watched.errors == []


@pytest.mark.long
def test_quantities_of_any_metric_are_columns_and_charts_and_in_the_address(study, serve, watched):
    curves = {"quick": [[0.5, 0.7], [0.6, 0.8]], "slow": [[0.5, 0.6, 0.7], [0.5, 0.5]]}
    for label, accuracies in curves.items():
        repeats(study, label, accuracies)
    page = watched.page
    page.goto(f"{serve()}/report")
    expect(names(page)).to_have_text(["solo", "pair", "seven", "quick", "slow"])
    field = page.get_by_role("combobox", name="Quantities of any metric")
    # One that is suggested, one that is typed.
    field.fill("accuracy")
    page.get_by_role("option", name="last(accuracy)").click()
    head = page.locator("thead").get_by_role("button", name="last(accuracy)")
    expect(head).to_be_visible()
    field.fill("time_to(accuracy >= 0.65)")
    field.press("Enter")
    time_to = page.locator("thead").get_by_role("button", name="time_to(accuracy>=0.65) s")
    expect(time_to).to_be_visible()
    slow = page.locator("#report-table tbody tr", has_text="slow")
    expect(slow.locator("td.number").nth(-2)).to_contain_text("0.600")
    expect(slow.locator("td.number").nth(-1)).to_have_text("3.00")
    charts = page.locator(".report-chart h2")
    expect(charts.nth(0)).to_have_text("last(accuracy)")
    expect(charts.nth(1)).to_have_text("time_to(accuracy>=0.65)")
    first = page.locator(".report-chart").first
    expect(first.locator("svg rect")).to_have_count(2)
    expect(first.locator(".why")).to_contain_text("Last value of accuracy in each run")
    expect(page.locator(".report-notes")).to_contain_text(
        "slow: 1 of 2 runs reached accuracy>=0.65; the value is their mean."
    )
    page.wait_for_url("**o.report.series=last*accuracy*time_to*0.65**")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="CSV").click()
    assert ",time_to(accuracy>=0.65),3.0," in Path(waiting.value.path()).read_text()

    page.reload()
    tags = page.locator(".report-series .choice-chip")
    expect(tags).to_have_text(["last(accuracy)", "time_to(accuracy >= 0.65)"])
    head.click()
    expect(names(page)).to_have_text(["slow", "quick", "solo", "pair", "seven"])
    page.wait_for_url("**o.report.sort=last*accuracy**")

    # Without the first, its chart's place is the second one's.
    tags.first.locator("button").click()
    expect(charts.nth(0)).to_have_text("time_to(accuracy>=0.65)")
    expect(first.locator("svg rect")).to_have_count(2)
    expect(head).to_have_count(0)
    expect(names(page)).to_have_text(["solo", "pair", "seven", "quick", "slow"])
    problem = "No finished run of study has the metric 'acuracy'. Did you mean accuracy?"
    field.fill("last(acuracy)")
    field.press("Enter")
    expect(page.locator(".report-head")).to_contain_text(problem)
    expect(time_to).to_be_visible()
    field.press("Backspace")
    expect(page.locator(".report-head")).not_to_contain_text(problem)
    expect(page.locator("main img")).to_have_count(0)
    assert watched.errors == []


@pytest.mark.long
def test_a_late_answer_leaves_alone_what_is_typed(study, serve, watched):
    page = watched.page
    page.goto(f"{serve()}/report")
    field = page.get_by_role("combobox", name="Part of each run that counts")
    facts = page.locator("#report-facts")
    field.fill("epoch:1")
    expect(facts).to_contain_text("epoch 1")
    held = []
    page.route("**/report/data", lambda route: held.append(route))
    page.get_by_role("button", name="only overlap").press("Space")
    page.wait_for_url("**o.report.overlap=1**")
    field.fill("epoch:1-2")
    page.wait_for_url("**o.report.window=epoch**1-2**")
    for route in held:
        with suppress(Error):  # the page has given up the older one
            route.continue_()
    page.unroute("**/report/data")
    expect(field).to_have_value("epoch:1-2")
    expect(facts).to_contain_text("epochs 1 to 2, while all runs")
    assert watched.errors == []


def test_a_report_as_a_file_needs_nothing_but_itself(
    study: Study, browser: Browser, tmp_path: Path
) -> None:
    for epoch_s in (2.0, 2.2):
        study.workload(HOSTILE, [Planted("a", epoch_s, name=HOSTILE)], tags={"radt.series": "s"})
    file = tmp_path / "report.html"
    content = content_of(study)
    file.write_text(rendered(content, ReportFormat.HTML))
    context = browser.new_context(viewport={"width": 900, "height": 900}, offline=True)
    page = patient(context.new_page())
    met: list[str] = []
    page.on("console", lambda message: met.append(message.text))
    page.on("request", lambda request: met.append(request.url))
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text("study")
    expect(page.get_by_role("table").first.get_by_role("row")).to_have_count(6)
    expect(page.get_by_role("table").first).to_contain_text("2.10 ±1.27")
    expect(page.locator("svg text.end").first).to_have_text("OOM")
    assert page.locator("svg rect").count() > 10
    assert page.locator("img, script, link").count() == 0
    assert met == [file.as_uri()]
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        paper, text = page.evaluate(
            "() => ['backgroundColor', 'color'].map((x) => getComputedStyle(document.body)[x])"
        )
        lightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (paper, text)]
        assert (lightness[0] > lightness[1]) is (scheme == "light")
    # A wide table scrolls by itself: the page does not.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    context.close()


@pytest.mark.long
def test_a_run_that_ends_appears(study, serve, watched):
    study.workload("warm", [Planted("a", 4.0, watts=200.0), Planted("b", 4.0, watts=200.0)])
    page = watched.page
    page.goto(f"{serve()}/report")
    charts = page.locator(".report-chart")
    expect(charts.first.locator("svg rect")).to_have_count(4)
    energy = page.locator(".report-chart", has=page.get_by_role("heading", name="energy/epoch"))
    expect(energy.locator("svg rect")).to_have_count(2)
    study.workload("late", [Planted("a", 9.0)])
    expect(names(page)).to_have_text(["solo", "pair", "seven", "warm", "late"])
    expect(charts.first.locator("svg rect")).to_have_count(5)
    assert watched.errors == []


@pytest.mark.long
def test_an_empty_report_fills_by_itself(store_path, serve, watched):
    store_path.parent.mkdir(parents=True)
    study = Study(store_path)
    study.workload("solo", [Planted("a", 2.0, status=RunStatus.RUNNING)])
    page = watched.page
    page.goto(f"{serve()}/report")
    expect(page.get_by_role("heading", name="No run has ended yet")).to_be_visible()
    study.workload("next", [Planted("a", 2.0)])
    expect(names(page)).to_have_text(["next"])
    study.writer.close()


@pytest.mark.long
def test_markup_in_an_address_is_text(study, serve, watched):
    page, address = watched.page, serve()
    for name, value in (
        ("o.report.window", HOSTILE),
        ("o.report.series", f"last({HOSTILE})"),
        ("e", HOSTILE),
    ):
        page.goto(f"{address}/report?{urlencode({'e': 'study'} | {name: value})}")
        expect(page.locator("main")).to_contain_text(HOSTILE)
        expect(page.locator("main img")).to_have_count(0)
    assert watched.errors == []


@pytest.mark.long
def test_what_cannot_be_read_is_said(study, serve, watched, monkeypatch):
    def away(*_: object) -> None:
        raise StoreError("a chunk is damaged", "Import the run again")

    with monkeypatch.context() as patch:
        patch.setattr("radt.analysis.report.measure", away)
        page = watched.page
        page.goto(f"{serve()}/report")
        problem = page.locator(".parts-problem")
        expect(problem).to_have_text("A chunk is damaged. Import the run again.")
        expect(page.locator(".report-sketch")).to_be_hidden()
    page.evaluate("() => window.radt.change((view) => { view.experiment = 'study'; })")
    expect(names(page)).to_have_text(["solo", "pair", "seven"])
    expect(problem).to_be_hidden()
    expect(page.locator("#report-progress")).to_be_empty()
    assert watched.errors == []
