"""What keeps runs off a device: processes of others, and the GPU's compute mode."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from radt import procfs, units
from radt.collocation.ledger import Ledger, MpsDaemon
from radt.collocation.planner import DevicePlan
from radt.collocation.processes import (
    MPS_SERVER,
    DeviceName,
    GpuProcess,
    Identity,
    ProcessLists,
    device_text,
    identify,
    is_mps,
)
from radt.errors import DeviceError

#: Seconds between two looks at who is there.
POLL_S = 1.0
#: Seconds in which a user's Ctrl-C ends the waiting.
_CANCEL_S = 0.1
#: Processes that are named of each device.
_NAMED = 3


class BusyPolicy(StrEnum):
    """What to do when somebody else's process is on a device that a workload needs."""

    WAIT = "wait"
    FAIL = "fail"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process on a device that belongs to none of the runs that are to start there.

    ``user`` and ``command`` are None where the process is of another container; ``gpu`` is the
    device as it was asked for. ``run_id`` is that of a run of radt's, another runner's or a past.
    """

    pid: int
    user: str | None
    command: str | None
    memory_bytes: int | None
    gpu: DeviceName
    run_id: str = ""
    ended: bool = False

    def __str__(self) -> str:
        who = str(Identity(self.user, self.command, self.run_id, self.ended))
        parts = [f"pid {self.pid}", who]
        if self.memory_bytes is not None:
            parts.append(units.size(self.memory_bytes))
        if self.run_id:
            parts.append(f"of run {self.run_id}")
        return f"{self.command or 'a process'} ({', '.join(parts)})"


def foreign_processes(
    gpus: Sequence[DeviceName], own: Collection[int] = (), own_runs: Collection[str] = ()
) -> list[ForeignProcess]:
    """Who is on these devices, apart from ourselves, in order of the devices.

    Args:
        gpus: Indices of GPUs, or UUIDs of GPUs and MIG devices.
        own: Process ids that do not count. Neither do the servers of MPS daemons that this
            process has started.
        own_runs: Run ids whose processes do not count, by ``RADT_RUN_ID`` in their environment.

    Raises:
        DeviceError: NVIDIA's driver does not answer, or there is no such device.
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
) -> list[ForeignProcess]:
    """Do what the policy says about others on these devices; return who is there at the end.

    Args:
        gpus: As for `foreign_processes`, as ``own`` and ``own_runs``.
        policy: WAIT returns when all are free, or when cancelled; IGNORE returns at once.
        say: Gets a sentence about who is there, again only when that has changed.
        cancelled: Whether to end the waiting.

    Raises:
        DeviceError: The policy is FAIL and somebody is there. Or NVIDIA's driver does not answer.
    """
    if not gpus:
        return []
    announced: str | None = None
    with ProcessLists() as lists:
        while True:
            found, unknown = _look(lists, gpus, own, own_runs)
            if unknown and announced is None:
                for device, reason in unknown.items():
                    say(f"cannot list the processes on {device_text(device)} ({reason})")
            if not found:
                if announced:
                    say(f"{_devices_text(gpus)}: free")
                return []
            facts = _facts(found)
            if policy is BusyPolicy.FAIL:
                raise DeviceError(
                    facts, "Wait with --busy wait, or start anyway with --busy ignore"
                )
            if policy is BusyPolicy.IGNORE:
                say(f"{facts}: starting anyway")
                return found
            if facts != announced:
                announced = facts
                say(f"{facts}: waiting; --busy ignore starts anyway")
            if not _pause(poll_s, cancelled):
                return found


def free_memory(gpus: Sequence[DeviceName]) -> Mapping[DeviceName, int]:
    """Bytes that nobody uses on each device; without those that have no memory of their own.

    Raises:
        DeviceError: NVIDIA's driver does not answer, or there is no such device.
    """
    if not gpus:
        return {}
    with ProcessLists() as lists:
        free = {gpu: lists.free_bytes(gpu) for gpu in gpus}
    return {gpu: amount for gpu, amount in free.items() if amount is not None}


def own_mps_daemons() -> set[int]:
    """Process ids of the MPS daemons that this process has started, by the ledger."""
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
) -> tuple[list[ForeignProcess], dict[DeviceName, str]]:
    """Who is there, and where that cannot be known, with the reason."""
    daemons: set[int] | None = None
    found: list[ForeignProcess] = []
    unknown: dict[DeviceName, str] = {}
    for gpu in gpus:
        listing = lists.of(gpu)
        if listing.unknown:
            unknown[gpu] = listing.unknown
        for process in listing.processes:
            if process.pid in own or process.pid == os.getpid():
                continue
            if is_mps(process.pid, MPS_SERVER):
                daemons = own_mps_daemons() if daemons is None else daemons
                stat = procfs.process_stat(process.pid)
                if stat is not None and stat.parent in daemons:
                    continue
            foreign = _foreign(process, gpu)
            if foreign.run_id and foreign.run_id in own_runs:
                continue
            found.append(foreign)
    return found, unknown


def _foreign(process: GpuProcess, gpu: DeviceName) -> ForeignProcess:
    who = identify(process.pid)
    return ForeignProcess(
        process.pid, who.user, who.command, process.memory_bytes, gpu, who.run_id, who.ended
    )


def _facts(found: Sequence[ForeignProcess]) -> str:
    """``GPU 0 is used by python (pid 123, alice, 3.1 GB)``, each device once."""
    parts = []
    for gpu, group in groupby(found, key=lambda process: process.gpu):
        processes = list(group)
        named = [str(process) for process in processes[:_NAMED]]
        if len(processes) > _NAMED:
            named.append(f"{len(processes) - _NAMED} more")
        parts.append(f"{device_text(gpu)} is used by {_joined(named)}")
    return "; ".join(parts)


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _devices_text(gpus: Sequence[DeviceName]) -> str:
    return ", ".join(dict.fromkeys(device_text(gpu) for gpu in gpus))


def _pause(seconds: float, cancelled: Callable[[], bool]) -> bool:
    """Let time pass; False as soon as the waiting is cancelled."""
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
    """The compute mode of a GPU; None where the driver does not say."""
    number = lists.compute_mode(gpu)
    modes = list(ComputeMode)
    return modes[number] if number is not None and number < len(modes) else None


def compute_mode_problem(
    lists: ProcessLists, gpu: DeviceName, *, processes: int, mps: bool
) -> DeviceError | None:
    """Why a GPU's compute mode keeps runs off it; None if it does not.

    Args:
        processes: How many are to use it at a time.
        mps: Whether they are clients of one MPS daemon, which counts as one process.
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
    """See that each GPU takes as many processes as the plan puts there.

    Where an administrator has made it exclusive, runs would fail with a message that does not name
    the cause.

    Raises:
        DeviceError: One does not, or the driver does not answer.
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
