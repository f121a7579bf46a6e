"""What radt needs of a cluster: a few questions, which Slurm answers, and a simulation in tests.

Where and when a job starts, priorities, preemption and requeueing are the engine's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from radt.cluster.shape import Shape


class Phase(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"  # also again, after its node failed
    HELD = "held"  # waits for a release
    RUNNING = "running"
    ENDED = "ended"


class End(StrEnum):
    """How the engine says that a job ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """A job of an array: the engine's id of the array, and its index there; ``1234_7``."""

    array: str
    index: int

    def __str__(self) -> str:
        return f"{self.array}_{self.index}"


#: All intents begin with it.
INTENT = "radt:"
#: The index of all jobs of an array that the engine no longer tells apart: Slurm's, once they were
#: cancelled before they began.
REST = -1


@dataclass(frozen=True, slots=True)
class JobState:
    """What the engine says of a job.

    ``reason`` says why it waits; ``nodes`` are where it runs or ran; ``starts`` is the engine's
    estimate of its start, as text. ``intent`` is of the request that it was submitted with, "" if
    of none of radt's; None where the engine does not say.
    """

    phase: Phase
    reason: str = ""
    nodes: str = ""
    end: End | None = None
    starts: str = ""
    intent: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """An array to be submitted.

    Args:
        name: Shown in the queue.
        intent: Its own in all the cluster; `Engine.find` finds the array by it.
        shape: Of each job.
        indices: Of its jobs.
        script: The batch script; the engine's variable of the job's index is in it.
        output: Where the script's output goes, with the engine's placeholders.
        most_at_once: How many of its jobs may run at a time; None for all.
        options: The site's, handed on unchanged.
    """

    name: str
    intent: str
    shape: Shape
    indices: Collection[int]
    script: str
    output: str
    most_at_once: int | None = None
    options: tuple[str, ...] = ()


class Engine(Protocol):
    """A cluster.

    Every method raises `ClusterError` if the engine is not there, does not answer, or refuses;
    `EngineAwayError`, which is one, if it may answer later.
    """

    @property
    def name(self) -> str:
        """Its name in messages and in ``--on``."""

    @property
    def max_array_size(self) -> int:
        """Jobs that an array may have."""

    def check(self, request: ArrayRequest) -> str:
        """Return what the engine says of a request without submitting it: when it would start.

        Raises:
            ClusterError: It would be refused.
        """

    def pick(self, request: ArrayRequest) -> str:
        """Return the node where a job of a request would start first, of those that have it all.

        Raises:
            ClusterError: There is none, or the engine does not say which.
        """

    def submit(self, request: ArrayRequest) -> str:
        """Submit an array and return the engine's id of it.

        Raises:
            SubmitLimitError: More jobs than this user may have now; fewer, or later, may do.
            EngineAwayError: It did not answer, and may have taken the array: see `find`.
        """

    def find(self, intent: str) -> str | None:
        """Return the id of the array that was submitted with this intent, None if there is none."""

    def states(self, arrays: Collection[str]) -> Mapping[JobId, JobState]:
        """Return the states of all jobs of arrays by one question.

        A job that the engine has forgotten is missing (see `past`), as is one that was cancelled
        before it began: then others of its array are there, or `REST` is.
        """

    def past(self, jobs: Collection[JobId]) -> Mapping[JobId, JobState]:
        """Return what the cluster's accounting says of jobs that `states` no longer has.

        Empty where there is no accounting. Asked rarely: only of jobs without any other word.
        """

    def cancel(self, jobs: Collection[JobId], *, now: bool = False) -> None:
        """Ask jobs to end as Ctrl-C does; with ``now`` kill them. Ended ones are left alone.

        Of a job that was killed the engine may say that it failed.
        """

    def release(self, jobs: Collection[JobId]) -> None:
        """Let held jobs start."""

    def hold(self, jobs: Collection[JobId]) -> None:
        """Keep queued jobs from starting."""
