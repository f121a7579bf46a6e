"""Check whether a device is free of other users' processes, and the GPU's compute mode."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from itertools import groupby

from radt import procfs
from radt.collocation.ledger import Ledger, MpsDaemon
from radt.collocation.packing import joined
from radt.collocation.planner import DevicePlan
from radt.collocation.processes import (
    MPS_SERVER,
    DeviceName,
    Occupant,
    ProcessLists,
    device_text,
    is_mps,
)
from radt.errors import DeviceError

#: Seconds between two checks for processes.
POLL_S = 1.0
#: Maximum seconds until Ctrl-C ends the wait.
_CANCEL_S = 0.1
#: Maximum number of processes named per device.
_NAMED = 3


class BusyPolicy(StrEnum):
    """Reaction to a foreign process on a device that a workload needs."""

    WAIT = "wait"
    FAIL = "fail"
    IGNORE = "ignore"


def foreign_processes(
    gpus: Sequence[DeviceName], own: Collection[int] = (), own_runs: Collection[str] = ()
) -> list[Occupant]:
    """Return the processes that belong to none of the runs to start, in order of the devices.

    Args:
        gpus: Indices of GPUs, or UUIDs of GPUs and MIG devices.
        own: Process ids to ignore. The servers of this process's MPS daemons are ignored, too.
        own_runs: Ids of runs whose processes are ignored, by ``RADT_RUN_ID`` in their environment.

    Raises:
        DeviceError: NVIDIA's driver does not respond, or a device does not exist.
    """
    if not gpus:
        return []
    with ProcessLists() as lists:
        return _look(lists, gpus, own, own_runs)[0]


def wait_until_free(
    gpus: Sequence[DeviceName],
    policy: BusyPolicy,
    say: Callable[[str], None],
    cancelled: Callable[[], bool],
    *,
    own: Collection[int] = (),
    own_runs: Collection[str] = (),
    poll_s: float = POLL_S,
) -> list[Occupant]:
    """Apply the policy to foreign processes on these devices; return those left at the end.

    WAIT returns when all are free, or when cancelled; IGNORE returns at once. `say` gets a sentence
    about the processes, again only when it has changed. See `foreign_processes`.

    Raises:
        DeviceError: The policy is FAIL and a device is in use, or NVIDIA's driver does not respond.
    """
    if not gpus:
        return []
    announced: str | None = None
    with ProcessLists() as lists:
        while True:
            processes, unknown = _look(lists, gpus, own, own_runs)
            if unknown and announced is None:
                for device, reason in unknown.items():
                    say(f"cannot list the processes on {device_text(device)} ({reason})")
            if not processes:
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
            if facts != announced:
                announced = facts
                say(f"{facts}: waiting; --busy ignore starts anyway")
            if not _pause(poll_s, cancelled):
                return processes


def free_memory(gpus: Sequence[DeviceName]) -> Mapping[DeviceName, int]:
    """Return the free bytes of each device, omitting devices without their own memory.

    Raises:
        DeviceError: NVIDIA's driver does not respond, or a device does not exist.
    """
    if not gpus:
        return {}
    with ProcessLists() as lists:
        free = {gpu: lists.free_bytes(gpu) for gpu in gpus}
    return {gpu: amount for gpu, amount in free.items() if amount is not None}


def _own_mps_daemons() -> set[int]:
    """Return the ids of the MPS daemons that this process has started, from the ledger."""
    return {
        entry.thing.pid
        for entry in Ledger().entries()
        if isinstance(entry.thing, MpsDaemon)
        and entry.thing.pid is not None
        and entry.owner.pid == os.getpid()
        and entry.owner.alive
    }


def _look(
    lists: ProcessLists,
    gpus: Sequence[DeviceName],
    own: Collection[int],
    own_runs: Collection[str],
) -> tuple[list[Occupant], dict[DeviceName, str]]:
    """Return the foreign processes, and the devices without a list, with the reason."""
    daemons: set[int] | None = None
    foreign: list[Occupant] = []
    unknown: dict[DeviceName, str] = {}
    for gpu in gpus:
        listing = lists.of(gpu)
        if listing.unknown:
            unknown[gpu] = listing.unknown
        for process in listing.processes:
            if process.pid in own or process.pid == os.getpid():
                continue
            if is_mps(process.pid, MPS_SERVER):
                daemons = _own_mps_daemons() if daemons is None else daemons
                stat = procfs.process_stat(process.pid)
                if stat is not None and stat.parent in daemons:
                    continue
            occupant = Occupant.of(process, str(gpu))
            if not occupant.who.run_id or occupant.who.run_id not in own_runs:
                foreign.append(occupant)
    return foreign, unknown


def _facts(processes: Sequence[Occupant]) -> str:
    """Return ``GPU 0 is used by python (pid 123, alice, 3.1 GB)``, each device once."""
    parts = []
    for gpu, group in groupby(processes, key=lambda process: process.device):
        names = [str(process) for process in group]
        more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        parts.append(f"{device_text(gpu)} is used by {joined([*names[:_NAMED], *more])}")
    return "; ".join(parts)


def _pause(seconds: float, cancelled: Callable[[], bool]) -> bool:
    """Sleep; return False as soon as waiting is cancelled."""
    deadline_s = time.monotonic() + seconds
    while not cancelled():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return True
        time.sleep(min(left_s, _CANCEL_S))
    return False


class ComputeMode(StrEnum):
    """Who may use a GPU (nvmlComputeMode_t), in the order of NVML's numbers."""

    DEFAULT = "default"
    EXCLUSIVE_THREAD = "exclusive thread"
    PROHIBITED = "prohibited"
    EXCLUSIVE_PROCESS = "exclusive process"


def compute_mode(lists: ProcessLists, gpu: DeviceName) -> ComputeMode | None:
    """Return the compute mode of a GPU; None if the driver does not report it."""
    number = lists.compute_mode(gpu)
    modes = list(ComputeMode)
    return modes[number] if number is not None and number < len(modes) else None


def compute_mode_problem(
    lists: ProcessLists, gpu: DeviceName, *, processes: int, mps: bool
) -> DeviceError | None:
    """Return why a GPU's compute mode forbids so many processes at a time; None if it allows them.

    Clients of one MPS daemon (`mps`) count as one process.
    """
    mode = compute_mode(lists, gpu)
    exclusive = mode in (ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.EXCLUSIVE_THREAD)
    if mode is ComputeMode.PROHIBITED:
        why = "no process may use it"
    elif exclusive and processes > 1 and not mps:
        why = f"only one process may use it, {processes} were planned"
    else:
        return None
    return DeviceError(
        f"{device_text(gpu)} is in compute mode {mode}: {why}",
        f"An administrator can change this with `nvidia-smi -i {gpu} -c DEFAULT`",
    )


def check_compute_modes(plan: DevicePlan) -> None:
    """Check that each GPU accepts the planned number of processes.

    On a GPU in exclusive mode, runs would fail with a message that does not name the cause.

    Raises:
        DeviceError: A GPU does not accept them, or the driver does not respond.
    """
    whole = [share for share in plan.shares.values() if share.compute is None]
    # All clients of an MPS daemon count as one process.
    daemons = {(index, share.mps) for share in whole if share.mps for index in share.gpus}
    counts = Counter(index for index, _ in daemons)
    counts.update(index for share in whole if not share.mps for index in share.gpus)
    if not counts:
        return
    with ProcessLists() as lists:
        for index, processes in sorted(counts.items()):
            problem = compute_mode_problem(lists, index, processes=processes, mps=False)
            if problem is not None:
                raise problem
