"""What rows of a workload ask of the GPUs together is planned before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from radt.collocation.topology import GpuInventory, Inventory
from radt.devices.machine import Machine
from radt.errors import DeviceError, ExperimentError, Problem
from radt.experiment.check import check_table
from radt.experiment.plan import ExperimentPlan
from radt.experiment.row import RowTarget
from radt.experiment.table import parse_table
from radt.listeners.api import Registry
from tests.support.fake_mps import FakeMps

Planned = Callable[..., ExperimentPlan]


class Card:
    """An inventory that counts how often it is asked."""

    def __init__(self, error: DeviceError | None = None) -> None:
        self.asked = 0
        self._error = error

    def __call__(self) -> Inventory:
        self.asked += 1
        if self._error is not None:
            raise self._error
        return Inventory((GpuInventory(0, "H200", "GPU-aaaa-1"), GpuInventory(1, "H200", "GPU-b")))


@pytest.fixture
def planned(
    folder: Path,
    two_gpus: Machine,
    registry: Registry,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Planned:
    tools = FakeMps.install(tmp_path_factory.mktemp("tools"))
    for name, value in tools.variables().items():
        monkeypatch.setenv(name, value)

    def plan_of(content: str, card: Card) -> ExperimentPlan:
        place = RowTarget(two_gpus, registry, (folder,), "e", inventory=card)
        return check_table(folder / "e.csv", "e.csv", parse_table(content), place)

    return plan_of


def problems_of(planned: Planned, content: str, card: Card) -> Sequence[Problem]:
    with pytest.raises(ExperimentError) as caught:
        planned(content, card)
    return caught.value.problems


def test_naive_rows_ask_nothing(planned: Planned) -> None:
    card = Card()

    planned("Devices,Collocation,File\n0,-,train.py\n0,,train.py\n", card)

    assert card.asked == 0


def test_mps_on_whole_gpus_fits(planned: Planned) -> None:
    card = Card()

    plan = planned(
        "Workload,Devices,Collocation,File\n1,0,MPS,train.py\n1,0,MPS:40,train.py\n", card
    )

    assert [str(run.collocation) for run in plan.runs] == ["MPS", "MPS:40"]
    assert card.asked == 0, "only MIG needs the driver"


def test_a_runtime_folder_that_cannot_be_used_is_a_problem_of_the_file(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPS daemons have their sockets there."""
    (tmp_path / "open").mkdir(mode=0o755)
    monkeypatch.setenv("RADT_RUNTIME_DIR", str(tmp_path / "open"))
    content = "Workload,Devices,Collocation,File\n1,0,MPS,train.py\n1,0,MPS,train.py\n"
    (problem,) = problems_of(planned, content, Card())
    assert "is not private to you" in problem.cause


def test_a_refusal_stands_at_the_rows_that_it_is_about(planned: Planned) -> None:
    (problem,) = problems_of(
        planned,
        "Workload,Devices,Collocation,File\n"
        "1,0,-,train.py\n1,0+1,MPS,train.py\n1,1,MPS,train.py\n2,0,MPS,train.py\n",
        Card(),
    )

    assert (problem.line, problem.column) == (3, "Collocation")
    assert "share GPU 1 under MPS" in problem.cause and problem.cause.endswith("(with line 4)")
    assert problem.remedy


def test_a_gpu_that_cannot_be_divided(planned: Planned) -> None:
    (problem,) = problems_of(
        planned, "Devices,Collocation,File\n0,-,train.py\n0,3g.20gb,train.py\n", Card()
    )

    assert (problem.line, problem.column) == (3, "Collocation")
    assert "GPU 0 (H200) does not support MIG" in problem.cause


def test_the_cpu_cannot_be_shared_so(planned: Planned) -> None:
    (problem,) = problems_of(planned, "Devices,Collocation,File\ncpu,MPS,train.py\n", Card())

    assert (problem.line, problem.column) == (2, "Collocation")
    assert "needs a GPU" in problem.cause


def test_a_driver_that_does_not_answer(planned: Planned) -> None:
    card = Card(DeviceError("NVIDIA's driver does not answer", "Run nvidia-smi"))

    (problem,) = problems_of(planned, "Devices,Collocation,File\n0,3g.20gb,train.py\n", card)

    assert (problem.cause, problem.remedy) == ("NVIDIA's driver does not answer", "Run nvidia-smi")


def test_workloads_that_are_not_understood_are_not_planned(planned: Planned) -> None:
    card = Card()

    problems = problems_of(
        planned,
        "Workload,Devices,Collocation,File\n1,0,MPS,train.py\n1,0,MPS,none.py\n2,x,MPS,train.py\n",
        card,
    )

    assert [(problem.line, problem.column) for problem in problems] == [(3, "File"), (4, "Devices")]
    assert card.asked == 0


def test_a_service_takes_no_part_in_sharing_a_gpu_that_it_does_not_use(planned: Planned) -> None:
    plan = planned(
        "Workload,Role,Devices,Collocation,File\n"
        "1,,0,MPS,train.py\n1,,0,MPS,train.py\n1,Service,cpu,,train.py\n",
        Card(),
    )

    (workload,) = plan.workloads
    assert [run.is_service for run in workload.runs] == [False, False, True]
    assert [run.letter for run in workload.trained] == ["a", "b"]


def test_a_workload_of_services_only_is_a_problem(planned: Planned) -> None:
    text = "Workload,Role,File\n1,service,train.py\n1,service,train.py\n2,,train.py\n"

    (problem,) = problems_of(planned, text, Card())

    assert (problem.line, problem.column) == (2, "Role")
    assert problem.cause == "workload 1 has services only (with line 3)"
    assert problem.remedy == (
        "Add a row that they serve (same Workload, no Role), or empty the cell"
    )


def test_an_unknown_role_says_which_there_are(planned: Planned) -> None:
    (problem,) = problems_of(planned, "Role,File\nserver,train.py\n-,train.py\n", Card())

    assert (problem.line, problem.column) == (2, "Role")
    assert problem.cause == "unknown role 'server'"
    assert problem.remedy == "Write service, or leave it empty for a training run"
