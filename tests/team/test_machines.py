"""Two machines that begin the same experiment at the same time, in the same empty database."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from radt.store.reader import StoreReader
from tests.support.bench import wait_until
from tests.support.stores import differences
from tests.team.kit import Machine, Team, runs_in_mlflow


@pytest.mark.long
def test_two_machines_write_one_experiment_at_once(
    team: Team, machine: Callable[..., Machine], team_database: str
) -> None:
    machines = [machine(name) for name in ("left", "right")]
    for one in machines:
        one.prepare("shared", steps=100)
    runners = [one.start("experiment.csv", "--quiet") for one in machines]
    for one in machines:
        wait_until(lambda one=one: one.through("first"), "both run")
    for one in machines:
        one.open("first", "second", "third")
    for one, runner in zip(machines, runners, strict=True):
        out, _ = runner.communicate(timeout=180)
        assert runner.returncode == 0, out
        assert one.statuses() == {"FINISHED"}
    for one in machines:
        one.wait_brought()
        assert not differences(one.store, team_database)
    with StoreReader(team_database) as reader:
        assert [(one.name, one.run_count) for one in reader.experiments()] == [("shared", 4)]
        assert len(reader.workloads()) == 2
        assert sorted(run.host for run in reader.runs()) == ["left", "left", "right", "right"]
    runs = runs_in_mlflow(team.client, "shared")
    assert len(runs) == 6, "two workloads', and four"
    assert {run.info.status for run in runs} == {"FINISHED"}
    report = machines[0].radt("report", "shared", "--store-uri", team_database).stdout
    named = re.findall(r"^ +1 +(left|right) +2 × train ", report, re.MULTILINE)
    assert set(named) == {"left", "right"}, report
