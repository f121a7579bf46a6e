"""The processes on a card, with their memory and their share of the SMs' time.

In a container, NVML may report process ids of the host, in some of its lists or in all. Then the
run's processes are unknown, for the reason `MissingReason.PERMISSION`. Functions that call NVML may
raise NVMLError (`radt.listeners.nvidia.missing`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from radt.devices.nvml import MPS_SERVER, NO_INSTANCE, NOT_AVAILABLE
from radt.listeners.nvidia import MigHandle, missing
from radt.model import MissingReason
from radt.procfs import executes

#: The kernel truncates names to 15 characters. The control daemon's is the same, but uses no card.
#: The driver samples every sixth of a second to one second. A busy card without a sample for longer
#: than this does not report any.
_PATIENCE_NS = 3_000_000_000


@dataclass(frozen=True, slots=True)
class Processes:
    """Compute processes on a device: their memory in bytes, None if it is not reported.

    ``servers`` are MPS servers, which work for their ``clients``. ``unknown``: some process ids are
    from another namespace. All of this is from the time of the listing; processes may have ended.
    """

    memory: Mapping[int, int | None] = field(default_factory=dict)
    clients: frozenset[int] = frozenset()
    servers: frozenset[int] = frozenset()
    unknown: bool = False

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self.memory)

    def memory_of(self, pids: Iterable[int]) -> float | MissingReason:
        """Return the device memory of the given processes only."""
        own = [self.memory[pid] for pid in pids if pid in self.memory]
        if any(value is None or value == NOT_AVAILABLE for value in own):
            return MissingReason.UNSUPPORTED
        if not own and self.unknown:
            return MissingReason.PERMISSION
        return float(sum(value for value in own if value is not None))


def read_processes(
    nvml: Any, handle: Any, mig: MigHandle | None = None
) -> Processes | MissingReason:
    """Return processes and MPS clients on a card, or on the MIG device of this handle."""
    found = _processes(nvml, handle, mig)
    if not isinstance(found, Processes) or not (absent := set(_absent(found.memory))):
        return found
    # A process closes its devices before it disappears from /proc. A process that has just ended is
    # therefore not listed again; an id that is listed again belongs to another namespace.
    again = _processes(nvml, handle, mig)
    if not isinstance(again, Processes):
        return again
    return replace(again, unknown=not absent.isdisjoint(again.memory))


def _processes(nvml: Any, handle: Any, mig: MigHandle | None) -> Processes | MissingReason:
    try:
        plain = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError as error:
        return missing(nvml, error)
    try:
        clients = nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
    except nvml.NVMLError as error:
        # Drivers without MPS lack this list; any other error leaves the list incomplete.
        reason = missing(nvml, error)
        if reason is not MissingReason.UNSUPPORTED:
            return reason
        clients = []
    memory = {one.pid: one.usedGpuMemory for one in (*plain, *clients) if _on(one, mig)}
    servers = (pid for pid in memory if clients and executes(pid, MPS_SERVER))
    on_device = frozenset(client.pid for client in clients if _on(client, mig))
    return Processes(memory, on_device, frozenset(servers))


def merged(before: Processes, now: Processes) -> Processes:
    """Return the processes that were on the card at either of two instants."""
    return Processes(
        {**before.memory, **now.memory},
        before.clients | now.clients,
        before.servers | now.servers,
        before.unknown or now.unknown,
    )


def _on(process: Any, mig: MigHandle | None) -> bool:
    if mig is None:
        return True
    return process.gpuInstanceId in (NO_INSTANCE, mig.gpu_id) and (
        process.computeInstanceId in (NO_INSTANCE, mig.compute_id)
    )


@dataclass(frozen=True, slots=True)
class SmTime:
    """The fraction of time in which kernels of each process ran on the card, 0-1.

    ``gone`` are processes that do not exist here (any longer); those of them that did not exist
    before that time either are ``foreign``: their ids are from another namespace.
    """

    shares: Mapping[int, float] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    foreign: frozenset[int] = frozenset()

    @property
    def total(self) -> float:
        return sum(self.shares.values())

    def of_the_gone(self) -> bool:
        """Return whether processes that have ended used the card."""
        return any(self.shares[pid] for pid in self.gone)

    def of(self, pids: frozenset[int], among: Processes | MissingReason) -> float | MissingReason:
        """Return the share of the given processes, some of which may use an MPS server.

        NVML may attribute the time of MPS clients to their server. It belongs to a run if all
        clients do, and cannot be attributed if they belong to several runs.
        """
        if isinstance(among, MissingReason):
            return among
        on_card = pids & among.pids
        if not on_card and among.unknown:
            return MissingReason.PERMISSION
        used = sum(share for pid, share in self.shares.items() if pid in pids)
        if on_card and self.shares and self.shares.keys() <= self.gone - among.pids - pids:
            foreign = self.shares.keys() <= self.foreign
            return MissingReason.PERMISSION if foreign else MissingReason.UNATTRIBUTABLE
        served = sum(self.shares.get(pid, 0.0) for pid in among.servers - pids)
        if not served or not among.clients & pids:
            return used
        if among.clients - among.servers <= pids:
            return used + served
        return MissingReason.UNATTRIBUTABLE


class SmTimeReader:
    """Reads the processes' utilisation of one card since the previous reading."""

    def __init__(self) -> None:
        self._seen_us = _wall_us()
        self._asked_ns: int | None = None
        self._unsupported = False
        self._gone: frozenset[int] = frozenset()

    def relearn(self) -> None:
        """Try again, even if it was not supported."""
        self._unsupported = False

    def read(
        self, nvml: Any, handle: Any, now_ns: int, utilization: float | None
    ) -> SmTime | MissingReason | None:
        """Return the shares since the last call; None if it is too early to tell.

        Args:
            nvml: `pynvml`.
            handle: The card's handle.
            now_ns: Monotonic time.
            utilization: The card's utilisation; distinguishes an idle card from missing samples.
        """
        if self._unsupported:
            return MissingReason.UNSUPPORTED
        # If the wall clock was set back, samples would look old for a long time.
        since_us = min(self._seen_us, _wall_us())
        if self._asked_ns is None:
            self._asked_ns = now_ns
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except nvml.NVMLError as error:
            # pynvml treats success without samples as an error.
            if error.value not in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):
                reason = missing(nvml, error)
                self._unsupported = reason is MissingReason.UNSUPPORTED
                # A sample arrived between the query for their number and that for the samples.
                retry = error.value == nvml.NVML_ERROR_INSUFFICIENT_SIZE
                return None if retry and self._patient(now_ns) else reason
            samples = []
        # Some drivers fill the array with garbage, e.g. nvtop's issue 110.
        good = [s for s in samples if s.pid and s.timeStamp > since_us and s.smUtil <= 100]
        if not good and utilization:
            return None if self._patient(now_ns) else MissingReason.LOST
        self._seen_us = max((sample.timeStamp for sample in good), default=since_us)
        self._asked_ns = None
        by_pid: dict[int, list[float]] = {}
        for sample in good:
            by_pid.setdefault(sample.pid, []).append(sample.smUtil / 100.0)
        before, self._gone = self._gone, frozenset(_absent(by_pid))
        shares = {pid: sum(values) / len(values) for pid, values in by_pid.items()}
        return SmTime(shares, self._gone, self._gone & before)

    def _patient(self, now_ns: int) -> bool:
        return self._asked_ns is not None and now_ns - self._asked_ns < _PATIENCE_NS


def _wall_us() -> int:
    """Return the clock of NVML's samples."""
    return time.time_ns() // 1000


def _absent(pids: Iterable[int]) -> Iterator[int]:
    return (pid for pid in pids if not Path(f"/proc/{pid}").exists())
