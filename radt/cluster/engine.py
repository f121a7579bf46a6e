"""The interface to a cluster: a few operations, which Slurm implements, and a simulation in tests.

The engine decides where and when a job starts, and on priorities, preemption and requeueing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Phase(StrEnum):
    """The phase of a job's life."""

    QUEUED = "queued"  # also when requeued after its node failed
    HELD = "held"  # until it is released
    RUNNING = "running"
    ENDED = "ended"


class JobEnd(StrEnum):
    """How a job ended, according to the engine."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Shape:
    """The resources of one job. ``None`` and "" leave a resource to the cluster.

    ``gpus`` is the number per node; ``gpu_type`` is the site's name for them (a gres type).
    ``node`` is the node that the job must run on.
    """

    nodes: int = 1
    gpus: int = 0
    gpu_type: str = ""
    cpus: int | None = None
    memory_bytes: int | None = None
    time_s: float | None = None
    partition: str = ""
    exclusive: bool = False
    node: str = ""


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """A job of an array: the engine's id of the array, and the job's index in it; ``1234_7``."""

    array: str
    index: int

    def __str__(self) -> str:
        return f"{self.array}_{self.index}"


#: Prefix of all intents.
INTENT = "radt:"
#: The index that stands for all jobs of an array that the engine no longer lists one by one: Slurm
#: merges those that were cancelled before they began.
REST = -1


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job, according to the engine.

    ``reason`` says why it waits; ``nodes`` are where it runs or ran; ``starts`` is the engine's
    estimate of its start, as text. ``intent`` is that of its request, "" if the job was not
    submitted by radt; None if the engine does not report it.
    """

    phase: Phase
    reason: str = ""
    nodes: str = ""
    end: JobEnd | None = None
    starts: str = ""
    intent: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """An array to be submitted.

    Args:
        name: Shown in the queue.
        intent: A text unique in the cluster; `Engine.find` finds the array by it.
        shape: The resources of each job.
        indices: The indices of its jobs.
        script: The batch script; it reads the job's index from the engine's variable.
        output: Path of the script's output, with the engine's placeholders.
        options: The site's options, passed on unchanged.
    """

    name: str
    intent: str
    shape: Shape
    indices: Collection[int]
    script: str
    output: str
    options: tuple[str, ...] = ()


class Engine(Protocol):
    """A cluster.

    Every method raises `ClusterError` if the engine is unavailable, does not answer, or refuses;
    its subclass `EngineAwayError` means that it may answer later.
    """

    @property
    def name(self) -> str:
        """Its name in messages and in ``--on``."""

    @property
    def max_array_size(self) -> int:
        """Maximum number of jobs in an array."""

    def check(self, request: ArrayRequest) -> str:
        """Return the engine's estimate of a request's start, without submitting it.

        Raises:
            ClusterError: The engine would refuse it.
        """

    def pick(self, request: ArrayRequest) -> str:
        """Return the node where a job of a request would start first, of those that can hold it.

        Raises:
            ClusterError: There is no such node, or the engine does not name it.
        """

    def submit(self, request: ArrayRequest) -> str:
        """Submit an array and return the engine's id of it.

        Raises:
            SubmitLimitError: The user's job limit is exceeded; submit fewer, or later.
            EngineAwayError: The engine did not answer, but may have accepted the array: see `find`.
        """

    def find(self, intent: str) -> str | None:
        """Return the id of the array that was submitted with this intent, None if there is none."""

    def states(self, arrays: Collection[str]) -> Mapping[JobId, JobState]:
        """Return the states of all jobs of arrays, with one query.

        Missing are jobs that the engine has forgotten (see `past`), and jobs that were cancelled
        before they began; in the latter case other jobs of the array, or `REST`, are present.
        """

    def past(self, jobs: Collection[JobId]) -> Mapping[JobId, JobState]:
        """Return the accounting's states of jobs that `states` no longer has.

        Empty without accounting. Called rarely, only for jobs without any other information.
        """

    def cancel(self, jobs: Collection[JobId], *, now: bool = False) -> None:
        """Ask jobs to end as Ctrl-C does; with ``now``, kill them. Ended jobs are left alone.

        The engine may report a killed job as failed.
        """

    def release(self, jobs: Collection[JobId]) -> None:
        """Let held jobs start."""

    def hold(self, jobs: Collection[JobId]) -> None:
        """Keep queued jobs from starting."""
