"""Two processes, each in a network namespace of its own, joined by a link that the kernel shapes.

The namespaces have no names: the kernel removes them, and the link, with their processes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns that addresses have no names
_CLONE_NEWNET = 0x40000000
_DEVICE = "radt-link"
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def check() -> None:
    """Exit with what is missing: root, `ip` and `tc`, a kernel with namespaces and tbf."""
    if os.geteuid() != 0:
        sys.exit("slow-network: links are shaped by the kernel, which only root may ask for")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            sys.exit(f"slow-network: {tool} is not installed: apt install iproute2")


def enter_namespace() -> None:
    """Move this process to a new, empty network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        sys.exit(f"slow-network: the kernel gives no network namespace: {reason}")
    _command("ip", "link", "set", "lo", "up")


def join(first: int, second: int) -> None:
    """Lay a link between the namespaces of two processes."""
    _command(
        *("ip", "link", "add", _DEVICE, "netns", str(first), "type", "veth"),
        *("peer", "name", _DEVICE, "netns", str(second)),
    )


def open_end(rank: int, mbit: int) -> None:
    """Give this namespace's end of the link its address and rate; 0 is as fast as it can be."""
    _command("ip", "address", "add", f"{ADDRESSES[rank]}/24", "dev", _DEVICE)
    if mbit:
        shape = ("rate", f"{mbit}mbit", "burst", "32kbit", "latency", "400ms")
        _command("tc", "qdisc", "add", "dev", _DEVICE, "root", "tbf", *shape)
    _command("ip", "link", "set", _DEVICE, "up")
    os.environ["GLOO_SOCKET_IFNAME"] = _DEVICE


def sent_bytes() -> int:
    """Return what this end has sent."""
    statistics = Path("/sys/class/net") / _DEVICE / "statistics" / "tx_bytes"
    if statistics.exists():
        return int(statistics.read_text())
    for line in Path("/proc/self/net/dev").read_text().splitlines():  # sysfs is the outer one
        name, _, numbers = line.partition(":")
        if name.strip() == _DEVICE:
            return int(numbers.split()[8])
    return 0


def _command(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"slow-network: {' '.join(command)}: {done.stderr.strip()}")
