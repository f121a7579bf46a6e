"""experiments/shared-loading: its files are valid, and tiny runs share a loader."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Machine
from radt.experiment.plan import RunPlan
from radt.experiment.source import open_source
from radt.listeners import registry
from tests.support.bench import Bench

FOLDER = Path(__file__).parents[2] / "experiments" / "shared-loading"
IMAGES, BATCHES = 96, 3  # of `--size tiny`
EPOCHS = 2


def workers(runs: Sequence[RunPlan]) -> int:
    """Worker processes of all own loaders of a workload; 0 if a server has them."""
    cells = [run.params for run in runs]
    return sum(int(cell[cell.index("--workers") + 1]) for cell in cells if "--workers" in cell)


@pytest.mark.parametrize(
    ("name", "machine", "total"),
    [
        ("experiment.csv", Machine(16, (Gpu(0, "NVIDIA H100", "GPU-1"),)), 8),
        ("cpu.csv", Machine(2), 4),
    ],
)
def test_arms_have_the_same_number_of_workers(
    name: str, machine: Machine, total: int, tmp_path: Path
) -> None:
    shutil.copy(FOLDER / "train.py", tmp_path)
    text = (FOLDER / name).read_text(encoding="utf-8")
    # Whether a driver has MPS is another question.
    (tmp_path / name).write_text(text.replace(", MPS ", ", -   "), encoding="utf-8")
    plan = open_source(tmp_path / name).plan(machine, registry.load())
    assert len(plan.workloads) == len({workload.label for workload in plan.workloads}) >= 8
    for workload in plan.workloads:
        services = len(workload.runs) - len(workload.trained)
        assert services in {0, 1}
        assert workers(workload.trained) == (0 if services else total), workload.label


def tiny(text: str, *workloads: str) -> str:
    """Rows of some workloads for a few images."""
    header, *rows = (line for line in text.splitlines() if not line.startswith("#"))
    kept = [row for row in rows if row.split(",")[1].strip() in workloads]
    service = """train.py:make_loader --name jpegs --arguments '{"size": "tiny"}'"""
    lines = [
        line.replace("train.py:make_loader --name jpegs", service)
        .replace("--loader ", f"--size tiny --epochs {EPOCHS} --loader ")
        .replace("--killed-at 30", f"--killed-at {BATCHES + 1}")
        .replace("--workers 4", "--workers 1")
        for line in kept
    ]
    return "\n".join([header, *lines]) + "\n"


@pytest.mark.long
def test_a_tiny_variant_runs(bench: Bench) -> None:
    for name in ("train.py", "networks.py"):
        shutil.copy(FOLDER / name, bench.folder)
    text = tiny((FOLDER / "cpu.csv").read_text(encoding="utf-8"), "solo", "one killed")
    file = bench.experiment(text)
    bench.radt("experiment.csv", "--quiet")
    rows = bench.rows(file)
    names = [row["Name"] for row in rows]
    assert names == ["cnn", "loader", "cnn", "cnn", "killed"]
    assert [row["Status"] for row in rows] == ["FINISHED"] * len(rows)
    logged = {row["Run"]: values(bench, row["Run"]) for row in rows if row["Name"] == "cnn"}
    alone, *sharing = logged.values()
    assert len(sharing) == 2
    assert len(alone["loss"]) == EPOCHS * BATCHES
    for run in logged.values():  # also in the epoch in which the third one was killed
        assert list(run["missing"].values()) == list(run["twice"].values()) == [0] * EPOCHS
        assert len(set(run["order"].values())) == EPOCHS  # each epoch is shuffled anew
    first, second = (shared["order"] for shared in sharing)
    for one, other in ((first, second), (first, alone["order"]), (second, alone["order"])):
        both = set(one) & set(other)
        assert [one[epoch] for epoch in both] == [other[epoch] for epoch in both]
    for shared in sharing:
        if shared["order"] == alone["order"]:  # else it came when the first epoch was over
            assert shared["loss"] == alone["loss"]


def values(bench: Bench, run_id: str) -> dict[str, dict[int, float]]:
    """All values that a run logged, by step."""
    found = {}
    with bench.reader as reader:
        for series in reader.series([run_id]):
            if series.metric in {"missing", "twice", "order", "loss"}:
                samples = reader.samples(run_id, series.series_no)
                assert samples.steps is not None
                found[series.metric] = dict(
                    zip(samples.steps.tolist(), samples.values.tolist(), strict=True)
                )
    return found
