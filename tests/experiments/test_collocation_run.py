"""The collocation study in small, run as a user runs it, on CPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from radt.model import MarkerKind, RunStatus
from tests.support.bench import Bench, stop_collectors

FOLDER = Path(__file__).parents[2] / "experiments" / "collocation"
WITH_TORCH_S = 1500.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A copy of the study's folder."""
    folder = tmp_path / "collocation"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__", "radt-data"))
    env = dict(os.environ, NO_COLOR="1", COLUMNS="100", RADT_COLLECTOR_IDLE_S="2")
    env.pop("RADT_HOME", None)
    yield Bench(folder, env)
    stop_collectors(Path(env["RADT_RUNTIME_DIR"]))


def _run(bench: Bench, file: str) -> tuple[int, str]:
    """The exit code and the output of a start, which may take long."""
    process = bench.start(file)
    output, _ = process.communicate(timeout=WITH_TORCH_S)
    return process.returncode, output


@pytest.mark.long
@pytest.mark.timeout(WITH_TORCH_S)
def test_the_small_study_runs_and_shows_that_memory_adds_up(bench: Bench) -> None:
    code, output = _run(bench, "cpu.csv")
    assert code == 0, output
    reader = bench.reader
    runs = list(reader.runs(experiment="collocation-cpu"))
    assert len(runs) == 12
    assert {run.status for run in runs} == {RunStatus.FINISHED}
    for run in runs:
        names = {m.name for m in reader.markers([run.run_id]) if m.kind is MarkerKind.SPAN}
        assert names == {"train", "validate"}
    report = read_report(reader, "collocation-cpu")
    by_label = {workload.label: workload for workload in report.workloads}
    assert set(by_label) == {"S", "S+S", "S+S+S", "M", "S+M", "R", "S+R"}
    for workload in report.workloads:
        for group in workload.groups:
            assert {Quantity.TIME_PER_EPOCH, Quantity.SAMPLES_PER_S} <= set(group.values)
            assert (Quantity.SLOWDOWN in group.values) == (workload.run_count > 1)

    def memory(label: str) -> float:
        groups = by_label[label].groups
        return sum(group.values[Quantity.MEMORY_PEAK].mean for group in groups)

    # Each has its own weights. Torch's libraries are shared by all processes that have them open,
    # other people's too, and a process is charged with its part: so not to the digit.
    assert 1.5 < memory("S+S") / memory("S") < 3.0
    assert 1.2 < memory("S+S+S") / memory("S+S") < 2.2
    assert 0.7 < memory("S+M") / (memory("S") + memory("M")) < 1.25
    assert "S+S+S" in bench.shown("report", "collocation-cpu")


_LIMITED = """\
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30,) * 2)
os.execv(sys.executable, [sys.executable, "train.py", *sys.argv[1:]])
"""


@pytest.mark.long
def test_what_does_not_fit_is_a_result(bench: Bench) -> None:
    bench.script("limited.py", _LIMITED)
    params = "--model recommender --batch-size 8 --samples-per-epoch 8 --workers 0 --device cpu"
    path = bench.experiment(
        "Experiment,Workload,Devices,Listeners,File,Params,Status,Run\n"
        f"large,1,cpu,none,limited.py,{params} --max-rows 40000000,,\n"
    )
    _run(bench, path.name)
    (row,) = bench.rows(path)
    assert row["Status"].startswith("OOM"), row["Status"]


def _train(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=FOLDER,
        env=dict(os.environ, RADT_MODE="off"),
        capture_output=True,
        text=True,
        timeout=WITH_TORCH_S,
        check=False,
    )


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--model", "cait_xxs24", "--pixels", "40"), 1, "multiple of 16 pixels, not 40"),
        (("--model", "resnet26", "--data", "clicks"), 2, "cannot be trained on clicks"),
        (("--data", "cifar10=/nowhere"), 1, "neither data_batch_1 nor data_batch_1.bin"),
    ],
)
def test_what_cannot_be_trained_is_said_in_a_line(
    arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = _train(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
