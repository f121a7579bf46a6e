"""How runs, workloads and experiments ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from radt.model import RunStatus


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One row's end. ``reason`` is empty for a finished run."""

    letter: str
    name: str
    run_id: str
    status: RunStatus
    reason: str
    elapsed_s: float | None


@dataclass(frozen=True, slots=True)
class WorkloadOutcome:
    """The ends of all rows that were run together."""

    label: str
    workload_id: str
    runs: Sequence[RunOutcome]
    start_skew_s: float | None

    @property
    def status(self) -> RunStatus:
        """The worst of the rows: FAILED before KILLED before FINISHED."""
        return RunStatus.worst(run.status for run in self.runs)


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """All workloads that were run, and how many rows needed no run."""

    workloads: Sequence[WorkloadOutcome]
    skipped: int
    elapsed_s: float
    interrupted: bool

    @property
    def runs(self) -> list[RunOutcome]:
        return [run for workload in self.workloads for run in workload.runs]

    @property
    def counts(self) -> Counter[RunStatus]:
        """Number of runs by how they ended."""
        return Counter(run.status for run in self.runs)
