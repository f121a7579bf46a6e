"""Checks whether devices are free of other users' processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import groupby

from radt.collocation.processes import (
    DeviceName,
    Occupant,
    ProcessLists,
    device_text,
)
from radt.errors import DeviceError
from radt.units import joined

#: Seconds between two checks for processes.
POLL_S = 1.0
#: Maximum number of processes named per device.
_NAMED = 3


class BusyPolicy(StrEnum):
    """The reaction to a foreign process on a device that a workload needs."""

    WAIT = "wait"
    FAIL = "fail"
    IGNORE = "ignore"


def wait_until_free(
    gpus: Sequence[DeviceName],
    policy: BusyPolicy,
    say: Callable[[str], None],
    wait: Callable[[float], bool],
) -> list[Occupant]:
    """Apply the policy to foreign processes on these devices; return those left at the end.

    WAIT returns when all are free, or when cancelled; IGNORE returns at once. `say` gets a sentence
    about the processes whenever it changes. All processes except this one are foreign.

    Args:
        gpus: Indices of GPUs, or UUIDs of GPUs and MIG devices.
        policy: What to do about foreign processes.
        say: Called with each sentence.
        wait: Waits for some seconds; returns True if the wait was cancelled.

    Raises:
        DeviceError: The policy is FAIL and a device is in use, or NVIDIA's driver does not respond.
    """
    if not gpus:
        return []
    announced: str | None = None
    with ProcessLists() as lists:
        while True:
            processes, unknown = _look(lists, gpus)
            if unknown and announced is None:
                for device, reason in unknown.items():
                    say(f"cannot list the processes on {device_text(device)} ({reason})")
            may_be_left = announced is not None and bool(unknown)
            if not processes and not may_be_left:
                if announced:
                    devices = ", ".join(dict.fromkeys(device_text(gpu) for gpu in gpus))
                    say(f"{devices}: free")
                return []
            facts = _facts(processes)
            if policy is BusyPolicy.FAIL:
                raise DeviceError(
                    facts, "Wait with --busy wait, or start anyway with --busy ignore"
                )
            if policy is BusyPolicy.IGNORE:
                say(f"{facts}: starting anyway")
                return processes
            if processes and facts != announced:
                announced = facts
                say(f"{facts}: waiting; --busy ignore starts anyway")
            if wait(POLL_S):
                return processes


def _look(
    lists: ProcessLists, gpus: Sequence[DeviceName]
) -> tuple[list[Occupant], dict[DeviceName, str]]:
    """Return the foreign processes, and devices whose processes are unknown, with the reason."""
    foreign: list[Occupant] = []
    unknown: dict[DeviceName, str] = {}
    for gpu in gpus:
        listing = lists.of(gpu)
        if listing.unknown:
            unknown[gpu] = listing.unknown
        others = (process for process in listing.processes if process.pid != os.getpid())
        foreign += [Occupant.of(process, str(gpu)) for process in others]
    return foreign, unknown


def _facts(processes: Sequence[Occupant]) -> str:
    """Return ``GPU 0 is used by python (pid 123, alice, 3.1 GB)``, each device once."""
    parts = []
    for gpu, group in groupby(processes, key=lambda process: process.device):
        names = [str(process) for process in group]
        more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        parts.append(f"{device_text(gpu)} is used by {joined([*names[:_NAMED], *more])}")
    return "; ".join(parts)
