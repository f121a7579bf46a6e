"""Servers of a team that die in mid-run, or are away for all of it: nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from radt.store.reader import StoreReader
from tests.support import servers
from tests.support.bench import wait_until
from tests.support.links import Link
from tests.support.mlflow_server import ArtifactAccess
from tests.team.kit import Machine, Team, disagreements, points_at, runs_in_mlflow


@pytest.fixture(scope="module")
def own_servers() -> Iterator[Team]:
    """Servers that may be killed; clients reach artifacts in S3 directly."""
    with (
        servers.postgres_cluster() as postgres,
        servers.s3_store() as s3,
        servers.mlflow_server(postgres, s3, access=ArtifactAccess.DIRECT) as mlflow,
        Link(postgres.port) as link,
    ):
        yield Team(postgres, s3, mlflow, link)
        postgres.start()  # a failed test may have left it dead, and MLflow's database is dropped


@pytest.fixture
def servers_of_team(own_servers: Team) -> Team:
    """All of it up, and the link in order."""
    own_servers.up()
    own_servers.link.pass_through()
    return own_servers


def test_all_servers_are_killed_in_mid_run_and_come_back(
    team: Team, machine: Callable[..., Machine], team_database: str, tmp_path: Path
) -> None:
    """Meanwhile the link to Postgres drops every third connection. Scripts notice nothing: they
    get through all they log while nothing answers."""
    here = machine()
    here.prepare("outage")
    team.link.drop_every(3)
    radt = here.start("experiment.csv")
    wait_until(lambda: points_at(team_database) > 400, "in Postgres while it runs")
    wait_until(lambda: here.through("first"), "the scripts have begun")
    team.kill()
    here.open("first")
    wait_until(lambda: here.through("second"), "the scripts go on with nobody there")
    wait_until(
        lambda: len(problems := here.waiting()) == 2 and all(problems.values()),
        "both sides have noticed",
    )
    team.up()
    here.open("second", "third")
    out, _ = radt.communicate(timeout=180)
    assert radt.returncode == 0, out
    assert here.statuses() == {"FINISHED"}
    here.wait_brought()
    assert not disagreements(here, team, team_database, tmp_path / "imported")
    assert len(runs_in_mlflow(team.client, "outage")) == 3, "the workload's, and two"
    with StoreReader(team_database) as reader:
        assert len(reader.runs()) == 2
        assert [len(one) for one in (reader.workloads(), reader.experiments())] == [1, 1]


@pytest.mark.long
def test_everything_is_away_for_the_whole_run(
    team: Team, machine: Callable[..., Machine], team_database: str, tmp_path: Path
) -> None:
    """Said at the end and by `radt status`, brought by `radt sync`, once."""
    team.kill()
    team.link.refuse()
    here = machine()
    here.prepare("away", steps=50)
    here.open("first")
    radt = here.start("experiment.csv", "--quiet")
    wait_until(lambda: here.through("first"), "the scripts have begun")
    wait_until(
        lambda: len(problems := here.waiting()) == 2 and all(problems.values()),
        "both sides have noticed",
    )
    here.open("second", "third")
    out, _ = radt.communicate(timeout=180)
    assert radt.returncode == 0, out
    said = " ".join(out.split())
    assert here.statuses() == {"FINISHED"}
    assert f"2 runs are not complete in MLflow at {team.mlflow.uri} (since" in said
    assert "/" + team_database.rsplit("/", 1)[1] + " (since" in said
    waiting = here.radt("status", "experiment.csv")
    assert waiting.stdout.count("2 runs are not complete in") == 2
    assert waiting.stdout.count("onnection refused") == 2
    assert "radt sync" in waiting.stdout
    for text in (said, waiting.stdout):
        assert "wörd" not in text
        assert "w%C3%B6rd" not in text
    team.up()
    team.link.pass_through()
    brought = here.radt("sync").stdout
    assert "not uploaded" not in brought
    assert not disagreements(here, team, team_database, tmp_path / "imported")
    assert len(runs_in_mlflow(team.client, "away")) == 3
    again = here.radt("sync").stdout
    assert again.count("up to date") == 2, again
    assert "does not have" not in here.radt("status", "experiment.csv").stdout
    checked = here.radt("db", "check", "--deep", "--no-mlflow").stdout
    assert checked.count("no findings") == 2, checked
    # MLflow has runs of other tests, too, which are not here.
    with_mlflow = here.radt("db", "check", code=None).stdout
    with closing(StoreReader(here.store)) as reader:
        assert not [run for run in reader.runs() if run.run_id in with_mlflow], with_mlflow
