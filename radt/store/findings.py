"""What a check of a store can find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Trouble(StrEnum):
    """Kinds of findings."""

    LEDGER = "ledger"  # samples expected, received and missed do not add up
    POINTS = "points"  # there are fewer or more points than were received
    GAP = "gap"  # a stretch without values that cannot be one
    ORPHAN = "orphan"  # rows of something that is not there
    CHUNK = "chunk"  # chunks of a series are missing
    TIMES = "times"  # the times of a chunk lie in a chunk that is not there
    DAMAGED = "damaged"  # a chunk cannot be decoded
    HEADER = "header"  # a chunk's header says something else than its points
    DOUBLED = "doubled"  # points are there twice
    MLFLOW = "mlflow"  # a run is in MLflow or in the store, and not in the other
    SPOOL = "spool"  # a run has a folder or is in the store, and not the other


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; ``run_id`` is empty where it is no run's."""

    trouble: Trouble
    subject: str
    cause: str
    remedy: str
    run_id: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.cause}"


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is."""

    experiments: int
    workloads: int
    runs: int
    series: int
    markers: int
    chunks: int
    points: int
    pruned_runs: int
