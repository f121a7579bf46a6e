"""How runs end: the meaning of an exit, and the outcome of an experiment."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from radt.errors import RadtError
from radt.experiment.columns import status_text
from radt.experiment.plan import RunPlan
from radt.model import RunStatus
from radt.procfs import signal_name
from radt.runner.oom import OomEvidence, OomMemory, OutputDiagnosis
from radt.runner.process import Exit
from radt.runner.progress import RowProgress, WorkloadProgress
from radt.units import duration_text, size

_SHM = "/dev/shm"  # noqa: S108 - the kernel's fixed path
KEEPER_KILLED = "its keeper process was killed"
#: Shells report a signal N that ended a command as exit code 128 + N.
_SHELL_SIGNAL = 128
#: Signals of a crash; running out of memory may be the cause.
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended; ``reason`` is a sentence for people, empty for FINISHED."""

    status: RunStatus
    reason: str = ""

    def text(self, repeat: int, repeats: int) -> str:
        """Return the text of its Status cell."""
        return status_text(self.status, self.reason, repeat, repeats)


def run_end(
    exit_: Exit,
    *,
    stopped: str,
    timed_out_s: float | None,
    tail: Sequence[str],
    memory: OomEvidence,
) -> RunEnd:
    """Interpret an exit.

    A process with exit code 0 has finished, even if it was asked to end a moment before. An exit
    code above 128, by which a shell reports a signal, stays FAILED, as a program may have chosen
    it; its reason names the signal.

    Args:
        stopped: Why radt ended the run, empty if it did not.
        timed_out_s: The Timeout that the run exceeded.
        tail: The last lines of its output.
        memory: The kernel's out-of-memory kills since the run started.
    """
    if exit_.code == 0:
        return RunEnd(RunStatus.FINISHED)
    if stopped:
        return RunEnd(RunStatus.KILLED, stopped)
    if timed_out_s is not None:
        return RunEnd(RunStatus.TIMEOUT, f"longer than {duration_text(timed_out_s)}")
    if exit_.keeper_died:
        return RunEnd(RunStatus.KILLED, KEEPER_KILLED)
    words = OutputDiagnosis(tail)
    return (
        _by_the_kernel(exit_, words, memory) or _by_its_own_words(exit_, words) or _otherwise(exit_)
    )


#: The reason of services that had to be killed after the other runs had ended.
NOT_ENDED = "did not end when the other runs had ended"


def dismissed_end(exit_: Exit, dismissed_ns: int, *, was_killed: bool) -> RunEnd | None:
    """Interpret the exit of a service that was asked to end after the other runs had ended.

    Ending was its last task, so it has finished, even if its exit code names the signal. Return
    None if it had ended by itself before, or was killed by others: `run_end` explains those cases.

    Args:
        dismissed_ns: When it was asked to end; monotonic.
        was_killed: True if radt had to kill it.
    """
    if exit_.ended_ns is not None and exit_.ended_ns < dismissed_ns:
        return None
    if not _is_sigkill(exit_):
        return RunEnd(RunStatus.FINISHED)
    return RunEnd(RunStatus.KILLED, NOT_ENDED) if was_killed else None


def _is_sigkill(exit_: Exit) -> bool:
    return exit_.code in (-signal.SIGKILL, _SHELL_SIGNAL + signal.SIGKILL)


def _by_the_kernel(exit_: Exit, words: OutputDiagnosis, memory: OomEvidence) -> RunEnd | None:
    """Return OOM if the kernel's report and the way the run ended agree."""
    killed = _is_sigkill(exit_)
    pids = words.killed_pids | ({exit_.pid} if killed and exit_.pid is not None else set())
    if not (killed or words.child_killed):
        return None
    if memory.names(pids, exit_.container):
        memory.claim()
        return RunEnd(RunStatus.OOM, "host memory: killed by the kernel")
    if not memory.kills_unnamed:
        return None
    certain = memory.own == 1 and not exit_.container
    memory.claim()
    how = "killed" if certain else "probably killed"
    return RunEnd(RunStatus.OOM, f"host memory: {how} by the kernel")


def _by_its_own_words(exit_: Exit, words: OutputDiagnosis) -> RunEnd | None:
    if exit_.code < 0 and -exit_.code not in _CRASHES:
        return None
    match words.memory:
        case None:
            return None
        case (OomMemory.SHARED, _):
            return RunEnd(RunStatus.OOM, f"{OomMemory.SHARED}: larger than {_shared_memory()}")
        case (where, amount):
            what = f"tried to allocate {amount}" if amount else "an allocation failed"
            return RunEnd(RunStatus.OOM, f"{where}: {what}")


def _shared_memory() -> str:
    """Describe /dev/shm, a container's 64 MB by default."""
    try:
        status = os.statvfs(_SHM)
    except OSError:
        return _SHM
    total = size(status.f_blocks * status.f_frsize)
    return f"{_SHM} ({total}, set with --shm-size in a container)"


def _otherwise(exit_: Exit) -> RunEnd:
    if exit_.code < 0:
        reason = f"killed by {signal_name(-exit_.code)}"
        if exit_.code == -signal.SIGBUS:
            # The kernel has already freed memory that only the process had mapped.
            reason += f"; perhaps shared memory was full: {_shared_memory()}"
        return RunEnd(RunStatus.KILLED, reason)
    reason = f"exit code {exit_.code}"
    if _SHELL_SIGNAL < exit_.code <= _SHELL_SIGNAL + signal.SIGSYS:
        reason += f" (as shells report {signal_name(exit_.code - _SHELL_SIGNAL)})"
    return RunEnd(RunStatus.FAILED, reason)


#: The reason of runs that Ctrl-C or `radt stop` ended.
STOPPED = "stopped by the user"


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """How all workloads ended.

    ``failed_before`` are rows that failed in an earlier start and were not run again.
    ``interrupted_by`` is the number of the signal that stopped it, None if it ran to its end.
    ``problem`` is why radt itself could not continue, or could not write or upload everything.
    """

    workloads: Sequence[WorkloadProgress] = field(default_factory=list)
    failed_before: Sequence[RunPlan] = ()
    elapsed_s: float = 0.0
    interrupted_by: int | None = None
    problem: RadtError | None = None

    @property
    def interrupted(self) -> bool:
        return self.interrupted_by is not None

    @property
    def runs(self) -> list[RowProgress]:
        return [run for workload in self.workloads for run in workload.runs]

    @property
    def counts(self) -> Counter[RunStatus]:
        """Return the number of runs by status."""
        return Counter(run.status for run in self.runs)

    @property
    def exit_code(self) -> int:
        """Return 0 if all went well, 1 if a row has not finished, 128 + signal after a user's stop.

        A ``problem`` is raised as an exception, with its own exit code.
        """
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return 0 if set(self.counts) <= {RunStatus.FINISHED} and not self.failed_before else 1
