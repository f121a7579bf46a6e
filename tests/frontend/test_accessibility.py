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


#: What each page shows when it has the runs of a store; pages ask again and again, so that the
#: network is never idle.
CONTENT = {
    "/": ".select-pane-runs .select-row .select-swatch",
    "/compare": ".card .main-svg",
    "/workload": ".workload .main-svg",
    "/report": ".report-table tbody .label, .report-nothing",
    "/system": ".system-card",
}


def settled(page: Page, path: str, *, empty: bool = False) -> None:
    """Wait until the page shows what it has."""
    content = "main#content > *" if empty else CONTENT[path]
    expect(page.locator(content).first).to_be_visible()
    if not empty and path == "/compare":
        expect(page.locator(".pick").first).to_be_attached()  # folded where it is narrow


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing_serious(demo, serve, watched, path, scheme):
    demo.quickstart()
    watched.page.emulate_media(color_scheme=scheme)
    watched.page.goto(serve() + path)
    settled(watched.page, path)
    assert findings(watched.page) == []
    assert watched.errors == []


@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing_serious_where_there_is_nothing(serve, watched, path):
    watched.page.goto(serve() + path)
    settled(watched.page, path, empty=True)
    assert findings(watched.page) == []


@pytest.mark.parametrize("width", [900, 1440, 3840])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_wider_than_the_window(demo, serve, watched, path, width):
    demo.quickstart()
    watched.page.set_viewport_size({"width": width, "height": 900})
    watched.page.goto(serve() + path)
    settled(watched.page, path)
    wide = watched.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width


@pytest.mark.parametrize("path", PATHS)
def test_keys_lead_through_the_page_and_the_focus_is_seen(demo, serve, watched, path):
    demo.quickstart()
    watched.page.goto(serve() + path)
    settled(watched.page, path)
    seen: list[str] = []
    for _ in range(12):
        watched.page.keyboard.press("Tab")
        seen.append(
            watched.page.evaluate(
                """() => {
                  const here = document.activeElement;
                  if (here === document.body) return "the browser's own";
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
