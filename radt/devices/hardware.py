"""The hardware of this machine, as recorded with runs: CPUs, memory, GPUs."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from functools import cache

from radt.devices.gpus import Gpu, Gpus
from radt.devices.host import Host


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
    logical_cores: int
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
    gpus, host = Gpus.read(), Host.detect()
    cores = len(host.usable_cpus)
    return Hardware(
        host=host.name,
        system=f"{platform.system()} {platform.release()}",
        cpu_model=host.cpu_model,
        physical_cores=host.cores,
        logical_cores=len(host.cpus),
        usable_cores=cores if host.cpu_limit is None else min(cores, math.ceil(host.cpu_limit)),
        memory_bytes=host.memory_bytes or 0,
        memory_limit_bytes=host.memory_limit_bytes,
        driver=gpus.driver,
        gpus=gpus.every,
        problems=(gpus.failure,) if gpus.failure else (),
    )
