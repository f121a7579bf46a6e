"""The GPUs and CPUs of a machine, and the devices of a run: Devices cells.

GPU indices are NVML's (the order of ``nvidia-smi``), also when ``CUDA_VISIBLE_DEVICES`` is set:
it hides GPUs and renumbers nothing here. Processes get their GPUs by UUID, because CUDA's own
default order (fastest first) may differ from NVML's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from radt.devices.visible import VISIBLE_VARIABLE
from radt.errors import UsageError
from radt.nvml import Gpu, list_gpus
from radt.units import plural

CPU = "cpu"
#: Of the number of a device; a longer one is a typing error.
MAX_DIGITS = 9

#: GPUs and CPUs that one node of a cluster may have, as far as a plan knows.
_MOST_GPUS = 64
_MOST_CPUS = 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """The CPUs and GPUs that runs can use.

    ``cpus`` are the logical CPUs this process may use, ``cpu_cores`` is their number; those from 0
    on where only the number is given. ``gpus`` are those that may be used, ``hidden``
    those that ``CUDA_VISIBLE_DEVICES`` takes away. ``no_gpu_reason`` says why ``gpus`` is empty.
    With ``by_place``, as in a job of a cluster, a Devices cell counts ``gpus`` from 0 instead of
    naming NVML's indices. ``is_here`` is False for a node that a job is yet to get.
    """

    cpu_cores: int
    gpus: tuple[Gpu, ...] = ()
    hidden: tuple[Gpu, ...] = ()
    no_gpu_reason: str = ""
    cpus: frozenset[int] = frozenset()
    by_place: bool = False
    is_here: bool = True

    def __post_init__(self) -> None:
        if not self.cpus:
            object.__setattr__(self, "cpus", frozenset(range(self.cpu_cores)))

    @classmethod
    def detect(cls) -> Machine:
        """Ask the operating system and the NVIDIA driver, if there is one."""
        cpus = frozenset(os.sched_getaffinity(0))
        cores = len(cpus)
        listed = list_gpus()
        visible = os.environ.get(VISIBLE_VARIABLE)
        if visible is None or not listed.gpus:
            return cls(cores, listed.gpus, no_gpu_reason=listed.reason, cpus=cpus)
        chosen = _visible_gpus(listed.gpus, visible)
        hidden = tuple(gpu for gpu in listed.gpus if gpu not in chosen)
        reason = "" if chosen else f"{VISIBLE_VARIABLE}={visible!r} hides all GPUs"
        return cls(cores, chosen, hidden, reason, cpus)

    @classmethod
    def of_cluster(cls) -> Machine:
        """Return the node that a plan for a cluster is made for: it has whatever a row names."""
        gpus = tuple(Gpu(place, "GPU", f"GPU-{place}") for place in range(_MOST_GPUS))
        return cls(_MOST_CPUS, gpus, by_place=True, is_here=False)

    def gpu(self, index: int) -> Gpu | None:
        """Return the usable GPU with this NVML index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def named(self, number: int) -> Gpu | None:
        """Return the usable GPU that a Devices cell means with this number."""
        if not self.by_place:
            return self.gpu(number)
        return self.gpus[number] if number < len(self.gpus) else None

    def __str__(self) -> str:
        cores = f"{self.cpu_cores} CPU core{'s' if self.cpu_cores != 1 else ''}"
        if not self.gpus:
            return f"{cores}, no GPU"
        names = {gpu.name for gpu in self.gpus}
        kind = names.pop() if len(names) == 1 else "GPUs"
        return f"{cores}, {len(self.gpus)}× {kind}" if len(self.gpus) > 1 else f"{cores}, {kind}"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a run: NVML indices of its GPUs, none for the CPU."""

    gpus: tuple[int, ...] = ()

    @property
    def is_cpu(self) -> bool:
        return not self.gpus

    @classmethod
    def parse(cls, text: str, machine: Machine) -> Devices:
        """Parse a Devices cell: ``0``, ``1+2``, ``cpu``, or empty for the first GPU or cpu.

        Raises:
            UsageError: It is none of these, or a GPU is not there.
        """
        cleaned = text.strip().lower()
        if not cleaned:
            return cls((machine.gpus[0].index,)) if machine.gpus else cls()
        parts = [part.strip() for part in cleaned.split("+")]
        if parts == [CPU]:
            return cls()
        if CPU in parts:
            raise UsageError(f"{text.strip()!r} mixes cpu with GPUs", "Write cpu, or GPUs alone")
        numbers: list[int] = []
        for part in parts:
            if not (part.isascii() and part.isdigit() and len(part) <= MAX_DIGITS):
                raise UsageError(
                    f"{part!r} is not a device" if part else f"{text.strip()!r} lacks a device",
                    "Write a GPU's number (0), several (0+1) or cpu",
                )
            number = int(part)
            if number in numbers:
                raise UsageError(f"GPU {number} is named twice", "Name each GPU once")
            numbers.append(number)
        found = [machine.named(number) for number in numbers]
        missing = [number for number, gpu in zip(numbers, found, strict=True) if gpu is None]
        if missing:
            raise _missing_devices(missing, machine)
        return cls(tuple(gpu.index for gpu in found if gpu is not None))

    def cuda_visible_devices(self, machine: Machine) -> str:
        """Return the value of ``CUDA_VISIBLE_DEVICES`` for the run: UUIDs; empty for the CPU."""
        known = {gpu.index: gpu.uuid for gpu in machine.gpus}
        return ",".join(known.get(index, str(index)) for index in self.gpus)

    def __str__(self) -> str:
        return "+".join(map(str, self.gpus)) if self.gpus else CPU


def _missing_devices(indices: list[int], machine: Machine) -> UsageError:
    named = "GPU " + ", ".join(map(str, indices))
    if machine.by_place and machine.gpus:
        where = "the job has" if machine.is_here else "a node has at most"
        return UsageError(
            f"{named}: {where} {plural(len(machine.gpus), 'GPU')}, counted from 0",
            "Devices are places among the job's GPUs; ask for more with Gpus",
        )
    hidden = [gpu.index for gpu in machine.hidden if gpu.index in indices]
    if hidden:
        return UsageError(
            f"{named} {'is' if len(indices) == 1 else 'are'} hidden by {VISIBLE_VARIABLE}",
            f"Unset {VISIBLE_VARIABLE}, or choose {_choices(machine)}",
        )
    if not machine.gpus:
        why = f" ({machine.no_gpu_reason})" if machine.no_gpu_reason else ""
        return UsageError(
            f"{named}: this machine has no GPU{why}",
            "Write cpu, leave it empty, or try with --devices cpu",
        )
    return UsageError(f"this machine has no {named}", f"Choose {_choices(machine)}")


def _choices(machine: Machine) -> str:
    names = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in machine.gpus)
    return f"GPU {names}" if names else CPU


def _visible_gpus(gpus: tuple[Gpu, ...], visible: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a value of ``CUDA_VISIBLE_DEVICES`` leaves, in its order.

    As CUDA does: entries are indices or (beginnings of) UUIDs, and the first one that matches
    nothing ends the list.
    """
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        match = next(
            (
                gpu
                for gpu in gpus
                if (entry.isdigit() and gpu.index == int(entry))
                or (entry.upper().startswith("GPU-") and gpu.uuid.lower().startswith(entry.lower()))
            ),
            None,
        )
        if match is None:
            break
        if match not in chosen:
            chosen.append(match)
    return tuple(chosen)
