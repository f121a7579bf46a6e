"""The Share menus in a browser: links, views that travel, files, keyboard, what goes wrong."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen
from xml.etree import ElementTree

import pandas as pd
import pytest
from playwright.sync_api import Browser, Download, Page, expect
from pypdf import PdfReader

from radt.errors import StoreError
from radt.frontend.auth import DashboardAccess
from radt.frontend.export import routes as data
from radt.frontend.view import View
from tests.frontend.conftest import Demo, Serve, Site, Watched, patient, shown

ADDRESS = (
    "/compare?s=quickstart&c=loss;log=1&c=process.memory.rss&level=workload"
    "&x=barrier&t.barrier=5,30"
)


SVG = "{http://www.w3.org/2000/svg}"
#: Keeps what the page says: good news stays for four seconds only.
NOTING = """() => {
  if (window.noted) return;
  window.noted = [];
  new MutationObserver((changes) => {
    for (const one of changes.flatMap((change) => [...change.addedNodes]))
      if (one.classList?.contains("share-note")) window.noted.push(one.textContent);
  }).observe(document.body, { childList: true });
}"""


def ready(page: Page) -> None:
    """The charts are drawn; from now on, what the page says is noted."""
    shown(page, "#charts .card .js-plotly-plot .scatterlayer")
    page.evaluate(NOTING)


def choose(page: Page, subject: str, item: str) -> None:
    """An item of the menu of the page, or of the chart in a slot."""
    page.locator(f"[data-share='{subject}']").click()
    page.get_by_role("menuitem", name=item).click()


def download(page: Page, subject: str, item: str) -> Download:
    """The file of an item."""
    with page.expect_download() as coming:
        choose(page, subject, item)
    return coming.value


def said(page: Page, words: str) -> None:
    """Wait until the page has said what became of it."""
    page.wait_for_function("words => window.noted.some((one) => one.includes(words))", arg=words)


@pytest.fixture
def other(browser: Browser) -> Iterator[Page]:
    """Somebody else's browser."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    yield patient(context.new_page())
    context.close()


def metrics_shown(page: Page) -> list[str]:
    """The charts, in order."""
    view = View.from_query(urlsplit(page.url).query)
    return [chart.metric for chart in view.charts or ()]


def test_a_view_travels_in_a_file(
    site: Site, watched: Watched, other: Page, tmp_path: Path
) -> None:
    """Saved here, opened there: the same charts, fetched anew; nothing of the data in it."""
    address = site.url
    watched.page.goto(address + ADDRESS)
    ready(watched.page)
    saved = download(watched.page, "page", "Save view")
    assert saved.suggested_filename == "radt-quickstart-view.json"
    path = tmp_path / saved.suggested_filename
    saved.save_as(path)
    content = json.loads(path.read_text())
    assert content["format"] == "radt-view"
    assert len(path.read_text()) < 1000
    other.goto(address + "/")
    other.locator(".bar").wait_for()
    other.goto(address + "/compare?c=accuracy")
    ready(other)
    with other.expect_file_chooser() as chooser:
        choose(other, "page", "Open view")
    chooser.value.set_files(path)
    expect(other.locator("#charts .card:visible")).to_have_count(2)
    ready(other)
    other.wait_for_function("location.search.includes('process.memory.rss')")
    assert View.from_query(urlsplit(other.url).query) == View.from_query(
        urlsplit(address + ADDRESS).query
    )
    said(other, "is open")
    other.go_back()
    other.wait_for_function("location.search.includes('accuracy')")
    assert not watched.errors


@pytest.mark.long
def test_other_files_are_refused_and_the_page_stays(
    site: Site, watched: Watched, tmp_path: Path
) -> None:
    page = watched.page
    page.goto(site.url + ADDRESS)
    ready(page)
    page.wait_for_url("**t.barrier=5,30&c=loss**")  # the address as the dashboard writes it
    before = page.url
    wrong = tmp_path / "<img src=x onerror=alert(1)>.json"
    for content, words in (
        ("{}", "not a saved view"),
        ("x" * 300_000, "too large"),
        (View.from_query("s=elsewhere&c=loss").to_file(), "Not in this store"),
    ):
        wrong.write_text(content)
        with page.expect_file_chooser() as chooser:
            choose(page, "page", "Open view")
        chooser.value.set_files(wrong)
        expect(page.locator(".share-note")).to_contain_text(words)
        assert page.locator("img").count() == 0
        if "Not in" not in words:
            assert page.url == before


@pytest.mark.long
def test_a_link_is_copied_and_opens_the_same(
    demo: Demo, serve: Serve, watched: Watched, other: Page
) -> None:
    """Also with what the dashboard chose by itself; a token is not in it."""
    demo.quickstart()
    token = "a-token-of-many-characters"
    address = serve(DashboardAccess(token=token))
    page = watched.page
    page.goto(f"{address}/compare?token={token}")
    ready(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    choose(page, "page", "Copy link")
    said(page, "Link copied")
    link = str(page.evaluate("navigator.clipboard.readText()"))
    assert link.startswith(address + "/compare?s=quickstart")
    assert token not in link
    other.goto(f"{address}/?token={token}")
    other.goto(link)
    ready(other)
    assert metrics_shown(other) == [
        "loss",
        "accuracy",
        "process.cpu.utilization",
        "process.memory.rss",
    ]
    choose(page, "1", "Copy as Python")
    said(page, "Python copied")
    code = str(page.evaluate("navigator.clipboard.readText()"))
    assert "metrics=['accuracy']" in code
    compile(code, "copied", "exec")


@pytest.mark.long
def test_where_browsers_have_no_clipboard_the_text_is_shown(site: Site, watched: Watched) -> None:
    """As over plain HTTP."""
    page = patient(watched.page.context.new_page())
    page.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "document.execCommand = () => false;"
    )
    page.goto(site.url + ADDRESS)
    ready(page)
    choose(page, "page", "Copy link")
    box = page.get_by_label("Text to copy")
    expect(box).to_be_focused()
    assert "/compare?s=quickstart" in box.input_value()


@pytest.mark.long
def test_files_are_those_of_what_is_shown(site: Site, watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    page.goto(site.url + ADDRESS)
    ready(page)
    shown = download(page, "page", "Data shown as CSV")
    shown.save_as(tmp_path / "shown.csv")
    frame = pd.read_csv(tmp_path / "shown.csv")
    assert set(frame["metric"]) == {"loss", "process.memory.rss"}
    assert frame["x"].min() >= 5
    assert frame["x"].max() <= 30
    every = download(page, "1", "All samples as Parquet")
    assert every.suggested_filename == "radt-quickstart-process.memory.rss-samples.parquet"
    every.save_as(tmp_path / "every.parquet")
    assert set(pd.read_parquet(tmp_path / "every.parquet")["metric"]) == {"process.memory.rss"}
    said(page, "samples are being downloaded")
    expect(page.locator(".share-note")).to_have_count(0)
    assert not watched.errors


def texts(svg: Path) -> set[str]:
    """What is written in a picture, which is a whole file of its own."""
    root = ElementTree.parse(svg).getroot()
    assert not {one.tag for one in root.iter()} & {f"{SVG}script", f"{SVG}foreignObject"}
    assert "http" not in svg.read_text().replace("http://www.w3.org", "")
    return {"".join(one.itertext()) for one in root.iter(f"{SVG}text")}


def test_a_chart_as_a_picture(site: Site, watched: Watched, tmp_path: Path) -> None:
    """In light colours, with title, unit, the axis' name and a legend; PNG is sharp."""
    page = watched.page
    page.emulate_media(color_scheme="dark")
    page.goto(site.url + ADDRESS)
    ready(page)
    drawn = download(page, "1", "Picture as SVG")
    assert drawn.suggested_filename == "radt-quickstart-process.memory.rss.svg"
    drawn.save_as(tmp_path / "rss.svg")
    written = texts(tmp_path / "rss.svg")
    assert {"process.memory.rss", "solo", "three", "mix"} <= written
    assert any(text.startswith("quickstart · 0:05.0 – 0:30.0") for text in written)
    assert any(text.startswith("MB · ") for text in written)
    assert any(text.startswith("time since the barrier") for text in written)
    assert "rgb(0, 114, 178)" in (tmp_path / "rss.svg").read_text()
    drawn = download(page, "1", "Picture as PNG")
    drawn.save_as(tmp_path / "rss.png")
    content = (tmp_path / "rss.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[16:20]) == 2 * (880 + 32)
    assert len(content) > 20_000  # not an empty sheet
    expect(page.locator(".share-note")).to_have_count(0)
    assert not watched.errors


@pytest.mark.long
def test_all_charts_are_one_picture_and_one_page(
    site: Site, watched: Watched, tmp_path: Path
) -> None:
    """A chart without its metric says so; lines have one legend; PDF is what is printed."""
    page = watched.page
    page.goto(site.url + ADDRESS + "&c=no.such&mono=1")
    ready(page)
    download(page, "page", "Picture as SVG").save_as(tmp_path / "all.svg")
    written = texts(tmp_path / "all.svg")
    assert {"loss", "process.memory.rss", "no.such"} <= written
    assert "The selected runs do not have this metric" in written
    root = ElementTree.parse(tmp_path / "all.svg").getroot()
    named = [one.text for one in root[-1][-1].iter(f"{SVG}text")]
    assert named == ["solo", "three", "mix"]
    assert "rgb(0, 114, 178)" not in (tmp_path / "all.svg").read_text()
    page.evaluate("window.print = () => { window.printed = document.title; }")
    choose(page, "page", "Picture as PDF")
    page.wait_for_function("() => window.printed === 'radt-quickstart'")
    page.emulate_media(media="print")
    expect(page.locator(".print-sheet svg").first).to_be_visible()
    expect(page.locator("#charts")).to_be_hidden()
    (paper,) = PdfReader(io.BytesIO(page.pdf(prefer_css_page_size=True))).pages
    width, height = (float(root.get(side, "0")) for side in ("width", "height"))
    assert paper.mediabox.height / paper.mediabox.width == pytest.approx(height / width, rel=0.02)
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    expect(page.locator("#charts")).to_be_visible()
    expect(page.locator(".print-sheet")).to_have_count(0)
    assert not watched.errors


@pytest.mark.long
def test_the_menu_goes_by_keyboard(site: Site, watched: Watched) -> None:
    """Opened, walked through, closed; the focus returns to its button."""
    page = watched.page
    page.goto(site.url + ADDRESS)
    ready(page)
    button = page.get_by_role("button", name="Share and export", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    items = page.get_by_role("menuitem")
    expect(items.first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(items.last).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(items.first).to_be_focused()
    page.keyboard.press("End")
    expect(page.get_by_role("menuitem", name="All samples as Parquet")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("menu")).to_have_count(0)
    expect(button).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowDown")
    expect(items.first).to_be_focused()
    page.mouse.click(700, 850)
    expect(page.get_by_role("menu")).to_have_count(0)


@pytest.mark.long
def test_what_goes_wrong_is_said(site: Site, watched: Watched) -> None:
    """The server is gone: the page says so, and the menu works on when it is back."""
    page = watched.page
    page.goto(site.url + ADDRESS)
    ready(page)
    page.route("**/export/prepare", lambda route: route.abort())
    choose(page, "page", "Copy link")
    expect(page.locator(".share-note")).to_contain_text("does not answer")
    page.unroute("**/export/prepare")
    with page.expect_download():
        choose(page, "page", "Save view")


@pytest.mark.long
def test_a_download_that_breaks_off_is_seen_as_broken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a shorter file: the store failed while it was sent. The next one gets its place."""
    real = data.full_tables

    def broken(*given: Any) -> Iterator[Any]:
        yield next(real(*given))
        raise StoreError("a chunk is damaged", "Restore it")

    address = f"{site.url}/export/data?c=loss&of=full&format=csv"
    whole = urlopen(address).read()
    monkeypatch.setattr(data, "full_tables", broken)
    for _ in range(3):
        with urlopen(address) as answer, pytest.raises(IncompleteRead):
            answer.read()
    monkeypatch.undo()
    assert urlopen(address).read() == whole
