"""The processes on a GPU or a MIG device, and their owners.

They come from NVML's lists of processes with a CUDA context and of MPS clients. Displays (the
graphics list) are not counted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from radt import procfs, units
from radt.devices.gpus import find_handles, mig_enabled, mig_handles
from radt.devices.nvml import NOT_AVAILABLE, Nvml
from radt.errors import DeviceError
from radt.home import RUN_ID_VARIABLE

#: Index of a GPU, or UUID of a GPU or MIG device.
DeviceName = int | str

#: Inode of the first pid namespace (PROC_PID_INIT_INO in Linux' proc_ns.h).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a device; ``device`` is the UUID of the GPU, or of the MIG device.

    With ``mps`` it is a client of MPS. ``mps`` and ``memory_bytes`` are None if the driver does not
    report them.
    """

    pid: int
    device: str
    mps: bool | None = False
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessListing:
    """The processes of a device; ``unknown`` is why the driver does not list them."""

    processes: tuple[GpuProcess, ...] = ()
    unknown: str = ""


class ProcessLists:
    """Reads the processes on devices through NVML. Use as a context manager, or close it.

    Raises:
        DeviceError: NVIDIA's driver does not work, or, from all methods, a device does not exist.
    """

    def __init__(self) -> None:
        import pynvml  # imported late: CPU runs need neither it nor the driver

        try:
            self._nvml = Nvml()
        except (pynvml.NVMLError, OSError) as error:
            raise DeviceError(
                f"the NVIDIA driver does not answer: {error}", "Run nvidia-smi for details"
            ) from error
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut NVML down. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._nvml.close()

    def of(self, device: DeviceName) -> ProcessListing:
        """Return the processes of a device; for a divided GPU, those of all its MIG devices."""
        nvml = self._nvml
        processes: list[GpuProcess] = []
        unknown = ""
        for handle in self._parts(self._handle(device)):
            try:
                uuid = str(nvml.nvmlDeviceGetUUID(handle))
                plain = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except nvml.NVMLError as error:
                unknown = str(error)
                continue
            try:
                clients = nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
                is_plain: bool | None = False
            except nvml.NVMLError:  # a driver without this list
                clients, is_plain = [], None
            by_pid = {entry.pid: _process(entry, uuid, is_plain) for entry in plain}
            by_pid |= {entry.pid: _process(entry, uuid, True) for entry in clients}
            processes += by_pid.values()
        return ProcessListing(tuple(processes), unknown)

    def free_bytes(self, device: DeviceName) -> int | None:
        """Return the free memory of a device; None if it has no memory of its own."""
        nvml = self._nvml
        handle = self._handle(device)
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
        except nvml.NVMLError:
            return None

    def utilization(self, device: DeviceName) -> float | None:
        """Return the share of time, 0 to 1, with a kernel running; None under MIG."""
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle(device)).gpu) / 100
        except self._nvml.NVMLError:
            return None

    def _handle(self, device: DeviceName) -> Any:
        nvml = self._nvml
        name = str(device)
        try:
            if name.isdigit():
                return nvml.nvmlDeviceGetHandleByIndex(int(name))
            return find_handles(nvml, name)[0]
        except nvml.NVMLError as error:
            raise DeviceError(
                f"{device_text(device)} not found: {error}", "Run `radt devices` for a list"
            ) from error

    def _parts(self, handle: Any) -> Sequence[Any]:
        """Return a divided GPU's MIG devices, as listing the whole GPU needs privileges."""
        nvml = self._nvml
        try:
            if not nvml.nvmlDeviceIsMigDeviceHandle(handle) and mig_enabled(nvml, handle):
                return [part for part, _ in mig_handles(nvml, handle)]
        except nvml.NVMLError:  # a driver without MIG, or a lost GPU, which its lists report
            pass
        return [handle]


def _process(entry: Any, uuid: str, mps: bool | None) -> GpuProcess:
    used = entry.usedGpuMemory
    known = used is not None and used != NOT_AVAILABLE
    return GpuProcess(int(entry.pid), uuid, mps, int(used) if known else None)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The owner of a process.

    ``user`` and ``command`` are None for a process of another container. ``run_id`` is set for a
    run of radt.
    """

    user: str | None = None
    command: str | None = None
    run_id: str = ""
    ended: bool = False

    def __str__(self) -> str:
        if self.ended:
            return "ended, memory not yet freed"
        if self.user is None:
            return "of another container or namespace"
        return self.user


@dataclass(frozen=True, slots=True)
class Occupant(GpuProcess):
    """A process on a device, and its owner.

    ``device`` is the UUID of the GPU or MIG device, or the name given by the caller.
    """

    who: ProcessIdentity = ProcessIdentity()

    @classmethod
    def of(cls, process: GpuProcess, device: str = "") -> Self:
        """Identify a process of NVML's lists."""
        facts = asdict(process) | ({"device": device} if device else {})
        return cls(**facts, who=identify(process.pid))

    def __str__(self) -> str:
        parts = [f"pid {self.pid}", str(self.who)]
        if self.memory_bytes is not None:
            parts.append(units.size(self.memory_bytes))
        if self.who.run_id:
            parts.append(f"of run {self.who.run_id}")
        return f"{self.who.command or 'a process'} ({', '.join(parts)})"


def identify(pid: int) -> ProcessIdentity:
    """Return a process's owner from ``/proc``; never raises."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - as `radt.procfs`
    except OSError:
        # It may exist although ``/proc`` does not show it (mounted with hidepid).
        return ProcessIdentity(ended=not _other_namespaces() and not procfs.exists(pid))
    return ProcessIdentity(
        procfs.name_of_uid(uid), _command(pid), procfs.variable(pid, RUN_ID_VARIABLE)
    )


def device_text(device: DeviceName) -> str:
    """Return ``GPU 0``, or the UUID."""
    return f"GPU {device}" if str(device).isdigit() else str(device)


def _command(pid: int) -> str | None:
    """Return the program's name; for an executable script, not its interpreter's."""
    name = procfs.program_name(pid)
    words = [Path(word).name for word in procfs.command_line(pid)]
    scripts = (word for word in words[1:3] if name and word[: procfs.COMM_CHARS] == name)
    return next(scripts, None) or next(iter(words), "") or name or None


def _other_namespaces() -> bool:
    try:
        return os.readlink("/proc/self/ns/pid") != _FIRST_PID_NAMESPACE  # noqa: PTH115
    except OSError:
        return True
