"""``make gpu-check`` as far as it can be seen without a GPU: with stand-ins, work on the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.gpu_check import plausibility
from benchmarks.gpu_check.loads import TENSOR_FLOP_PER_CLOCK
from benchmarks.gpu_check.plausibility import PHASES, Phase
from benchmarks.gpu_check.table import CHECKS
from tests.support.fake_mps import FakeMps, mps
from tests.support.nvml import FakeNvml, build_library, mig_gpu, plain_gpu
from tests.support.waiting import wait_until

__all__ = ["mps"]

_ROOT = Path(__file__).parents[2]
#: Its first GPU; the second one is in MIG mode.
_HEX = "5f0e8d3a11112222333344445555aaaa"
_UUID = f"GPU-{_HEX[:8]}-{_HEX[8:12]}-{_HEX[12:16]}-{_HEX[16:20]}-{_HEX[20:]}"
#: On the first card nothing but the idle phase can be right.
_MACHINE = (
    "count 2",
    "gpm 0",
    *(f"gpm_value 0 - {number} 2" for number in (2, 3, 5, 10, 20)),
    plain_gpu(0, "NVIDIA H100", 80_000_000_000),
    f"uuid 0 {_UUID}",
    mig_gpu(1),
)
#: CUDA becomes a client of MPS by itself, and the driver lists it, as it lists each process that
#: uses the GPU; here the program does both.
_CONNECT = """
import atexit, fcntl, os, pathlib, subprocess, sys
is_client = os.path.isdir(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""))
line = f"{'mps' if is_client else 'process'} 0 {os.getpid()} 1000000\\n"

def listed(change):
    with open(os.environ["FAKE_NVML_LOG"]) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = pathlib.Path(os.environ["FAKE_NVML"])
        path.with_suffix(".own").write_text(change(path.read_text()))
        path.with_suffix(".own").replace(path)

if "benchmarks.gpu_check.client" in sys.orig_argv:
    if is_client:
        connect = f"connect {os.getpid()}"
        subprocess.run(["nvidia-cuda-mps-control"], input=connect, text=True, check=True)
    if is_client or "MIG" not in os.environ.get("CUDA_VISIBLE_DEVICES", ""):
        listed(lambda text: text + line)
        atexit.register(listed, lambda text: text.replace(line, ""))
"""
#: Limits are for GPUs and idle machines.
_PATIENCE = ("--patience", "20")


@pytest.fixture
def nvml() -> Iterator[FakeNvml]:
    """Where nobody can read it, too: pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        fake = FakeNvml.in_folder(build_library(folder), folder)
        fake.log.touch()
        fake.log.chmod(0o666)
        fake.configure(*_MACHINE)
        fake.offer(_HEX)
        yield fake


@pytest.fixture
def machine(nvml: FakeNvml, mps: FakeMps, tmp_path: Path) -> dict[str, str]:
    """Variables of a machine with stand-ins."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_CONNECT)
    return nvml.environment() | mps.variables() | {"PYTHONPATH": str(tmp_path / "site")}


def _check(env: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", *arguments],
        cwd=_ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def _rows(text: str) -> dict[str, list[str]]:
    """Return the rows of the Markdown by their first cell."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_without_a_gpu_it_says_so_in_a_sentence(nvml: FakeNvml) -> None:
    nvml.configure("count 0")
    done = _check(nvml.environment())
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("gpu-check: there is no GPU to check here (NVML sees none). It n")
    assert done.stderr.count("\n") == 1


def test_without_cuda_it_says_so_in_a_sentence(nvml: FakeNvml, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("class cuda: is_available = staticmethod(lambda: False)")
    done = _check(nvml.environment() | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "PyTorch sees no CUDA" in done.stderr
    (tmp_path / "torch.py").write_text("import that_is_not_there")
    assert (
        "PyTorch cannot be imported"
        in _check(nvml.environment() | {"PYTHONPATH": str(tmp_path)}).stderr
    )


def test_all_checks_end_within_ten_minutes() -> None:
    assert sum(check.limit_s for check in CHECKS) <= 10 * 60


#: The answers with stand-ins: the fake's values do not follow the loads.
_ANSWERS = {
    "devices": "yes",
    "listeners": "no",
    "dcgm": "not possible here",
    "energy": "not possible here",
    "naive": "yes",
    "mps": "yes",
    "mig": "yes",
    "advise": "yes",
    "auto": "yes",
    "shared-loader": "yes",
    "job": "yes",
    "preemption": "yes",
    "offload": "yes",
    "validation": "yes",
}
_TECHNIQUES = [check.name for check in CHECKS if "techniques" in check.function]


@pytest.mark.long
def test_each_claim_about_devices_and_sharing_has_an_answer(
    machine: dict[str, str], nvml: FakeNvml, mps: FakeMps
) -> None:
    names = [check.name for check in CHECKS if check.name not in _TECHNIQUES]
    short = ("--seconds", "0.6", "--interval", "0.11")
    done = _check(machine, "--device", "cpu", *short, *_PATIENCE, "--only", *names)
    cells = _rows(done.stdout)
    answers = {name: cells[name][1] for name in names}
    assert answers == {name: _ANSWERS[name] for name in names}, done.stdout + done.stderr
    assert done.returncode == 2
    assert "**No measurement:**" in done.stdout
    assert mps.daemons == []
    assert nvml.gpu_instances() == []
    assert "gpu.sm.active beside matrix product is 0.0200" in cells["listeners"][2]
    assert cells["gpu.sm.active"] == ["2.0 %"] * 3
    assert cells["gpu.clock.sm"] == ["210 MHz"] * 3
    assert cells["gpu.pcie.tx"] == ["2.10 MB/s"] * 3
    assert cells["gpu.pcie.rx"] == ["unsupported"] * 3
    idle, copied, product = cells["the load's own count"]
    assert (idle, copied.split()[1], product.split()[1]) == ("–", "GB/s", "TFLOP/s")
    assert float(copied.split()[0]) > 0
    assert int(cells["nvmlGpmSampleGet"][0]) >= 6, "two for each load at least"
    assert {"a reading of smi", "a reading of gpm"} <= set(cells)
    assert "GPM without privileges: 5 of 13 values for user id" in done.stdout
    assert (os.getuid() != 0) or "user id 65534" in done.stdout


@pytest.mark.long
def test_each_claim_about_techniques_has_an_answer() -> None:
    done = _check(os.environ, "--device", "cpu", *_PATIENCE, "--only", *_TECHNIQUES)
    cells = _rows(done.stdout)
    assert {name: cells[name][1] for name in _TECHNIQUES} == dict.fromkeys(_TECHNIQUES, "yes")
    assert done.returncode == 0


_OWN_CHECKS = """
import sys
from benchmarks.gpu_check import __main__ as program
from benchmarks.gpu_check.model import Check
limits_s = {"crashes": 600, "fails": 600, "hangs": 2, "leaves_a_daemon": 600}
program.CHECKS = [
    Check(name, "", limit_s, f"tests.support.gpu_checks:{name}")
    for name, limit_s in limits_s.items()
]
sys.exit(program.main())
"""


def test_a_check_that_fails_or_hangs_costs_only_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OWN_CHECKS, "--device", "cpu"],
        cwd=_ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert _rows(done.stdout) == {
        "check": ["claim", "answer", "evidence"],
        "---|---|---|---": [],
        "crashes": ["", "no", "its process ended with exit code -6"],
        "fails": ["", "no", r"ValueError: a\|b"],
        "hangs": ["", "no", "it did not end within 2 s"],
        "leaves_a_daemon": ["", "yes", "fine"],
    }, done.stderr
    assert done.returncode == 2
    (daemon,) = tmp_path.glob("*.daemon")  # beside the folder of the checks
    assert not Path("/proc", daemon.read_text()).exists()
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.long
def test_ctrl_c_removes_what_a_check_created(machine: dict[str, str], nvml: FakeNvml) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--only", "mig"],
        cwd=_ROOT,
        env=machine,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(nvml.gpu_instances, "an instance")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 130
    assert "## Claims about GPUs" in out
    assert nvml.gpu_instances() == []


def _phases(tensor: float, dram: float, busy: float) -> dict[str, Phase]:
    """A card with 132 SMs at 1.5 GHz, half of its tensor peak and 90 % of 3 TB/s used by loads."""
    quiet = dict.fromkeys(("gpu.utilization", "gpu.sm.active", "gpu.dram.active"), 0.0)
    idle = quiet | {"gpu.tensor.active": 0.0, "gpu.power": 70.0}
    copy = {"gpu.dram.active": dram, "gpu.tensor.active": 0.0}
    product = {"gpu.clock.sm": 1.5e9, "gpu.tensor.active": tensor, "gpu.sm.active": busy}
    product["gpu.power"] = 600.0
    phases = {}
    for name, values in zip(PHASES, (idle, copy, product), strict=True):
        phases[name] = Phase(name)
        for metric, value in values.items():
            phases[name].values[metric] = [value]
    phases["memory copy"].load = {"per_s": 2.7e12}
    per_clock = 132 * TENSOR_FLOP_PER_CLOCK[9, 0]
    phases["matrix product"].load = {"per_s": 0.5 * 1.5e9 * per_clock, "flop_per_clock": per_clock}
    return phases


def test_a_value_far_from_what_the_load_says_is_not_plausible(monkeypatch) -> None:
    monkeypatch.setattr(plausibility, "peak_bytes_per_s", lambda index: 3e12)
    right = list(plausibility.judge(_phases(tensor=0.48, dram=0.85, busy=0.97), 0))
    assert {one.holds for one in right} == {True}
    wrong = list(plausibility.judge(_phases(tensor=0.9, dram=0.45, busy=0.3), 0))
    assert [(one.phase, one.what) for one in wrong if not one.holds] == [
        ("memory copy", "gpu.dram.active"),
        ("matrix product", "gpu.tensor.active"),
        ("matrix product", "gpu.sm.active"),
    ]


def test_what_cannot_be_known_is_not_judged(monkeypatch) -> None:
    monkeypatch.setattr(plausibility, "peak_bytes_per_s", lambda index: None)
    phases = _phases(tensor=0.48, dram=0.85, busy=0.97)
    phases["idle"].values.clear()
    phases["matrix product"].load = {"per_s": 1.0, "flop_per_clock": None}
    known = [one.what for one in plausibility.judge(phases, 0) if one.holds is not None]
    assert known == ["gpu.tensor.active", "gpu.sm.active"], "of the copy, and of the product"
