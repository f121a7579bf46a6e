"""The processes on a card, with their memory and their share of the SMs' time.

In a container NVML may report process ids of the host, in one of its lists or in all. Then the
run's processes are not known, and the reason is `MissingReason.PERMISSION`. Functions that call
NVML may raise NVMLError (`radt.listeners.nvidia.missing`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radt.listeners.nvidia import MigDevice, missing
from radt.listeners.smi_card import NOT_AVAILABLE
from radt.model import MissingReason

#: ``gpuInstanceId`` and ``computeInstanceId`` of a process on a card without MIG.
_NO_INSTANCE = 2**32 - 1
#: The kernel keeps 15 characters of a name. The control daemon has the same, but uses no card.
_MPS_SERVER = "nvidia-cuda-mps-server"[:15]
#: The driver takes samples every sixth of a second to one second. A busy card without a sample for
#: longer than this has none.
_PATIENCE_NS = 3_000_000_000


@dataclass(frozen=True, slots=True)
class Processes:
    """Compute processes on a device: their memory in bytes, None if it is not reported."""

    memory: Mapping[int, int | None] = field(default_factory=dict)
    clients: frozenset[int] = frozenset()

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self.memory)

    def servers(self) -> frozenset[int]:
        """Return the MPS servers, which work for their clients."""
        if not self.clients:
            return frozenset()
        return frozenset(pid for pid in self.memory if _is_mps_server(pid))

    def unknown(self) -> bool:
        """Return whether there are process ids of another namespace."""
        return any(not _exists(pid) for pid in self.memory)

    def memory_of(self, pids: Iterable[int]) -> float | MissingReason:
        """Return the device memory of the given processes, never that of others."""
        own = [self.memory[pid] for pid in pids if pid in self.memory]
        if any(value is None or value == NOT_AVAILABLE for value in own):
            return MissingReason.UNSUPPORTED
        if not own and self.unknown():
            return MissingReason.PERMISSION
        return float(sum(value for value in own if value is not None))


def read_processes(
    nvml: Any, handle: Any, mig: MigDevice | None = None
) -> Processes | MissingReason:
    """Return processes and MPS clients on a card, or on the MIG device of this handle."""
    try:
        plain = _listed(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    except nvml.NVMLError as error:
        return missing(nvml, error)
    try:
        clients = _listed(nvml, "nvmlDeviceGetMPSComputeRunningProcesses", handle)
    except nvml.NVMLError as error:
        # Drivers without MPS have no such list; any other error leaves the list incomplete.
        reason = missing(nvml, error)
        if reason is not MissingReason.UNSUPPORTED:
            return reason
        clients = []
    return Processes(
        {process.pid: process.usedGpuMemory for process in (*plain, *clients) if _on(process, mig)},
        frozenset(client.pid for client in clients if _on(client, mig)),
    )


def _listed(nvml: Any, function: str, handle: Any) -> list[Any]:
    # Without a version, pynvml treats an older driver as an error of its caller.
    try:
        processes: list[Any] = getattr(nvml, f"{function}_v3")(handle)
    except nvml.NVMLError_FunctionNotFound:
        processes = getattr(nvml, f"{function}_v2")(handle)
    return processes


def merged(before: Processes, now: Processes) -> Processes:
    """Return the processes that were on the card at either of two instants."""
    return Processes({**before.memory, **now.memory}, before.clients | now.clients)


def _on(process: Any, mig: MigDevice | None) -> bool:
    if mig is None:
        return True
    return process.gpuInstanceId in (_NO_INSTANCE, mig.gpu_id) and (
        process.computeInstanceId in (_NO_INSTANCE, mig.compute_id)
    )


@dataclass(frozen=True, slots=True)
class SmTime:
    """Share of time in which kernels of each process ran on the card, 0-1."""

    shares: Mapping[int, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.shares.values())

    def of_the_gone(self) -> bool:
        """Return whether processes that have ended used the card."""
        return any(share and not _exists(pid) for pid, share in self.shares.items())

    def of(self, pids: frozenset[int], processes: Processes) -> float | MissingReason:
        """Return the share of the given processes, some of them perhaps through an MPS server.

        NVML may attribute the time of MPS clients to their server. It is a run's if all clients are
        the run's, and unattributable if they belong to several.
        """
        on_card = pids & processes.pids
        if not on_card and processes.unknown():
            return MissingReason.PERMISSION
        used = sum(share for pid, share in self.shares.items() if pid in pids)
        known = processes.pids | pids
        if on_card and self.shares and not any(p in known or _exists(p) for p in self.shares):
            return MissingReason.PERMISSION
        served = sum(self.shares.get(pid, 0.0) for pid in processes.servers() - pids)
        if not served or not processes.clients & pids:
            return used
        if processes.clients - processes.servers() <= pids:
            return used + served
        return MissingReason.UNATTRIBUTABLE


class SmTimeReader:
    """Reads the processes' utilisation of one card since the previous reading."""

    def __init__(self) -> None:
        self._seen_us = _wall_us()
        self._asked_ns: int | None = None
        self._unsupported = False

    def relearn(self) -> None:
        """Try again, even if it was not supported."""
        self._unsupported = False

    def read(
        self, nvml: Any, handle: Any, now_ns: int, utilization: float | None
    ) -> SmTime | MissingReason | None:
        """Return the shares since the last call; None if it is too early to know.

        Args:
            nvml: `pynvml`.
            handle: The card's handle.
            now_ns: Monotonic time.
            utilization: The card's utilisation, which tells an idle card from one without samples.
        """
        if self._unsupported:
            return MissingReason.UNSUPPORTED
        # If the wall clock was set back, samples would seem old for a long time.
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
                # A sample arrived between the query of their number and that of the samples.
                retry = error.value == nvml.NVML_ERROR_INSUFFICIENT_SIZE
                return None if retry and self._patient(now_ns) else reason
            samples = []
        # Some drivers fill the array up with garbage, e.g. nvtop's issue 110.
        good = [s for s in samples if s.pid and s.timeStamp > since_us and s.smUtil <= 100]
        if not good and utilization:
            return None if self._patient(now_ns) else MissingReason.LOST
        self._seen_us = max((sample.timeStamp for sample in good), default=since_us)
        self._asked_ns = None
        by_pid: dict[int, list[float]] = {}
        for sample in good:
            by_pid.setdefault(sample.pid, []).append(sample.smUtil / 100.0)
        return SmTime({pid: sum(values) / len(values) for pid, values in by_pid.items()})

    def _patient(self, now_ns: int) -> bool:
        return self._asked_ns is not None and now_ns - self._asked_ns < _PATIENCE_NS


def _wall_us() -> int:
    """Return the clock of NVML's samples."""
    return time.time_ns() // 1000


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _is_mps_server(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == _MPS_SERVER
    except OSError:
        return False
