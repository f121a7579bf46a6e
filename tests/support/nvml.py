"""A fake libnvidia-ml.so.1 with GPUs and MIG instances that outlive the process; see the C file."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pynvml
import pytest

from radt.devices import nvml as nvml_module

_SOURCE = Path(__file__).with_name("fake_nvml.c")
_CUDA_SOURCE = Path(__file__).with_name("fake_cuda.c")

#: Functions that drivers of the 470 branch, the oldest with long-term support, do not have.
SINCE_470 = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetTemperatureV",
    "nvmlGpmQueryDeviceSupport",
)
#: Those that even the first drivers with MIG (450) do not have.
SINCE_450 = (
    *SINCE_470,
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlEventSetWait_v2",
)

#: Lines of the configuration for one MIG-capable GPU: profiles with index, id, slices, most, SMs,
#: MiB, OFAs, name; placements by profile id. As NVIDIA's MIG User Guide and `nvidia-smi mig -lgip`
#: and `-lgipp` give them.
PROFILES: Mapping[str, Sequence[str]] = {
    "A100-40": (
        "0 19 1 7 14 4864 0 1g.5gb",
        "7 20 1 1 14 4864 1 1g.5gb+me",
        "9 15 1 4 14 9856 0 1g.10gb",
        "1 14 2 3 28 9856 0 2g.10gb",
        "2 9 3 2 42 19968 0 3g.20gb",
        "3 5 4 1 56 19968 0 4g.20gb",
        "4 0 7 1 98 40192 1 7g.40gb",
    ),
    "H200": (
        "0 19 1 7 16 16384 0 1g.18gb",
        "7 20 1 1 16 16384 1 1g.18gb+me",
        "9 15 1 4 26 33280 0 1g.35gb",
        "1 14 2 3 32 33280 0 2g.35gb",
        "2 9 3 2 60 71424 0 3g.71gb",
        "3 5 4 1 64 71424 0 4g.71gb",
        "4 0 7 1 132 143104 1 7g.141gb",
    ),
    "A30": (
        "0 14 1 4 14 5952 0 1g.6gb",
        "7 21 1 1 14 5952 1 1g.6gb+me",
        "1 5 2 2 28 12032 0 2g.12gb",
        "8 6 2 1 28 12032 1 2g.12gb+me",
        "3 0 4 1 56 24125 1 4g.24gb",
    ),
}
_EIGHT: Mapping[str, tuple[tuple[int, ...], int]] = {
    "19": ((0, 1, 2, 3, 4, 5, 6), 1),
    "20": ((0, 1, 2, 3, 4, 5, 6), 1),
    "15": ((0, 2, 4, 6), 2),
    "14": ((0, 2, 4), 2),
    "9": ((0, 4), 4),
    "5": ((0,), 4),
    "0": ((0,), 8),
}
_FOUR: Mapping[str, tuple[tuple[int, ...], int]] = {
    "14": ((0, 1, 2, 3), 1),
    "21": ((0, 1, 2, 3), 1),
    "5": ((0, 2), 2),
    "6": ((0, 2), 2),
    "0": ((0,), 4),
}
TWO_GPUS = (
    "count 2",
    "gpu 0 55 80000 500 1000 250500 7000 61 1410 1593",
    "gpu 1 0 80000 500 2000 60000 9000 35 210 405",
)
NAMES = {
    "A100-40": "NVIDIA A100-SXM4-40GB",
    "H200": "NVIDIA H200",
    "A30": "NVIDIA A30",
}
BYTES = {"A100-40": 42_949_672_960, "H200": 150_754_820_096, "A30": 25_769_803_776}


def places_of(card: str) -> Mapping[str, tuple[tuple[int, ...], int]]:
    """Starts and size of the places of each profile, by its id."""
    return _FOUR if card == "A30" else _EIGHT


def mig_gpu(index: int, card: str = "A100-40", *, mode: int = 1, pending: int | None = None) -> str:
    """The configuration of a GPU that can do MIG: ``A100-40``, ``H200`` or ``A30``."""
    slices = 4 if card == "A30" else 7
    lines = [
        plain_gpu(index, NAMES[card], BYTES[card]),
        f"mig {index} {mode} {mode if pending is None else pending}",
        f"slices {index} {slices}",
        *(f"profile {index} {line}" for line in PROFILES[card]),
        *(
            f"placement {index} {profile} {start} {size}"
            for profile, (starts, size) in places_of(card).items()
            for start in starts
        ),
    ]
    return "\n".join(lines)


def plain_gpu(index: int, name: str = "Fake GPU", memory_bytes: int = 80_000) -> str:
    """The configuration of a GPU without MIG."""
    return f"name {index} {name}\ngpu {index} 0 {memory_bytes} 500 1000 60000 9000 35 210 405"


@dataclass(frozen=True)
class FakeNvml:
    """The library's folder, its configuration, the instances that there are, and its log."""

    library: Path
    config: Path
    log: Path
    state: Path

    @classmethod
    def in_folder(cls, library: Path, folder: Path) -> Self:
        return cls(library, *(folder / f"nvml.{name}" for name in ("conf", "log", "state")))

    def variables(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_NVML": str(self.config),
            "FAKE_NVML_LOG": str(self.log),
            "FAKE_NVML_STATE": str(self.state),
            "FAKE_CUDA": str(self.config.with_name("cuda.conf")),
        }

    def environment(self) -> dict[str, str]:
        return os.environ | self.variables()

    def configure(self, *lines: str) -> None:
        temporary = self.config.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self.config)

    def offer(self, *lines: str) -> None:
        """What the CUDA driver in the library's folder offers; see fake_cuda.c."""
        self.config.with_name("cuda.conf").write_text("\n".join(lines) + "\n")

    def add(self, *lines: str) -> None:
        """More configuration, besides what there is."""
        self.configure(self.config.read_text().rstrip("\n"), *lines)

    def remove(self, line: str) -> None:
        """The configuration without this line."""
        lines = self.config.read_text().splitlines()
        assert line in lines
        self.configure(*(one for one in lines if one != line))

    def calls(self, function: str = "") -> list[list[str]]:
        """What was called with what, in order; of one function if it is named."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        calls = [line.split() for line in lines]
        return [call for call in calls if not function or call[0] == function]

    def gpu_instances(self) -> list[tuple[int, int, int, int, int]]:
        """GPU, id, profile's id, start and size of each."""
        return [(a, b, c, d, e) for a, b, c, d, e in self._state("gi")]

    def compute_instances(self) -> list[tuple[int, int, int, int, int]]:
        """GPU, GPU instance, id, slices and start of each."""
        return [(a, b, c, d, e) for a, b, c, d, e in self._state("ci")]

    def _state(self, kind: str) -> list[list[int]]:
        lines = self.state.read_text().splitlines() if self.state.exists() else []
        return sorted(
            [int(word) for word in line.split()[1:]] for line in lines if line.split()[0] == kind
        )


def build_library(folder: Path, without: Sequence[str] = ()) -> Path:
    """Compile the fake, without the functions of this name, and the fake of CUDA beside it."""
    library, script = folder / "libnvidia-ml.so.1", folder / "exported"
    script.write_text("{ global: *; local: " + "".join(f"{name}; " for name in without) + "};")
    hiding = [f"-Wl,--version-script={script}"] if without else []
    for output, source, options in (
        (library, _SOURCE, hiding),
        (folder / "libcuda.so.1", _CUDA_SOURCE, []),
    ):
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([*command, *options, "-o", output, source], check=True)
    return library


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """Two plain GPUs."""
    fake = FakeNvml.in_folder(nvml_library, tmp_path)
    fake.configure(*TWO_GPUS)
    return fake


@pytest.fixture
def nvml_here(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The fake as this process's driver; LD_LIBRARY_PATH counts for new processes only."""
    for name, value in nvml.variables().items():
        monkeypatch.setenv(name, value)
    load(nvml.library, monkeypatch)
    return nvml


def load(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a library this process's NVML."""
    monkeypatch.setattr(nvml_module, "LIBRARY", str(library))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
