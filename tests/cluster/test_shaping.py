"""From rows to shapes and arrays: what is asked for, what is refused, and on which line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.cluster.engine import ArrayRequest, Shape
from radt.cluster.settings import ClusterSettings, RecordMode
from radt.cluster.shaping import arrays_for, arrays_of, ask_about, shape_text
from radt.cluster.submission import JobArray
from radt.devices.machine import Machine
from radt.errors import ClusterError, EngineAwayError, ExperimentError, Problem, SubmitLimitError
from radt.experiment.plan import ExperimentPlan, WorkloadKey
from radt.experiment.source import ExperimentFile
from radt.listeners.api import Registry
from radt.runner.options import StartOptions, pending_workloads

GIB = 1024**3
SITE = ClusterSettings(partition="gpu", time_s=7200.0, memory_bytes=8 * GIB)
Arrays = Callable[..., list[JobArray]]
Problems = Callable[..., list[Problem]]


@pytest.fixture
def plan(tmp_path: Path) -> Callable[[str], ExperimentPlan]:
    (tmp_path / "train.py").touch()

    def plan_of(content: str) -> ExperimentPlan:
        path = tmp_path / "e.csv"
        path.write_text(content, encoding="utf-8")
        return ExperimentFile.read(path).plan(Machine.of_cluster(), Registry({}))

    return plan_of


@pytest.fixture
def arrays(plan: Callable[[str], ExperimentPlan]) -> Arrays:
    def arrays_of_file(
        content: str, settings: ClusterSettings = SITE, *, size: int = 1001, repeat: int = 1
    ) -> list[JobArray]:
        pending = pending_workloads(plan(content), StartOptions(repeat=repeat))
        return list(arrays_for("e.csv", pending, settings, max_array_size=size))

    return arrays_of_file


@pytest.fixture
def problems(arrays: Arrays) -> Problems:
    def problems_of(content: str, settings: ClusterSettings = SITE) -> list[Problem]:
        with pytest.raises(ExperimentError) as caught:
            arrays(content, settings)
        return list(caught.value.problems)

    return problems_of


def labels(array: JobArray) -> list[str]:
    return ["+".join(key.label for key in job) for job in array.jobs]


# Shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "rows", "shape"),
    [
        ("File", ["train.py"], Shape(gpus=1)),
        ("File,Devices", ["train.py,cpu"], Shape()),
        ("File,Devices", ["train.py,0", "train.py,2"], Shape(gpus=3)),
        ("File,Devices,Gpus", ["train.py,1,a100"], Shape(gpus=2, gpu_type="a100")),
        ("File,Devices,Gpus", ["train.py,1,4*a100"], Shape(gpus=4, gpu_type="a100")),
        ("File,Devices,Gpus", ["train.py,cpu,a100"], Shape()),
        ("File,Devices,Gpus", ["train.py,0,2", "train.py,1,"], Shape(gpus=2)),
        ("File,Devices,Cpus", ["train.py,cpu,3", "train.py,cpu,5"], Shape(cpus=8)),
        ("File,Devices,Cpus", ["train.py,cpu,3", "train.py,cpu,"], Shape(cpus=3)),
        ("File,Devices,Collocation", ["train.py,0,MPS:40", "train.py,0,MPS"], Shape(gpus=1)),
    ],
)
def test_what_rows_need(arrays: Arrays, header: str, rows: list[str], shape: Shape) -> None:
    content = "\n".join([f"Workload,{header}", *(f"1,{row}" for row in rows)])

    (array,) = arrays(content, ClusterSettings())

    assert array == JobArray(shape, ((WorkloadKey("e", "1"),),))


def test_rows_come_before_settings(arrays: Arrays) -> None:
    site = replace(SITE, exclusive=True)
    header = "File,Devices,Partition,Exclusive,Memory,Time\n"

    (usual,) = arrays(f"{header}train.py,cpu,,,,\n", site)
    (own,) = arrays(f"{header}train.py,cpu,cpu,no,1GB,1-00:00:00\n", site)

    assert usual.shape == Shape(
        partition="gpu", exclusive=True, memory_bytes=8 * GIB, time_s=7200.0
    )
    assert own.shape == Shape(partition="cpu", memory_bytes=GIB, time_s=86400.0)


@pytest.mark.parametrize(
    ("cells", "repeat", "time_s"),
    [
        (["1h,,", "30min,,"], 1, 3600.0 + 600.0),  # the longest Timeout, and the set-up
        (["1h,,", "30min,,"], 3, 3 * 4200.0),
        (["1h,,", ",,"], 1, 7200.0),  # one has no limit, so the site's
        (["1h,,", ",,service"], 1, 4200.0),  # which ends with the others
        (["1h,90min,", ",,"], 2, 2 * 5400.0),
        (["90.5s,,"], 1, 720.0),  # whole minutes
    ],
)
def test_time(arrays: Arrays, cells: list[str], repeat: int, time_s: float) -> None:
    content = "\n".join(
        ["Workload,File,Timeout,Time,Role", *(f"1,train.py,{cell}" for cell in cells)]
    )

    (array,) = arrays(content, repeat=repeat)

    assert array.shape.time_s == time_s


def test_only_repeats_that_are_left_count(arrays: Arrays) -> None:
    content = "File,Timeout,Status\ntrain.py,50min,FINISHED 2/3\ntrain.py,50min,FINISHED 3/3\n"

    (array,) = arrays(content, repeat=3)

    assert (array.shape.time_s, labels(array)) == (3600.0, ["1"])


# MIG ------------------------------------------------------------------------------------------

CUT = replace(SITE, gpus={"3g.20gb": "a100_3g.20gb", "1g.5gb": "a100_1g.5gb"})


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        (["0,3g.20gb"], 1),
        (["0,3g.20gb", "0,3g.20gb"], 2),
        (["0,3g.20gb#x", "0,3g.20gb#x", "0,3g.20gb"], 2),
        (["0,3g.20gb#x", "1,3g.20gb#x"], 2),
        (["0,3g.20gb", "cpu,-"], 1),
    ],
)
def test_instances_are_asked_for_as_types(arrays: Arrays, rows: list[str], count: int) -> None:
    content = "\n".join(
        ["Workload,File,Devices,Collocation", *(f"1,train.py,{row}" for row in rows)]
    )

    (array,) = arrays(content, CUT)

    assert (array.shape.gpus, array.shape.gpu_type) == (count, "a100_3g.20gb")


@pytest.mark.parametrize(
    ("rows", "line", "column", "cause", "remedy"),
    [
        (
            ["0,2g.10gb,"],
            *(2, "Collocation", "2g.10gb is not in [cluster.gpus] of radt.toml"),
            '"2g.10gb" = "gpu:TYPE"',
        ),
        (["0,3g.20gb+MPS,"], 2, "Collocation", "MPS needs whole GPUs", "Write MPS or 3g.20gb"),
        (["0,3g.20gb,", "0,1g.5gb,"], 2, "Collocation", "not 1g.5gb and 3g.20gb", "one profile"),
        (["0,3g.20gb,", "1,-,"], 2, "Collocation", "not 3g.20gb and whole GPUs", "one profile"),
        (["0,3g.20gb,a100"], 2, "Gpus", "Gpus asks for whole GPUs (a100)", "Leave Gpus empty"),
        (["cpu,3g.20gb,"], 2, "Devices", "3g.20gb on the CPU", "Name one GPU"),
        (["1,3g.20gb,"], 2, "Devices", "GPU 1 of a job that gets 1 MIG instance", "the place"),
        (["0+1,3g.20gb,"], 2, "Devices", "3g.20gb on 2 GPUs", "Name one GPU"),
    ],
)
def test_instances_that_no_job_gets(
    problems: Problems, rows: list[str], line: int, column: str, cause: str, remedy: str
) -> None:
    content = "\n".join(
        ["Workload,File,Devices,Collocation,Gpus", *(f"1,train.py,{row}" for row in rows)]
    )

    (problem,) = problems(content, CUT)

    assert (problem.line, problem.column) == (line, column)
    assert cause in problem.cause and remedy in problem.remedy


# Problems -------------------------------------------------------------------------------------


def test_rows_of_a_workload_must_agree(problems: Problems) -> None:
    found = problems(
        "Workload,File,Nodes,Gpus,Partition,Exclusive,Memory,Time\n"
        "1,train.py,2,a100,x,yes,1GB,1h\n"
        "1,train.py,,,,,,\n"
        "1,train.py,1,h100,y,no,2GB,2h\n"
    )

    assert [(p.line, p.column) for p in found] == [
        (2, column) for column in ("Nodes", "Gpus", "Partition", "Exclusive", "Memory", "Time")
    ]
    assert found[0].cause == "the rows of workload 1 share a job and ask for 2 and 1 (with line 4)"
    assert "1 GB and 2 GB" in found[4].cause and "yes and no" in found[3].cause
    assert found[5].remedy == "Write the same into these cells, or fill only one of them"


def test_runs_on_several_nodes_come_through_the_folder(arrays: Arrays, problems: Problems) -> None:
    content = "File,Nodes\ntrain.py,2\n"

    (array,) = arrays(content)
    (problem,) = problems(content, replace(SITE, record=RecordMode.DIRECT))

    assert (array.shape.nodes, array.shape.gpus) == (2, 1)
    assert (problem.line, problem.column) == (2, "Nodes")
    assert "runs on 2 nodes are put together on the submit host" in problem.cause
    assert 'record = "folder"' in problem.remedy


def test_different_workloads_need_not_agree(arrays: Arrays) -> None:
    content = "File,Gpus\ntrain.py,a100\ntrain.py,h100\ntrain.py,a100\n"

    assert [(array.shape.gpu_type, labels(array)) for array in arrays(content)] == [
        ("a100", ["1", "3"]),
        ("h100", ["2"]),
    ]


def test_all_problems_at_once_and_each_workload_by_its_line(problems: Problems) -> None:
    found = problems(
        "Workload,File,Devices,Gpus,Nodes\n"
        "a,train.py,0,1,2\nb,train.py,1,1,\nc,train.py,0,,\nd,train.py,0,0,\n"
    )

    assert [(p.line, p.column, p.cause) for p in found] == [
        (3, "Devices", "GPU 1 of a job that gets 1 GPU, counted from 0"),
        (5, "Devices", "GPU 0 of a job that gets 0 GPUs, counted from 0"),
    ]
    assert all(p.remedy for p in found)


# Arrays ---------------------------------------------------------------------------------------


def test_arrays_are_no_longer_than_the_engine_takes(arrays: Arrays) -> None:
    content = "File\n" + "train.py\n" * 7

    assert [labels(array) for array in arrays(content, size=3)] == [
        ["1", "2", "3"],
        ["4", "5", "6"],
        ["7"],
    ]


def test_short_workloads_share_a_job(arrays: Arrays) -> None:
    content = "File,Timeout\n" + "train.py,10min\n" * 5 + "train.py,2h\n" * 2

    short, long = arrays(content, replace(SITE, bundle_s=3600.0))

    assert labels(short) == ["1+2+3", "4+5"]
    assert short.shape.time_s == 3600.0  # of the longest job
    assert labels(long) == ["6", "7"] and long.shape.time_s == 7800.0


SHAPES = st.builds(
    Shape, gpus=st.integers(0, 1), time_s=st.sampled_from([None, 60.0, 600.0, 5000.0])
)


@given(st.lists(SHAPES, max_size=40), st.integers(1, 7), st.sampled_from([0.0, 600.0, 3600.0]))
def test_every_workload_has_one_job(shapes: list[Shape], size: int, bundle_s: float) -> None:
    keys = [WorkloadKey("e", str(number)) for number in range(len(shapes))]
    asked = dict(zip(keys, shapes, strict=True))

    found = arrays_of(asked.items(), max_array_size=size, bundle_s=bundle_s)

    placed = [key for array in found for job in array.jobs for key in job]
    assert sorted(placed) == sorted(keys)
    for array in found:
        flat = [int(key.label) for job in array.jobs for key in job]
        assert flat == sorted(flat)  # in the file's order
        assert 1 <= len(array.jobs) <= size and all(array.jobs)
        for job in array.jobs:
            times = [asked[key].time_s for key in job]
            assert {replace(asked[key], time_s=None) for key in job} == {
                replace(array.shape, time_s=None)
            }
            if len(job) > 1:
                assert sum(filter(None, times)) <= bundle_s
            if times[0] is not None:
                assert array.shape.time_s is not None
                assert sum(filter(None, times)) <= array.shape.time_s
            else:
                assert array.shape.time_s is None


# What the engine says of them -----------------------------------------------------------------


class Picky:
    """An engine that has no more than one GPU a node."""

    name = "picky"
    max_array_size = 10

    def __init__(self, error: ClusterError | None = None) -> None:
        self.error = error
        self.asked = 0

    def check(self, request: ArrayRequest) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if request.shape.gpus > 1:
            raise ClusterError("no node has so many GPUs", "Ask for fewer")
        return f"starts at once with {request.shape.gpus}"


def ask(plan: ExperimentPlan, engine: Picky) -> dict[JobArray, str]:
    pending = pending_workloads(plan, StartOptions())
    found = arrays_for("e.csv", pending, SITE, max_array_size=10)
    requests = {
        array: ArrayRequest("e", "", array.shape, range(len(array.jobs)), "", "") for array in found
    }
    return dict(ask_about("e.csv", plan, requests, engine))  # type: ignore[arg-type]


def test_the_engine_is_asked_about_every_shape(plan: Callable[[str], ExperimentPlan]) -> None:
    rows = "train.py,0\n" * 12 + "train.py,cpu\n"  # two arrays of one shape, and one of another
    answers = ask(plan(f"File,Devices\n{rows}"), engine := Picky())

    assert list(answers.values()) == ["starts at once with 1"] * 2 + ["starts at once with 0"]
    assert engine.asked == 2


def test_a_shape_that_fits_nowhere_has_a_line(plan: Callable[[str], ExperimentPlan]) -> None:
    content = "Workload,File,Devices,Gpus\na,train.py,0,\nb,train.py,1,\nc,train.py,1,\n"
    content += "d,train.py,3,h100\n"

    with pytest.raises(ExperimentError) as caught:
        ask(plan(content), Picky())

    assert [(p.line, p.cause, p.remedy) for p in caught.value.problems] == [
        (
            3,
            "workload b and 1 more, 2 GPUs, 8 GB, 2 h, partition gpu: no node has so many GPUs",
            "Ask for fewer",
        ),
        (
            5,
            "workload d, 4× h100, 8 GB, 2 h, partition gpu: no node has so many GPUs",
            "Ask for fewer",
        ),
    ]


def test_what_is_no_matter_of_the_shape(plan: Callable[[str], ExperimentPlan]) -> None:
    one = plan("File\ntrain.py\n")

    with pytest.raises(EngineAwayError, match="no answer"):
        ask(one, Picky(EngineAwayError("no answer")))
    assert list(ask(one, Picky(SubmitLimitError("enough for now"))).values()) == ["enough for now"]


def test_shapes_for_people() -> None:
    assert shape_text(Shape()) == "no GPU"
    assert shape_text(Shape(gpus=1, cpus=1)) == "1 GPU, 1 CPU"
    assert shape_text(Shape(nodes=2, gpus=1, cpus=1)) == "2 nodes, 1 GPU, 1 CPU"
    assert (
        shape_text(Shape(1, 2, "a100", 8, 64 * GIB, 14400.0, "gpu", exclusive=True))
        == "2× a100, 8 CPUs, 64 GB, 4 h, partition gpu, exclusive"
    )
