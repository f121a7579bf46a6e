"""What a script that runs without a runner uses of the machine, as far as can be told cheaply."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_DEVICE = re.compile(r"nvidia\d+")


def has_nvidia(dev: Path = Path("/dev")) -> bool:
    """Whether the kernel shows an NVIDIA GPU (or a Windows host's)."""
    return (dev / "dxg").exists() or _count(dev) > 0


def visible_gpus(
    environ: Mapping[str, str] = os.environ, dev: Path = Path("/dev")
) -> tuple[str, ...]:
    """GPUs that CUDA would offer this process: indices or UUIDs; none for a CPU run."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple(str(index) for index in range(_count(dev)))
    devices = []
    for device in (part.strip() for part in chosen.split(",")):
        if not device or device.startswith("-"):
            break  # CUDA stops at the first that is no device
        devices.append(device)
    return tuple(devices) if has_nvidia(dev) else ()


def _count(dev: Path) -> int:
    try:
        return sum(_DEVICE.fullmatch(name) is not None for name in os.listdir(dev))  # noqa: PTH208
    except OSError:
        return 0
