"""Processes in the background, killed at random moments of a run that logs without pause."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from radt.store.reader import StoreReader
from tests.support.bench import wait_until
from tests.team.kit import Machine, Team, disagreements, points_at, runs_in_mlflow

MODULES = (
    *("radt.collector.worker", "radt.collector.guardian"),
    *("radt.delivery.postgres", "radt.delivery.mlflow"),
)
KILLS = 8


@pytest.mark.long
def test_whoever_is_killed_the_next_goes_on(
    team: Team, machine: Callable[..., Machine], team_database: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown if it fails
    chance = random.Random(seed)
    here = machine()
    here.prepare("killed", steps=1000)
    radt = here.start("experiment.csv", "--quiet")
    wait_until(lambda: points_at(here.store) > 0, "the run is recorded")
    here.open("first")
    killed = 0
    while killed < KILLS:
        module = chance.choice(MODULES)
        for process in here.processes(module):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
            killed += 1
        before = points_at(here.store)
        wait_until(lambda before=before: points_at(here.store) > before, f"after {module}")
        if killed == KILLS // 2:
            here.open("second")
    here.open("second", "third")
    out, _ = radt.communicate(timeout=180)
    assert radt.returncode == 0, out
    assert here.statuses() == {"FINISHED"}
    here.radt("sync")
    assert not disagreements(here, team, team_database, tmp_path / "imported"), here.logs()
    with StoreReader(here.store) as reader:
        for run in reader.runs():
            (loss,) = (one for one in reader.series([run.run_id]) if one.metric == "loss")
            steps = reader.points_after(run.run_id, loss.series_no, 0, 2**40).steps
            assert steps is not None
            assert steps.tolist() == list(range(3000)), "each value once"
    assert len(runs_in_mlflow(team.client, "killed")) == 3
