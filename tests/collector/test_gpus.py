"""Runs on GPUs, with a fake libnvidia-ml.so.1 under a real collector."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from collector_kit import DEADLINE_S, Project, wait_for

import radt
from radt.collector.client import CollectorClient
from radt.model import MissingReason, Scope, SeriesKind

_SOURCE = Path(__file__).parents[1] / "support" / "fake_nvml.c"
_GPU0 = "gpu 0 55 80000 500 1000 250500 7000 61 1410 1593"
_GPU1 = "gpu 1 0 80000 500 2000 60000 9000 35 210 405"


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("collector-nvml") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], check=True)
    return library


@pytest.fixture
def configure(
    fake_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Says what hardware there is; must come before the collector starts."""
    config = tmp_path / "nvml.conf"

    def write(*lines: str) -> None:
        temporary = config.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n")
        shutil.move(temporary, config)

    write("count 2", _GPU0, _GPU1)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml_library.parent))
    monkeypatch.setenv("FAKE_NVML", str(config))
    return write


@pytest.fixture
def machine(configure: Callable[..., None], tmp_path: Path) -> Iterator[Project]:
    client = CollectorClient(timeout_s=DEADLINE_S).reach()
    project = Project(tmp_path / "radt-data", client)
    yield project
    project.close()
    client.close()


def _last(project: Project, run, metric: str) -> float | None:
    for summary in project.reader.summary([run.run_id]):
        if summary.series.metric == metric:
            return summary.last
    return None


def test_runs_get_their_own_cards_and_their_own_memory(
    configure: Callable[..., None], machine: Project
) -> None:
    one = machine.run("smi", devices=("0",))
    two = machine.run("smi", devices=("GPU-fake-0",))
    other = machine.run("smi", devices=("1",))
    colleague = os.getpid()
    configure(
        "count 2",
        _GPU0,
        _GPU1,
        f"process 0 {one.process.pid} 300",
        f"process 0 {two.process.pid} 400",
        f"process 0 {colleague} 5000",
    )
    wait_for(lambda: _last(machine, one, "process.gpu.memory") == 300)
    wait_for(lambda: _last(machine, two, "process.gpu.memory") == 400)
    wait_for(lambda: _last(machine, other, "gpu.power") == 60)
    live = machine.client.live([one.run_id, other.run_id])
    assert live[one.run_id].gpu_utilization == 0.55
    assert live[one.run_id].gpu_memory_bytes == 300
    assert live[other.run_id].gpu_memory_bytes == 0
    for run in (one, two, other):
        run.finish()
    assert _last(machine, one, "gpu.power") == _last(machine, two, "gpu.power") == 250.5
    assert _last(machine, other, "gpu.power") == 60
    series = {one.metric: one for one in machine.reader.series([two.run_id])}
    assert series["gpu.energy"].kind is SeriesKind.COUNTER
    assert series["gpu.energy"].scope is Scope.GPU
    assert {one.entity for one in series.values()} == {"gpu0"}
    assert series["process.gpu.memory"].scope is Scope.PROCESS
    assert {one.entity for one in machine.reader.series([other.run_id])} == {"gpu1"}


def test_what_the_card_does_not_have_is_missing_to_the_end(
    configure: Callable[..., None], machine: Project
) -> None:
    configure("count 1", _GPU0, "fail nvmlDeviceGetTotalEnergyConsumption 3")
    run = machine.run("smi", devices=("0",))
    wait_for(lambda: run.has("gpu.power", 3))
    run.finish()
    numbers = {one.metric: one.series_no for one in machine.reader.series([run.run_id])}
    (gap,) = [
        one for one in machine.reader.gaps([run.run_id]) if one.series_no == numbers["gpu.energy"]
    ]
    assert gap.reason is MissingReason.UNSUPPORTED
    assert gap.end_ns == run.row.ended_ns
    assert "gpu.energy" not in run.counts


def test_a_driver_that_crashes_the_process_costs_only_itself(
    configure: Callable[..., None], machine: Project
) -> None:
    run = machine.run("smi", "top", devices=("0",))
    wait_for(lambda: run.has("gpu.power"))
    configure("count 1", _GPU0, "crash nvmlDeviceGetPowerUsage")
    wait_for(lambda: run.ledger["smi"].state == "unavailable")
    count = run.counts["system.load"]
    wait_for(lambda: run.has("system.load", count + 3))
    run.finish()


def test_a_run_on_the_cpu_leaves_the_cards_alone(machine: Project) -> None:
    run = machine.run("smi", "top")
    wait_for(lambda: run.ledger["smi"].received > 3)
    run.finish()
    assert not [one for one in run.counts if one.startswith("gpu")]


def test_energy_is_read_as_a_run_begins_and_as_it_ends(
    configure: Callable[..., None], machine: Project
) -> None:
    def energy_j() -> float:
        configure("count 2", _GPU0, _GPU1)
        run = machine.run("smi", devices=("0",), interval_s=3600.0)
        wait_for(lambda: run.has("gpu.energy"))
        configure("count 2", _GPU0.replace(" 7000 ", " 47000 "), _GPU1)
        run.finish()
        return radt.totals(run.run_id, home=machine.home.path).get("gpu_energy_j", 0.0)

    # A run's end waits a second for its last reading, which may come later on a busy machine.
    wait_for(lambda: energy_j() == pytest.approx(40.0), "a last reading in time")


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("changes", "total"),
    [
        (("lost 0",), "gpu_energy_j_at_least"),
        (("field 0 83 error 999",), "gpu_energy_j_at_least"),
        (("field 0 83 ull {from_0} 300000",), "gpu_energy_j_at_least"),
        (("field 0 186 uint 250000",), None),
    ],
)
def test_energy_that_was_not_counted_to_the_end_says_so(
    configure: Callable[..., None], machine: Project, changes: tuple[str, ...], total: str | None
) -> None:
    """The card was lost, its counter failed or began again from 0, or never counted."""
    counter = "field 0 83 ull 1e15 300000" if total else "field 0 83 ull 7000"
    configure("count 1", _GPU0, counter)
    run = machine.run("smi", devices=("0",))
    wait_for(lambda: run.has("gpu.power", 3))
    from_0 = 1000 - 300_000 * time.monotonic()
    configure("count 1", _GPU0, counter, *(change.format(from_0=from_0) for change in changes))
    run.finish()
    totals = radt.totals(run.run_id, home=machine.home.path)
    assert {key for key in totals if key.startswith("gpu_")} == ({total} if total else set())
    assert 0 < totals.get(total or "duration_s", 0) < 300 * 600
