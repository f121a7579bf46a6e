"""Every page on a phone, and on paper."""

from __future__ import annotations

import pytest

from radt.frontend.app import PAGES
from tests.frontend.conftest import shown

#: What is there once a page is complete.
CONTENT = {
    "": ".runs-link",
    "compare": ".js-plotly-plot .lines",
    "explore": "#explore-scatter canvas",
    "run": "#run-metrics table",
    "workload": "#workload-timeline .bars",
    "timeline": "#timeline-graph .bars",
    "report": "#report-table td",
    "advice": "#advice-body h2",
    "system": ".system-card dl",
}
FITS = "width => document.documentElement.scrollWidth <= width"
PHONE_PX, PAPER_PX = 380, 700  # A4 with its margins


@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_a_page_fits_phones_and_paper(site, watched, path):
    page = watched.page
    page.set_viewport_size({"width": PHONE_PX, "height": 800})
    page.emulate_media(color_scheme="dark")
    page.goto(f"{site.url}/{path}")
    shown(page, CONTENT[path])
    page.wait_for_function(FITS, arg=PHONE_PX)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": PAPER_PX, "height": 1000})
    page.wait_for_function(FITS, arg=PAPER_PX)
    shown(page, CONTENT[path])
    seen = page.locator(":is(.bar, button.quiet, .choice-field, [data-share]):visible")
    assert seen.count() == 0
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    cut = """() => [...document.querySelectorAll("main [role=region]")]
        .filter(box => box.scrollHeight > box.clientHeight + 1
            && getComputedStyle(box).overflowY !== "visible").map(box => box.className)"""
    assert page.evaluate(cut) == []
    page.emulate_media(media="screen")
    assert watched.errors == []
