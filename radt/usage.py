"""Totals of a run: what the kernel counted of its processes, exact where curves are sampled.

Under ``radt`` the run's keeper (`radt.runner.keeper`) takes the accounts of all processes as it
reaps them; a script on its own reads its own as its block ends, less those at the block's begin.
So does a script in a container, of which the keeper has only the client. All write a small file
into the run's folder, which is still there when the collector is not; who ends the run in the store
reads it. Of a script that was killed before it could, the collector has its last reading: a lower
bound, under names of its own. Imports the standard library only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: The ``listener`` of the series that hold totals: counters from 0 to the total, a peak as it is.
KERNEL = "kernel"
CPU_TIME, RSS_PEAK = "cpu_time_s", "rss_peak_bytes"
IO_READ, IO_WRITTEN = "io_read_bytes", "io_written_bytes"


@dataclass(frozen=True, slots=True)
class Total:
    """One number: its key in files and in `radt.totals`, and the metric that it is stored as."""

    key: str
    metric: str
    unit: str
    is_peak: bool = False


TOTALS = (
    Total(CPU_TIME, "process.cpu.time", "s"),
    Total(RSS_PEAK, "process.memory.rss.peak", "By", is_peak=True),
    Total(IO_READ, "process.io.read", "By"),
    Total(IO_WRITTEN, "process.io.written", "By"),
    *(
        Total(f"context_switches_{way}", f"process.context_switches.{way}", "1")
        for way in ("voluntary", "involuntary")
    ),
    *(
        Total(f"page_faults_{kind}", f"process.page_faults.{kind}", "1")
        for kind in ("minor", "major")
    ),
)
_KEYS = {total.key: total for total in TOTALS}

#: What the numbers cover.
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
    """Return where the accounts of a run go, or those of one of its ranks."""
    return run_dir / ("usage.json" if rank is None else f"usage-{rank}.json")


def lower_bound(key: str) -> str:
    """Return the key of a total that is at least so much: the rest was not counted."""
    return f"{key}_at_least"


def own_usage() -> dict[str, float]:
    """Return the accounts of this process with the children that it has waited for, by key."""
    import resource  # not where runs are only looked at, on systems that lack it

    usage: dict[str, float] = dict.fromkeys((CPU_TIME, RSS_PEAK), 0.0)
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        counted = resource.getrusage(who)
        usage[CPU_TIME] += counted.ru_utime + counted.ru_stime
        usage[RSS_PEAK] = max(usage[RSS_PEAK], counted.ru_maxrss * 1024)
        for key, count in (
            ("context_switches_voluntary", counted.ru_nvcsw),
            ("context_switches_involuntary", counted.ru_nivcsw),
            ("page_faults_minor", counted.ru_minflt),
            ("page_faults_major", counted.ru_majflt),
        ):
            usage[key] = usage.get(key, 0) + count
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        io = dict(line.split(": ") for line in lines)
        usage |= {IO_READ: int(io["rchar"]), IO_WRITTEN: int(io["wchar"])}
    except (OSError, ValueError, KeyError):
        pass  # a kernel that does not count it; then there is no total of it
    return usage


def write_growth(path: Path, before: Mapping[str, float]) -> None:
    """Write the accounts of this process since `before`; a peak is as it is.

    Raises:
        OSError: The file cannot be written.
    """
    usage: dict[str, float | str] = {"method": OF_SCRIPT}
    for key, value in own_usage().items():
        usage[key] = value if _KEYS[key].is_peak else value - before.get(key, 0.0)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(usage), encoding="utf-8")
    os.replace(temporary, path)  # noqa: PTH105 - atomic, and says so


def read_usage(run_dir: Path) -> tuple[dict[str, float], str]:
    """Return a run's totals by key, of all its ranks together, and what they cover.

    What one of several ranks lacks, the run lacks; nothing where there is no file, or a damaged
    one.
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
    """Remove the files, whose numbers are in the store.

    Raises:
        OSError: One cannot be removed.
    """
    for path in run_dir.glob("usage*.json"):
        path.unlink(missing_ok=True)
