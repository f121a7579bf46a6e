"""The hardware of this machine, as recorded with runs: CPUs, memory, GPUs."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from radt.devices.cgroups import CgroupLimits
from radt.devices.cpus import CpuTopology
from radt.devices.gpus import Gpu, Gpus


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware of a machine.

    ``usable_cores`` is the number of cores that this process may run on, limited by the CPU time
    that its control groups grant; ``memory_limit_bytes`` is their memory limit, None for no limit.
    ``driver`` is NVIDIA's. ``gpus`` are all existing GPUs, so that positions are NVML's indices.
    """

    host: str
    system: str
    cpu_model: str
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int
    memory_bytes: int
    memory_limit_bytes: int | None = None
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Return the kind of machine: equal for machines whose runs may be compared.

        It contains CPU model and number, memory in whole GB, GPU models, and the driver's major
        version. The number of GPUs is left out: if a job sees only its own, it says nothing about
        the machine.
        """
        parts = [
            f"{self.cpu_model}, {self.logical_cores} CPUs, {round(self.memory_bytes / 1e9)} GB",
            *dict.fromkeys(gpu.name for gpu in self.gpus if gpu.name),
            *([f"driver {self.driver.partition('.')[0]}"] if self.driver else []),
        ]
        return ", ".join(parts)


@cache
def read_hardware() -> Hardware:
    """Return this machine's hardware; it is read only once per process."""
    gpus, limits = Gpus.read(), CgroupLimits.of()
    cores = len(os.sched_getaffinity(0))
    places = CpuTopology.read(range(os.cpu_count() or 1)).cores
    return Hardware(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        cpu_model=cpu_model(),
        physical_cores=len(set(places.values())) or None,
        logical_cores=os.cpu_count(),
        usable_cores=cores if limits.cpus is None else min(cores, math.ceil(limits.cpus)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        memory_limit_bytes=limits.memory_bytes,
        driver=gpus.driver,
        gpus=gpus.every,
        problems=(gpus.failure,) if gpus.failure else (),
    )


def cpu_model() -> str:
    """Return the model that the kernel reports; on ARM it reports none."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine()
