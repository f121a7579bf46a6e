"""Notes and saved views: who may change them, and that what is typed is in the store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from playwright.sync_api import expect
from werkzeug.test import TestResponse

from radt.cli.note import command
from radt.frontend.app import create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.store.notes import RunNotes, read_notes
from radt.store.reader import StoreReader
from tests.frontend.conftest import Demo, Watched
from tests.frontend.test_accessibility import findings
from tests.support.bench import mlflow_database

TOKEN = "a token for writing"
JSON = "application/json"


class TestWhoMayWrite:
    @pytest.fixture
    def run_id(self, demo: Demo) -> str:
        return next(iter(demo.quickstart().run_ids.values()))

    @pytest.fixture
    def post(self, run_id: str, source: CachedStore) -> Callable[..., TestResponse]:
        def post(access: DashboardAccess, body: object = None, **headers: str) -> TestResponse:
            asked = {"runs": [run_id], "starred": True} if body is None else body
            sent = {"Host": "127.0.0.1", **{k.replace("_", "-"): v for k, v in headers.items()}}
            client = create_app(source, access).server.test_client()
            return client.post("/notes", json=asked, headers=sent)

        return post

    def test_the_user_of_an_own_store_on_this_machine(
        self, post: Callable[..., TestResponse], run_id: str, demo: Demo
    ) -> None:
        assert post(DashboardAccess()).status_code == 200
        with StoreReader(demo.store) as reader:
            assert read_notes(reader, run_id).starred

    def test_elsewhere_only_who_has_the_token(
        self, post: Callable[..., TestResponse], run_id: str, demo: Demo
    ) -> None:
        shared = DashboardAccess(
            proxies=("127.0.0.1",), user_header="X-User", names=("radt.example",)
        )
        assert not shared.may_write("", is_own=True)
        assert not DashboardAccess().may_write("", is_own=False)
        asking = DashboardAccess(write_token=TOKEN)
        assert post(asking).status_code == 403
        assert post(asking, X_Radt_Write_Token="another token of 20").status_code == 403
        with StoreReader(demo.store) as reader:
            assert not read_notes(reader, run_id).starred
        assert post(asking, X_Radt_Write_Token=TOKEN).status_code == 200
        assert not DashboardAccess(write_token=TOKEN, is_read_only=True).may_write(
            TOKEN, is_own=True
        )

    def test_no_page_of_another_site(
        self, post: Callable[..., TestResponse], run_id: str, source: CachedStore
    ) -> None:
        for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "https://evil.example"}):
            assert post(DashboardAccess(), **headers).status_code == 403
        client = create_app(source, DashboardAccess()).server.test_client()
        here = {"Host": "127.0.0.1"}
        form = client.post("/notes", data=f"runs={run_id}", headers=here)
        assert form.status_code == 400
        # Browsers skip the tab, and two slashes begin the address of another site.
        view = {"name": "away", "address": "/\t/evil.example"}
        assert client.post("/views", json=view, headers=here).status_code == 400

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({"runs": [], "starred": True}, 400),
            ({"runs": ["0" * 32], "starred": True}, 404),
            ({"starred": "yes"}, 400),
            ({"tags": {"radt.host": "x"}}, 400),
            ({"tags": {" radt.host": "x"}}, 400),
            ({"tags": {"a": 1}}, 400),
            ({"letter": "b"}, 400),
            ({"tags": {f"t{n}": "x" for n in range(20_000)}}, 413),
            ({"tags": {f"t{n}": "x" * 8000 for n in range(7)}}, 413),
        ],
    )
    def test_not_what_makes_no_sense(
        self,
        post: Callable[..., TestResponse],
        run_id: str,
        body: dict[str, Any],
        status: int,
    ) -> None:
        answer = post(DashboardAccess(), {"runs": [run_id]} | body)
        assert answer.status_code == status
        assert answer.get_json()["cause"]


def test_what_is_typed_on_the_run_page_is_in_the_store_once_unlocked(
    demo: Demo, serve: Callable[..., str], watched: Watched, wait_until: Callable[..., None]
) -> None:
    run_id = demo.quickstart().run_ids["solo a"]
    page = watched.page
    page.goto(f"{serve(DashboardAccess(write_token=TOKEN))}/run?id={run_id}")
    name = page.get_by_label("Name of the run")
    text = page.get_by_role("textbox", name="Notes", exact=True)
    expect(name).to_have_value("cnn-small")
    expect(name).not_to_be_editable()
    page.get_by_label("Token for changes").fill(TOKEN)
    page.get_by_role("button", name="Unlock").click()
    expect(name).to_be_editable()

    def stored() -> RunNotes:
        with StoreReader(demo.store) as reader:
            return read_notes(reader, run_id)

    text.fill("<b>the</b> baseline")
    name.fill("baseline")
    name.blur()
    wait_until(lambda: stored().name == "baseline", "the name")
    tag = page.get_by_label("New tag")
    tag.fill("team=vision")
    tag.press("Enter")
    expect(page.locator(".notes-tags li", has_text="team")).to_contain_text("vision")
    page.get_by_role("button", name="Give a star").click()
    expect(page.get_by_role("button", name="Take the star away")).to_be_visible()
    assert stored() == RunNotes("baseline", "<b>the</b> baseline", {"team": "vision"}, starred=True)
    expect(page).to_have_title("solo of quickstart · Run · radt")
    assert findings(page) == []
    page.get_by_role("button", name="Take away the tag team").click()
    wait_until(lambda: stored().tags == {}, "that the tag is gone")
    assert watched.errors == []


@pytest.mark.long
def test_a_saved_view_opens_what_it_was_saved_from(
    demo: Demo, serve: Callable[[], str], watched: Watched
) -> None:
    demo.quickstart()
    page, url = watched.page, serve()
    page.goto(f"{url}/report?e=quickstart")
    page.get_by_role("button", name="Views").click()
    page.get_by_label("Name of the view").fill("all of it / 2")
    page.get_by_label("Name of the view").press("Enter")
    link = page.get_by_role("link", name="all of it / 2")
    expect(link).to_be_visible()
    (view,) = StoreReader(demo.store).saved_views()
    assert (view.name, view.address) == ("all of it / 2", "report?e=quickstart")
    page.goto(f"{url}/system")
    page.goto(f"{url}/view/all%20of%20it%20%2F%202")
    expect(page).to_have_title("quickstart · Report · radt")
    page.get_by_role("button", name="Views").click()
    page.get_by_role("button", name="Forget all of it / 2").click()
    expect(page.get_by_text("No saved views yet")).to_be_visible()
    assert StoreReader(demo.store).saved_views() == []
    assert watched.errors == []


@pytest.mark.long
def test_a_team_store_changes_mlflow_itself(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(mlflow_database(), tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow = MlflowClient(uri)
    mlflow_id = mlflow.create_run("0").info.run_id
    demo = Demo(database).quickstart()
    run_id = demo.run_ids["solo a"]
    with StoreReader(database) as reader:
        record = replace(reader.run(run_id), tracking_uri=uri, mlflow_run_id=mlflow_id)
    with demo.writer:
        demo.writer.put_run(record)
    with closing(CachedStore(database)) as source:
        client = create_app(source, DashboardAccess(write_token=TOKEN)).server.test_client()

        def post(**edit: object) -> TestResponse:
            headers = {"Host": "127.0.0.1", "X-Radt-Write-Token": TOKEN}
            return client.post("/notes", json={"runs": [run_id], **edit}, headers=headers)

        monkeypatch.setenv("RADT_TRACKING_URI", "https://ours.example")
        assert post(text="not told").status_code == 200
        monkeypatch.setenv("RADT_TRACKING_URI", uri)
        assert post(name="baseline", tags={"a?": "b"}).status_code == 200
        there = mlflow.get_run(mlflow_id)
        assert there.info.run_name == "baseline"
        notes = {"mlflow.runName": "baseline", "a_": "b", "mlflow.note.content": "not told"}
        assert there.data.tags == notes  # with what it could not be told before
        mlflow.set_tag(mlflow_id, "a_", "changed there")
        assert post(tags={"c": "d"}).status_code == 200
        notes |= {"a_": "changed there", "c": "d"}
        assert mlflow.get_run(mlflow_id).data.tags == notes  # what it has got is not sent again
        mlflow.delete_run(mlflow_id)
        refused = post(text="of use")
        assert refused.status_code == 503
        assert refused.get_json()["cause"].startswith("Saved, but not in MLflow: ")
        remedy = refused.get_json()["remedy"]
        assert read_notes(source.reader, run_id).text == "of use"
    mlflow.restore_run(mlflow_id)
    arguments = [*remedy.rpartition("radt note ")[2].rstrip(".").split(), "--store-uri", database]
    shown = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert "of use" in shown.output
    assert mlflow.get_run(mlflow_id).data.tags == notes | {"mlflow.note.content": "of use"}


@pytest.mark.long
def test_a_run_with_thousands_of_tags_shows_the_first_of_them(
    demo: Demo, serve: Callable[..., str], watched: Watched
) -> None:
    run_id = demo.quickstart().run_ids["solo a"]
    with demo.writer.transaction():
        demo.writer.put_tags(run_id, {f"tag {n:05}": "x" for n in range(20_000)})
    page = watched.page
    page.goto(f"{serve()}/run?id={run_id}")
    expect(page.locator(".notes-tags")).to_contain_text("and 19,800 more")
    expect(page.locator("#run-differences")).to_contain_text("and 19,500 more")
    assert watched.errors == []
