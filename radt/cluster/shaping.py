"""Derives the shape of a job from the rows of a workload, with all problems found on the way.

Only the cluster itself knows whether it has a node of such a shape.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from radt.cluster.engine import ArrayRequest, Engine, Shape
from radt.cluster.script import array_request, check_setup
from radt.cluster.settings import ClusterSettings, RecordMode
from radt.cluster.submission import JobArray
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
from radt.experiment.plan import ExperimentPlan, RunPlan, WorkloadKey, WorkloadPlan
from radt.experiment.resources import Resources
from radt.home import Home
from radt.model import RunStatus
from radt.runner.options import PendingWorkload
from radt.tags import CLUSTER_NODE
from radt.units import duration_text, memory_text, plural

#: Seconds that a job gets besides the Timeout of its runs: environments, MLflow, the end.
SETUP_S = 600.0
#: Schedulers' time limits are in minutes.
_MINUTE_S = 60.0


def arrays_for(
    shown: str,
    pending: Sequence[PendingWorkload],
    settings: ClusterSettings,
    *,
    max_array_size: int,
) -> Sequence[JobArray]:
    """Return the arrays of a start's pending work, in the file's order.

    Args:
        shown: The file's name in messages.
        pending: Each repeat of a workload.
        settings: The settings of the cluster.
        max_array_size: See `Engine.max_array_size`.

    Raises:
        ExperimentError: Lists every workload that cannot have a job, by line.
        UsageError: The site's shell lines have a syntax error.
    """
    check_setup(settings)
    repeats = Counter(workload.plan.key for workload in pending)
    plans = {workload.plan.key: workload.plan for workload in pending}
    ordered = sorted(plans, key=lambda key: plans[key].runs[0].line)
    problems = [
        conflict.problem for key in ordered for conflict in shape_conflicts(plans[key], settings)
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
    """Ask the engine about every shape, without submitting anything; return its answers.

    Args:
        shown: The file's name in messages.
        plan: Has the lines of the workloads.
        arrays: The request for each array.
        engine: The cluster.

    Raises:
        ExperimentError: Lists every shape that the engine would refuse, by its first line.
        EngineAwayError: The engine does not answer.
    """
    lines = {workload.key: workload.runs[0].line for workload in plan.workloads}
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
        except SubmitLimitError as error:  # depends on the current queue, not on the shape
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
    """Return the shape of a workload's job, given that `shape_conflicts` finds nothing.

    Args:
        workload: As planned for `Machine.of_cluster`.
        settings: Defaults for cells that the rows leave empty.
        repeats: Number of times the job runs the workload.
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

    For several nodes it begins with their number; the other values are per node.
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
    if (asked.nodes or 1) > 1 and settings.record is RecordMode.DIRECT:
        yield _conflict(
            workload.runs,
            Column.NODES,
            f"runs on {asked.nodes} nodes are put together on the submit host, and "
            f'record = "{RecordMode.DIRECT}" in {settings.source} goes past it',
            f'Write record = "{RecordMode.FOLDER}" there',
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


#: For each column that rows must agree on, its field of `Resources` and how to show a value.
_CELLS: Mapping[Column, tuple[str, Callable[[Any], str]]] = {
    Column.NODES: ("nodes", str),
    Column.GPUS: ("gpus", str),
    Column.PARTITION: ("partition", str),
    Column.EXCLUSIVE: ("exclusive", lambda yes: "yes" if yes else "no"),
    Column.MEMORY: ("memory_bytes", memory_text),
    Column.TIME: ("time_s", duration_text),
}


def _given(workload: WorkloadPlan, name: str) -> dict[Any, RunPlan]:
    """Return the different values of a field of `Resources`, each with the first row that has it.

    Empty cells have none.
    """
    first: dict[Any, RunPlan] = {}
    for run in workload.runs:
        value = getattr(run.resources, name)
        if value is not None and str(value):
            first.setdefault(value, run)
    return first


def _disagreements(workload: WorkloadPlan) -> Iterator[Conflict]:
    """Yield contradicting cells of a workload's rows; empty cells contradict nothing."""
    for column, (name, show) in _CELLS.items():
        first = _given(workload, name)
        if len(first) > 1:
            values = " and ".join(map(show, first))
            yield _conflict(
                list(first.values()),
                column,
                f"the rows of workload {workload.label} share a job and ask for {values}",
                "Write the same into these cells, or fill only one of them",
            )


def _merged(workload: WorkloadPlan) -> Resources:
    """Return the combined resources of a workload's rows."""
    given = {name: list(_given(workload, name)) for name, _ in _CELLS.values()}
    return Resources(**{name: values[0] for name, values in given.items() if values})


# GPUs -----------------------------------------------------------------------------------------


def _places(workload: WorkloadPlan) -> int:
    """Return the number of GPUs that the largest index in Devices requires."""
    return max((place + 1 for run in workload.runs for place in run.devices.gpus), default=0)


def _profiles(workload: WorkloadPlan) -> set[str]:
    return {str(run.collocation.mig) for run in workload.runs if run.collocation.mig is not None}


def _gpu_count(workload: WorkloadPlan, asked: Resources) -> int:
    """Return the number of GPUs, or MIG instances, that the job gets."""
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
    """Yield problems with MIG instances: the site creates them, and a job gets a single type."""
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
    """Return the time limit of all repeats, in whole minutes; None leaves it to the cluster."""
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


def on_one_node(
    arrays: Sequence[JobArray],
    plan: ExperimentPlan,
    settings: ClusterSettings,
    engine: Engine,
    home: Home,
) -> Sequence[JobArray]:
    """Return the arrays, bound to one node for all of their jobs.

    The node is that of the file's finished rows, otherwise the one where the engine would start the
    largest job first. The engine is asked later whether every shape fits there.

    Args:
        arrays: At least one.
        plan: The file's plan.
        settings: The settings of the cluster.
        engine: The cluster.
        home: The data folder with the runs of finished rows.

    Raises:
        UsageError: A workload needs several nodes.
        ClusterError: The engine names no node.
    """
    shapes = [array.shape for array in arrays]
    most = max(shape.nodes for shape in shapes)
    if most > 1:
        raise UsageError(
            f"same-node in {settings.source} runs all on one node, and a workload needs {most}",
            "Remove same-node, or the numbers in Nodes",
        )
    node = _node_before(plan, home)
    if not node:
        array = replace(arrays[0], shape=_largest(shapes))
        folder = settings.submissions(home.path) / "test"
        node = engine.pick(
            array_request(folder, 0, array, settings, name=plan.name, intent="radt: a test")
        )
    return [replace(array, shape=replace(array.shape, node=node)) for array in arrays]


def _largest(shapes: Sequence[Shape]) -> Shape:
    """Return a shape as large as the largest of each resource, if all use one type of GPU."""
    return replace(
        max(shapes, key=lambda shape: shape.gpus),
        cpus=max(shape.cpus or 0 for shape in shapes) or None,
        memory_bytes=max(shape.memory_bytes or 0 for shape in shapes) or None,
        exclusive=any(shape.exclusive for shape in shapes),
    )


def _node_before(plan: ExperimentPlan, home: Home) -> str:
    """Return the node on which rows of the file have finished; "" if none has on a cluster."""
    finished = [run.run_id for run in plan.runs if run.status is RunStatus.FINISHED and run.run_id]
    if not finished or not home.store_path.exists():
        return ""
    from radt.store.reader import StoreReader  # needs SQLAlchemy, see `radt.store.peek`

    with StoreReader(home.store_path) as reader:
        tags = reader.tags_of(finished)
    nodes = (tags[run_id].get(CLUSTER_NODE, "") for run_id in finished if run_id in tags)
    return next(filter(None, nodes), "")


def arrays_of(
    workloads: Iterable[tuple[WorkloadKey, Shape]], *, max_array_size: int, bundle_s: float = 0.0
) -> Sequence[JobArray]:
    """Group workloads, in the file's order, into arrays of one shape each.

    Args:
        workloads: Each with its shape.
        max_array_size: Maximum number of jobs in an array.
        bundle_s: Workloads that together take at most this long share a job, whose time limit is
            the sum of theirs. 0 for one job per workload.
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
