"""From what the rows of a workload say to the shape of its job, with everything that can be wrong.

Only what a cluster decides by itself is left to it: whether a node of such a shape exists.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radt.cluster.engine import ArrayRequest, Engine
from radt.cluster.script import check_setup
from radt.cluster.settings import ClusterSettings, Recording
from radt.cluster.shape import JobArray, Shape, WorkloadKey, arrays_of
from radt.errors import (
    ClusterError,
    EngineAwayError,
    ExperimentError,
    Problem,
    SubmitLimitError,
    UsageError,
)
from radt.experiment.check import Conflict
from radt.experiment.columns import Column
from radt.experiment.plan import ExperimentPlan, RunPlan, WorkloadPlan
from radt.experiment.resources import GpuRequest, Resources
from radt.runner.pending import PendingWorkload
from radt.units import duration_text, memory_text, plural

#: What a job gets besides the Timeout of its runs: environments, MLflow, the end.
SETUP_S = 600.0
#: Schedulers count minutes.
_MINUTE_S = 60.0


def arrays_for(
    shown: str,
    pending: Sequence[PendingWorkload],
    settings: ClusterSettings,
    *,
    max_array_size: int,
) -> Sequence[JobArray]:
    """Return the arrays of what a start has to run, in the file's order.

    Args:
        shown: The file's name in messages.
        pending: Each repeat of a workload.
        settings: Of the cluster.
        max_array_size: See `Engine.max_array_size`.

    Raises:
        ExperimentError: With every workload that cannot have a job, by its line.
        UsageError: The site's lines of shell cannot be read.
    """
    check_setup(settings)
    repeats = Counter(WorkloadKey.of(workload.plan) for workload in pending)
    plans = {WorkloadKey.of(workload.plan): workload.plan for workload in pending}
    ordered = sorted(plans, key=lambda key: plans[key].runs[0].line)
    problems = [
        _problem(conflict) for key in ordered for conflict in shape_conflicts(plans[key], settings)
    ]
    if problems:
        raise ExperimentError(shown, sorted(problems, key=lambda problem: problem.line or 0))
    return arrays_of(
        ((key, shape_of(plans[key], settings, repeats=repeats[key])) for key in ordered),
        max_array_size=max_array_size,
        bundle_s=settings.bundle_s,
    )


def ask_about(
    shown: str, plan: ExperimentPlan, arrays: Mapping[JobArray, ArrayRequest], engine: Engine
) -> Mapping[JobArray, str]:
    """Ask the engine about every shape, without submitting anything; returns what it says.

    Args:
        shown: The file's name in messages.
        plan: Has the lines of the workloads.
        arrays: With what would be submitted for each.
        engine: The cluster.

    Raises:
        ExperimentError: With every shape that the engine would refuse, by its first line.
        EngineAwayError: The engine does not answer.
    """
    lines = {WorkloadKey.of(workload): workload.runs[0].line for workload in plan.workloads}
    by_shape: dict[Shape, list[JobArray]] = {}
    for array in arrays:
        by_shape.setdefault(array.shape, []).append(array)
    answers: dict[JobArray, str] = {}
    problems: list[Problem] = []
    for shape, alike in by_shape.items():
        try:
            answers |= dict.fromkeys(alike, engine.check(arrays[alike[0]]))
        except EngineAwayError:
            raise
        except SubmitLimitError as error:  # a matter of now, not of the shape
            answers |= dict.fromkeys(alike, error.message)
        except ClusterError as error:
            keys = [key for array in alike for job in array.jobs for key in job]
            others = len(keys) - 1
            whose = f"workload {keys[0].label}" + (f" and {others:,} more" if others else "")
            cause = f"{whose}, {shape_text(shape)}: {error.message}"
            problems.append(Problem(cause, error.remedy or "", lines[keys[0]]))
    if problems:
        raise ExperimentError(shown, problems)
    return answers


def shape_of(workload: WorkloadPlan, settings: ClusterSettings, *, repeats: int = 1) -> Shape:
    """Return the shape of a workload's job, if `shape_conflicts` has nothing to say.

    Args:
        workload: As planned for `Machine.of_cluster`.
        settings: What holds where the rows say nothing.
        repeats: How often the job runs the workload.
    """
    asked = _merged(workload)
    gpus = _gpu_count(workload, asked)
    profile = next(iter(_profiles(workload)), "")
    cpus = sum(run.cpus.count or 0 for run in workload.runs)
    return Shape(
        nodes=asked.nodes or 1,
        gpus=gpus,
        gpu_type=(settings.gpus[profile] if profile else asked.gpus.kind) if gpus else "",
        cpus=cpus or None,
        memory_bytes=asked.memory_bytes or settings.memory_bytes,
        time_s=_time_s(workload, asked, settings, repeats),
        partition=asked.partition or settings.partition,
        exclusive=settings.exclusive if asked.exclusive is None else asked.exclusive,
    )


def shape_text(shape: Shape) -> str:
    """Return a shape for people: ``2× a100, 8 CPUs, 64 GB, 4 h, partition gpu, exclusive``.

    Of several nodes it begins with their number; the rest is what each has.
    """
    kind = shape.gpu_type or ("GPU" if shape.gpus == 1 else "GPUs")
    parts = [
        f"{shape.gpus}× {kind}" if shape.gpu_type else f"{shape.gpus} {kind}",
        "" if shape.cpus is None else plural(shape.cpus, "CPU"),
        "" if shape.memory_bytes is None else memory_text(shape.memory_bytes),
        "" if shape.time_s is None else duration_text(shape.time_s),
        f"partition {shape.partition}" if shape.partition else "",
        "exclusive" if shape.exclusive else "",
        f"on {shape.node}" if shape.node else "",
    ]
    nodes = f"{shape.nodes} nodes" if shape.nodes > 1 else ""
    return ", ".join(filter(None, [nodes, *(parts if shape.gpus else ["no GPU", *parts[1:]])]))


def shape_conflicts(workload: WorkloadPlan, settings: ClusterSettings) -> Iterator[Conflict]:
    """Yield why a workload cannot have a job."""
    disagreements = list(_disagreements(workload))
    yield from disagreements
    if disagreements:
        return
    asked = _merged(workload)
    if (asked.nodes or 1) > 1 and settings.record is Recording.DIRECT:
        yield _conflict(
            workload.runs,
            Column.NODES,
            f"runs on {asked.nodes} nodes are put together on the submit host, and "
            f'record = "{Recording.DIRECT}" in {settings.source} goes past it',
            f'Write record = "{Recording.FOLDER}" there',
        )
    divided = [run for run in workload.runs if run.collocation.mig is not None]
    of_instances = list(_mig_conflicts(workload, divided, asked, settings)) if divided else []
    yield from of_instances
    count = _gpu_count(workload, asked)
    if _places(workload) > count and not of_instances:
        most = max(workload.runs, key=lambda run: max(run.devices.gpus, default=-1))
        number = max(most.devices.gpus)
        yield _conflict(
            [most],
            Column.DEVICES,
            f"GPU {number} of a job that gets {plural(count, 'MIG instance' if divided else 'GPU')}"
            ", counted from 0",
            "Write the place among the instances"
            if divided
            else f"Write {number + 1} into Gpus, or choose another device (cpu for none)",
        )


# Cells that rows must agree on ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cell:
    """How a column is read from what a row asks, None where it says nothing, and shown."""

    read: Callable[[Resources], Any]
    show: Callable[[Any], str] = str


_CELLS: Mapping[Column, _Cell] = {
    Column.NODES: _Cell(lambda asked: asked.nodes),
    Column.GPUS: _Cell(lambda asked: asked.gpus if str(asked.gpus) else None),
    Column.PARTITION: _Cell(lambda asked: asked.partition or None),
    Column.EXCLUSIVE: _Cell(lambda asked: asked.exclusive, lambda yes: "yes" if yes else "no"),
    Column.MEMORY: _Cell(lambda asked: asked.memory_bytes, memory_text),
    Column.TIME: _Cell(lambda asked: asked.time_s, duration_text),
}


def _disagreements(workload: WorkloadPlan) -> Iterator[Conflict]:
    """Yield cells of a workload's rows that contradict each other; empty ones do not."""
    for column, cell in _CELLS.items():
        first: dict[Any, RunPlan] = {}
        for run in workload.runs:
            value = cell.read(run.resources)
            if value is not None:
                first.setdefault(value, run)
        if len(first) > 1:
            values = " and ".join(cell.show(value) for value in first)
            yield _conflict(
                list(first.values()),
                column,
                f"the rows of workload {workload.label} share a job and ask for {values}",
                "Write the same into these cells, or fill only one of them",
            )


def _merged(workload: WorkloadPlan) -> Resources:
    """Return what the rows of a workload ask together."""
    asked = {
        column: next(
            (v for run in workload.runs if (v := cell.read(run.resources)) is not None), None
        )
        for column, cell in _CELLS.items()
    }
    return Resources(
        nodes=asked[Column.NODES],
        gpus=asked[Column.GPUS] or GpuRequest(),
        partition=asked[Column.PARTITION] or "",
        exclusive=asked[Column.EXCLUSIVE],
        memory_bytes=asked[Column.MEMORY],
        time_s=asked[Column.TIME],
    )


# GPUs -----------------------------------------------------------------------------------------


def _places(workload: WorkloadPlan) -> int:
    """How many GPUs the largest number in Devices asks for."""
    return max((place + 1 for run in workload.runs for place in run.devices.gpus), default=0)


def _profiles(workload: WorkloadPlan) -> set[str]:
    return {str(run.collocation.mig) for run in workload.runs if run.collocation.mig is not None}


def _gpu_count(workload: WorkloadPlan, asked: Resources) -> int:
    """How many GPUs, or MIG instances, the job gets."""
    instances = {
        (run.devices.gpus, run.collocation.instance or f"{run.letter} alone")
        for run in workload.runs
        if run.collocation.mig is not None
    }
    if instances:
        return len(instances)
    return _places(workload) if asked.gpus.count is None else asked.gpus.count


def _mig_conflicts(
    workload: WorkloadPlan,
    divided: Sequence[RunPlan],
    asked: Resources,
    settings: ClusterSettings,
) -> Iterator[Conflict]:
    """Yield what is wrong with MIG instances: the site makes them, and a job gets one type."""
    profiles = _profiles(workload)
    whole = [run for run in workload.runs if run.collocation.mig is None and run.devices.gpus]
    if len(profiles) > 1 or whole:
        kinds = [*sorted(profiles), *(["whole GPUs"] if whole else [])]
        yield _conflict(
            [*divided, *whole],
            Column.COLLOCATION,
            f"a job gets GPUs of one type, not {' and '.join(kinds)}",
            "Give the rows of the workload one profile, or a workload each",
        )
    if str(asked.gpus):
        yield _conflict(
            workload.runs,
            Column.GPUS,
            f"Gpus asks for whole GPUs ({asked.gpus}), Collocation for MIG instances",
            "Leave Gpus empty: [cluster.gpus] says which type a profile is",
        )
    for run in divided:
        profile = str(run.collocation.mig)
        if len(run.devices.gpus) != 1:
            devices = plural(len(run.devices.gpus), "GPU") if run.devices.gpus else "the CPU"
            yield _conflict(
                [run], Column.DEVICES, f"{profile} on {devices}", "Name one GPU, such as 0"
            )
        if run.collocation.mps is not None:
            yield _conflict(
                [run],
                Column.COLLOCATION,
                "on a cluster, MPS needs whole GPUs",
                f"Write MPS or {profile}",
            )
    for profile in sorted(profiles - settings.gpus.keys()):
        rows = [run for run in divided if str(run.collocation.mig) == profile]
        yield _conflict(
            rows,
            Column.COLLOCATION,
            f"{profile} is not in {settings.gpus_source}",
            f'Add "{profile}" = "gpu:TYPE" there (sinfo -o %G shows the types); radt does not '
            "divide the GPUs of a cluster",
        )


# Time and messages ----------------------------------------------------------------------------


def _time_s(
    workload: WorkloadPlan, asked: Resources, settings: ClusterSettings, repeats: int
) -> float | None:
    """The time limit of all repeats, in whole minutes; None leaves it to the cluster."""
    once_s = asked.time_s
    if once_s is None:
        timeouts_s = [run.timeout_s for run in workload.trained]
        if timeouts_s and None not in timeouts_s:
            once_s = max(filter(None, timeouts_s)) + SETUP_S
    if once_s is None:
        once_s = settings.time_s
    return None if once_s is None else math.ceil(once_s * repeats / _MINUTE_S) * _MINUTE_S


def _conflict(runs: Sequence[RunPlan], column: Column, cause: str, remedy: str) -> Conflict:
    return Conflict(column, tuple(run.line for run in runs), UsageError(cause, remedy))


def _problem(conflict: Conflict) -> Problem:
    first, *others = sorted(set(conflict.lines))
    also = f" (with line {', '.join(map(str, others))})" if others else ""
    error = conflict.error
    return Problem(error.message + also, error.remedy or "", first, conflict.column)
