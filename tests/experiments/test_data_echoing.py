"""experiments/data-echoing: valid files, and a tiny variant with exact counts of decodings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Machine
from radt.experiment.source import open_source
from radt.listeners import registry
from tests.support.bench import Bench
from tests.support.waiting import TIMEOUT_S

FOLDER = Path(__file__).parents[2] / "experiments" / "data-echoing"
#: 2×3+4: ten epochs of uses, six of decoding.
TINY = (
    "--samples 60 --validation-samples 40 --test-samples 20 --edge 32 --batch-size 10 "
    "--echo-epochs 2 --fresh-epochs 4 --width 2"
)


def test_file_is_valid_on_a_machine_with_a_gpu() -> None:
    machine = Machine(16, (Gpu(0, "NVIDIA H100", "GPU-1"),))
    plan = open_source(FOLDER / "experiment.csv").plan(machine, registry.load())
    assert len(list(plan.runs)) == 10


def test_file_for_two_cores_is_valid() -> None:
    plan = open_source(FOLDER / "cpu.csv").plan(Machine(2), registry.load())
    labels = [workload.label for workload in plan.workloads]
    assert {"fresh", "echo 1", "finetune 1", "finetune 3", "immediate 1"} <= set(labels)


@pytest.mark.long
def test_a_tiny_variant_decodes_as_much_less_as_it_says(bench: Bench) -> None:
    for name in ("train.py", "images.py"):
        shutil.copy(FOLDER / name, bench.folder)
    text = (FOLDER / "cpu.csv").read_text(encoding="utf-8")
    wanted = re.compile(r"Experiment |[^,]*, (fresh|finetune 1|one cycle 3|echo 1) *,")
    lines = [line for line in text.splitlines() if wanted.match(line)]
    assert len(lines) == 5
    file = bench.experiment("\n".join(lines).replace("--validation-samples 500", TINY) + "\n")
    bench.radt("experiment.csv", "--quiet")
    assert {row["Status"] for row in bench.rows(file)} == {"FINISHED"}
    totals: dict[str, tuple[float, float]] = {}
    with bench.reader as reader:
        for run in reader.runs():
            sums = {
                series.series.metric: reader.samples(
                    run.run_id, series.series.series_no
                ).values.sum()
                for series in reader.summary([run.run_id])
                if series.series.metric in ("loader.decoded", "loader.echoed")
            }
            params = reader.params(run.run_id)
            arm = "one cycle" if params["one_cycle"] == "True" else params["arm"]
            totals[arm] = sums["loader.decoded"], sums["loader.echoed"]
            for metric, count in (("accuracy", 40), ("test_accuracy", 20)):
                (series,) = (s for s in reader.summary([run.run_id]) if s.series.metric == metric)
                assert 0 <= series.minimum <= series.maximum <= 1
                assert series.maximum * count == pytest.approx(round(series.maximum * count))
    assert totals["fresh"] == (600, 0)
    fewer = (360, 240)  # 40 %
    assert totals["finetune"] == totals["one cycle"] == fewer
    decoded, echoed = totals["echo"]
    # It ends in the middle of an epoch, where a part of the next fill is decoded.
    assert 600 <= decoded + echoed <= 610
    assert decoded <= 220


def test_the_papers_regression_finds_the_line() -> None:
    done = subprocess.run(
        [sys.executable, "regression.py", "--repeats", "3"],
        cwd=FOLDER,
        env=dict(os.environ, RADT_MODE="off"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    found = dict(re.findall(r"(\w+) (-?\d+\.\d+)", done.stdout))
    left = 0.01  # of the way: about exp(-50,000 × 5e-5 × 3)
    assert float(found["intercept"]) == pytest.approx(7, abs=7 * left + 0.1)
    assert float(found["slope"]) == pytest.approx(3, abs=3 * left + 0.1)
    assert float(found["loss"]) == pytest.approx(float(found["loss_unseen"]), rel=0.05)
