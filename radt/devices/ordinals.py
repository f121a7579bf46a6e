"""Queries CUDA for the devices that it offers a process, in the order of its ordinals.

CUDA orders GPUs by speed unless ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``, NVML by PCI bus; only CUDA
knows which GPU is its 0. https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars
This file is also the program of the child process that queries CUDA: a process that has initialised
CUDA cannot use it in forked children. It imports only the standard library.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Hashable, Mapping

_LIBRARY = "libcuda.so.1"
#: In s. Without persistence mode, the driver first initialises each GPU, which takes seconds.
_TIMEOUT_S = 30.0
_NO_DEVICE = 100
#: Prefixes of the variables that the answer depends on.
_VARIABLES = ("CUDA_", "NVIDIA_", "LD_LIBRARY_PATH")
#: Answers by GPUs and variables, because a child takes seconds if it has to initialise GPUs.
_answers: dict[tuple[Hashable, frozenset[tuple[str, str]]], tuple[str, ...]] = {}


def offered_uuids(environ: Mapping[str, str], gpus: Hashable = None) -> tuple[str, ...] | None:
    """Return the UUIDs of the devices that CUDA offers a process; None if CUDA is not available.

    If PyTorch has initialised CUDA in this process, these are its devices, whatever the current
    variables are.

    Args:
        environ: The process's environment.
        gpus: The machine's GPUs. An answer is cached until they or CUDA's variables change.
    """
    if getattr(sys.modules.get("torch.cuda"), "is_initialized", bool)():
        return _ask()
    key = gpus, frozenset(item for item in environ.items() if item[0].startswith(_VARIABLES))
    if key not in _answers and (answer := _ask_in_child(environ)) is not None:
        _answers[key] = answer
    return _answers.get(key)


def _ask_in_child(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        answer = json.loads(child.communicate(timeout=_TIMEOUT_S)[0])
    except subprocess.TimeoutExpired:
        child.kill()  # without wait: a hanging driver keeps it in uninterruptible sleep
        return None
    except (OSError, ValueError):  # no interpreter, no JSON
        return None
    return None if answer is None else tuple(answer)


def _ask() -> tuple[str, ...] | None:
    try:
        cuda = ctypes.CDLL(_LIBRARY)
        code = cuda.cuInit(0)
        if code == _NO_DEVICE:
            return ()
        count = ctypes.c_int()
        if code or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return None
        return tuple(_uuid(cuda, ordinal) for ordinal in range(count.value))
    except (OSError, AttributeError, ValueError):  # no driver, or one without these functions
        return None


def _uuid(cuda: ctypes.CDLL, ordinal: int) -> str:
    """Return the UUID of a device: a GPU's, or a MIG device's."""
    device = ctypes.c_int()
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal):
        raise ValueError(ordinal)
    gpu = _bytes(cuda, "cuDeviceGetUuid", device)
    try:
        own = _bytes(cuda, "cuDeviceGetUuid_v2", device)
    except AttributeError:  # a driver before 470
        own = gpu
    text = own.hex()
    parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    return "-".join(("GPU" if own == gpu else "MIG", *parts))


def _bytes(cuda: ctypes.CDLL, function: str, device: ctypes.c_int) -> bytes:
    uuid = (ctypes.c_ubyte * 16)()
    if getattr(cuda, function)(ctypes.byref(uuid), device):
        raise ValueError(function)
    return bytes(uuid)


if __name__ == "__main__":
    print(json.dumps(_ask()))  # noqa: T201 - to the parent
