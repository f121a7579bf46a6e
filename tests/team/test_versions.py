"""A shared database of another version than this radt: queued, and brought when it fits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from radt.store import migrations
from radt.store.migrations import latest_version
from radt.store.writer import StoreWriter
from tests.support.bench import wait_until
from tests.support.postgres import Postgres
from tests.support.stores import differences
from tests.team.kit import Machine, Team, points_at


@pytest.fixture
def older_database(team_database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that an earlier radt has made."""
    known = migrations.migrations
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda *dialect: known(*dialect)[:-1])
        patch.setattr(migrations, "_complete_summaries", lambda *_: None)  # there are none yet
        StoreWriter(team_database).close()
    return team_database


@pytest.mark.long
def test_an_older_and_then_a_newer_schema(
    team: Team, machine: Callable[..., Machine], older_database: str
) -> None:
    here = machine()
    here.prepare("versions", steps=50)
    here.env["MLFLOW_TRACKING_URI"] = ""  # a file's
    radt = here.start("experiment.csv", "--quiet")
    wait_until(lambda: here.through("first"), "the scripts run")
    wait_until(
        lambda: any("radt db upgrade" in one for one in here.waiting().values()),
        "said what to do",
    )
    upgraded = here.radt("db", "upgrade").stdout
    assert f"schema version {latest_version() - 1} → {latest_version()}" in upgraded
    wait_until(lambda: points_at(older_database) > 100, "brought by the replicator that waited")
    wait_until(lambda: not here.waiting(), "nothing waits")

    execute(team.postgres, older_database, "INSERT INTO radt.schema_version VALUES {later}")
    wait_until(lambda: any("Upgrade radt" in one for one in here.waiting().values()), "refused")
    had = points_at_any_version(team.postgres, older_database)
    here.open("first", "second", "third")
    out, _ = radt.communicate(timeout=180)
    assert radt.returncode == 0, out
    assert here.statuses() == {"FINISHED"}
    assert "has schema version 99" in out
    failed = here.radt("sync", code=1).stdout
    assert "2 runs not uploaded" in failed
    assert "Upgrade radt" in failed
    assert points_at_any_version(team.postgres, older_database) == had, "nothing was touched"
    execute(team.postgres, older_database, "DELETE FROM radt.schema_version WHERE version = 99")
    assert "not uploaded" not in here.radt("sync").stdout
    assert not differences(here.store, older_database)


def execute(postgres: Postgres, uri: str, statement: str) -> None:
    with closing(postgres.connect(uri.rsplit("/", 1)[1])) as connection:
        connection.cursor().execute(statement.format(later="(99, 'later', 1, 'radt 99')"))


def points_at_any_version(postgres: Postgres, uri: str) -> int:
    with closing(postgres.connect(uri.rsplit("/", 1)[1])) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT COALESCE(SUM(point_count), 0) FROM radt.chunk")
        return int(cursor.fetchone()[0])
