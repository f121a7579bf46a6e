"""experiments/slow-network: its files are valid, links carry what they should, replicas change."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radt.devices.machine import Machine
from radt.experiment.source import open_source
from radt.listeners import registry
from tests.support.bench import Bench
from tests.support.privileges import needs_user_namespaces

FOLDER = Path(__file__).parents[2] / "experiments" / "slow-network"
ARMS = ("gpipe", "1f1b", "copies")


@pytest.mark.parametrize("name", ["experiment.csv", "cpu.csv"])
def test_every_link_has_every_way(name: str, tmp_path: Path) -> None:
    for file in ("train.py", "link.py", name):
        shutil.copy(FOLDER / file, tmp_path)
    plan = open_source(tmp_path / name).plan(Machine(2), registry.load())
    labels = {workload.label for workload in plan.workloads}
    assert labels == {
        *(f"{arm} {rate}" for arm in ARMS for rate in ("none", "100", "25")),
        *(f"{arm} {case}" for arm in ("gpipe", "copies") for case in ("few", "large")),
        "kill and join",
    }
    (changing,) = (workload for workload in plan.workloads if workload.label == "kill and join")
    assert [len(changing.runs), len(changing.trained)] == [4, 3]


@pytest.mark.quick_variants(1)
@needs_user_namespaces
@pytest.mark.parametrize("arm", ARMS)
def test_tiny_runs_send_what_the_planner_counts(arm: str, tmp_path: Path) -> None:
    """Run by a user without privileges, also if it is root who tests."""
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    command = [*user, sys.executable, str(FOLDER / "train.py"), "--arm", arm, "--size", "tiny"]
    done = subprocess.run(
        [*command, "--mbit", "100", "--batches", "2", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2
    # 4 micro-batches of 1,024 bytes there and back; or 8,448 bytes of parameters by each of two.
    least = 2 * 4 * 1024 if arm != "copies" else 2 * 8448
    assert all(least < sent < 3 * least + 40_000 for _, sent, _ in found)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "os.environ['PATH'] = link._SYSTEM = ''\nlink.check()",
            "ip is not installed: apt install iproute2",
        ),
        # 32 of them may lie in one another.
        ("while True: link.enter_namespace(None)", "the kernel gives no network namespace"),
    ],
    ids=["ip", "namespaces"],
)
def test_what_is_missing_is_said(script: str, message: str) -> None:
    script = f"import os, sys\nsys.path.insert(0, sys.argv[1])\nimport link\n{script}"
    done = subprocess.run(
        [sys.executable, "-c", script, str(FOLDER)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.long
@needs_user_namespaces
def test_a_workload_goes_on_when_a_replica_is_killed_and_another_one_joins(bench: Bench) -> None:
    for file in ("train.py", "link.py"):
        shutil.copy(FOLDER / file, bench.folder)
    header, *lines = (FOLDER / "cpu.csv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line for line in lines if "kill and join" in line]
    rows = [row.replace("--arm replica", "--arm replica --size tiny") for row in rows]
    file = bench.experiment("\n".join([header, *rows]) + "\n")
    bench.radt("experiment.csv", "--quiet")
    rows_after = bench.rows(file)
    assert [row["Status"] for row in rows_after] == ["FINISHED"] * 4
    trained = {row["Run"]: row["Name"] for row in rows_after if not row["Role"]}
    with bench.reader as reader:
        for run_id, name in trained.items():
            found = {series.metric: series for series in reader.series([run_id])}
            assert {"averaging.time", "averaging.replicas", "stall", "loss"} <= set(found)
            steps = reader.samples(run_id, found["stall"].series_no).steps
            assert steps is not None
            if name == "killed":  # from the round after the one in which it came again
                assert steps[0] >= 4
            assert steps.tolist() == list(range(1 if name == "replica" else steps[0], 41))
