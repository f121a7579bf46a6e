"""The GPUs that CUDA offers this process, without asking the driver.

Training processes use this rather than NVML. Imports the standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_DEVICE_FILE = re.compile(r"nvidia\d+")


def visible_gpus(
    environ: Mapping[str, str] = os.environ, dev: Path = Path("/dev")
) -> tuple[str, ...]:
    """Return indices or UUIDs of the GPUs that CUDA would offer; none for a CPU run."""
    try:
        names = os.listdir(dev)  # noqa: PTH208
    except OSError:
        names = []
    count = sum(_DEVICE_FILE.fullmatch(name) is not None for name in names)
    chosen = environ.get(VISIBLE_VARIABLE)
    if chosen is None:
        return tuple(map(str, range(count)))
    if not count and "dxg" not in names:  # the GPU of a Windows host
        return ()
    devices = []
    for device in map(str.strip, chosen.split(",")):
        if not device or device.startswith("-"):
            break  # CUDA stops at the first entry that is not a device
        devices.append(device)
    return tuple(devices)
