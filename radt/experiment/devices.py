"""Devices: those of the machine, and the Devices cell.

GPU indices are NVML's (the order of ``nvidia-smi``), also when ``CUDA_VISIBLE_DEVICES`` is set:
it hides GPUs and renumbers nothing here. Processes get their GPUs by UUID, because CUDA's own
default order (fastest first) may differ from NVML's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from radt.errors import UsageError
from radt.nvml import Gpu, list_gpus

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
CPU = "cpu"
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Machine:
    """The CPUs and GPUs that runs can use.

    ``cpus`` are the logical CPUs this process may use, ``cpu_cores`` is their number; those from 0
    on where only the number is given. ``gpus`` are those that may be used, ``hidden``
    those that ``CUDA_VISIBLE_DEVICES`` takes away. ``no_gpu_reason`` says why ``gpus`` is empty.
    """

    cpu_cores: int
    gpus: tuple[Gpu, ...] = ()
    hidden: tuple[Gpu, ...] = ()
    no_gpu_reason: str = ""
    cpus: frozenset[int] = frozenset()

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

    def gpu(self, index: int) -> Gpu | None:
        """Return the usable GPU with this NVML index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

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
        indices: list[int] = []
        for part in parts:
            if not (part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS):
                raise UsageError(
                    f"{part!r} is not a device" if part else f"{text.strip()!r} lacks a device",
                    "Write a GPU's number (0), several (0+1) or cpu",
                )
            index = int(part)
            if index in indices:
                raise UsageError(f"GPU {index} is named twice", "Name each GPU once")
            indices.append(index)
        missing = [index for index in indices if machine.gpu(index) is None]
        if missing:
            raise _missing(missing, machine)
        return cls(tuple(indices))

    def cuda_visible_devices(self, machine: Machine) -> str:
        """Return the value of ``CUDA_VISIBLE_DEVICES`` for the run: UUIDs; empty for the CPU."""
        known = {gpu.index: gpu.uuid for gpu in machine.gpus}
        return ",".join(known.get(index, str(index)) for index in self.gpus)

    def __str__(self) -> str:
        return "+".join(map(str, self.gpus)) if self.gpus else CPU


def _missing(indices: list[int], machine: Machine) -> UsageError:
    named = "GPU " + ", ".join(map(str, indices))
    hidden = [gpu.index for gpu in machine.hidden if gpu.index in indices]
    if hidden:
        return UsageError(
            f"{named} {'is' if len(indices) == 1 else 'are'} hidden by {VISIBLE_VARIABLE}",
            f"Unset {VISIBLE_VARIABLE}, or choose {_choices(machine)}",
        )
    if not machine.gpus:
        why = f" ({machine.no_gpu_reason})" if machine.no_gpu_reason else ""
        return UsageError(f"{named}: this machine has no GPU{why}", "Write cpu, or leave it empty")
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
