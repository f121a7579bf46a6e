"""What an exit means: FINISHED, FAILED, KILLED, TIMEOUT, or out of memory, and why.

"Does not fit" is a result and no crash, so a run that ran out of memory is told from one that
failed: by the kernel's word for the host's memory (`radt.runner.memory`), by the run's own last
words for the GPU's (`radt.runner.lastwords`).
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from radt.durations import duration_text
from radt.model import RunStatus
from radt.runner.lastwords import LastWords, Memory
from radt.runner.memory import MemoryEvidence, MemoryWatch
from radt.runner.process import Exit

__all__ = ["Ending", "MemoryEvidence", "MemoryWatch", "ending_of"]

KEEPER_KILLED = "its keeper was killed"
#: Shells report a signal N that ended a command as exit code 128 + N.
_SHELL_SIGNAL = 128
#: Ways in which a process goes down by itself; memory that ran out may be why.
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended; ``reason`` is for people, and empty for FINISHED."""

    status: RunStatus
    reason: str = ""


def ending_of(
    exit_: Exit,
    *,
    stopped: str,
    timed_out_s: float | None,
    tail: Sequence[str],
    memory: MemoryEvidence,
) -> Ending:
    """What an exit means.

    A process that ends with exit code 0 has finished, also if it was asked to end a moment before:
    what it says counts. An exit code above 128 by which a shell reports a signal stays FAILED, as
    nothing tells it from one that a program chose; its reason names the signal.

    Args:
        stopped: Why radt ended the run, empty if it did not.
        timed_out_s: The Timeout that the run exceeded.
        tail: The last lines of its output.
        memory: What the kernel has said of memory since the run started.
    """
    if exit_.code == 0:
        return Ending(RunStatus.FINISHED)
    if stopped:
        return Ending(RunStatus.KILLED, stopped)
    if timed_out_s is not None:
        return Ending(RunStatus.TIMEOUT, f"longer than {duration_text(timed_out_s)}")
    if exit_.keeper_died:
        return Ending(RunStatus.KILLED, KEEPER_KILLED)
    words = LastWords(tail)
    return (
        _by_the_kernel(exit_, words, memory) or _by_its_own_words(exit_, words) or _otherwise(exit_)
    )


def _by_the_kernel(exit_: Exit, words: LastWords, memory: MemoryEvidence) -> Ending | None:
    """Out of memory if the kernel's word and the way the run ended agree."""
    killed = exit_.code in (-signal.SIGKILL, _SHELL_SIGNAL + signal.SIGKILL)
    pids = words.killed_pids | ({exit_.pid} if killed and exit_.pid is not None else set())
    if not (killed or words.child_killed):
        return None
    if memory.names(pids):
        memory.claim()
        return Ending(RunStatus.OOM, "host memory: killed by the kernel")
    if not memory.kills_unnamed:
        return None
    certain = memory.own == 1
    memory.claim()
    how = "killed" if certain else "probably killed"
    return Ending(RunStatus.OOM, f"host memory: {how} by the kernel")


def _by_its_own_words(exit_: Exit, words: LastWords) -> Ending | None:
    if exit_.code < 0 and -exit_.code not in _CRASHES:
        return None
    match words.memory:
        case None:
            return None
        case Memory.SHARED:
            return Ending(RunStatus.OOM, f"{Memory.SHARED}: larger than /dev/shm")
        case where:
            amount = words.amount
            what = f"tried to allocate {amount}" if amount else "an allocation failed"
            return Ending(RunStatus.OOM, f"{where}: {what}")


def _otherwise(exit_: Exit) -> Ending:
    if exit_.code < 0:
        return Ending(RunStatus.KILLED, f"killed by {_signal_name(-exit_.code)}")
    reason = f"exit code {exit_.code}"
    if _SHELL_SIGNAL < exit_.code <= _SHELL_SIGNAL + signal.SIGSYS:
        reason += f" (as shells report {_signal_name(exit_.code - _SHELL_SIGNAL)})"
    return Ending(RunStatus.FAILED, reason)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
