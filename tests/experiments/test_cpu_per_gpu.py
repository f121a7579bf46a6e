"""experiments/cpu-per-gpu: its files are valid, and a tiny variant gives runs CPUs of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Machine
from radt.errors import ExperimentError
from radt.experiment.source import open_source
from radt.listeners import registry
from tests.support.bench import Bench

FOLDER = Path(__file__).parents[2] / "experiments" / "cpu-per-gpu"


def test_file_is_valid_on_a_machine_with_a_gpu() -> None:
    machine = Machine(16, (Gpu(0, "NVIDIA A100", "GPU-1"),))
    plan = open_source(FOLDER / "experiment.csv").plan(machine, registry.load())
    assert [run.cpus.count for run in plan.runs] == [1, 2, 4, 8, 16]
    with pytest.raises(ExperimentError, match="expected 1 to 4 CPUs, got 8"):
        open_source(FOLDER / "experiment.csv").plan(Machine(4, machine.gpus), registry.load())


def test_file_for_two_cores_is_valid() -> None:
    plan = open_source(FOLDER / "cpu.csv").plan(Machine(2), registry.load())
    counts = [[run.cpus.count for run in one.runs] for one in plan.workloads]
    assert counts == [[1], [2], [1, 1]]


@pytest.mark.long
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two CPUs are shared out")
def test_a_tiny_variant_runs(bench: Bench, finish: Callable[..., None]) -> None:
    workers = "--workers {Cpus}"
    finish("cpu-per-gpu", "2 × 1 CPU", 2, workers, f"{workers} --epochs 2 --samples 64")
    with bench.reader as reader:
        runs = reader.runs()
        metrics = {
            run.run_id: {one.series.metric: one for one in reader.summary([run.run_id])}
            for run in runs
        }
    assert len(runs) == 2
    for run in runs:
        assert {"data_wait", "samples_per_s", "loss", "step.time"} <= set(metrics[run.run_id])
        assert metrics[run.run_id]["step.time"].count == 4  # two batches in each of two epochs
