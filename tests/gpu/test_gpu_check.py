"""``make gpu-check`` as far as it can be seen without a GPU: with a fake NVML, loads on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks import gpu_report
from benchmarks.gpu_loads import TENSOR_FLOP_PER_CLOCK
from benchmarks.gpu_report import PHASES, Phase
from tests.support.nvml import FakeNvml, build_library, plain_gpu

_ROOT = Path(__file__).parents[2]
#: A card on which nothing but the idle phase can be right.
_QUIET = ("count 1", "gpm 0", *(f"gpm_value 0 - {number} 2" for number in (2, 3, 5, 10, 20)))


@pytest.fixture
def nvml() -> Iterator[FakeNvml]:
    """Where nobody can read it, too: pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        fake = FakeNvml.in_folder(build_library(folder), folder)
        fake.log.touch()
        fake.log.chmod(0o666)
        yield fake


def _check(env: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", *arguments],
        cwd=_ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_so_in_a_sentence(nvml: FakeNvml) -> None:
    nvml.configure("count 0")
    done = _check(nvml.environment())
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("gpu-check: there is no GPU to check here (no NVIDIA GPU). It ne")
    assert done.stderr.count("\n") == 1


def test_without_cuda_it_says_so_in_a_sentence(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.configure(*_QUIET, plain_gpu(0))
    (tmp_path / "torch.py").write_text("class cuda: is_available = staticmethod(lambda: False)")
    done = _check(nvml.environment() | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "PyTorch sees no CUDA" in done.stderr
    (tmp_path / "torch.py").write_text("import that_is_not_there")
    assert (
        "PyTorch cannot be imported"
        in _check(nvml.environment() | {"PYTHONPATH": str(tmp_path)}).stderr
    )


@pytest.fixture
def cells(nvml: FakeNvml) -> dict[str, list[str]]:
    """Rows of the Markdown by their first cell."""
    nvml.configure(*_QUIET, plain_gpu(0, "NVIDIA H100"))
    done = _check(nvml.environment(), "--loads", "cpu", "--seconds", "0.6", "--interval", "0.11")
    assert done.returncode == 2, done.stderr
    assert "gpu.sm.active beside matrix product is 0.0200" in done.stderr
    text = {"text": done.stdout.splitlines()}
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "|" in line]
    return text | {row[0].strip("`"): row[1:] for row in rows}


def test_what_is_read_beside_each_load_becomes_markdown(cells: dict[str, list[str]]) -> None:
    assert cells["gpu.sm.active"] == ["2.0 %"] * 3
    assert cells["gpu.clock.sm"] == ["210 MHz"] * 3
    assert cells["gpu.pcie.tx"] == ["2.10 MB/s"] * 3
    assert cells["gpu.pcie.rx"] == ["unsupported"] * 3
    idle, copied, product = cells["the load's own count"]
    assert idle == "–"
    assert copied.endswith("GB/s")
    assert product.endswith("TFLOP/s")
    assert float(copied.split()[0]) > 0
    assert int(cells["nvmlGpmSampleGet"][0]) >= 6, "two for each load at least"
    assert {"a reading of smi", "a reading of gpm"} <= set(cells)
    shown = "\n".join(cells["text"])
    assert "**No measurement:**" in shown
    assert "NVIDIA H100" in shown
    assert "GPM without privileges: 5 of 13 values for user id" in shown
    assert (os.getuid() != 0) or "user id 65534" in shown


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
    monkeypatch.setattr(gpu_report, "peak_bytes_per_s", lambda index: 3e12)
    right = list(gpu_report.judge(_phases(tensor=0.48, dram=0.85, busy=0.97), 0))
    assert {one.holds for one in right} == {True}
    wrong = list(gpu_report.judge(_phases(tensor=0.9, dram=0.45, busy=0.3), 0))
    assert [(one.phase, one.what) for one in wrong if not one.holds] == [
        ("memory copy", "gpu.dram.active"),
        ("matrix product", "gpu.tensor.active"),
        ("matrix product", "gpu.sm.active"),
    ]


def test_what_cannot_be_known_is_not_judged(monkeypatch) -> None:
    monkeypatch.setattr(gpu_report, "peak_bytes_per_s", lambda index: None)
    phases = _phases(tensor=0.48, dram=0.85, busy=0.97)
    phases["idle"].values.clear()
    phases["matrix product"].load = {"per_s": 1.0, "flop_per_clock": None}
    known = [one.what for one in gpu_report.judge(phases, 0) if one.holds is not None]
    assert known == ["gpu.tensor.active", "gpu.sm.active"], "of the copy, and of the product"
