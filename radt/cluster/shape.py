"""What a workload asks of a cluster, and the job arrays that workloads of one shape make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from radt.experiment.plan import WorkloadPlan


@dataclass(frozen=True, slots=True)
class Shape:
    """What one job is given. ``None`` and "" leave it to the cluster.

    ``gpus`` are those of a node; ``gpu_type`` is the site's name for them (a gres type). ``node``
    is the one that it has to be.
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
    workloads: Iterable[tuple[WorkloadKey, Shape]], *, max_array_size: int, bundle_s: float = 0.0
) -> Sequence[JobArray]:
    """Group workloads, in the file's order, into arrays of one shape each.

    Args:
        workloads: With the shape of each.
        max_array_size: Jobs in an array, at most.
        bundle_s: Workloads that together take at most so long share a job, which gets the time of
            all of them. 0 for a job each.
    """
    by_shape: dict[Shape, list[list[WorkloadKey]]] = {}
    for key, shape in workloads:
        jobs = by_shape.setdefault(shape, [])
        time_s = shape.time_s
        if jobs and time_s is not None and (len(jobs[-1]) + 1) * time_s <= bundle_s:
            jobs[-1].append(key)
        else:
            jobs.append([key])
    arrays: list[JobArray] = []
    for shape, jobs in by_shape.items():
        if shape.time_s is not None:
            shape = replace(shape, time_s=shape.time_s * max(map(len, jobs)))
        arrays += [
            JobArray(shape, tuple(map(tuple, jobs[start : start + max_array_size])))
            for start in range(0, len(jobs), max_array_size)
        ]
    return arrays
