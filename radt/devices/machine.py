"""The GPUs and CPUs of a machine, and the devices of a run (Devices cells).

GPU indices are NVML's (the order of ``nvidia-smi``), even if ``CUDA_VISIBLE_DEVICES`` is set: it
hides GPUs, but does not renumber them here. Processes get their GPUs by UUID, because CUDA's
default order (fastest first) may differ from NVML's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from radt.devices.gpus import Gpu, Gpus, MigDevice
from radt.devices.visible import VISIBLE_VARIABLE, Visible, given_devices
from radt.errors import UsageError
from radt.units import plural

CPU = "cpu"
#: Digits in the number of a device; a longer number is a typing error.
MAX_DIGITS = 9

#: Assumed maximum of GPUs and CPUs of a cluster node, for planning.
_MOST_GPUS = 64
_MOST_CPUS = 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """The CPUs and GPUs that runs can use.

    ``cpus`` are the logical CPUs that this process may use, ``cpu_cores`` is their number; if only
    the number is given, they are numbered from 0. ``gpus`` are usable, ``hidden`` are excluded by
    ``CUDA_VISIBLE_DEVICES``, ``broken`` do not answer. If a scheduler gave MIG devices, runs can
    use only those: ``mig_devices`` has one for each of ``gpus``, which then lists a GPU once per
    MIG device. ``no_gpu_reason`` says why ``gpus`` is empty; with ``has_failed``, runs that name no
    device must not fall back to the CPU. With ``by_place``, as in a cluster job, a Devices cell
    counts ``gpus`` from 0 instead of naming NVML's indices. ``is_here`` is False for a cluster node
    that is not assigned yet.
    """

    cpu_cores: int
    gpus: tuple[Gpu, ...] = ()
    hidden: tuple[Gpu, ...] = ()
    no_gpu_reason: str = ""
    cpus: frozenset[int] = frozenset()
    by_place: bool = False
    is_here: bool = True
    mig_devices: tuple[MigDevice, ...] = ()
    broken: tuple[Gpu, ...] = ()
    has_failed: bool = False

    def __post_init__(self) -> None:
        if not self.cpus:
            object.__setattr__(self, "cpus", frozenset(range(self.cpu_cores)))

    @classmethod
    def detect(cls) -> Machine:
        """Query the operating system and, if there is one, the NVIDIA driver."""
        gpus = Gpus.read()
        return cls.of(gpus, given_devices(gpus))

    @classmethod
    def of(cls, gpus: Gpus, given: Visible, *, by_place: bool = False) -> Machine:
        """Return this machine, whose runs can use the given devices among these GPUs."""
        cpus = frozenset(os.sched_getaffinity(0))
        chosen = tuple(device.gpu for device in given.devices)
        return cls(
            len(cpus),
            chosen,
            () if given.unknown else tuple(gpu for gpu in gpus.working if gpu not in chosen),
            given.reason,
            cpus,
            by_place,
            mig_devices=tuple(device.mig for device in given.devices if device.mig is not None),
            broken=tuple(gpu for gpu in gpus.every if gpu.problem),
            has_failed=given.failed,
        )

    @classmethod
    def of_cluster(cls) -> Machine:
        """Return the machine to plan with for a cluster: it has every device that a row names."""
        gpus = tuple(Gpu(place, "GPU", f"GPU-{place}") for place in range(_MOST_GPUS))
        return cls(_MOST_CPUS, gpus, by_place=True, is_here=False)

    def place(self, number: int) -> int | None:
        """Return the position in `gpus` for a number in a Devices cell."""
        if self.by_place:
            return number if number < len(self.gpus) else None
        indices = [gpu.index for gpu in self.gpus]
        return indices.index(number) if number in indices else None

    def __str__(self) -> str:
        cores = f"{self.cpu_cores} CPU core{'s' if self.cpu_cores != 1 else ''}"
        if not self.gpus:
            return f"{cores}, no GPU"
        names = {gpu.name for gpu in self.gpus}
        kind = names.pop() if len(names) == 1 else "GPUs"
        return f"{cores}, {len(self.gpus)}× {kind}" if len(self.gpus) > 1 else f"{cores}, {kind}"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a run: NVML indices of its GPUs, none for the CPU.

    ``mig`` is the MIG device that it is limited to, if a scheduler gave MIG devices.
    """

    gpus: tuple[int, ...] = ()
    mig: MigDevice | None = None

    @property
    def is_cpu(self) -> bool:
        return not self.gpus

    @classmethod
    def parse(cls, text: str, machine: Machine) -> Devices:
        """Parse a Devices cell: ``0``, ``1+2``, ``cpu``, or empty for the first GPU or cpu.

        Raises:
            UsageError: It is none of these, or a GPU does not exist; or it is empty, and GPUs have
                failed.
        """
        cleaned = text.strip().lower()
        if not cleaned:
            if not machine.gpus and machine.has_failed:
                raise UsageError(
                    f"no GPU can be used: {machine.no_gpu_reason}",
                    "See `radt devices`; to run on the CPU, write cpu or pass --devices cpu",
                )
            return cls._at([0], machine) if machine.gpus else cls()
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
        places = [machine.place(number) for number in numbers]
        missing = [number for number, place in zip(numbers, places, strict=True) if place is None]
        if missing:
            raise _missing_devices(missing, machine)
        return cls._at([place for place in places if place is not None], machine)

    @classmethod
    def _at(cls, places: Sequence[int], machine: Machine) -> Devices:
        indices = tuple(machine.gpus[place].index for place in places)
        if not machine.mig_devices:
            return cls(indices)
        if len(places) > 1:
            raise UsageError(
                "a run can use one MIG device, and this names several",
                "Name one of the MIG devices that the scheduler gave",
            )
        return cls(indices, machine.mig_devices[places[0]])

    def cuda_visible_devices(self, machine: Machine) -> str:
        """Return the value of ``CUDA_VISIBLE_DEVICES`` for the run: UUIDs; empty for the CPU."""
        if self.mig is not None:
            return self.mig.uuid
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
    broken = [gpu for gpu in machine.broken if gpu.index in indices]
    if broken:
        return UsageError(
            f"{broken[0]} does not answer: {broken[0].problem}",
            f"Run nvidia-smi for details, or choose {_choices(machine)}",
        )
    hidden = [gpu.index for gpu in machine.hidden if gpu.index in indices]
    if hidden:
        return UsageError(
            f"{named} {'is' if len(indices) == 1 else 'are'} hidden by {VISIBLE_VARIABLE}",
            f"Unset {VISIBLE_VARIABLE}, or choose {_choices(machine)}",
        )
    if not machine.gpus:
        reason = machine.no_gpu_reason
        if not machine.has_failed:
            reason = "this machine has no GPU" + (f" ({reason})" if reason else "")
        return UsageError(
            f"{named} cannot be used: {reason}",
            "Write cpu, or try with --devices cpu",
        )
    return UsageError(f"this machine has no {named}", f"Choose {_choices(machine)}")


def _choices(machine: Machine) -> str:
    names = ", ".join(dict.fromkeys(f"{gpu.index} ({gpu.name})" for gpu in machine.gpus))
    return f"GPU {names}" if names else CPU
