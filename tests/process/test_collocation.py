"""Workloads under MPS and on MIG instances, from the file to the clean-up, on a fake driver."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.bench import Bench, let_go, wait_until
from tests.support.fake_mps import CONTROL, FakeMps, mps
from tests.support.nvml import FakeNvml, mig_gpu, nvml, nvml_library

__all__ = ["mps", "nvml", "nvml_library"]

#: Uses its GPU as CUDA would: it becomes a client of the daemon that it is told of, and the driver
#: lists it. Says what it was given. An argument keeps it running until the test opens a pipe.
CLIENT = """
import atexit, fcntl, os, pathlib, signal, subprocess, sys
print("devices", os.environ["CUDA_VISIBLE_DEVICES"])
print("pipes", os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""))
print("percentage", os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""))
here = pathlib.Path(__file__).parent
kind = "mps" if os.path.isdir(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")) else "process"
if "plain" in sys.argv:
    kind = "process"
if kind == "mps":
    connect = f"connect {os.getpid()}"
    subprocess.run(["nvidia-cuda-mps-control"], input=connect, text=True, check=True)
if "content" in sys.argv:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
instance = os.environ["CUDA_VISIBLE_DEVICES"].removeprefix("MIG-fake-0-").split("-")
where = " ".join(instance) if len(instance) == 2 else ""
line = f"{kind} 0 {os.getpid()} 1000000 {where}\\n"

def listed(lines):
    with open(here / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = pathlib.Path(os.environ["FAKE_NVML"])
        path.with_suffix(".own").write_text("".join(lines(path.read_text().splitlines(True))))
        path.with_suffix(".own").replace(path)

listed(lambda lines: [*lines, line])
atexit.register(listed, lambda lines: [one for one in lines if one != line])
with open(os.environ["FAKE_NVML_LOG"], "a") as file:
    file.write("client up\\n")
(here / f"{os.getpid()}.up").touch()
if "wait" in sys.argv:
    open(here / "gate").read()
"""


@pytest.fixture
def machine(bench: Bench, nvml: FakeNvml, mps: FakeMps) -> Bench:
    """A bench with GPUs and the MPS tools."""
    bench.env |= nvml.variables() | mps.variables()
    bench.script("client.py", CLIENT)
    return bench


def looked_since_the_clients_came(nvml: FakeNvml) -> bool:
    """Whether the list of MPS clients was read after the last client was in it."""
    calls = [call[0] for call in nvml.calls()]
    since = calls[len(calls) - calls[::-1].index("client") :]
    return "nvmlDeviceGetMPSComputeRunningProcesses_v3" in since


def all_have_said(bench: Bench) -> bool:
    """Whether the first three lines of all runs are in their logs, which their runner writes."""
    logs = [Path(run.spool, "output.log") for run in bench.reader.runs()]
    return all(log.exists() and log.read_text().count("\n") >= 3 for log in logs)


def outputs(bench: Bench) -> dict[str, dict[str, str]]:
    """What each run printed, by its letter."""
    return {
        run.letter: dict(
            line.partition(" ")[::2]
            for line in Path(run.spool, "output.log").read_text().splitlines()
        )
        for run in bench.reader.runs()
    }


def test_rows_under_mps_share_a_daemon_of_their_own(
    machine: Bench, mps: FakeMps, nvml: FakeNvml
) -> None:
    machine.signal_ready("gate")
    path = machine.experiment(
        "Workload,Devices,Collocation,Listeners,File,Params\n"
        "1,0,MPS,none,client.py,wait\n"
        "1,0,MPS:40,none,client.py,wait\n"
    )
    runner = machine.start(path.name)
    wait_until(lambda: len(list(machine.folder.glob("*.up"))) == 2, "both are clients")
    assert len(mps.daemons) == 1
    wait_until(lambda: all_have_said(machine), "what both said is in their logs")
    said = outputs(machine)
    (daemon,) = mps.calls("daemon")
    assert daemon["env"]["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    assert said["a"]["pipes"] == said["b"]["pipes"] == daemon["env"]["CUDA_MPS_PIPE_DIRECTORY"]
    assert (said["a"]["percentage"], said["b"]["percentage"]) == ("", "40")
    wait_until(lambda: looked_since_the_clients_came(nvml), "the runner looks who is a client")
    let_go(machine.folder / "gate")
    assert runner.wait(180) == 0, runner.communicate()
    for run in machine.reader.runs():
        assert machine.reader.tags(run.run_id)["radt.verified"] == "yes"
    assert mps.daemons == []
    assert [row["Status"] for row in machine.rows(path)] == ["FINISHED"] * 2


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("manner", ["", "content"], ids=["killed", "says-all-went-well"])
def test_a_client_that_runs_without_mps_fails_the_workload(
    machine: Bench, mps: FakeMps, manner: str
) -> None:
    machine.signal_ready("gate")
    path = machine.experiment(
        "Workload,Devices,Collocation,Listeners,File,Params\n"
        f"1,0,MPS,none,client.py,wait {manner}\n"
        f"1,0,MPS,none,client.py,wait plain {manner}\n"
    )
    done = machine.radt(path.name, code=1)
    statuses = [row["Status"] for row in machine.rows(path)]
    assert all(status.startswith("FAILED: b: ") for status in statuses), statuses
    assert "without" in done.stdout
    assert mps.daemons == []


def test_mig_rows_get_instances_of_their_own_that_are_gone_afterwards(
    machine: Bench, nvml: FakeNvml
) -> None:
    nvml.configure("count 1", mig_gpu(0), "existing 0 14 0 2")
    path = machine.experiment(
        "Workload,Devices,Collocation,Listeners,File\n"
        "1,0,3g.20gb,none,client.py\n"
        "1,0,1g.5gb,none,client.py\n"
    )
    done = machine.radt(path.name, "--yes", code=None)
    assert done.returncode == 0, done.stdout + done.stderr
    said = outputs(machine)
    devices = {said[letter]["devices"] for letter in "ab"}
    assert len(devices) == 2
    assert all(device.startswith("MIG-") for device in devices)
    assert [one[2] for one in nvml.gpu_instances()] == [14], "somebody else's is left alone"
    tags = machine.reader.tags(machine.reader.runs()[0].run_id)
    assert tags["radt.mig.profile"] in ("3g.20gb", "1g.5gb")


@pytest.mark.quick_variants(3)
@pytest.mark.parametrize(
    ("hardware", "cells", "problem"),
    [
        (mig_gpu(0), ["3g.20gb"] * 3, "2 × 3g.20gb fit"),
        (mig_gpu(0), ["-"], "GPU 0 is in MIG mode"),
        (mig_gpu(0), ["1g.5gb+MPS"] * 7, "7 MPS clients on 1g.5gb of GPU 0, which can hold 6"),
        ("compute_mode 0 3", ["-", "-"], "only one process may use it, 2 were planned"),
        ("compute_mode 0 2", ["MPS"], "no process may use it"),
        ("no tool", ["MPS"], "MPS needs nvidia-cuda-mps-control"),
        ("long path", ["MPS"], "would be too long"),
        ("", ["MPS"] * 49, "49 MPS clients on GPU 0, which can hold 48"),
    ],
)
def test_what_the_start_refuses_validate_refuses_too(
    machine: Bench, mps: FakeMps, nvml: FakeNvml, hardware: str, cells: list[str], problem: str
) -> None:
    if hardware == "no tool":
        (mps.folder / CONTROL).unlink()
    elif hardware == "long path":
        machine.env["RADT_RUNTIME_DIR"] = str(machine.folder / ("x" * 120))
    elif hardware:
        nvml.configure("count 1", hardware)
    rows = [f"1,0,{cell},client.py" for cell in cells]
    path = machine.experiment("\n".join(["Workload,Devices,Collocation,File", *rows, ""]))
    before = path.read_bytes()
    checked = machine.radt("validate", path.name, code=2)
    started = machine.radt(path.name, code=2)
    assert checked.stderr == started.stderr
    assert "line 2, Collocation" in started.stderr
    assert problem in " ".join(started.stderr.split())
    assert path.read_bytes() == before
    assert not (machine.home / "radt.db").exists()


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("collocation", ["MPS", "3g.20gb"])
def test_what_a_killed_runner_set_up_is_taken_away_by_the_next_start(
    machine: Bench, nvml: FakeNvml, mps: FakeMps, collocation: str
) -> None:
    if collocation != "MPS":
        nvml.configure("count 1", mig_gpu(0))
    machine.signal_ready("gate")
    path = machine.experiment(
        f"Workload,Devices,Collocation,Listeners,File,Params\n1,0,{collocation},none,client.py,wait\n"
    )
    runner = machine.start(path.name, "--yes")
    wait_until(lambda: list(machine.folder.glob("*.up")), "the client is up")
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    left = mps.daemons if collocation == "MPS" else nvml.gpu_instances()
    assert len(left) == 1
    let_go(machine.folder / "gate")
    nvml.configure(
        *(["count 1", mig_gpu(0)] if collocation != "MPS" else ["count 1", "gpu 0 " + "0 " * 9])
    )
    machine.radt(path.name, "--yes")
    assert mps.daemons == []
    assert nvml.gpu_instances() == []
    assert machine.rows(path)[0]["Status"] == "FINISHED"


@pytest.mark.long
def test_somebody_elses_process_is_waited_for_or_refused(machine: Bench, nvml: FakeNvml) -> None:
    nvml.add(f"process 0 {1} 3000000")
    path = machine.experiment("Workload,Devices,Listeners,File\n1,0,none,client.py\n")
    refused = machine.radt(path.name, "--busy", "fail", code=1)
    status = machine.rows(path)[0]["Status"]
    assert status.startswith("FAILED: ")
    assert "pid 1" in status
    assert "pid 1" in refused.stdout
    looks = "nvmlDeviceGetComputeRunningProcesses_v3"
    before = len(nvml.calls(looks))  # of the start that did not wait
    waiting = machine.start(path.name, "--rerun")
    wait_until(lambda: len(nvml.calls(looks)) > before + 4, "it looks again and again")
    nvml.remove("process 0 1 3000000")
    assert waiting.wait(180) == 0, waiting.communicate()
    assert machine.rows(path)[0]["Status"] == "FINISHED"
