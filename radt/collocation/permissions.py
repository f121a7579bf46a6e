"""The permission to change MIG instances: administrators, or one of two capabilities.

https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html
"""

from __future__ import annotations

import os
from pathlib import Path

from radt import procfs

#: Contains the number of the device file that grants creating MIG instances; missing without MIG.
_MIG_CONFIG = Path("/proc/driver/nvidia/capabilities/mig/config")
#: Bit of CAP_SYS_ADMIN (linux/capability.h), which root lacks in most containers.
_SYS_ADMIN = 1 << 21


def may_configure() -> bool:
    """Return whether this process may change MIG instances, as far as can be told in advance."""
    if _has_sys_admin("CapEff"):
        return True
    try:
        lines = dict(
            line.split(":", 1) for line in _MIG_CONFIG.read_text(encoding="ascii").splitlines()
        )
        minor = int(lines["DeviceFileMinor"])
    except (OSError, ValueError, KeyError):
        return True  # unknown: the driver will report it
    return os.access(f"/dev/nvidia-caps/nvidia-cap{minor}", os.R_OK)


def needed() -> str:
    """Return the permission that this process lacks to change MIG instances."""
    if not _has_sys_admin("CapBnd"):
        return "CAP_SYS_ADMIN, which this container lacks"
    if not _has_sys_admin("CapEff"):
        return "an administrator"
    return "an administrator of the host, because the driver refuses root here"


def remedy(command: str) -> str:
    """Return how to get the `needed` permission, or the administrator's command to do without."""
    if not _has_sys_admin("CapBnd"):
        return (
            "Start the container as root with --cap-add SYS_ADMIN -e NVIDIA_MIG_CONFIG_DEVICES=all,"
            f" or run on the host: {command}"
        )
    if _has_sys_admin("CapEff"):
        return f"Run on the host: {command}"
    return f"Run {command}; or start radt as root"


def _has_sys_admin(capabilities: str) -> bool:
    """Return whether a set of this process (``CapEff``, ``CapBnd``) has the capability.

    The bounding set of a container excludes what even its root cannot have.
    """
    mask = procfs.status_mask("self", capabilities)
    return os.geteuid() == 0 if mask is None else bool(mask & _SYS_ADMIN)
