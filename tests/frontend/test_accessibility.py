"""Every page for everybody: axe-core finds nothing serious, nothing is cut off, keys reach it."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from radt.frontend.app import PAGES

PATHS = [page.path for page in PAGES]
#: Of minor, moderate, serious and critical (axe-core's doc/API.md).
SERIOUS = ("serious", "critical")


def findings(page: Page) -> list[str]:
    """What axe-core calls serious, each with the elements that it is about."""
    results: dict[str, Any] = Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert results["passes"], "axe-core looked at nothing"
    return [
        f"{found['id']}: {found['help']}: "
        + "; ".join(str(node["html"])[:200] for node in found["nodes"][:3])
        for found in results["violations"]
        if found["impact"] in SERIOUS
    ]


def settled(page: Page) -> None:
    """Wait until the page shows what it has: no callback on its way, no chart without lines."""
    expect(page.locator("main#content > *").first).to_be_visible()
    page.wait_for_load_state("networkidle")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing_serious(demo, serve, watched, path, scheme):
    demo.quickstart()
    watched.page.emulate_media(color_scheme=scheme)
    watched.page.goto(serve() + path)
    settled(watched.page)
    assert findings(watched.page) == []
    assert watched.errors == []


@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing_serious_where_there_is_nothing(serve, watched, path):
    watched.page.goto(serve() + path)
    settled(watched.page)
    assert findings(watched.page) == []


@pytest.mark.parametrize("width", [900, 1440, 3840])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_wider_than_the_window(demo, serve, watched, path, width):
    demo.quickstart()
    watched.page.set_viewport_size({"width": width, "height": 900})
    watched.page.goto(serve() + path)
    settled(watched.page)
    wide = watched.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width


@pytest.mark.parametrize("path", PATHS)
def test_keys_lead_through_the_page_and_the_focus_is_seen(demo, serve, watched, path):
    demo.quickstart()
    watched.page.goto(serve() + path)
    settled(watched.page)
    seen: list[str] = []
    for _ in range(12):
        watched.page.keyboard.press("Tab")
        seen.append(
            watched.page.evaluate(
                """() => {
                  const here = document.activeElement;
                  const around = [here, here.parentElement, here.parentElement?.parentElement];
                  const shows = around.filter(Boolean).some((one) => {
                    const style = getComputedStyle(one);
                    const outlined = style.outlineStyle !== "none" && style.outlineWidth !== "0px";
                    return outlined || (one === here && style.boxShadow !== "none");
                  });
                  const name = here.getAttribute("aria-label") || here.innerText || here.id;
                  return shows ? name || here.tagName : "unseen " + here.outerHTML.slice(0, 200);
                }"""
            )
        )
    assert not [one for one in seen if one.startswith("unseen")]
    assert len(set(seen)) >= 6
