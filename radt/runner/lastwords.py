"""What the last lines of a run's output say of memory.

The last exception counts, not any mention: a script that tells of an "out of memory" that it has
dealt with, and later fails otherwise, has failed otherwise. Texts as of PyTorch 2.x, TensorFlow
2.x, JAX 0.4 and later, CuPy 13, Numba, RMM and llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property


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


class LastWords:
    """The last lines of a run's output, understood."""

    def __init__(self, tail: Sequence[str]) -> None:
        self._lines = [_PREFIX.sub("", line) for line in tail]

    @cached_property
    def memory(self) -> Memory | None:
        """The memory that ran out, if that is what ended the run."""
        for text in self._verdicts:
            if (found := _memory_in(text)) is not None:
                return found
        return None

    @cached_property
    def amount(self) -> str:
        """What could not be allocated, such as ``2.00 GiB``; empty if that is not said."""
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
        found = []
        end = len(self._lines)
        for start in reversed(starts):
            first = self._lines[start]
            lines = end - start if _LISTING in first else _MESSAGE_LINES
            found.append("\n".join(self._lines[start : min(end, start + lines)]))
            previous = starts[starts.index(start) - 1] if start != starts[0] else 0
            chained = any(_CAUSE in line for line in self._lines[previous:start])
            if _FOLLOW_UP.match(first) is None and not chained:
                break
            end = start
        return found


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
