"""Servers of a team that die in mid-run, or are away for all of it: nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
