"""The frame around all pages, in a real browser: no store, a broken one, links, colours."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from tests.frontend.compare_support import CARDS, drawn, open_page, query
from tests.frontend.conftest import shown


def test_an_empty_place_says_what_fills_it_and_fills_by_itself(store_path, serve, watched, request):
    watched.page.goto(f"{serve()}/compare")
    expect(watched.page.get_by_role("status").locator("pre")).to_have_text("radt train.py")
    request.getfixturevalue("demo").quickstart()
    expect(watched.page.locator("h1")).to_have_text("quickstart", timeout=120_000)
    drawn(watched, 4)


@pytest.mark.long
def test_a_damaged_store_is_named_with_its_remedy(store_path, serve, watched):
    store_path.parent.mkdir(parents=True)
    store_path.write_bytes(b"no database at all" * 100)
    watched.page.goto(f"{serve()}/compare")
    alert = watched.page.locator(".state[role=alert]")
    expect(alert).to_contain_text(str(store_path))
    expect(alert.locator("p").first).not_to_be_empty()


def test_links_to_other_pages_keep_the_view_and_tabs_say_what_is_chosen(site, watched, wait_until):
    open_page(watched, site.url, "?s=quickstart&c=loss", cards=1)
    page = watched.page
    expect(page.get_by_role("link", name="Compare")).to_have_attribute("aria-current", "page")
    expect(page).to_have_title("6 runs of quickstart · Compare · radt")
    page.locator(".levels").get_by_text("Workloads").click()
    wait_until(lambda: query(watched).get("level") == ["workload"], "the address")
    # The links follow the address.
    system = page.get_by_role("link", name="System")
    expect(system).to_have_attribute("href", re.compile("level=workload"))
    system.click()
    expect(system).to_have_attribute("aria-current", "page")
    expect(page).to_have_title("System · radt")
    page.get_by_role("link", name="Workload").click()
    expect(page).to_have_title("mix of quickstart · Workload · radt")
    expect(page.get_by_role("link", name="Compare")).not_to_have_attribute("aria-current", "page")
    page.get_by_role("link", name="Compare").click()
    drawn(watched, 1)
    assert query(watched) == {"s": ["quickstart"], "c": ["loss"], "level": ["workload"]}
    assert watched.errors == []


@pytest.mark.long
def test_a_page_that_is_left_draws_nothing_more(site, watched, wait_until):
    open_page(watched, site.url, "?s=quickstart&c=loss", cards=1)
    page, held = watched.page, []
    system, compare = (page.get_by_role("link", name=name) for name in ("System", "Compare"))
    system.click()
    expect(page.locator("#compare")).to_have_count(0)
    page.route("**/compare/figure", lambda route: held.append(route))
    compare.click()
    wait_until(lambda: page.evaluate("true") and held, "the question for a chart")
    system.click()
    expect(page.locator("#compare")).to_have_count(0)
    with page.expect_response("**/compare/figure") as answered:
        held[0].continue_()
    answered.value.finished()
    page.evaluate("new Promise(then => requestAnimationFrame(() => requestAnimationFrame(then)))")
    assert watched.errors == []


def test_a_tab_that_returns_from_the_background_is_up_to_date(site, watched):
    page = watched.page

    def bring_to(state: str) -> None:
        page.evaluate(
            """(isHidden) => {
              Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
              document.dispatchEvent(new Event("visibilitychange"));
            }""",
            state == "background",
        )

    page.goto(f"{site.url}/system")
    link = page.get_by_role("link", name="Timeline")
    expect(link).to_be_visible()
    bring_to("background")
    link.click()
    expect(page).to_have_title(re.compile("Timeline"))
    expect(page.locator("[data-follow='timeline/data']")).to_be_attached()
    bring_to("front")
    shown(page, "#timeline-graph .main-svg")
    ink = "document.querySelector('#timeline-graph').layout.xaxis.tickfont.color"
    light = page.evaluate(ink)
    bring_to("background")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    bring_to("front")
    page.wait_for_function(f"(light) => {ink} !== light", arg=light)
    assert watched.errors == []


@pytest.mark.long
def test_charts_have_the_colours_of_the_page_which_are_kept(site, watched, wait_until):
    open_page(watched, site.url, "?c=loss", cards=1)
    first = watched.page.locator(CARDS).first
    paper = first.evaluate("e => getComputedStyle(e).backgroundColor")
    drawn_on = first.locator(".js-plotly-plot").evaluate("g => g._fullLayout.paper_bgcolor")
    channels = tuple(int(drawn_on[i : i + 2], 16) for i in (1, 3, 5))
    assert paper == f"rgb{channels}"
    root = watched.page.locator("html")
    expect(root).to_have_attribute("data-theme", "light")
    watched.page.locator("#scheme").click()
    expect(root).to_have_attribute("data-theme", "dark")
    expect(first).not_to_have_css("background-color", paper)
    expect(first.locator(".main-svg").first).not_to_have_css(
        "background", re.compile(re.escape(paper))
    )
    # Before the scripts that draw have arrived.
    held: list[Route] = []
    watched.page.route("**/radt-all.js*", lambda route: held.append(route))
    watched.page.reload(wait_until="commit")
    expect(root).to_have_attribute("data-theme", "dark")
    expect(watched.page.locator("body")).to_have_css("background-color", "rgb(20, 22, 26)")
    expect(watched.page.locator("#scheme")).to_have_count(0)
    wait_until(lambda: watched.page.evaluate("true") and held, "the question for the scripts")
    held[0].continue_()
    watched.page.unroute("**/radt-all.js*")
    # The system's scheme is followed again once it is chosen.
    watched.page.locator("#scheme").click()
    expect(root).to_have_attribute("data-theme", "light")
    watched.page.emulate_media(color_scheme="dark")
    expect(root).to_have_attribute("data-theme", "dark")
    drawn(watched, 1)
    assert watched.errors == []
