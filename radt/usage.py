"""Exact totals of a run from the kernel's process accounting, where curves are only sampled.

Under ``radt``, the run's keeper (`radt.runner.keeper`) collects the usage of all processes as it
reaps them. A standalone script reads its own usage at the end of its block and subtracts that at
the beginning. So does a script in a container, where the keeper only sees the container's client.
Each writes a small file into the run's folder, which survives the collector; the process that ends
the run in the store reads it. If a script is killed before it can write, the collector's last
reading serves as a lower bound, under separate names. Imports the standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from radt.files import write_whole

#: ``listener`` of series that hold totals: a counter goes from 0 to the total, a peak is a value.
KERNEL = "kernel"
CPU_TIME, RSS_PEAK = "cpu_time_s", "rss_peak_bytes"
IO_READ, IO_WRITTEN = "io_read_bytes", "io_written_bytes"


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """A total: its key in files and in `radt.totals`, and the metric that it is stored as."""

    key: str
    metric: str
    unit: str
    is_peak: bool = False


_RUSAGE_FIELDS = {
    "context_switches_voluntary": "ru_nvcsw",
    "context_switches_involuntary": "ru_nivcsw",
    "page_faults_minor": "ru_minflt",
    "page_faults_major": "ru_majflt",
}
TOTALS = (
    UsageTotal(CPU_TIME, "process.cpu.time", "s"),
    UsageTotal(RSS_PEAK, "process.memory.rss.peak", "By", is_peak=True),
    UsageTotal(IO_READ, "process.io.read", "By"),
    UsageTotal(IO_WRITTEN, "process.io.written", "By"),
    *(UsageTotal(key, f"process.{'.'.join(key.rsplit('_', 1))}", "1") for key in _RUSAGE_FIELDS),
)
_KEYS = {total.key: total for total in TOTALS}

#: Descriptions of what the numbers cover.
LAST_READING = (
    "at least: the script was killed, and this is the collector's last reading of its process and "
    "of the children that it had waited for, since the first (/proc/PID/stat, io, status)"
)
OF_TREE = "the kernel's accounts of all processes of the run as they ended (wait4, /proc/PID/io)"
OF_SCRIPT = (
    "the kernel's accounts of the script and of the children that it waited for, from the begin of "
    "the block to its end (getrusage, /proc/self/io); the peak since the script began"
)


def usage_file(run_dir: Path, rank: int | None = None) -> Path:
    """Return the path of a run's usage file, or of one rank's."""
    return run_dir / ("usage.json" if rank is None else f"usage-{rank}.json")


def lower_bound(key: str) -> str:
    """Return the key for a lower bound of a total, part of which was not counted."""
    return f"{key}_at_least"


def own_usage() -> dict[str, float]:
    """Return usage of this process and the children that it has waited for, by key."""
    import resource  # missing on systems that only display results

    usage: dict[str, float] = dict.fromkeys((CPU_TIME, RSS_PEAK), 0.0)
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        counted = resource.getrusage(who)
        usage[CPU_TIME] += counted.ru_utime + counted.ru_stime
        usage[RSS_PEAK] = max(usage[RSS_PEAK], counted.ru_maxrss * 1024)
        for key, field in _RUSAGE_FIELDS.items():
            usage[key] = usage.get(key, 0) + getattr(counted, field)
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        io = dict(line.split(": ") for line in lines)
        usage |= {IO_READ: int(io["rchar"]), IO_WRITTEN: int(io["wchar"])}
    except (OSError, ValueError, KeyError):
        pass  # the kernel does not count I/O, so there are no I/O totals
    return usage


def write_growth(path: Path, before: Mapping[str, float]) -> None:
    """Write this process's usage since `before`; a peak is written unchanged.

    Raises:
        OSError: The file cannot be written.
    """
    usage: dict[str, float | str] = {"method": OF_SCRIPT}
    for key, value in own_usage().items():
        usage[key] = value if _KEYS[key].is_peak else value - before.get(key, 0.0)
    write_whole(path, json.dumps(usage))


def read_usage(run_dir: Path) -> tuple[dict[str, float], str]:
    """Return a run's totals by key, over all its ranks, and a description of what they cover.

    A total that any rank lacks is left out. Without files, or with a damaged one, there are none.
    """
    parts = []
    for path in sorted(run_dir.glob("usage*.json")):
        try:
            part = json.loads(path.read_bytes())
            values = {key: float(part[key]) for key in _KEYS if key in part}
            parts.append((values, str(part.get("method", OF_TREE))))
        except (OSError, ValueError, TypeError, AttributeError):
            return {}, ""
    if not parts:
        return {}, ""
    known = set.intersection(*(set(values) for values, _ in parts))
    usage = {
        key: (max if total.is_peak else math.fsum)(values[key] for values, _ in parts)
        for key, total in _KEYS.items()
        if key in known
    }
    return {key: value for key, value in usage.items() if 0 <= value < math.inf}, parts[0][1]


def discard_usage(run_dir: Path) -> None:
    """Remove the usage files once their numbers are in the store.

    Raises:
        OSError: A file cannot be removed.
    """
    for path in run_dir.glob("usage*.json"):
        path.unlink(missing_ok=True)
