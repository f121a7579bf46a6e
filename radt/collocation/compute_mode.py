"""The compute mode of a GPU, which its administrator sets: who may use it. It is never changed."""

from __future__ import annotations

from enum import StrEnum

from radt.collocation.processes import DeviceName, ProcessLists, device_text
from radt.errors import DeviceError


class ComputeMode(StrEnum):
    """Who may use a GPU (nvmlComputeMode_t), in the order of NVML's numbers."""

    DEFAULT = "default"
    EXCLUSIVE_THREAD = "exclusive thread"
    PROHIBITED = "prohibited"
    EXCLUSIVE_PROCESS = "exclusive process"


def compute_mode(lists: ProcessLists, gpu: DeviceName) -> ComputeMode | None:
    """The compute mode of a GPU; None where the driver does not say."""
    number = lists.compute_mode(gpu)
    modes = list(ComputeMode)
    return modes[number] if number is not None and number < len(modes) else None


def compute_mode_problem(
    lists: ProcessLists, gpu: DeviceName, *, processes: int, mps: bool
) -> DeviceError | None:
    """Why a GPU's compute mode keeps runs off it; None if it does not.

    Args:
        processes: How many are to use it at a time.
        mps: Whether they are clients of one MPS daemon, which counts as one process.
    """
    mode = compute_mode(lists, gpu)
    exclusive = mode in (ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.EXCLUSIVE_THREAD)
    if mode is ComputeMode.PROHIBITED:
        why = "no process may use it"
    elif exclusive and processes > 1 and not mps:
        why = f"one process at a time may use it, and {processes} would"
    else:
        return None
    return DeviceError(
        f"{device_text(gpu)} is in compute mode {mode}: {why}",
        f"An administrator can change that with `nvidia-smi -i {gpu} -c DEFAULT`",
    )
