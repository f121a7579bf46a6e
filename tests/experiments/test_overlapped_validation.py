"""experiments/overlapped-validation: valid files, and tiny arms with equal losses and metrics."""

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

FOLDER = Path(__file__).parents[2] / "experiments" / "overlapped-validation"
ARMS = ["serial", "thread", "process"]


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("cpu.csv", Machine(2)),
        ("experiment.csv", Machine(16, (Gpu(0, "NVIDIA H100", "GPU-1"),))),
    ],
)
def test_files_are_valid(name: str, machine: Machine) -> None:
    plan = open_source(FOLDER / name).plan(machine, registry.load())
    labels = [workload.label for workload in plan.workloads]
    assert {"decode serial", "decode tuned", "decode thread", "decode process"} <= set(labels)
    assert {"small serial", "small process"} <= set(labels)
    assert len(labels) == len(set(labels))


@pytest.mark.long
def test_tiny_arms_train_and_validate_the_same(bench: Bench) -> None:
    for name in ("train.py", "data.py"):
        shutil.copy(FOLDER / name, bench.folder)
    lines = (FOLDER / "cpu.csv").read_text(encoding="utf-8").splitlines()
    wanted = re.compile(rf"Experiment |[^,]*, decode ({'|'.join(ARMS)}) *,")
    text = "\n".join(line for line in lines if wanted.match(line)) + "\n"
    file = bench.experiment(text.replace("--load decode", "--load tiny"))
    bench.radt("experiment.csv", "--quiet")
    assert {row["Status"] for row in bench.rows(file)} == {"FINISHED"}
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    with bench.reader as reader:
        for run in reader.runs():
            arm = dict(reader.params(run.run_id))["arm"]
            found[arm] = {}
            for series in reader.series([run.run_id]):
                samples = reader.samples(run.run_id, series.series_no)
                if samples.steps is not None:
                    pairs = zip(samples.steps.tolist(), samples.values.tolist(), strict=True)
                    found[arm][series.metric] = sorted(pairs)
    assert list(found) == ARMS
    for metrics in found.values():
        for name in ("loss", "val_loss", "val_accuracy"):
            assert metrics[name] == found["serial"][name], name
            assert [step for step, _ in metrics[name]] == [1, 2]
        (total,) = metrics["total"]
        assert total[1] > 0
    for arm in ("thread", "process"):
        assert found[arm]["validation.bound"][0][1] <= found[arm]["validation.reached"][0][1]
