"""OOM diagnosis: which memory ran out, from a run's last output and from the kernel.

Of the output the last exception counts, not any mention: a script that reports an "out of memory"
that it has handled, and later fails otherwise, has failed otherwise. Texts as of PyTorch 2.x,
TensorFlow 2.x, JAX 0.4 and later, CuPy 13, Numba, RMM and llama.cpp.

The kernel's sources: ``oom_kill`` of ``memory.events`` (cgroup v2,
Documentation/admin-guide/cgroup-v2.rst: "the number of processes belonging to this cgroup killed by
any kind of OOM killer"), of ``memory.oom_control`` (cgroup v1) and of ``/proc/vmstat`` (the whole
machine), and ``/dev/kmsg``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path


class Memory(StrEnum):
    """Which memory ran out."""

    GPU = "GPU memory"
    HOST = "host memory"
    SHARED = "shared memory"


#: Lines after the last exception that may be a launcher's or an exit handler's; more are a script
#: that went on.
_LINES_AFTER = 30
#: A program that raises no exceptions says it in its last lines.
_PLAIN_LINES = 10
#: An exception's own text.
_MESSAGE_LINES = 8

# Ranks and tasks in front of each line: torch, torchrun --log, mpirun --tag-output, srun --label.
_PREFIX = re.compile(r"^(?:\[(?:rank|default)\d+\]:\s?|\[\d+,\d+\]<std\w+>:\s?|\d+:\s)")
_EXCEPTION = re.compile(
    r"^(?:(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Exited|Killed)\b(?:\(.*?\))?"
    r"(?::|$)|terminate called after throwing)"
)
#: Raised because something else ended: a worker, a peer, a command that was launched.
_FOLLOW_UP = re.compile(
    r"^(?:\w+\.)*(?:ChildFailedError|CalledProcessError|ProcessExitedException|DistBackendError"
    r"|DistNetworkError|RendezvousConnectionError|ConnectionResetError|ConnectionRefusedError"
    r"|BrokenPipeError|EOFError|KeyboardInterrupt|SystemExit)\b"
    r"|.*Connection (?:closed|reset) by peer"
)
#: torchrun lists all its workers below it, some eight lines for each.
_LISTING = "ChildFailedError"
_CAUSE = "The above exception was the direct cause of the following exception"

_GPU = re.compile(
    r"(?:CUDA|HIP|XPU) out of memory"
    r"|CUDA error:? .*out of memory|CUDA error: out of memory|[Cc]uda failure.*out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cudaMalloc\w* failed: out of memory"
    r"|hipErrorOutOfMemory"
    r"|CU(?:BLAS|SOLVER|SPARSE|DNN)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"
    r"|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    r"|torch\.(?:cuda\.)?OutOfMemoryError|c10::OutOfMemoryError|c10::CUDAOutOfMemoryError"
    r"|cupy\S*\.OutOfMemoryError"
    r"|RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)"
    r"|ResourceExhaustedError\b.*(?:OOM when allocating|failed to allocate memory)",
    re.DOTALL,
)
_TF_ON_CPU = re.compile(r"OOM when allocating .*device:CPU", re.DOTALL)
_SHARED = re.compile(
    r"killed by signal: Bus error|out of shared memory|No space left on device.*?/dev/shm"
    r"|unable to (?:write to|allocate|mmap|resize).*(?:/torch_|shared memory).*No space left",
    re.DOTALL,
)
_HOST = re.compile(
    r"^MemoryError\b|ArrayMemoryError\b|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|std::bad_alloc|^OSError: \[Errno 12\]|Cannot allocate memory|^java\.lang\.OutOfMemoryError",
    re.MULTILINE,
)
_CHILD_KILLED = re.compile(
    r"killed by signal: Killed|Signal 9 \(SIGKILL\)|exited on signal 9|exitcode\s*:\s*-9\b"
    r"|terminated with signal SIGKILL|process pool was terminated abruptly"
    r"|exited unexpectedly|died with <Signals\.SIGKILL"
)
_PIDS = re.compile(r"\bpid(?:\(s\))?\s*:?\s*([\d, ]*\d)", re.IGNORECASE)

_AMOUNTS = (
    re.compile(r"[Tt]ried to allocate ([\d.,]+) ?([KMGTP]?i?B|bytes)\b"),
    re.compile(r"(?:allocate|allocating|request for) ([\d.,]+) ?([KMGTP]?i?B|bytes)\b"),
)


class OutputDiagnosis:
    """The last lines of a run's output, understood."""

    def __init__(self, tail: Sequence[str]) -> None:
        self._lines = [_PREFIX.sub("", line) for line in tail]

    @cached_property
    def memory(self) -> Memory | None:
        """The memory that ran out, if that is what ended the run."""
        for text in self._verdicts:
            if (amount := _memory_in(text)) is not None:
                return amount
        return None

    @cached_property
    def amount(self) -> str:
        """What could not be allocated, such as ``2.00 GiB``; empty if unknown."""
        for text in self._verdicts:
            if _memory_in(text) is not None:
                return _amount_in(text)
        return ""

    @cached_property
    def child_killed(self) -> bool:
        """Whether the run ended because SIGKILL had ended a process of its own."""
        return any(_CHILD_KILLED.search(text) for text in self._verdicts)

    @cached_property
    def killed_pids(self) -> frozenset[int]:
        """Ids of the processes that ended so, as far as they are named."""
        texts = [text for text in self._verdicts if _CHILD_KILLED.search(text)]
        return frozenset(
            int(number)
            for text in texts
            for listed in _PIDS.findall(text)
            for number in re.findall(r"\d+", listed)
        )

    @cached_property
    def _verdicts(self) -> list[str]:
        """What ended the run: the last exception, and those that it only followed from."""
        starts = [
            number for number, line in enumerate(self._lines) if _EXCEPTION.match(line) is not None
        ]
        if not starts:
            return ["\n".join(self._lines[-_PLAIN_LINES:])]
        after = len(self._lines) - starts[-1]
        if after > _LINES_AFTER and _LISTING not in self._lines[starts[-1]]:
            return []
        verdicts = []
        end = len(self._lines)
        for start in reversed(starts):
            first = self._lines[start]
            lines = end - start if _LISTING in first else _MESSAGE_LINES
            verdicts.append("\n".join(self._lines[start : min(end, start + lines)]))
            previous = starts[starts.index(start) - 1] if start != starts[0] else 0
            chained = any(_CAUSE in line for line in self._lines[previous:start])
            if _FOLLOW_UP.match(first) is None and not chained:
                break
            end = start
        return verdicts


def _memory_in(text: str) -> Memory | None:
    if _TF_ON_CPU.search(text):
        return Memory.HOST
    for memory, pattern in ((Memory.GPU, _GPU), (Memory.SHARED, _SHARED), (Memory.HOST, _HOST)):
        if pattern.search(text):
            return memory
    return None


def _amount_in(text: str) -> str:
    for pattern in _AMOUNTS:
        if (match := pattern.search(text)) is not None:
            number, unit = match[1].rstrip("."), match[2]
            return _binary(int(number.replace(",", ""))) if unit == "bytes" else f"{number} {unit}"
    return ""


def _binary(count_bytes: int) -> str:
    """In powers of 1024, as PyTorch tells it."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.2f} {unit}" if unit != "B" else f"{count_bytes} B"
        value /= 1024
    return f"{value:.2f} GiB"


_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_KILLED = re.compile(rb"(?:Killed process |oom-kill:\S*,pid=)(\d+)")
#: Number of the first pid namespace's inode (include/linux/proc_ns.h, PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


def _no_claim() -> None:
    """Evidence that nobody counts."""


@dataclass(frozen=True, slots=True)
class MemoryEvidence:
    """What the kernel has done for want of memory since a `MemoryWatch` began.

    ``own`` counts processes killed in the runner's cgroup, where the runs are too; ``elsewhere``
    in those above it or on the whole machine, the most of these. Both leave out what was claimed.
    ``pids`` are the processes that the kernel's log names; None where it cannot be read.
    """

    own: int = 0
    elsewhere: int = 0
    pids: frozenset[int] | None = None
    on_claim: Callable[[], None] = field(default=_no_claim, compare=False)

    def names(self, pids: Collection[int]) -> bool:
        """Whether the kernel says that it killed one of these."""
        return self.pids is not None and not self.pids.isdisjoint(pids)

    @property
    def kills_unnamed(self) -> bool:
        """Whether it killed somebody and does not say whom."""
        return not self.pids and max(self.own, self.elsewhere) > 0

    def claim(self) -> None:
        """One of the kills is explained: it is no evidence for the next run."""
        self.on_claim()


class MemoryWatch:
    """Counts what the kernel kills for want of memory from now on.

    Args:
        proc: ``/proc``, for tests.
        kmsg: ``/dev/kmsg``, for tests.
    """

    def __init__(self, proc: Path = Path("/proc"), kmsg: Path = Path("/dev/kmsg")) -> None:
        own, above = _counter_files(proc)
        self._own_path = own
        self._other_paths = [*above, proc / "vmstat"]
        self._log = _KernelLog.open(kmsg, proc)
        self._pids: set[int] = set()
        self._claimed = 0
        self._own_before = _count(own)
        self._others_before = [_count(path) for path in self._other_paths]

    def evidence(self) -> MemoryEvidence:
        """What has happened since."""
        own = _count(self._own_path) - self._own_before
        others = [
            _count(path) - before
            for path, before in zip(self._other_paths, self._others_before, strict=True)
        ]
        if self._log is not None:
            self._pids |= self._log.killed()
        return MemoryEvidence(
            own=max(0, own - self._claimed),
            elsewhere=max(0, max(others) - self._claimed),
            pids=frozenset(self._pids) if self._log is not None else None,
            on_claim=self._claim,
        )

    def _claim(self) -> None:
        self._claimed += 1


class _KernelLog:
    """The kernel's log from now on."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "rb", buffering=0)  # closed with this object
        os.lseek(fd, 0, os.SEEK_END)

    @classmethod
    def open(cls, path: Path, proc: Path) -> _KernelLog | None:
        """None where it may not be read, or has other numbers for our processes (container)."""
        try:
            if str((proc / "self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE:
                return None
            return cls(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            return None

    def killed(self) -> set[int]:
        """Ids of processes that were killed since the last call."""
        pids: set[int] = set()
        while True:
            try:
                data = self._file.read(8192)  # one entry of the log
            except BrokenPipeError:  # entries were overwritten: go on with the next
                continue
            except OSError:
                return pids
            if not data:
                return pids
            pids.update(int(number) for number in _KILLED.findall(data))


def _count(path: Path | None) -> int:
    """The counter in a file; 0 where there is none."""
    if path is None:
        return 0
    try:
        match = _COUNTER.search(path.read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(match[1]) if match is not None else 0


def _counter_files(proc: Path) -> tuple[Path | None, list[Path]]:
    """The counter of this process's memory cgroup, and those of the cgroups above it."""
    try:
        groups = (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        mounts = (proc / "self" / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None, []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory" or "memory" in controllers.split(","):
            kind, name = "cgroup", "memory.oom_control"
        elif controllers == "":
            kind, name = "cgroup2", "memory.events"
        else:
            continue
        for root, mount_point in _mounts(mounts, kind):
            folder = mount_point / os.path.relpath(path, root)
            above = [mount_point, *mount_point.parents]
            folders = [folder, *(group for group in folder.parents if group not in above[1:])]
            files = [group / name for group in folders if (group / name).exists()]
            if files and files[0].parent == folder:
                return files[0], files[1:]
    return None, []


def _mounts(mountinfo: str, kind: str) -> list[tuple[str, Path]]:
    """Root and mount point of mounted cgroup hierarchies with memory in them (proc(5))."""
    mounts = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        filesystem, _, options = rest.split(" ", 2)
        if filesystem == kind and (kind == "cgroup2" or "memory" in options.split(",")):
            root, mount_point = fields.split(" ")[3:5]
            mounts.append((root, Path(mount_point)))
    return mounts
