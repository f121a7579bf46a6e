"""What rows ask of a cluster: cells, and plans for a node that nobody has yet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Devices, Machine
from radt.errors import Problem, UsageError
from radt.experiment.plan import ExperimentPlan
from radt.experiment.resources import GpuRequest, Resources, parse_time

Plan = Callable[..., ExperimentPlan]
Problems = Callable[..., list[Problem]]


@pytest.mark.parametrize(
    ("cell", "count", "kind"),
    [
        ("", None, ""),
        ("2", 2, ""),
        ("0", 0, ""),
        ("a100", None, "a100"),
        ("2×a100", 2, "a100"),
        (" 2 * nvidia_a100-sxm4-80gb ", 2, "nvidia_a100-sxm4-80gb"),
        ("2xh100", 2, "h100"),
    ],
)
def test_gpus(cell: str, count: int | None, kind: str) -> None:
    assert GpuRequest.parse(cell) == GpuRequest(count, kind)


@pytest.mark.parametrize("cell", ["2a100", "two a100", "a100×2", "2×", "-1", "gpu/a100", "--g=x"])
def test_gpus_that_are_none(cell: str) -> None:
    with pytest.raises(UsageError, match="is not a number or type of GPUs"):
        GpuRequest.parse(cell)


@pytest.mark.parametrize(
    ("cell", "seconds"),
    [("", None), ("90", 90), ("4h", 14400), ("1:30:00", 5400), ("2-00:00:00", 172800)],
)
def test_times(cell: str, seconds: float | None) -> None:
    assert parse_time(cell) == seconds


def test_all_columns_together(plan: Plan) -> None:
    first, second = plan(
        "File,Nodes,GPUs,Partition,Exclusive,Memory,Time\n"
        "train.py,1,2*a100,gpu,yes,64GB,4h\n"
        "train.py,-,-,-,-,-,-\n"
    ).runs

    assert first.resources == Resources(
        1, GpuRequest(2, "a100"), "gpu", True, 64 * 1024**3, 4 * 3600.0
    )
    assert second.resources == Resources()
    assert first.columns == {}  # they say what a job gets, and nothing of the run


@pytest.mark.parametrize(
    ("column", "cell", "cause"),
    [
        ("Nodes", "0", "expected a number of nodes, got '0'"),
        ("Gpus", "two", None),  # may be a type
        ("Gpus", "2 a100", "'2 a100' is not a number or type of GPUs"),
        ("Partition", "--wrap=x", "'--wrap=x' is not a valid partition"),
        ("Exclusive", "maybe", "expected yes or no, got 'maybe'"),
        ("Memory", "64", "'64' is not an amount of memory"),
        ("Memory", "0GB", "'0GB' is not an amount of memory"),
        ("Time", "1:30", "'1:30' may be minutes or hours"),
    ],
)
def test_cells_are_checked_everywhere(
    problems: Problems, plan: Plan, column: str, cell: str, cause: str | None
) -> None:
    content = f"File,{column}\ntrain.py,{cell}\n"
    if cause is None:
        plan(content)
        return

    (problem,) = problems(content)

    assert (problem.line, problem.column, problem.cause) == (2, column, cause)
    assert problem.remedy


def test_a_gpu_column_is_no_parameter_by_mistake(problems: Problems) -> None:
    (problem,) = problems("File,GPU\ntrain.py,a100\n")

    assert problem.remedy == "Did you mean 'Gpus'? For a column of your own, quote it: \"GPU\""


# A node that a job is yet to get ---------------------------------------------------------------


def test_devices_are_places_in_the_job(plan: Plan) -> None:
    runs = plan("File,Devices\ntrain.py,\ntrain.py,1+3\ntrain.py,cpu\n", Machine.of_cluster()).runs

    assert [str(run.devices) for run in runs] == ["0", "1+3", "cpu"]


def test_on_the_node_places_are_its_gpus() -> None:
    """Slurm gave the job GPUs 2 and 5, in an order of its own."""
    gpus = tuple(Gpu(index, "A100", f"GPU-{index}") for index in (5, 2))
    machine = Machine(8, gpus, by_place=True)

    assert Devices.parse("", machine).gpus == (5,)
    assert Devices.parse("1", machine).gpus == (2,)
    assert Devices.parse("1+0", machine).cuda_visible_devices(machine) == "GPU-2,GPU-5"
    with pytest.raises(UsageError, match="GPU 2: the job has 2 GPUs, counted from 0"):
        Devices.parse("2", machine)


def test_nothing_of_this_machine_is_looked_at(plan: Plan, problems: Problems) -> None:
    """It has two CPUs, no GPU, and not every listener and profiler."""
    content = (
        "File,Workload,Devices,Cpus,Listeners\n"
        "train.py,1,3,48,dcgm+ncu\ntrain.py,1,0,32,\ntrain.py,2,cpu,,default+nsys\n"
    )

    first, second, third = (planned := plan(content, Machine.of_cluster())).runs

    assert planned.warnings == ()
    assert (first.cpus.count, second.cpus.count) == (48, 32)
    assert [choice.name for choice in first.listeners] == ["dcgm", "ncu"]
    assert [choice.name for choice in second.listeners] == ["default"]
    assert [choice.name for choice in third.listeners] == ["default", "nsys"]
    assert len(problems(content)) > 3  # here


def test_what_no_node_can_do_is_said(problems: Problems) -> None:
    (cpus,) = problems("File,Cpus\ntrain.py,0-3\n", Machine.of_cluster())
    (devices,) = problems("File,Devices\ntrain.py,64\n", Machine.of_cluster())
    (mps,) = problems(
        "File,Workload,Devices,Collocation\ntrain.py,1,0,MPS\ntrain.py,1,0+1,MPS\n",
        Machine.of_cluster(),
    )

    assert cpus.cause == "'0-3' names CPUs, which differ from node to node"
    assert devices.cause == "GPU 64: a node has at most 64 GPUs, counted from 0"
    assert mps.cause.startswith("rows share GPU 0 under MPS but not all their GPUs")


def test_cpu_for_all_rows_asks_for_no_gpus(plan: Plan) -> None:
    """Such as `radt FILE --devices cpu --on slurm`."""
    from radt.experiment.source import ExperimentFile

    path = plan("File,Devices,Gpus\ntrain.py,1,2×a100\n", Machine.of_cluster()).path
    from radt.listeners import registry

    (run,) = ExperimentFile.read(path).plan(Machine.of_cluster(), registry.load(), "cpu").runs

    assert run.devices.is_cpu and run.resources == Resources()
