"""Decide whether to wait for uploads before this process ends.

The collector and its uploads usually continue after this process. If this is the main process of a
container, they would be killed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from itertools import dropwhile
from pathlib import PurePath

from radt import procfs, settings
from radt.settings import SettingLevel, Settings

#: Inits of containers and launchers of one command: they end as soon as that command has ended.
_RUN_ONE_COMMAND = frozenset(
    {"tini", "tini-static", "docker-init", "podman-init", "catatonit", "dumb-init"}
    | {"uv", "conda", "micromamba", "timeout", "accelerate", "deepspeed", "torchrun"}
    | {"torch.distributed.run", "torch.distributed.launch"}
    | {"accelerate.commands.launch", "deepspeed.launcher.launch"}
)
_SHELLS = frozenset({"sh", "ash", "bash", "busybox", "dash", "ksh", "zsh"})
#: Parent process of the tasks of a job step. Slurm kills the rest of the step when they end.
_SLURM_STEP = "slurmstepd"


class Wait(StrEnum):
    """How to wait for uploads at the end."""

    NO = "no"
    #: Only the collector ends and the data folder probably remains: warn about pending data.
    TRY = "try"
    #: Requested, or in a container whose files may vanish: pending data is an error.
    MUST = "must"


def waits(values: Settings) -> Wait:
    """Return how to wait: as the setting says, else as `waits_here` decides."""
    found = values.find(settings.WAIT)
    if found.level is SettingLevel.DEFAULT:
        return waits_here()
    return Wait.MUST if found.value else Wait.NO


def waits_here() -> Wait:
    """Return how to wait, given whether the end of this process kills the processes around it.

    That is so at the end of the main process of a container or of a Slurm step, also below an init,
    a shell script or a launcher that ends with it. It is not so at the end of a command in a
    container that keeps running.
    """
    pid = os.getpid()
    while pid != 1:
        stat = procfs.process_stat(pid)
        if stat is None:
            return Wait.NO
        if stat.parent == 0:  # started from outside this PID namespace
            is_of_main = procfs.read("/proc/1/cgroup") == procfs.read("/proc/self/cgroup")
            return Wait.NO if is_of_main else Wait.MUST
        pid = stat.parent
        command = _command_of(pid)
        if command[0].startswith(_SLURM_STEP):
            return Wait.TRY
        if not _ends_with_its_child(command):
            return Wait.NO
    return Wait.MUST


def _command_of(pid: int) -> Sequence[str]:
    """Return a process's program name and arguments; for Python, the script or module."""
    command = procfs.command_line(pid) or [""]
    if PurePath(command[0]).name.startswith("python"):
        command = list(dropwhile(lambda word: word.startswith("-"), command[1:])) or [""]
    return [PurePath(command[0]).name, *command[1:]]


def _ends_with_its_child(command: Sequence[str]) -> bool:
    name, *arguments = command
    if name.removeprefix("-") in _SHELLS:  # a shell without a script is interactive
        return _has_script(arguments)
    return name in _RUN_ONE_COMMAND


def _has_script(arguments: Sequence[str]) -> bool:
    """Return True if a shell runs a script or the text of a ``-c``."""
    words = iter(arguments)
    for word in words:
        if not word.startswith(("-", "+")):
            return True
        if word.startswith("--"):
            takes_value = word in ("--rcfile", "--init-file")
        elif "c" in word:
            return True
        else:
            takes_value = word.endswith(("o", "O"))  # as in -euo pipefail
        if takes_value:
            next(words, None)
    return False
