"""The documentation site in a browser: opened as files, without any network."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from docs.generator.__main__ import build
from tests.frontend.conftest import patient


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("docs")).as_uri()


def test_pages_and_search_ask_no_machine_for_anything(browser: Browser, index: str) -> None:
    context = browser.new_context()
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page: Page = patient(context.new_page())
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(index)
    page.get_by_role("button", name="Search").click()
    page.get_by_role("combobox", name="Search").fill("cooldown")
    found = page.get_by_role("option").filter(has_text="Repeats, pauses, limits")
    expect(found.first).to_be_visible()
    page.goto(index.replace("index.html", "reference/commands.html"))
    expect(page.get_by_role("heading", name="radt run").first).to_be_visible()
    context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert complaints == []
