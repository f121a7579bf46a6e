"""The compute mode of a GPU, which its administrator sets: who may use it. It is never changed."""

from __future__ import annotations

from enum import IntEnum

from radt.collocation.processes import DeviceName, ProcessLists, device_text
from radt.errors import DeviceError


class ComputeMode(IntEnum):
    """Who may use a GPU, as its administrator has set it (NVML's numbers)."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3

    @property
    def text(self) -> str:
        """As nvidia-smi writes it, but lower case."""
        return self.name.lower().replace("_", " ")


def compute_mode(lists: ProcessLists, gpu: DeviceName) -> ComputeMode | None:
    """The compute mode of a GPU; None where the driver does not say."""
    number = lists.compute_mode(gpu)
    return ComputeMode(number) if number in set(ComputeMode) else None


def compute_mode_problem(
    lists: ProcessLists, gpu: DeviceName, *, processes: int, mps: bool
) -> DeviceError | None:
    """Why a GPU's compute mode keeps runs off it; None if it does not. It is never changed.

    Args:
        processes: How many are to use it at a time.
        mps: Whether they are clients of one MPS daemon, which counts as one process.
    """
    mode = compute_mode(lists, gpu)
    shared = processes > 1 and not mps
    if mode is ComputeMode.PROHIBITED:
        why = "no process may use it"
    elif mode in (ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.EXCLUSIVE_THREAD) and shared:
        why = f"one process at a time may use it, and {processes} would"
    else:
        return None
    assert mode is not None
    return DeviceError(
        f"{device_text(gpu)} is in compute mode {mode.text}: {why}",
        f"An administrator can change that with `nvidia-smi -i {gpu} -c DEFAULT`",
    )
