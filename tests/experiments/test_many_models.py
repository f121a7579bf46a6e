"""experiments/many-models: valid files; every arm ends with the same parameters, bit by bit."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Machine
from radt.experiment.source import open_source
from radt.listeners import registry
from tests.support.bench import Bench

FOLDER = Path(__file__).parents[2] / "experiments" / "many-models"
TINY = "--samples 64 --batch-size 16 --epochs 1"


def test_file_is_valid_on_a_machine_with_a_gpu() -> None:
    machine = Machine(16, (Gpu(0, "NVIDIA H100", "GPU-1"),))
    plan = open_source(FOLDER / "experiment.csv").plan(machine, registry.load())
    assert len(list(plan.runs)) == 14


def test_file_for_two_cores_is_valid() -> None:
    plan = open_source(FOLDER / "cpu.csv").plan(Machine(2), registry.load())
    labels = {workload.label for workload in plan.workloads}
    assert {"concurrent", "sequential", "fcfs", "priority", "sjf", "round robin"} <= labels


@pytest.mark.long
def test_a_tiny_variant_trains_the_same_in_each_arm(bench: Bench) -> None:
    shutil.copy(FOLDER / "train.py", bench.folder)
    text = (FOLDER / "cpu.csv").read_text(encoding="utf-8")
    wanted = ("concurrent", "round robin", "shared input")
    lines = [line for line in text.splitlines() if line.startswith("Experiment")] + [
        line.replace("--models", f"{TINY} --models")
        for line in text.splitlines()
        if any(f", {name} " in line for name in wanted)
    ]
    assert len(lines) == 6
    file = bench.experiment("\n".join(lines) + "\n")
    bench.radt("experiment.csv", "--quiet")
    assert {row["Status"] for row in bench.rows(file)} == {"FINISHED"}
    checksums: dict[str, list[float]] = defaultdict(list)
    with bench.reader as reader:
        runs = list(reader.runs())
        for run in runs:
            for series in reader.summary([run.run_id]):
                if series.series.metric.endswith("/checksum"):
                    checksums[series.series.metric].append(series.maximum)
    assert len(checksums) == 3
    for values in checksums.values():
        assert len(values) == 3
        assert len(set(values)) == 1
    children = [run for run in runs if run.name == "lenet"]
    assert len(children) >= 3  # one run a job
