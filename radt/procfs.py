"""Read process information from ``/proc`` (proc(5)).

Reads the files directly: psutil reads three files where one suffices and takes ten times as long.
With the data-loader workers of eight collocated runs, that would be most of the collector's CPU
time. Imports the standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

with suppress(ImportError):  # missing on systems that only display results
    import fcntl

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Unit of CPU times and start times.
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """``/proc/PID/stat`` of a process (proc_pid_stat(5)): the fields that radt uses.

    ``cpu_ticks`` is ``own_cpu_ticks`` plus those of children that it has waited for;
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
        """Return True unless it is a zombie or dead."""
        return self.state not in "ZXx"


def process_stat(pid: int) -> ProcessStat | None:
    """Read a process's stat, or return None if there is no such process."""
    text = read(f"/proc/{pid}/stat", 4096)
    return _stat_in(text, pid) if text else None


def _stat_in(text: bytes, pid: int) -> ProcessStat:
    # The name, in parentheses, may contain anything, including parentheses and spaces.
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


@dataclass(frozen=True, slots=True)
class ProcessIo:
    """``/proc/PID/io`` (proc_pid_io(5)): bytes since the process began.

    ``read_bytes`` and ``written_bytes`` passed through system calls such as read(2), to or from a
    disk, a pipe or the page cache. ``disk_read_bytes`` were fetched from storage;
    ``disk_written_bytes`` will be written there. All include children that it has waited for.
    """

    read_bytes: int
    written_bytes: int
    disk_read_bytes: int
    disk_written_bytes: int


def process_io(pid: int) -> ProcessIo | None:
    """Read a process's I/O counters. None if it is gone or the kernel does not count I/O.

    Raises:
        PermissionError: The process belongs to another user, or has changed its user.
    """
    counters = _numbers(_read_unless_refused(f"/proc/{pid}/io"))
    if not counters:
        return None
    return ProcessIo(
        counters[b"rchar"], counters[b"wchar"], counters[b"read_bytes"], counters[b"write_bytes"]
    )


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Parts of resident memory in ``/proc/PID/status``, and swapped-out memory, in bytes."""

    anon_bytes: int
    file_bytes: int
    shmem_bytes: int
    swap_bytes: int


def process_memory(pid: int) -> ProcessMemory | None:
    """Return the parts of a process's memory.

    None if it is gone or exiting, and before Linux 4.5.
    """
    values = _numbers(read(f"/proc/{pid}/status", 1 << 16))
    if b"RssAnon" not in values:
        return None
    parts = (values.get(key, 0) << 10 for key in (b"RssAnon", b"RssFile", b"RssShmem", b"VmSwap"))
    return ProcessMemory(*parts)


def peak_rss(pid: int) -> int | None:
    """Return the peak resident memory of a single process in bytes; None if it is gone."""
    kib = _numbers(read(f"/proc/{pid}/status", 1 << 16)).get(b"VmHWM")
    return None if kib is None else kib << 10


def process_pss(pid: int) -> int | None:
    """Return the proportional set size in bytes: a page shared by n processes counts 1/n.

    The kernel walks all pages, which takes 20 µs per MB. None if the process is gone or exiting,
    and before Linux 4.14.

    Raises:
        PermissionError: The process belongs to another user, or has changed its user.
    """
    kib = _numbers(_read_unless_refused(f"/proc/{pid}/smaps_rollup")).get(b"Pss")
    return None if kib is None else kib << 10


def thread_ids(pid: int) -> list[int]:
    """Return the ids of a process's threads; empty if it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - as below
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class ThreadStat:
    """``/proc/PID/task/TID/stat``; ``core`` is the core it last ran on."""

    tid: int
    name: str
    cpu_ticks: int
    started_ticks: int
    core: int


def thread_stat(pid: int, tid: int) -> ThreadStat | None:
    """Read a thread's stat, or return None if it is gone."""
    text = read(f"/proc/{pid}/task/{tid}/stat", 4096)
    if not text:
        return None
    end = text.rindex(b")")
    fields = text[end + 2 :].split(None, 37)
    return ThreadStat(
        tid=tid,
        name=_printable(text[text.index(b"(") + 1 : end]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        started_ticks=int(fields[19]),
        core=int(fields[36]),
    )


def _printable(name: bytes) -> str:
    """Decode a thread's name, which may be any bytes."""
    text = name.decode("utf-8", "replace").strip()
    return "".join(letter if letter.isprintable() else "?" for letter in text) or "?"


def thread_switches(pid: int, tid: int) -> tuple[int, int] | None:
    """Return a thread's voluntary and involuntary context switches; None if it is gone.

    The status of a process has those of its first thread only.
    """
    text = read(f"/proc/{pid}/task/{tid}/status", 1 << 16)
    at = text.rfind(b"voluntary_ctxt_switches:", 0, text.rfind(b"nonvoluntary_ctxt_switches:"))
    if at < 0:
        return None
    words = text[at:].split(None, 4)
    return int(words[1]), int(words[3])


def start_ticks(pid: int) -> int | None:
    """Return a process's start time, which together with its id identifies it among later ones.

    None if it is gone or a zombie.
    """
    stat = process_stat(pid)
    return stat.started_ticks if stat is not None and stat.alive else None


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identity of a process; a later process with the same id is not equal to it."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Return the process that has this id now.

        Raises:
            OSError: This process has no free descriptor to read ``/proc`` with.
        """
        try:
            text = _content(f"/proc/{pid}/stat", 4096)
        except OSError as error:
            if is_shortage(error):
                raise
            return None
        return cls(pid, _stat_in(text, pid).started_ticks) if text else None

    @property
    def alive(self) -> bool:
        """Return True if the process is still running.

        Without a free descriptor this cannot be determined. Then any process with this id is
        assumed to be the same one, because the runs of processes that are gone get ended.
        """
        try:
            text = _content(f"/proc/{self.pid}/stat", 4096)
        except OSError as error:
            return is_shortage(error) and exists(self.pid)
        stat = _stat_in(text, self.pid) if text else None
        return stat is not None and stat.alive and stat.started_ticks == self.started_ticks


#: A pidfd's ioctl since Linux 6.15 and its result, struct pidfd_info of <linux/pidfd.h>.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO = struct.Struct("=Q8x11Ii")
_PIDFD_INFO_EXIT = 1 << 3


class ExitWatch:
    """Watch for the exit code of a process that is not a child; it must be alive at the start."""

    def __init__(self, process: ProcessId) -> None:
        self._process = process
        self._descriptor = -1
        with suppress(OSError):  # it has ended
            self._descriptor = os.pidfd_open(process.pid)
        if not process.alive:  # its id may belong to another process by now
            self.close()

    def exit_code(self) -> int | None:
        """Return the exit code once the process has ended, negative for a signal.

        None if unknown: before Linux 6.15, the kernel reports it only until the parent has waited.
        """
        for status in (self._status, self._zombies_status, self._status):
            if (number := status()) is not None:
                return os.waitstatus_to_exitcode(number)
        return None

    def _status(self) -> int | None:
        info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *(0,) * 12))
        try:
            fcntl.ioctl(self._descriptor, _PIDFD_GET_INFO, info)
        except (OSError, ValueError):  # an older kernel, or it was not alive
            return None
        mask, *_, status = _PIDFD_INFO.unpack(info)
        return status if mask & _PIDFD_INFO_EXIT else None

    def _zombies_status(self) -> int | None:
        text = read(f"/proc/{self._process.pid}/stat", 4096)
        stat = _stat_in(text, self._process.pid) if text else None
        if stat is None or stat.alive or stat.started_ticks != self._process.started_ticks:
            return None
        return int(text.split()[-1])

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def name_of_uid(uid: int) -> str:
    """Return a user's name; ``uid 1000`` in a container without one."""
    import pwd  # missing on systems that only display results

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGTERM."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exists(pid: int) -> bool:
    """Return True if a process with this id exists, of whichever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True


def own_start_ticks() -> int:
    """Return this process's start time, or 0 without ``/proc``."""
    return start_ticks(os.getpid()) or 0


def command_line(pid: int) -> list[str]:
    """Return a process's program and its arguments; empty if it is gone."""
    text = read(f"/proc/{pid}/cmdline").decode("utf-8", "surrogateescape")
    return text.removesuffix("\0").split("\0") if text else []


#: The kernel truncates a program's name to this length.
COMM_CHARS = 15


def program_name(pid: int) -> str:
    """Return the kernel's name of a process: the file that it executes, truncated."""
    return read(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()


def executes(pid: int, program: str) -> bool:
    """Return True if a process executes a program of this name, itself or as a script."""
    words = [os.path.basename(word) for word in command_line(pid)[:3]]  # noqa: PTH119 - as above
    # For a script, the interpreter comes first, and the kernel's name is the script's.
    is_script = program in words and program_name(pid) == program[:COMM_CHARS]
    return words[:1] == [program] or is_script


def status_mask(pid: int | str, field: str) -> int | None:
    """Return a set of signals or capabilities in ``/proc/PID/status`` (``SigIgn``, ``CapEff``)."""
    for line in read(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(b":")
        if name.decode() == field:
            return int(value, 16)
    return None


def variable(pid: int, name: str) -> str:
    """Return a variable of a process; empty if it has none, or belongs to another user."""
    prefix = f"{name}=".encode()
    entries = (entry for entry in environment(pid) if entry.startswith(prefix))
    return next(entries, prefix)[len(prefix) :].decode(errors="replace")


def environment(pid: int) -> list[bytes]:
    """Return a process's initial ``NAME=value`` entries; empty if it is gone or not readable."""
    return read(f"/proc/{pid}/environ").split(b"\0")


def all_pids() -> set[int]:
    """Return the ids of all visible processes."""
    # Called every second: a Path for each would cost ten times as much.
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208


def group_members(group: int) -> set[int]:
    """Return the ids of the live processes in a process group."""
    stats = (process_stat(pid) for pid in all_pids())
    return {stat.pid for stat in stats if stat is not None and stat.alive and stat.group == group}


def has_open(pid: int, path: str) -> bool:
    """Return True if a process has a file open; False if it may not be inspected."""
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{fd}") == path for fd in os.listdir(folder))  # noqa: PTH115, PTH208
    except OSError:
        return False


def boot_ticks(monotonic_ns: int) -> int:
    """Convert a monotonic time to ticks since boot, the unit of start times.

    Those include suspension, which monotonic time leaves out.
    """
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return (monotonic_ns + suspended_ns) * TICKS_PER_S // 10**9


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot: monotonic times of different boots are not comparable.

    Empty without ``/proc``.
    """
    return read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()


def pid_namespace() -> str:
    """Return the PID namespace of this process; empty if it cannot be read."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - as above
    except OSError:
        return ""


def read(path: str, limit: int = 1 << 24) -> bytes:
    """Read a small kernel file; empty if it does not exist (any more) or is not readable."""
    try:
        return _content(path, limit)
    except OSError:
        return b""


def read_text(path: Path | str) -> str:
    """Return a small kernel file as text, without blanks around it; empty as with `read`."""
    return read(str(path)).decode("utf-8", "surrogateescape").strip()


def meminfo(path: Path | str = "/proc/meminfo") -> dict[str, int]:
    """Return the amounts in ``/proc/meminfo``, or in that of a NUMA node, in bytes.

    Lines without a unit are counts.
    """
    amounts = {}
    for line in read_text(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            number = int(words[0])
            # Lines of a node begin with "Node 0 ".
            amounts[name.split()[-1]] = number << 10 if len(words) > 1 else number
    return amounts


def is_shortage(error: BaseException) -> bool:
    """Return True if the caller is out of descriptors or memory: the error says nothing else."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def _numbers(text: bytes) -> dict[bytes, int]:
    """Parse ``Name:   123 kB`` lines; lines without a number are left out."""
    numbers = {}
    for line in text.splitlines():
        name, _, rest = line.partition(b":")
        words = rest.split(None, 1)
        if words and words[0].isdigit():
            numbers[name] = int(words[0])
    return numbers


def _read_unless_refused(path: str) -> bytes:
    """Read like `read`, but raise if the file exists and may not be read.

    Raises:
        PermissionError: The process belongs to another user.
    """
    try:
        return _content(path, 1 << 16)
    except PermissionError:
        raise
    except OSError:  # the process ended, perhaps between opening and reading
        return b""


def _content(path: str, limit: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while limit > 0 and (piece := os.read(fd, min(limit, 1 << 16))):
            parts.append(piece)
            limit -= len(piece)
        return b"".join(parts)
    finally:
        os.close(fd)
