"""Every page for everybody: axe-core finds nothing serious, nothing is cut off, keys reach it."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from radt.frontend.app import PAGES
from tests.frontend.conftest import VIEWPORT, shown

PATHS = [f"/{page.path}" for page in PAGES]
#: Of minor, moderate, serious and critical (axe-core's doc/API.md).
SERIOUS = ("serious", "critical")


def findings(page: Page, *rules: str, without: str = "") -> list[str]:
    """What axe-core calls serious (by these rules), each with the elements that it is about.

    Args:
        page: Where it looks.
        rules: All if empty.
        without: Selector of a part where it does not look.
    """
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = list(rules)
    context = {"exclude": [[without]]} if without else None
    results: dict[str, Any] = Axe().run(page, context, options).response
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
    "/explore": "#explore-importance :is(table, p:not(.explore-wait))",
    "/": ".runs-body .runs-swatch:not([hidden])",
    "/compare": ".card .main-svg",
    "/run": ".run-metrics tbody tr",
    "/workload": ".workload .main-svg",
    "/timeline": ".timeline .barlayer .point",
    "/report": "#report-table tbody th a, .report-nothing",
    "/advice": ".advice-card",
    "/system": ".system-card",
}


def settled(page: Page, path: str, *, empty: bool = False) -> None:
    """Wait until the page shows what it has."""
    content = "main#content > *" if empty else CONTENT[path]
    shown(page, content)
    if not empty and path == "/compare":
        expect(page.locator(".pick").first).to_be_attached()  # folded where it is narrow


def stops(page: Page, count: int) -> list[str]:
    """What the tab key leads to, one after the other; where the focus is not seen, "unseen"."""
    seen: list[str] = []
    for _ in range(count):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
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
    return seen


@pytest.mark.quick_variants(3)
@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing_serious_keys_lead_through_and_nothing_is_too_wide(
    site, watched, wait_until, path
):
    page = watched.page
    page.goto(site.url + path)
    settled(page, path)
    assert findings(page) == []
    focused = stops(page, 12)
    assert not [one for one in focused if one.startswith("unseen")]
    assert len(set(focused)) >= 6
    for width in (900, 3840):
        page.set_viewport_size({"width": width, "height": 900})
        settled(page, path)
        # Charts follow the window a moment later.
        wait_until(
            lambda width=width: page.evaluate("document.documentElement.scrollWidth") <= width,
            f"{path} fits {width} px",
        )
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(VIEWPORT)
    page.reload()  # with charts in the colours of the scheme
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    settled(page, path)
    assert findings(page, "color-contrast") == []
    assert watched.errors == []


@pytest.mark.long
def test_axe_finds_nothing_serious_without_a_store(serve, watched):
    url = serve()
    for path in PATHS:
        watched.page.goto(url + path)
        settled(watched.page, path, empty=True)
        assert findings(watched.page) == [], path
