"""The Advice page: what `radt advise` says, with the next experiment as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import expect

from radt.cli.advise import command
from radt.frontend.app import create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.pages.advice import answer
from radt.frontend.view import View
from tests.advice.planting import Lab, Run
from tests.frontend.conftest import Serve, Watched, shown
from tests.frontend.test_accessibility import findings

RECOMMENDED = "GPU 0 of gpu-01: 4 × resnet26 at once under MPS"


@pytest.fixture
def lab(store_path: Path) -> Lab:
    """Two models alone, and one of them twice under MPS."""
    made = Lab(store_path.parent)
    for name, active in (("resnet26", 0.3), ("vit", 0.6)):
        made.alone(Run(name, sm=active))
    made.copies(2, Run("resnet26", collocation="MPS", epoch_s=4.4))
    return made


def another(lab: Lab, experiment: str) -> Lab:
    """A further experiment in the same store."""
    made = Lab(lab.home, experiment)
    made._count = lab._count + 100
    return made


def parts_of(source: CachedStore, **view: object) -> dict[str, str]:
    found = answer(source, {"view": View(**view).to_json()})  # type: ignore[arg-type]
    assert found is not None
    parts = found["parts"]
    assert isinstance(parts, dict)
    return parts


def test_the_page_says_what_the_command_says(lab: Lab, source: CachedStore) -> None:
    told = (
        CliRunner()
        .invoke(command, [lab.experiment, "--home", str(lab.home), "--format", "json"])
        .output
    )
    (best,) = (one["best"] for one in json.loads(told)["recommendations"])
    body = parts_of(source)["advice-body"]
    assert RECOMMENDED in body
    assert f"Gain {best['gain']:.2f}×" in body
    assert "§4.4.2" in body and "Predicted vs measured" in body
    assert body.index("Recommendation") < body.index("Models alone") < body.index("Predictions")


def test_every_candidate_is_shown_on_request(lab: Lab, source: CachedStore) -> None:
    few = parts_of(source)["advice-body"]
    everything = parts_of(source, options={"advice.all": "1"})["advice-body"]
    assert "more: “All candidates”" in few
    assert "more: " not in everything
    assert everything.count("<tr") > few.count("<tr")


def test_a_report_that_has_not_changed_is_not_sent_again(lab: Lab, source: CachedStore) -> None:
    first = answer(source, {})
    assert first is not None
    assert answer(source, {"stamps": first["stamps"]}) is None


def test_what_is_missing_can_be_downloaded_and_planned(
    lab: Lab, serve: Serve, watched: Watched
) -> None:
    lab.together("both", [Run("vit"), Run("new", collocation="-")])
    page, url = watched.page, serve()
    page.goto(f"{url}/advice")
    expect(page.locator("#advice-body")).to_contain_text("new: never ran alone")
    with page.expect_download() as file:
        page.get_by_role("link", name="Next experiment (CSV)").click()
    assert file.value.suggested_filename == "radt-study-next.csv"
    title, heads, *rows = Path(file.value.path()).read_text().splitlines()
    assert title == "# Written by radt advise: to know what models do alone."
    assert "Workload" in heads and len(rows) == 1 and "new alone" in rows[0]
    assert "/lab/train.py" in rows[0]  # the file may be anywhere
    assert watched.errors == []


def test_report_leads_to_advice_and_back(lab: Lab, serve: Serve, watched: Watched) -> None:
    other = another(lab, "other")
    other.alone(Run("bert", sm=0.9, kernel=0.9))
    page, url = watched.page, serve()
    page.goto(f"{url}/report?e=study")
    page.get_by_role("link", name="Advice →").click()
    shown(page, ".advice-card")
    expect(page.get_by_text(RECOMMENDED)).to_be_visible()
    expect(page).to_have_title("study · Advice · radt")
    assert findings(page) == []
    page.get_by_role("link", name="All candidates").click()
    expect(page.get_by_role("link", name="Best candidates")).to_be_visible()
    expect(page.get_by_text("more: “All candidates”")).to_be_hidden()
    page.get_by_role("combobox", name="Experiment").click()
    page.get_by_role("option", name="other").click()
    expect(page.locator("#advice-body")).to_contain_text("2 × bert at once")
    expect(page).to_have_title("other · Advice · radt")
    page.get_by_role("link", name="Report →").click()
    shown(page, "#report-table tbody th a")
    assert "e=other" in page.url
    assert watched.errors == []


def test_without_measurements_the_page_says_what_to_run(source: CachedStore, lab: Lab) -> None:
    thin = another(lab, "thin")
    thin.together("both", [Run("a"), Run("b")])
    source.revision()
    parts = parts_of(source, experiment="thin")
    assert "Not enough measurements" in parts["advice-body"]
    assert "a: never ran alone" in parts["advice-body"]
    assert "Predictions" not in parts["advice-body"]
    assert "Next experiment (CSV)" in parts["advice-head"]


def test_an_experiment_that_is_not_there_is_named(lab: Lab, source: CachedStore) -> None:
    client = create_app(source, DashboardAccess()).server.test_client()
    headers = {"Host": "localhost"}
    found = client.post("/advice/data", json={"view": {"experiment": "gone"}}, headers=headers)
    assert found.json["problem"]["cause"].startswith("No experiment gone in ")
    assert client.get("/advice/next.csv?e=gone", headers=headers).status_code == 404
