"""Which CPUs the runs of a workload get."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.devices.cpus import CpuRequest, CpuTopology, PhysicalCore, assign_cpus
from radt.devices.machine import Machine
from radt.errors import Problem, UsageError
from radt.experiment.plan import ExperimentPlan
from radt.units import ranges_text

Plan = Callable[..., ExperimentPlan]
Problems = Callable[..., list[Problem]]


def server(packages: int, cores: int) -> CpuTopology:
    """As Linux numbers servers: first one thread of each core, then their siblings."""
    total = packages * cores
    return CpuTopology(
        {
            cpu: PhysicalCore((cpu % total) // cores, (cpu % total) % cores)
            for cpu in range(2 * total)
        }
    )


def assigned(cells: Sequence[str], topology: CpuTopology, cpus: int) -> list[str]:
    available = frozenset(range(cpus))
    requests = [CpuRequest.parse(cell, available) for cell in cells]
    return [
        "all" if got is None else ranges_text(sorted(got))
        for got in assign_cpus(requests, available, topology)
    ]


def test_siblings_stay_together() -> None:
    assert assigned(["4", "4", "8"], server(1, 8), 16) == ["4-5+12-13", "6-7+14-15", "0-3+8-11"]


def test_the_order_of_rows_does_not_matter_to_their_sizes() -> None:
    one, two = assigned(["2", "6"], server(1, 4), 8), assigned(["6", "2"], server(1, 4), 8)

    assert one == list(reversed(two)) == ["3+7", "0-2+4-6"]


def test_odd_counts_get_cores_of_their_own_while_there_are_some() -> None:
    assert assigned(["1", "1", "1"], server(1, 4), 8) == ["0", "1", "2"]
    assert assigned(["3", "3"], server(1, 4), 8) == ["0+2+4", "1+3+5"]


def test_odd_counts_share_a_core_before_an_even_one_loses_its_own() -> None:
    assert assigned(["3", "3", "2"], server(1, 4), 8) == ["0+3-4", "1+5+7", "2+6"]


def test_one_package_holds_a_run_where_it_can() -> None:
    # 2 packages of 4 cores: CPUs 0-3 and 8-11, 4-7 and 12-15.
    assert assigned(["4", "6", "4"], server(2, 4), 16) == [
        "4-5+12-13",
        "0-2+8-10",
        "6-7+14-15",
    ]
    assert assigned(["12", "4"], server(2, 4), 16) == ["0-5+8-13", "6-7+14-15"]


def test_lists_are_taken_as_they_are_and_counts_avoid_them() -> None:
    got = assigned(["0-1+8", "4", "#1", "2", ""], server(1, 8), 16)

    # 8 is the sibling of 0 and 9 of 1: the cores that are whole come first.
    assert got == ["0-1+8", "2-3+10-11", "1", "4+12", "all"]


def test_siblings_of_listed_cpus_come_last() -> None:
    assert assigned(["#8", "1", "2"], server(1, 8), 16) == ["8", "2", "1+9"]
    assert assigned(["#4", "1", "6"], server(1, 4), 8) == ["4", "0", "1-3+5-7"]


def test_what_is_left_of_cores_is_used_in_the_end() -> None:
    assert assigned(["7", "#0"], server(1, 4), 8) == ["1-7", "0"]


def test_siblings_that_may_not_be_used_are_no_part_of_a_core() -> None:
    available = frozenset({0, 1, 2, 4, 5})  # 3, 6, 7 belong to another container
    got = assign_cpus([CpuRequest(count=2), CpuRequest(count=3)], available, server(1, 4))

    assert sorted(map(sorted, filter(None, got))) == [[0, 2, 4], [1, 5]]


@st.composite
def wishes(draw: st.DrawFn) -> tuple[list[CpuRequest], frozenset[int], CpuTopology]:
    packages, cores = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    cpus = range(2 * packages * cores)
    available = frozenset(draw(st.sets(st.sampled_from(cpus), min_size=1)))
    listed = draw(
        st.lists(st.sets(st.sampled_from(sorted(available)), min_size=1, max_size=4), max_size=2)
    )
    left = len(available.difference(*listed))
    counts: list[int] = []
    for _ in range(draw(st.integers(0, 5))):
        if left > sum(counts):
            counts.append(draw(st.integers(1, left - sum(counts))))
    requests = [
        *(CpuRequest(cpus=tuple(sorted(one))) for one in listed),
        *(CpuRequest(count=count) for count in counts),
        *(CpuRequest() for _ in range(draw(st.integers(0, 2)))),
    ]
    return draw(st.permutations(requests)), available, server(packages, cores)


@given(wishes())
def test_everybody_gets_what_they_ask_for(
    wish: tuple[list[CpuRequest], frozenset[int], CpuTopology],
) -> None:
    requests, available, topology = wish

    got = assign_cpus(requests, available, topology)

    counted: list[int] = []
    for request, cpus in zip(requests, got, strict=True):
        if request.count is not None:
            assert cpus is not None and len(cpus) == request.count and cpus <= available
            counted += cpus
        elif request.cpus:
            assert cpus == frozenset(request.cpus)
        else:
            assert cpus is None
    assert len(set(counted)) == len(counted)
    assert not {cpu for one in requests for cpu in one.cpus} & set(counted)


@given(st.integers(1, 3), st.integers(1, 6), st.data())
def test_even_counts_never_share_a_core(packages: int, cores: int, data: st.DataObject) -> None:
    topology = server(packages, cores)
    total = 2 * packages * cores
    counts: list[int] = []
    while sum(counts) < total and data.draw(st.booleans()):
        counts.append(2 * data.draw(st.integers(1, (total - sum(counts)) // 2)))

    got = assign_cpus([CpuRequest(count=n) for n in counts], frozenset(range(total)), topology)

    cores_of = [{topology.core(cpu) for cpu in cpus} for cpus in got if cpus is not None]
    assert [2 * len(own) for own in cores_of] == counts


def test_too_many() -> None:
    with pytest.raises(UsageError, match=r"add up to 5 CPUs; 4 of 4 are free\. Ask"):
        assigned(["2", "3"], server(1, 2), 4)


def test_the_first_row_that_is_too_many_has_the_problem(
    problems: Problems, cpu_only: Machine
) -> None:
    (problem,) = problems("Workload,Cpus,File\n1,1,train.py\n1,#0,train.py\n1,1,train.py\n")

    assert (problem.line, problem.column) == (4, "Cpus")
    assert problem.cause.endswith("add up to 2 CPUs; 1 of 2 are free")


def test_workloads_share_cpus_with_nobody(plan: Plan) -> None:
    first, second = plan("Cpus,File\n2,train.py\n0-1,train.py\n").runs

    assert (first.cpus, second.cpus) == (CpuRequest(count=2), CpuRequest(cpus=(0, 1)))


def test_notations(plan: Plan) -> None:
    planned = plan(
        'File,Cpus\ntrain.py,#5\ntrain.py,"0-3,6"\ntrain.py, 0 - 1 + 3 \ntrain.py,-\n',
        Machine(8),
    )

    assert [str(run.cpus) for run in planned.runs][:3] == ["#5", "0-3+6", "0-1+3"]
    assert list(planned.runs)[3].cpus == CpuRequest()


def test_linux_says_which_cpus_are_siblings(tmp_path: Path) -> None:
    for cpu, (package, core) in {0: (0, 0), 1: (0, 4), 2: (0, 0), 3: (1, 0)}.items():
        place = tmp_path / f"cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "physical_package_id").write_text(f"{package}\n")
        (place / "core_id").write_text(f"{core}\n")

    topology = CpuTopology.read([0, 1, 2, 3, 4], tmp_path)

    assert topology.core(0) == topology.core(2) != topology.core(3)
    assert len({topology.core(cpu) for cpu in range(5)}) == 4  # 4: nothing is said about it


def test_this_machine() -> None:
    machine = Machine.detect()
    assert machine.cpus == os.sched_getaffinity(0) and machine.cpu_cores == len(machine.cpus)

    (got,) = assign_cpus(
        [CpuRequest(count=len(machine.cpus))], machine.cpus, CpuTopology.read(machine.cpus)
    )

    assert got == machine.cpus
