"""A new namespace of process ids, as a container has: all in it is killed with its main process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.waiting import wait_until


def in_container(*command: str, hostname: str = "") -> list[str]:
    """Return the command that runs a program as the main process of a new namespace."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    if hostname:
        command = ("sh", "-c", f'hostname {hostname}; exec "$@"', "sh", *command)
    uts = ("--uts",) if hostname else ()
    return ["unshare", *user, *uts, "--pid", "--fork", "--kill-child", "--mount-proc", *command]


def main_process(container: subprocess.Popen[str]) -> int:
    """Return the process whose number within the namespace is 1."""
    found: Sequence[str] = ()

    def begun() -> bool:
        nonlocal found
        found = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
        return bool(found)

    wait_until(begun, "its main process")
    return int(found[0])
