"""What the machine has and what a Devices cell means."""

from __future__ import annotations

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Devices, Machine


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
