"""experiments/preemption: valid files, and a tiny variant whose losses are the same in all arms."""

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

FOLDER = Path(__file__).parents[2] / "experiments" / "preemption"
TINY = (
    "--steps 48 --seconds 2 --batch-size 4 --edge 8 --width 4 --blocks 1 --max-segment-ms 0.1 "
    "--requests-per-s 200 --serve-width 16"
)


def test_file_is_valid_on_a_machine_with_a_gpu(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "train.py", tmp_path)
    text = (FOLDER / "experiment.csv").read_text(encoding="utf-8")
    # Whether a driver has MPS is another question.
    file = tmp_path / "experiment.csv"
    file.write_text(text.replace(", MPS        ,", ", -          ,"), encoding="utf-8")
    machine = Machine(16, (Gpu(0, "NVIDIA H100", "GPU-1"),))
    plan = open_source(file).plan(machine, registry.load())
    labels = {workload.label for workload in plan.workloads}
    assert {"alone", "streams", "sliced", "lease", "MPS", "processes", "migrate"} <= labels


def test_file_for_two_cores_is_valid() -> None:
    plan = open_source(FOLDER / "cpu.csv").plan(Machine(2), registry.load())
    labels = [workload.label for workload in plan.workloads]
    assert labels == [
        "alone",
        "free",
        "sliced",
        "lease",
        "free processes",
        "processes",
        "migrate",
    ]


@pytest.mark.long
def test_a_tiny_variant_serves_and_trains_the_same_in_all_arms(bench: Bench) -> None:
    shutil.copy(FOLDER / "train.py", bench.folder)
    text = (FOLDER / "cpu.csv").read_text(encoding="utf-8")
    wanted = re.compile(r"Experiment |[^,]*, (sliced|processes|migrate) *,")
    lines = [line for line in text.splitlines() if wanted.match(line)]
    assert len(lines) == 5
    file = bench.experiment("\n".join(lines).replace("--arm", f"{TINY} --arm") + "\n")
    bench.radt("experiment.csv", "--quiet")
    assert {row["Status"] for row in bench.rows(file)} == {"FINISHED"}
    losses, served = {}, set()
    with bench.reader as reader:
        for run in reader.runs():
            for series in reader.summary([run.run_id]):
                values = reader.samples(run.run_id, series.series.series_no).values
                params = dict(reader.params(run.run_id))
                if series.series.metric == "loss" and "arm" in params:
                    losses[params["arm"]] = values.tolist()
                if series.series.metric == "latency":
                    assert (values > 0).all()
                    served.add(params["arm"])
    assert served == {"sliced", "lease", "migrate"}
    assert len(losses["sliced"]) == 48
    assert losses["sliced"] == losses["lease"] == losses["migrate"]
