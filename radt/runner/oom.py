"""OOM diagnosis: which memory ran out, from a run's last output and from the kernel.

In the output only the last exception counts: a script that handles an "out of memory" error and
later fails for another reason did not run out of memory. Texts as of PyTorch 2.x, TensorFlow 2.x,
JAX 0.4 and later, CuPy 13, Numba, RMM and llama.cpp.

The kernel's sources: ``oom_kill`` of control groups (`radt.devices.cgroups`) and of
``/proc/vmstat`` (the whole machine), and ``/dev/kmsg``.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from radt.devices.cgroups import Controller, Hierarchy
from radt.units import size


class OomMemory(StrEnum):
    """Which memory ran out."""

    GPU = "GPU memory"
    HOST = "host memory"
    SHARED = "shared memory"


#: Lines after the last exception that a launcher or an exit handler may print; with more, the
#: script went on after it.
_LINES_AFTER = 30
#: A program that raises no exceptions reports the error in its last lines.
_PLAIN_LINES = 10
#: Lines of an exception's own message.
_MESSAGE_LINES = 8

# Ranks and tasks in front of each line: torch, torchrun --log, mpirun --tag-output, srun --label.
_PREFIX = re.compile(r"^(?:\[(?:rank|default)\d+\]:\s?|\[\d+,\d+\]<std\w+>:\s?|\d+:\s)")
_EXCEPTION = re.compile(
    r"^(?:(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Exited|Killed)\b(?:\(.*?\))?"
    r"(?::|$)|terminate called after throwing)"
)
#: Raised because something else ended: a worker, a peer, a launched command.
_FOLLOW_UP = re.compile(
    r"^(?:\w+\.)*(?:ChildFailedError|CalledProcessError|ProcessExitedException|DistBackendError"
    r"|DistNetworkError|RendezvousConnectionError|ConnectionResetError|ConnectionRefusedError"
    r"|BrokenPipeError|EOFError|KeyboardInterrupt|SystemExit)\b"
    r"|.*Connection (?:closed|reset) by peer"
)
#: torchrun lists all its workers after this name, about eight lines for each.
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
_PATTERNS = {OomMemory.GPU: _GPU, OomMemory.SHARED: _SHARED, OomMemory.HOST: _HOST}
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
    """Interprets the last lines of a run's output."""

    def __init__(self, tail: Sequence[str]) -> None:
        self._lines = [_PREFIX.sub("", line) for line in tail]

    @cached_property
    def memory(self) -> tuple[OomMemory, str] | None:
        """Return the memory that ran out, if that ended the run, and the failed allocation, such as
        ``2.00 GiB``; "" if unknown.
        """
        for text in self._verdicts:
            if _TF_ON_CPU.search(text):
                return OomMemory.HOST, _amount_in(text)
            for memory, pattern in _PATTERNS.items():
                if pattern.search(text):
                    return memory, _amount_in(text)
        return None

    @cached_property
    def child_killed(self) -> bool:
        """Return True if the run ended because one of its child processes got SIGKILL."""
        return any(_CHILD_KILLED.search(text) for text in self._verdicts)

    @cached_property
    def killed_pids(self) -> frozenset[int]:
        """Return the ids of those child processes, as far as the output names them."""
        texts = [text for text in self._verdicts if _CHILD_KILLED.search(text)]
        return frozenset(
            int(number)
            for text in texts
            for listed in _PIDS.findall(text)
            for number in re.findall(r"\d+", listed)
        )

    @cached_property
    def _verdicts(self) -> list[str]:
        """Return what ended the run: the last exception, and those that it followed from."""
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


def _amount_in(text: str) -> str:
    for pattern in _AMOUNTS:
        if (match := pattern.search(text)) is not None:
            number, unit = match[1].rstrip("."), match[2]
            return size(int(number.replace(",", ""))) if unit == "bytes" else f"{number} {unit}"
    return ""


_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_GROUP = re.compile(rb"oom-kill:\S*,task_memcg=(\S*?),task=")
_KILLED = re.compile(rb"(?:Killed process |oom-kill:\S*,pid=)(\d+)")
#: Number of the first pid namespace's inode (include/linux/proc_ns.h, PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_LOG_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class OomEvidence:
    """The kernel's out-of-memory kills since an `OomWatch` began.

    ``own`` counts processes killed in the runner's cgroup, which contains the runs; ``elsewhere``
    is the largest count among the cgroups above it and the whole machine. Both exclude claimed
    kills. ``pids`` are the processes that the kernel's log names, None if it cannot be read;
    ``groups`` are their cgroups.
    """

    own: int = 0
    elsewhere: int = 0
    pids: frozenset[int] | None = None
    groups: frozenset[str] = frozenset()
    on_claim: Callable[[], None] = field(default=lambda: None, compare=False)

    def names(self, pids: Collection[int], container: str = "") -> bool:
        """Return True if the kernel reports killing one of `pids`, or a process of `container`."""
        if container and any(container in group for group in self.groups):
            return True
        return self.pids is not None and not self.pids.isdisjoint(pids)

    @property
    def kills_unnamed(self) -> bool:
        """Return True if there are kills without a named victim."""
        return not self.pids and max(self.own, self.elsewhere) > 0

    def claim(self) -> None:
        """Mark one kill as explained, so that it is no evidence for the next run."""
        self.on_claim()


class OomWatch:
    """Counts the kernel's out-of-memory kills from now on.

    Args:
        proc: ``/proc``, for tests.
        kmsg: ``/dev/kmsg``, for tests.
    """

    def __init__(self, proc: Path = Path("/proc"), kmsg: Path = Path("/dev/kmsg")) -> None:
        groups = Hierarchy.find(Controller.MEMORY, proc)
        group = None if groups is None else groups.group_of("self")
        own, *others = groups.kill_counters(group) if groups and group else [None]
        self._paths = [own, *others, proc / "vmstat"]
        self._before = [_count(path) for path in self._paths]
        self._log = _kernel_log(kmsg, proc)
        self._pids: set[int] = set()
        self._groups: set[str] = set()
        self._claimed = 0

    def evidence(self) -> OomEvidence:
        """Return the kills since the watch began."""
        own, *others = (
            _count(path) - before for path, before in zip(self._paths, self._before, strict=True)
        )
        self._read_log()
        return OomEvidence(
            own=max(0, own - self._claimed),
            elsewhere=max(0, max(others) - self._claimed),
            pids=frozenset(self._pids) if self._log is not None else None,
            groups=frozenset(self._groups),
            on_claim=self._claim,
        )

    def _claim(self) -> None:
        self._claimed += 1

    def _read_log(self) -> None:
        while self._log is not None:
            try:
                data = self._log.read(8192)  # one read returns one entry of the log
            except BrokenPipeError:  # entries were overwritten: continue with the next
                continue
            except OSError:
                return
            if not data:
                return
            self._pids.update(map(int, _KILLED.findall(data)))
            self._groups.update(map(os.fsdecode, _GROUP.findall(data)))


def _kernel_log(path: Path, proc: Path) -> io.FileIO | None:
    """Open the kernel's log at its end, to be closed with the object.

    Return None if it is not readable, or uses other pids than ours (in a container).
    """
    try:
        if str((proc / "self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE:
            return None
        log = io.FileIO(path, opener=lambda name, _: os.open(name, _LOG_FLAGS))
        log.seek(0, os.SEEK_END)
    except OSError:
        return None
    return log


def _count(path: Path | None) -> int:
    """Return the counter in a file; 0 if there is no file."""
    if path is None:
        return 0
    try:
        match = _COUNTER.search(path.read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(match[1]) if match is not None else 0
