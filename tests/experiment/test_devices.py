"""What the machine has and what a Devices cell means."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from radt.devices.machine import Devices, Machine
from radt.errors import UsageError
from radt.nvml import Gpu


@pytest.mark.parametrize(
    ("text", "shown"), [("0", "0"), (" 1 + 0 ", "1+0"), ("CPU", "cpu"), ("", "0"), ("01", "1")]
)
def test_what_a_cell_means(two_gpus: Machine, text: str, shown: str) -> None:
    assert str(Devices.parse(text, two_gpus)) == shown


def test_nothing_means_cpu_without_gpu(cpu_only: Machine) -> None:
    assert Devices.parse("", cpu_only).is_cpu


def test_processes_get_uuids(two_gpus: Machine) -> None:
    assert Devices((1, 0)).cuda_visible_devices(two_gpus) == "GPU-bbbb-2,GPU-aaaa-1"
    assert Devices().cuda_visible_devices(two_gpus) == ""  # hides all GPUs from a CPU run


def test_machines_for_people(cpu_only: Machine, two_gpus: Machine) -> None:
    assert str(cpu_only) == "2 CPU cores, no GPU"
    assert str(two_gpus) == "16 CPU cores, 2× H200"
    assert str(Machine(1, (Gpu(0, "H200", "GPU-a"),))) == "1 CPU core, H200"
    mixed = Machine(4, (Gpu(0, "H200", "GPU-a"), Gpu(1, "A100", "GPU-b")))
    assert str(mixed) == "4 CPU cores, 2× GPUs"


class FakeNvml:
    """Three GPUs behind pynvml's functions; refuses to be asked outside init and shutdown."""

    UUIDS = ("GPU-1a00", "GPU-1b00", "GPU-2c00")

    def __init__(self) -> None:
        self.open = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (
            "nvmlInit",
            "nvmlShutdown",
            "nvmlSystemGetDriverVersion",
            "nvmlDeviceGetCount",
            "nvmlDeviceGetHandleByIndex",
            "nvmlDeviceGetName",
            "nvmlDeviceGetUUID",
            "nvmlDeviceGetMemoryInfo",
        ):
            monkeypatch.setattr(pynvml, name, getattr(self, name))

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        assert self.open == 1
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        assert self.open == 1
        return len(self.UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        assert self.open == 1
        return self.UUIDS[index]

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        assert handle in self.UUIDS and self.open == 1
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        assert handle in self.UUIDS and self.open == 1
        return handle

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        assert handle in self.UUIDS and self.open == 1
        if handle == self.UUIDS[2]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=150_000_000_000)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake = FakeNvml()
    fake.install(monkeypatch)
    return fake


def test_all_gpus_are_found(nvml: FakeNvml) -> None:
    machine = Machine.detect()

    assert machine.cpu_cores >= 1
    assert machine.gpus == (
        Gpu(0, "NVIDIA H200", "GPU-1a00", 150_000_000_000),
        Gpu(1, "NVIDIA H200", "GPU-1b00", 150_000_000_000),
        Gpu(2, "NVIDIA H200", "GPU-2c00", None),
    )
    assert machine.hidden == () and machine.no_gpu_reason == ""
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("visible", "indices"),
    [("2,0", [2, 0]), ("GPU-2", [2]), ("gpu-1b00,1", [1]), ("1,7,0", [1]), ("", []), ("-1", [])],
)
def test_hidden_gpus_are_not_used(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, indices: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    machine = Machine.detect()

    assert [gpu.index for gpu in machine.gpus] == indices
    assert sorted(gpu.index for gpu in machine.gpus + machine.hidden) == [0, 1, 2]
    assert bool(machine.no_gpu_reason) == (not indices)
    if indices:
        assert Devices.parse("", machine).gpus == (indices[0],)
    else:
        assert Devices.parse("", machine).is_cpu
        with pytest.raises(UsageError, match="GPU 0 is hidden by CUDA_VISIBLE_DEVICES"):
            Devices.parse("0", machine)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "mismatch"),
    ],
)
def test_why_there_is_no_gpu(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)

    machine = Machine.detect()

    assert machine.gpus == ()
    assert reason in machine.no_gpu_reason
    with pytest.raises(UsageError, match=reason):
        Devices.parse("0", machine)
