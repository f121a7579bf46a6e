"""Groups of the workload ``auto`` on a machine with GPUs, from planted measurements."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Machine
from radt.errors import ExperimentError
from radt.experiment.source import open_source
from radt.home import Home
from radt.listeners import registry
from radt.model import RunStatus
from radt.runner.auto import AutoGroups, groups_of_measured
from radt.runner.options import PendingWorkload, StartOptions, Work, pending_workloads
from radt.runner.outcome import RunEnd
from radt.store.reader import StoreReader
from radt.tags import CLUSTER_HARDWARE, START
from tests.advice.planting import A100, GB, Lab, Run
from tests.support.fake_mps import FakeMps

HERE = platform.node()
TWO_GPUS = Machine(
    16, tuple(Gpu(number, A100, f"GPU-{number}") for number in range(2)), cpus=frozenset(range(16))
)
SMALL = Run("small", host=HERE, sm=0.3, kernel=0.4, memory=5 * GB)
LARGE = Run("large", host=HERE, sm=0.3, kernel=0.4, memory=30 * GB)


@contextmanager
def groups_of(
    folder: Path, rows: Sequence[str], machine: Machine = TWO_GPUS
) -> Iterator[tuple[AutoGroups, list[PendingWorkload]]]:
    """The groups of an experiment with these rows of Devices, Collocation and Params."""
    (folder / "train.py").touch()
    path = folder / "next.csv"
    lines = ["Workload,Devices,Collocation,Cpus,Timeout,File,Params"]
    lines += [f"auto,{row.replace('|', ',train.py,')}" for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    options = StartOptions()
    plan = open_source(path).plan(machine, registry.load())
    work = Work(plan, options, pending_workloads(plan, options))
    with StoreReader(Home(folder / "data").store_path) as reader:
        yield AutoGroups(work, "next", machine, reader), list(work.pending)


def placed(group: PendingWorkload) -> list[tuple[str, str, str]]:
    """Params, devices and collocation of the rows of a group."""
    return [
        (run.params_text.split()[1], str(run.devices), str(run.collocation))
        for run in group.plan.runs
    ]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "data")
    for run in (SMALL, LARGE):
        lab.alone(replace(run, script=str(tmp_path / "train.py")))
    return lab


def test_all_gpus_are_filled_and_memory_fits(lab: Lab, tmp_path: Path) -> None:
    rows = [f",,,|--model {name}" for name in ("large", "small", "large", "small")]
    with groups_of(tmp_path, rows) as (groups, waiting):
        group = groups.form(waiting)
    by_device: dict[str, list[str]] = {}
    for name, device, how in placed(group):
        by_device.setdefault(device, []).append(name)
        assert how == "-", "no daemon of MPS is installed here"
    assert {device: sorted(names) for device, names in by_device.items()} == {
        "0": ["large", "small"],
        "1": ["large", "small"],
    }
    assert group.grouped_by.endswith("one after the other")


def test_rows_share_under_mps_where_it_is_installed(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeMps.install(tmp_path / "tools")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"), prepend=":")
    rows = ["1,,,|--model small", "1,,,|--model small", "1,,,|--model small"]
    with groups_of(tmp_path, rows) as (groups, waiting):
        group = groups.form(waiting)
    assert placed(group) == [("small", "1", "MPS")] * 3


def test_rows_share_naively_once_mps_could_not_be_set_up(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeMps.install(tmp_path / "tools")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"), prepend=":")
    with groups_of(tmp_path, ["1,,,|--model small"] * 2) as (groups, waiting):
        group = groups.form(waiting)
        assert groups.failed_together(group, group.progress(RunStatus.FINISHED)) == []
        failed = group.progress(RunStatus.FAILED, "the daemon did not start")
        assert groups.failed_together(group, failed) == group.plan.runs
        again = groups.form(waiting)
        assert placed(again) == [("small", "1", "-")] * 2
        assert groups.failed_together(again, failed) == [], "naive rows failed by themselves"


def test_a_kind_that_was_measured_on_another_machine_runs_alone_first(
    lab: Lab, tmp_path: Path
) -> None:
    lab.alone(Run("elsewhere", host="gpu-07", script=str(tmp_path / "train.py")))
    with groups_of(tmp_path, [",,,|--model elsewhere", ",,,|--model small"]) as (groups, waiting):
        group = groups.form(waiting)
    assert placed(group) == [("elsewhere", "0", "-")]
    assert group.grouped_by == "alone, to be measured"


def test_a_devices_placeholder_needs_a_cell(lab: Lab, tmp_path: Path) -> None:
    with (
        pytest.raises(ExperimentError) as refused,
        groups_of(tmp_path, [",,,|--model small --out {Devices}"]),
    ):
        pass
    (problem,) = refused.value.problems
    assert problem.cause == "{Devices} is empty in this row"


def test_jobs_of_a_cluster_get_groups_of_one_kind_of_hardware(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "data")
    lab.tags[CLUSTER_HARDWARE] = "4× A100"
    script = str(tmp_path / "train.py")
    lab.alone(Run("small", host="node1", sm=0.3, kernel=0.4, script=script))
    (tmp_path / "train.py").touch()
    path = tmp_path / "next.csv"
    rows = ["--model small --seed 1", "--model small --seed 2", "--model new"]
    path.write_text("Workload,File,Params\n" + "".join(f"auto,train.py,{row}\n" for row in rows))
    options = StartOptions(home=Home(tmp_path / "data"))
    cluster = Machine.of_cluster()
    labels, reasons = groups_of_measured(Work.of(path, options, cluster))
    assert labels == {2: "auto-1", 3: "auto-1"}
    assert reasons.keys() == {"auto-1"}
    work = Work.of(path, options, cluster, labels)
    assert [workload.label for workload in work.plan.workloads] == ["auto-1", "auto row 3"]
    assert [run.letter for run in work.plan.workloads[0].runs] == ["a", "b"]


def test_groups_of_several_experiments_in_a_file_have_different_labels(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "data")
    lab.tags[CLUSTER_HARDWARE] = "4× A100"
    script = str(tmp_path / "train.py")
    lab.alone(Run("small", host="node1", sm=0.3, kernel=0.4, script=script))
    (tmp_path / "train.py").touch()
    path = tmp_path / "next.csv"
    rows = [f"{name},auto,train.py,--model small\n" for name in ("one", "one", "two", "two")]
    path.write_text("".join(["Experiment,Workload,File,Params\n", *rows]))
    options = StartOptions(home=Home(tmp_path / "data"))
    labels, reasons = groups_of_measured(Work.of(path, options, Machine.of_cluster()))
    assert labels == {2: "auto-1", 3: "auto-1", 4: "auto-2", 5: "auto-2"}
    assert reasons.keys() == {"auto-1", "auto-2"}


def test_a_program_of_the_same_name_is_another_kind(lab: Lab, tmp_path: Path) -> None:
    lab.alone(Run("mid", host=HERE, script="/another/train.py"))
    with groups_of(tmp_path, [",,,|--model mid", ",,,|--model small"]) as (groups, waiting):
        group = groups.form(waiting)
    assert group.grouped_by == "alone, to be measured"


def test_rows_share_only_as_far_as_their_cpus_go(lab: Lab, tmp_path: Path) -> None:
    with groups_of(tmp_path, [",,4,|--model small"] * 6) as (groups, waiting):
        group = groups.form(waiting)
    assert len(group.plan.runs) == 4
    assert group.grouped_by == "as many as the CPUs and devices that they name allow"


def test_rows_do_not_share_if_one_would_exceed_its_timeout(lab: Lab, tmp_path: Path) -> None:
    cpu = [replace(SMALL, name="cpu", devices="cpu", cores=10.0, memory=GB, listeners="top")]
    lab.alone(replace(cpu[0], script=str(tmp_path / "train.py")))
    for timeout, rows in (("25s", 1), ("60s", 2)):
        row = f"cpu,,,{timeout}|--model cpu"
        with groups_of(tmp_path, [row, row]) as (groups, waiting):
            assert len(groups.form(waiting).plan.runs) == rows, timeout


def test_labels_of_the_file_are_not_taken_again(lab: Lab, tmp_path: Path) -> None:
    with groups_of(tmp_path, [",,,|--model small"]) as (_, _):
        pass
    path = tmp_path / "next.csv"
    path.write_text(path.read_text() + "auto-7,,,,,train.py,--model small\n")
    plan = open_source(path).plan(TWO_GPUS, registry.load())
    work = Work(plan, StartOptions(), pending_workloads(plan, StartOptions()))
    with StoreReader(Home(tmp_path / "data").store_path) as reader:
        group = AutoGroups(work, "next", TWO_GPUS, reader).form(work.pending[:1])
    assert group.plan.label == "auto-8"


def test_jobs_hold_what_they_ask_for(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "data")
    lab.tags[CLUSTER_HARDWARE] = "16 cores"
    script = str(tmp_path / "train.py")
    lab.alone(Run("cpu", host="node1", devices="cpu", memory=2 * GB, cores=2.0, script=script))
    (tmp_path / "train.py").touch()
    path = tmp_path / "next.csv"
    options = StartOptions(home=Home(tmp_path / "data"))
    for cells, count in (("3GB,", 0), ("8GB,", 2), (",10s", 0), (",1h", 2)):
        rows = f"auto,cpu,{cells},train.py,--model cpu\n" * 2
        path.write_text(f"Workload,Devices,Memory,Time,File,Params\n{rows}")
        labels, _ = groups_of_measured(Work.of(path, options, Machine.of_cluster()))
        assert len(labels) == count, cells


def test_runs_that_were_cut_short_are_no_measurements(lab: Lab, tmp_path: Path) -> None:
    lab.tags[START] = "--max-epoch 1"
    lab.alone(Run("mid", host=HERE, script=str(tmp_path / "train.py")))
    with groups_of(tmp_path, [",,,|--model mid", ",,,|--model small"]) as (groups, waiting):
        assert groups.form(waiting).grouped_by == "alone, to be measured"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (RunStatus.OOM, "SKIPPED: ran out of memory beside 1 other row; runs again alone"),
        (RunStatus.TIMEOUT, "SKIPPED: took too long beside 1 other row; runs again alone"),
        (RunStatus.FAILED, "FAILED: why"),
    ],
)
def test_what_the_file_says_of_rows_that_failed_beside_others(
    lab: Lab, tmp_path: Path, status: RunStatus, expected: str
) -> None:
    with groups_of(tmp_path, [",,,|--model small"] * 2) as (groups, waiting):
        group = groups.form(waiting)
    ending = group.in_file(RunEnd(status, "why"))
    assert f"{ending.status}: {ending.reason}" == expected
    assert group.runs_again(RunEnd(status)) is (status is not RunStatus.FAILED)
