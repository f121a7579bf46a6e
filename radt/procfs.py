"""What ``/proc`` says of the processes of this machine.

Files are read directly: psutil reads three of them for what stands in one and takes ten times as
long, which with the workers of eight collocated runs would be most of what the collector costs.
Imports the standard library only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: CPU times and start times are counted in ticks.
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """``/proc/PID/stat`` (proc_pid_stat(5)) of one process, as far as radt needs it.

    ``cpu_ticks`` is ``own_cpu_ticks`` and those of children that it has waited for;
    ``started_ticks`` counts from boot, including suspension.
    """

    pid: int
    state: str
    parent: int
    group: int
    own_cpu_ticks: int
    cpu_ticks: int
    threads: int
    started_ticks: int
    rss_bytes: int

    @property
    def alive(self) -> bool:
        """Whether it is more than an entry that its parent has not looked at."""
        return self.state not in "ZXx"


def process_stat(pid: int) -> ProcessStat | None:
    """Read one process; None if there is none of that number."""
    text = _read(f"/proc/{pid}/stat", 4096)
    if not text:
        return None
    # The name, in parentheses, may hold anything, parentheses and spaces included.
    fields = text[text.rindex(b")") + 2 :].split(None, 23)
    own_ticks = int(fields[11]) + int(fields[12])
    return ProcessStat(
        pid=pid,
        state=chr(fields[0][0]),
        parent=int(fields[1]),
        group=int(fields[2]),
        own_cpu_ticks=own_ticks,
        cpu_ticks=own_ticks + int(fields[13]) + int(fields[14]),
        threads=int(fields[17]),
        started_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def start_ticks(pid: int) -> int | None:
    """When a process started; with its number it tells the process from all later ones.

    None if it is gone or a zombie.
    """
    stat = process_stat(pid)
    return stat.started_ticks if stat is not None and stat.alive else None


def own_start_ticks() -> int:
    """When this process started; 0 where ``/proc`` is not there."""
    return start_ticks(os.getpid()) or 0


def environment(pid: int) -> list[bytes]:
    """``NAME=value`` entries that a process was started with; none if it is gone, or another's."""
    return _read(f"/proc/{pid}/environ").split(b"\0")


def all_pids() -> set[int]:
    """Numbers of all processes that are visible here."""
    # Every second: a Path for each would cost ten times as much.
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208


def boot_id() -> str:
    """The kernel's id of this boot, as monotonic times of different boots do not compare.

    Empty where ``/proc`` is not there.
    """
    return _read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()


def _read(path: str, limit: int = 1 << 24) -> bytes:
    """The file; empty if it is not there any more, or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while limit > 0 and (piece := os.read(fd, min(limit, 1 << 16))):
            parts.append(piece)
            limit -= len(piece)
        return b"".join(parts)
    except OSError:  # the process ended between the two calls
        return b""
    finally:
        os.close(fd)
