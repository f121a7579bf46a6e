"""The dashboard over a team's Postgres store: real clusters, also ones that are killed."""

from __future__ import annotations

import math
import re

import psycopg2
import pytest
from playwright.sync_api import expect
from sqlalchemy import make_url

from radt.errors import SchemaTooNewError, SchemaTooOldError, StoreError
from radt.frontend.data import cached_store
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import read_catalog
from radt.frontend.data.connections import NothingRecordedError
from radt.model import RunStatus
from tests.frontend.conftest import Demo, patient, shown
from tests.support import servers

CARD = ".card .main-svg"
#: What each page shows of a store.
CONTENTS = {
    "/": ".runs-body .runs-swatch:not([hidden])",
    "/compare": CARD,
    "/workload": ".workload .main-svg",
    "/report": "#report-table tbody th a",
    "/system": "main .system",
}


def execute(uri: str, statement: str) -> None:
    """One statement in the schema radt, as the owner of the store."""
    url = make_url(uri)
    connection = psycopg2.connect(
        host=url.host,
        port=url.port,
        user=url.username,
        password=url.password,
        dbname=url.database,
        options="-csearch_path=radt",
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()


@pytest.fixture
def team(database):
    """Two machines that record the same experiment into one database."""
    for host in ("bench-1", "bench-2"):
        demo = Demo(database, host)
        demo.quickstart()
        demo.writer.close()
    return database


def look_again(source: CachedStore) -> str:
    """The revision, without the pause between two questions."""
    source._ask_at = source._hold_until = 0.0
    return source.revision()


@pytest.fixture
def reader(team):
    """URI of the store for a role that may only read."""
    role = f"reader_{make_url(team).database}"
    execute(
        team,
        f"CREATE ROLE {role} LOGIN PASSWORD 'only-reading'; GRANT USAGE ON SCHEMA radt TO {role}; "
        f"GRANT SELECT ON ALL TABLES IN SCHEMA radt TO {role}",
    )
    uri = make_url(team).set(username=role, password="only-reading")
    yield uri.render_as_string(hide_password=False)
    execute(team, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_pages_read_what_all_machines_brought_there(reader, serve, watched):
    """With no more rights than to read it."""
    page, url = watched.page, serve(store=reader)
    page.goto(url + "/compare?s=quickstart")
    expect(page.locator(CARD).first).to_be_visible()
    expect(page.locator("#facts")).to_have_text("6 workloads · 12 runs · 2 machines · 2 failed")
    where = page.locator(".where")
    name = make_url(reader).database
    expect(where).to_have_text(re.compile(rf"^127\.0\.0\.1:\d+/{name}$"))
    assert "***@" in (where.get_attribute("title") or "")
    expect(page.locator(".pick-label", has_text="three bench-2")).to_be_visible()
    for path, content in CONTENTS.items():
        page.goto(url + path)
        shown(page, content)
        assert "only-reading" not in page.content()
    assert watched.errors == []


def test_runs_of_several_machines_are_told_apart(team):
    source = CachedStore(team)
    catalog = read_catalog(source, "quickstart")
    assert catalog.hosts == ("bench-1", "bench-2")
    names = [run.short for run in catalog.runs.values()]
    assert len(set(names)) == len(names)
    assert "three bench-2 b" in names
    source.close()


def test_one_machine_is_not_named(demo, source):
    demo.quickstart()
    catalog = read_catalog(source, "quickstart")
    assert [run.short for run in catalog.runs.values()][:2] == ["solo", "three a"]


def test_news_of_another_machine_change_the_revision(team):
    source = CachedStore(team)
    before = source.revision()
    assert look_again(source) == before
    demo = Demo(team, "bench-3")
    demo.workload("quickstart", "late", [demo.run("a", "n", 1.0, epochs=1)])
    demo.writer.close()
    assert look_again(source) != before
    assert "bench-3" in read_catalog(source, "quickstart").hosts
    source.close()


@pytest.mark.long
def test_a_database_without_a_store_and_an_empty_one_fill_by_themselves(database, serve, watched):
    watched.page.goto(serve(store=database) + "/compare")
    expect(watched.page.locator(".state h1")).to_contain_text("There is no store in postgresql://")
    Demo(database).writer.close()
    expect(watched.page.locator(".state h1")).to_have_text("No runs yet")
    expect(watched.page.locator(".state pre")).to_have_text("radt train.py --store-uri …")
    demo = Demo(database)
    demo.quickstart()
    demo.writer.close()
    expect(watched.page.locator(CARD).first).to_be_visible()


def test_a_role_without_rights_is_told_whom_to_ask(team):
    role = f"stranger_{make_url(team).database}"
    execute(team, f"CREATE ROLE {role} LOGIN PASSWORD 'nothing'")
    uri = make_url(team).set(username=role, password="nothing")
    source = CachedStore(uri.render_as_string(hide_password=False))
    try:
        assert source.revision().startswith("!")
        with pytest.raises(StoreError) as caught:
            read_catalog(source, "quickstart")
        assert "grant-reader" in caught.value.remedy
        assert "nothing" not in str(caught.value)
    finally:
        source.close()
        execute(team, f"DROP ROLE {role}")


@pytest.mark.long
def test_another_version_is_a_clear_page_and_ends_without_a_restart(team, serve, watched):
    newest = "version = (SELECT MAX(version) FROM schema_version)"
    change = f"UPDATE schema_version SET version = version + {{}} WHERE {newest}"
    execute(team, change.format(1000))
    with pytest.raises(SchemaTooNewError) as caught:
        _ = CachedStore(team).reader
    assert "Upgrade radt" in caught.value.remedy
    execute(team, change.format(-1000))

    execute(team, "CREATE TABLE kept AS SELECT * FROM schema_version")
    execute(team, f"DELETE FROM schema_version WHERE {newest}")
    with pytest.raises(SchemaTooOldError):
        _ = CachedStore(team).reader
    watched.page.goto(serve(store=team) + "/compare")
    expect(watched.page.locator(".state h1")).to_contain_text("has schema version")
    expect(watched.page.locator(".state p").first).to_contain_text("radt db upgrade")
    execute(
        team,
        "INSERT INTO schema_version SELECT * FROM kept ON CONFLICT DO NOTHING; DROP TABLE kept",
    )
    expect(watched.page.locator(CARD).first).to_be_visible()


@pytest.mark.long
def test_a_page_outlives_a_crash_of_the_server(serve, watched, wait_until, monkeypatch):
    """Down at first; killed and started again while a page is open, and read meanwhile."""
    # Once a minute the points of ended runs are read again, which fails while the server is away:
    # a new minute may begin at any moment.
    monkeypatch.setattr(cached_store, "_ENDED_RECHECK_S", math.inf)
    with servers.postgres_cluster() as postgres, servers.database_of(postgres) as uri:
        demo = Demo(uri)
        demo.quickstart()
        demo.writer.close()
        postgres.kill()
        page = watched.page
        # The section of the metric that is added below is closed: nobody has read it then.
        page.goto(f"{serve(store=uri)}/compare?o.compare.closed=host")
        expect(page.locator(".state h1")).to_contain_text("cannot be reached")
        expect(page.locator(".state p").first).to_contain_text("Check that it runs")
        postgres.start()
        charts = page.locator("#charts .card .js-plotly-plot")  # not those of the sections
        expect(charts).to_have_count(4)
        expect(page.locator("#live")).to_have_text("idle")
        # What the dashboard has not read by then it could not show to who comes next.
        has_points = "g => (g._fullData || []).some(t => t.x && t.x.length)"
        all_drawn = f"all => all.length === 4 && all.every({has_points})"
        wait_until(lambda: charts.evaluate_all(all_drawn), "all charts are drawn")
        chart = charts.first
        chart.evaluate("g => { g.dataset.kept = 'yes' }")
        postgres.kill()
        outage = page.locator("#outage")
        expect(outage).to_be_visible()
        expect(outage).to_contain_text("cannot be reached")
        expect(outage).to_contain_text("The dashboard retries by itself.")
        assert "Traceback" not in page.content()
        assert make_url(uri).password not in page.content()
        expect(page.locator("#live")).to_have_text("not connected")
        # What is shown stays, also for who comes now.
        expect(chart).to_have_attribute("data-kept", "yes")
        page.reload()
        expect(page.locator("h1")).to_have_text("quickstart")
        expect(page.locator(CARD).first).to_be_visible()
        # What nobody has read yet cannot be shown now.
        page.get_by_role("button", name="Metric", exact=True).click()
        page.get_by_role("checkbox", name="system.cpu.utilization").check()
        added = page.locator('.card[data-metric="system.cpu.utilization"]')
        expect(added.locator(".card-note")).to_contain_text("cannot be reached")

        postgres.start()
        expect(outage).to_be_hidden()
        expect(page.locator("#live")).to_have_text("idle")
        drawn = "g => (g._fullData || []).filter(t => t.x && t.x.length > 3).length"
        wait_until(
            lambda: added.locator(".js-plotly-plot").evaluate(drawn) >= 3, "the chart that failed"
        )
        demo = Demo(uri)
        demo.workload("quickstart", "after", [demo.run("a", "n", 1.0, epochs=1)])
        demo.writer.close()
        expect(page.locator(".pick-label", has_text="after")).to_be_visible()


@pytest.mark.long
def test_every_page_keeps_what_it_shows_while_the_server_is_away(serve, watched):
    """Select, Compare, Workload and Report side by side, through a crash and the new start."""
    with servers.postgres_cluster() as postgres, servers.database_of(postgres) as uri:
        demo = Demo(uri)
        demo.quickstart()
        demo.writer.close()
        url = serve(store=uri)
        pages = {path: patient(watched.page.context.new_page()) for path in CONTENTS}
        for path, page in pages.items():
            page.goto(url + path)
            expect(page.locator(CONTENTS[path]).first).to_be_visible()
        postgres.kill()
        for path, page in pages.items():
            expect(page.locator("#outage"), path).to_contain_text("cannot be reached")
            expect(page.locator("#outage"), path).to_contain_text("retries by itself.")
            expect(page.locator(CONTENTS[path]).first, path).to_be_visible()
            assert make_url(uri).password not in page.content()
        postgres.start()
        for path, page in pages.items():
            expect(page.locator("#outage"), path).to_be_hidden()
            expect(page.locator(CONTENTS[path]).first, path).to_be_visible()
        demo = Demo(uri)
        demo.workload("quickstart", "after", [demo.run("a", "n", 1.0, epochs=1)])
        demo.writer.close()
        for path in ("/", "/compare", "/report"):
            expect(pages[path].get_by_text("after", exact=True).first, path).to_be_visible()


def test_a_failed_read_between_two_questions_is_tried_again(team):
    """A restart that is over before the store is asked for news leaves no page in trouble."""
    source = CachedStore(team)
    before = source.revision()

    def fails(_):
        raise StoreError("the database went away")

    with pytest.raises(StoreError, match="went away"):
        source.remember("something", fails)
    assert look_again(source) != before
    assert source.outage is None
    source.close()


def test_nobody_waits_for_somebody_elses_connection(team):
    source = CachedStore(team)
    known = source.revision()
    with source._asking:
        assert source.revision() == known
    source.close()


def test_an_empty_store_is_no_experiment(database):
    Demo(database).writer.close()
    source = CachedStore(database)
    from radt.frontend.pages.compare import layout
    from radt.frontend.view import View

    with pytest.raises(NothingRecordedError) as caught:
        layout(source, View())
    assert "***@" in str(caught.value)
    assert source.remember("n", lambda r: r.runs(status=RunStatus.RUNNING)) == []
    source.close()
