"""The devices of rows and of scripts by themselves, from the scheduler's variable to the store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bench import Bench, has_store, let_go, wait_until
from tests.support.nvml import (
    SINCE_470,
    FakeNvml,
    build_library,
    mig_gpu,
    nvml,
    nvml_library,
    plain_gpu,
)
from tests.unit.test_devices import DIVIDED, FASTEST_FIRST, HEX, MIXED, uuid_of

__all__ = ["nvml", "nvml_library"]

ROW = 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"] or "the CPU")'
SCRIPT = """
import radt
with radt.Run(name="alone", listeners="smi@0.1s") as run:
    open("gate").read()
"""


@pytest.fixture
def machine(bench: Bench, nvml: FakeNvml) -> Bench:
    """A bench with GPUs."""
    bench.env |= nvml.variables()
    bench.script("row.py", ROW)
    bench.script("alone.py", SCRIPT)
    return bench


def outputs(bench: Bench) -> dict[str, str]:
    return {
        run.letter: Path(run.spool, "output.log").read_text().strip() for run in bench.reader.runs()
    }


def alone(bench: Bench, found: set[str], **env: str) -> str:
    """Run a script by itself until these GPUs have values; return what it says."""
    gate = bench.signal_ready("gate")
    script = subprocess.Popen(
        [sys.executable, "alone.py"],
        cwd=bench.folder,
        env=bench.env | {"RADT_HOME": str(bench.home)} | env,
        stderr=subprocess.PIPE,
        text=True,
    )
    bench.started.append(script)
    wait_until(lambda: has_store(bench.home) and found <= entities(bench), "its GPUs have values")
    let_go(gate)
    said = script.communicate()[1]
    bench.started.remove(script)
    assert script.returncode == 0, said
    return said


def entities(bench: Bench) -> set[str]:
    """The GPUs of which runs have values."""
    series = bench.reader.series([run.run_id for run in bench.reader.runs()])
    return {one.entity for one in series if one.metric.startswith("gpu.")}


def test_rows_use_the_gpus_that_work_and_never_the_cpu_instead(
    machine: Bench, nvml: FakeNvml
) -> None:
    nvml.configure("count 2", plain_gpu(0), plain_gpu(1), "lost 0")
    head = "Workload,Devices,Listeners,File\n"
    path = machine.experiment(f"{head}1,,none,row.py\n1,1,none,row.py\n1,cpu,none,row.py\n")
    machine.radt(path.name)
    assert outputs(machine) == {"a": "GPU-fake-1", "b": "GPU-fake-1", "c": "the CPU"}

    refused = machine.radt(machine.experiment(f"{head}1,0,none,row.py\n", "b.csv").name, code=2)
    assert "GPU 0 does not answer: GPU is lost" in refused.stderr
    nvml.add("broken 1 999")
    refused = machine.radt(machine.experiment(f"{head}1,,none,row.py\n", "c.csv").name, code=2)
    assert "no GPU can be used: GPU 0 does not answer" in " ".join(refused.stderr.split())
    assert len(machine.reader.runs()) == 3


@pytest.mark.long
def test_a_gpu_that_breaks_between_two_workloads_fails_the_second(machine: Bench) -> None:
    machine.script("break.py", 'import os; open(os.environ["FAKE_NVML"], "a").write("lost 0\\n")')
    path = machine.experiment(
        "Workload,Devices,Listeners,File\n1,0,none,break.py\n2,0,none,row.py\n3,,none,row.py\n"
    )
    machine.radt(path.name, "--busy", "ignore", code=1)
    statuses = [row["Status"] for row in machine.rows(path)]
    assert statuses[0] == "FINISHED"
    for status in statuses[1:]:
        assert status.startswith("FAILED: GPU 0 ") and "GPU is lost" in status


@pytest.mark.long
def test_rows_run_on_the_mig_devices_that_the_scheduler_gave(
    machine: Bench, nvml: FakeNvml
) -> None:
    nvml.configure("count 2", plain_gpu(0), mig_gpu(1), "existing 1 9 4 3", "existing 1 19 0 1")
    machine.env["CUDA_VISIBLE_DEVICES"] = "MIG-fake-1-2-0"
    path = machine.experiment("Workload,Listeners,File\n1,none,row.py\n1,none,row.py\n")
    machine.radt(path.name)
    assert outputs(machine) == {"a": "MIG-fake-1-2-0", "b": "MIG-fake-1-2-0"}
    for run in machine.reader.runs():
        tags = machine.reader.tags(run.run_id)
        assert tags["radt.mig.profile"] == "1g.5gb"
        assert (run.devices, tags["radt.mig.uuid"]) == ("1", "MIG-fake-1-2-0")
    assert len(nvml.gpu_instances()) == 0, "nothing was created"


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize(
    ("hardware", "offer", "visible", "devices", "found"),
    [
        (MIXED, FASTEST_FIRST, "0", "1", {"gpu1"}),
        (MIXED, (), uuid_of(HEX[0]), "0", {"gpu0"}),
        (MIXED, (), "0", "unknown", set()),
        ((*MIXED, "lost 0"), (), uuid_of(HEX[1]), "1", {"gpu1"}),
        (DIVIDED, (), "MIG-fake-1-2-0", "MIG-fake-1-2-0", {"gpu1", "gpu1/gi2/ci0"}),
        (MIXED, FASTEST_FIRST, "", "cpu", set()),
    ],
    ids=["asked", "uuid", "unknown", "beside-a-broken-one", "mig", "hidden"],
)
def test_a_script_by_itself_is_recorded_with_its_devices_or_with_none(
    machine: Bench,
    nvml: FakeNvml,
    hardware: tuple[str, ...],
    offer: tuple[str, ...],
    visible: str,
    devices: str,
    found: set[str],
) -> None:
    nvml.configure(*hardware)
    if offer:
        nvml.offer(*offer)
    said = alone(machine, found, CUDA_VISIBLE_DEVICES=visible)
    (run,) = machine.reader.runs()
    assert run.devices == devices
    assert entities(machine) == found
    assert ("the run's GPUs are not recorded: the GPUs named by" in said) is (devices == "unknown")


@pytest.mark.long
def test_gpu_rows_run_and_are_measured_on_a_driver_of_the_470_branch(
    machine: Bench, nvml: FakeNvml, tmp_path: Path
) -> None:
    old = FakeNvml.in_folder(build_library(tmp_path, SINCE_470), nvml.config.parent)
    machine.env |= old.variables()
    old.configure("driver 470.256.02", "count 2", plain_gpu(0), mig_gpu(1))
    machine.signal_ready("gate")
    machine.script("wait.py", ROW + '; open("gate").read()')
    path = machine.experiment(
        "Workload,Devices,Collocation,Listeners,File\n"
        "1,0,-,smi@0.1s,wait.py\n"
        "1,1,3g.20gb,smi@0.1s,wait.py\n"
    )
    runner = machine.start(path.name, "--yes")
    wanted = {"gpu0", "gpu1", "gpu1/gi1/ci0"}
    wait_until(lambda: has_store(machine.home) and wanted <= entities(machine), "both are measured")
    let_go(machine.folder / "gate")
    assert runner.wait(180) == 0, runner.communicate()
    assert outputs(machine) == {"a": "GPU-fake-0", "b": "MIG-fake-1-1-0"}
    metrics = {one.metric for one in machine.reader.series([machine.reader.runs()[0].run_id])}
    assert {"gpu.memory.used", "gpu.power", "gpu.temperature"} <= metrics
