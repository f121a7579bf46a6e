"""How runs, workloads and experiments ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radt.errors import RadtError
from radt.model import RunStatus

#: The reason of runs that Ctrl-C or `radt stop` ended.
STOPPED = "stopped by the user"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One row's end.

    ``reason`` is empty for a finished run; ``tail`` is the end of what it printed, ``log`` the file
    with all of it (None if it was never started).
    """

    letter: str
    name: str
    run_id: str
    status: RunStatus
    reason: str
    elapsed_s: float | None
    tail: Sequence[str] = ()
    log: Path | None = None


@dataclass(frozen=True, slots=True)
class WorkloadOutcome:
    """The ends of all rows that were run together.

    ``repeat`` of ``repeats`` counts from 1. ``elapsed_s`` is all of it, set-up included.
    """

    label: str
    workload_id: str
    runs: Sequence[RunOutcome]
    start_skew_s: float | None
    repeat: int = 1
    repeats: int = 1
    elapsed_s: float = 0.0

    @property
    def status(self) -> RunStatus:
        """The worst of the rows."""
        return RunStatus.worst(run.status for run in self.runs)


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """All workloads that were run, and how many rows needed no run.

    ``interrupted_by`` is the number of the signal that stopped it, None if it came to its end.
    ``problem`` is why radt itself could not go on, or could not write all statuses.
    """

    workloads: Sequence[WorkloadOutcome] = field(default_factory=list)
    skipped: int = 0
    elapsed_s: float = 0.0
    interrupted_by: int | None = None
    problem: RadtError | None = None

    @property
    def interrupted(self) -> bool:
        return self.interrupted_by is not None

    @property
    def runs(self) -> list[RunOutcome]:
        return [run for workload in self.workloads for run in workload.runs]

    @property
    def counts(self) -> Counter[RunStatus]:
        """Number of runs by how they ended."""
        return Counter(run.status for run in self.runs)

    @property
    def exit_code(self) -> int:
        """0 if all went well, 1 if a run did not finish, 128 + signal if the user stopped it.

        A ``problem`` is raised, and has its own.
        """
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return 0 if set(self.counts) <= {RunStatus.FINISHED} else 1
