"""What a workload asks of a cluster, and the job arrays that workloads of one shape make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from radt.experiment.plan import WorkloadPlan


@dataclass(frozen=True, slots=True)
class Shape:
    """What one job is given. ``None`` and "" leave it to the cluster.

    ``gpus`` are those of a node; ``gpu_type`` is the site's name for them (a gres type).
    """

    nodes: int = 1
    gpus: int = 0
    gpu_type: str = ""
    cpus: int | None = None
    memory_bytes: int | None = None
    time_s: float | None = None
    partition: str = ""
    exclusive: bool = False


@dataclass(frozen=True, slots=True, order=True)
class WorkloadKey:
    """A workload of an experiment file."""

    experiment: str
    label: str

    @classmethod
    def of(cls, workload: WorkloadPlan) -> WorkloadKey:
        return cls(workload.experiment, workload.label)


@dataclass(frozen=True, slots=True)
class JobArray:
    """Jobs of one shape, by their index: each has workloads that it runs one after the other."""

    shape: Shape
    jobs: tuple[tuple[WorkloadKey, ...], ...]


def arrays_of(
    workloads: Iterable[tuple[WorkloadKey, Shape, float | None]],
    *,
    max_array_size: int,
    bundle_s: float = 0.0,
) -> Sequence[JobArray]:
    """Group workloads, in the file's order, into arrays of one shape each.

    Args:
        workloads: With the shape and the longest time that each may take (None if unknown).
        max_array_size: Jobs in an array, at most.
        bundle_s: Workloads that together take at most so long share a job. 0 for a job each.
    """
    by_shape: dict[Shape, list[list[WorkloadKey]]] = {}
    filled_s: dict[Shape, float] = {}
    for key, shape, time_s in workloads:
        jobs = by_shape.setdefault(shape, [])
        before_s = filled_s.get(shape, 0.0)
        if time_s is not None and jobs and before_s > 0 and before_s + time_s <= bundle_s:
            jobs[-1].append(key)
            filled_s[shape] = before_s + time_s
        else:
            jobs.append([key])
            filled_s[shape] = time_s or 0.0
    return [
        JobArray(shape, tuple(map(tuple, jobs[start : start + max_array_size])))
        for shape, jobs in by_shape.items()
        for start in range(0, len(jobs), max_array_size)
    ]
