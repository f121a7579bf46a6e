"""experiments/offload: valid files, and a tiny variant whose losses are equal in all arms."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Machine
from radt.experiment.source import open_source
from radt.listeners import registry
from tests.support.bench import Bench

FOLDER = Path(__file__).parents[2] / "experiments" / "offload"
TINY = "--width 64 --layers 6 --heads 2 --length 8 --tokens 32 --steps 2 --memory 1500KB"


def test_file_is_valid_on_a_machine_with_a_gpu() -> None:
    machine = Machine(16, (Gpu(0, "NVIDIA H100", "GPU-1"),))
    plan = open_source(FOLDER / "experiment.csv").plan(machine, registry.load())
    assert len(list(plan.runs)) == 7


def test_file_for_two_cores_is_valid() -> None:
    plan = open_source(FOLDER / "cpu.csv").plan(Machine(2), registry.load())
    labels = {workload.label for workload in plan.workloads}
    assert {"resident 1", "needed 1", "ahead 1", "ahead 4 disk", "ahead 16"} <= labels


@pytest.mark.long
def test_a_tiny_variant_has_the_same_losses_in_all_arms(bench: Bench) -> None:
    shutil.copy(FOLDER / "train.py", bench.folder)
    lines = (FOLDER / "cpu.csv").read_text(encoding="utf-8").splitlines()
    wanted = re.compile(r"Experiment |[^,]*, (resident 4|needed 4|ahead 4 again) *,")
    text = "\n".join(line + f" {TINY}" if "train.py" in line else line for line in lines
                     if wanted.match(line))  # fmt: skip
    file = bench.experiment(text + "\n")
    bench.radt("experiment.csv", "--quiet")
    assert {row["Status"] for row in bench.rows(file)} == {"FINISHED"}
    losses = []
    with bench.reader as reader:
        for run in reader.runs():
            series = {summary.series.metric: summary for summary in reader.summary([run.run_id])}
            arm = dict(reader.params(run.run_id))["arm"]
            loss = reader.samples(run.run_id, series["loss"].series.series_no)
            losses.append(loss.values.tolist())
            if arm != "resident":
                assert 0 < series["offload.resident"].maximum <= 1_500_000
                assert series["offload.wait"].minimum >= 0
                assert series["counted_mb"].maximum <= 1.5
            names = [marker.name for marker in reader.markers([run.run_id])]
            # Loaded when needed, each load is waited for.
            assert ("load segment" in names) or arm != "needed"
    assert len(losses) == 3
    assert losses.count(losses[0]) == 3
