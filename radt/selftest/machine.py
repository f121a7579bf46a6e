"""What the selftest runs on, and how busy that is with other things."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radt import procfs
from radt.collocation.host import Host
from radt.nvml import list_gpus

_LOOK_S = 0.5
#: Above this share of the machine's time, others disturb what is measured.
BUSY_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts that a result needs to be worth anything elsewhere."""

    host: str
    cpu: str
    cpus: int
    memory_bytes: int | None
    gpus: tuple[str, ...]
    driver: str | None
    kernel: str
    python: str
    radt: str

    @classmethod
    def detect(cls) -> Machine:
        """Ask kernel and driver."""
        from radt import __version__

        host, gpus = Host.detect(), list_gpus()
        return cls(
            host=host.name,
            cpu=host.cpu_model,
            cpus=len(host.usable_cpus),
            memory_bytes=host.memory_bytes,
            gpus=tuple(gpu.name for gpu in gpus.gpus),
            driver=gpus.driver,
            kernel=platform.release(),
            python=platform.python_version(),
            radt=__version__,
        )

    def __str__(self) -> str:
        cores = f"{self.cpus} CPU core{'s' if self.cpus != 1 else ''}"
        names = ", ".join(dict.fromkeys(self.gpus))
        count = f"{len(self.gpus)}× " if len(self.gpus) > 1 else ""
        return f"{cores}, {count}{names}" if self.gpus else f"{cores}, no GPU"


@dataclass(frozen=True, slots=True)
class Busy:
    """How busy the machine is: cores' worth of time in a moment, and its load average."""

    cores: float
    load: float
    cpus: int

    @classmethod
    def look(cls) -> Busy:
        """Look for half a second. Not at what this process itself uses meanwhile: it sleeps."""
        cpus = os.cpu_count() or 1
        before_s, begun_s = _busy_s(), time.monotonic()
        time.sleep(_LOOK_S)
        used_s = _busy_s() - before_s
        return cls(used_s / (time.monotonic() - begun_s), os.getloadavg()[0], cpus)

    @property
    def warning(self) -> str:
        """A sentence if that matters, else empty."""
        if self.cores <= BUSY_SHARE * self.cpus:
            return ""
        return (
            f"other programs keep {self.cores:.1f} of {self.cpus} cores busy (load {self.load:.1f})"
        )

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"busy_cores": self.cores, "load": self.load}


def _busy_s() -> float:
    """CPU time of all processes so far: /proc/stat, proc_stat(5), without idle and iowait."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields)
    return (user + nice + system + irq + softirq + steal) / procfs.TICKS_PER_S
