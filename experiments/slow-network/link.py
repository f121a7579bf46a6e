"""Two processes, each in a network namespace of its own, joined by a link that the kernel shapes.

The namespaces have no names: the kernel removes them, and the link, with their processes. Both are
in one user namespace, in which they may do to the network what root may: root is not needed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns that addresses have no names
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_DEVICE = "radt-link"
ADDRESSES = ("10.77.0.1", "10.77.0.2")

#: Where Debian has `tc`, which is not on an ordinary user's PATH.
_SYSTEM = "/usr/sbin:/sbin"


def check() -> None:
    """Exit with what is missing: `ip` or `tc`."""
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM}"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            sys.exit(f"slow-network: {tool} is not installed: apt install iproute2")


def enter_namespace(beside: int | None) -> None:
    """Move this process, which has one thread, to a new, empty network namespace.

    Args:
        beside: Process of the other machine, which is in its namespace; None for the first one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if beside is None:
        user, group = os.getuid(), os.getgid()
        failed = libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        if not failed:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    else:
        with Path(f"/proc/{beside}/ns/user").open() as namespace:
            failed = libc.setns(namespace.fileno(), _CLONE_NEWUSER) or libc.unshare(_CLONE_NEWNET)
    if failed:
        reason = os.strerror(ctypes.get_errno())
        sys.exit(
            f"slow-network: the kernel gives no network namespace: {reason}. "
            "Allow user namespaces, or run it as root"
        )
    _command("ip", "link", "set", "lo", "up")


def join(other: int) -> None:
    """Lay a link from this process's namespace to that of the other one."""
    peer = ("peer", "name", _DEVICE, "netns", str(other))
    _command("ip", "link", "add", _DEVICE, "type", "veth", *peer)


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
