"""The files of all studies are valid on the machines that they are for."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Machine
from radt.experiment.plan import ExperimentPlan
from radt.experiment.source import open_source
from radt.listeners import registry

FOLDER = Path(__file__).parents[2] / "experiments"
CORES = Machine(2)
GPU = Machine(16, (Gpu(0, "NVIDIA H100", "GPU-1"),))
ARMS = ["fixed", "device", "epoch", "mixed 25 %", "mixed 50 %", "exhaustive", "copies", "small"]
OVERHEAD = ["untracked", "none", "default", "all-1s", "all-100ms", "torchprof"]


def labels(plan: ExperimentPlan) -> Sequence[str]:
    return [workload.label for workload in plan.workloads]


def are(*wanted: str) -> Callable[[ExperimentPlan], bool]:
    return lambda plan: labels(plan) == list(wanted)


def are_single(*wanted: str) -> Callable[[ExperimentPlan], bool]:
    """Workloads of one run each."""
    return lambda plan: labels(plan) == list(wanted) and len(list(plan.runs)) == len(wanted)


def have(*wanted: str) -> Callable[[ExperimentPlan], bool]:
    return lambda plan: {*wanted} <= {*labels(plan)}


def runs(count: int) -> Callable[[ExperimentPlan], bool]:
    return lambda plan: len(list(plan.runs)) == count


DECODED = have(
    *("decode serial", "decode tuned", "decode thread", "decode process"),
    *("small serial", "small process"),
)


@pytest.mark.parametrize(
    ("file", "machine", "is_whole"),
    [
        ("data-echoing/experiment.csv", GPU, runs(10)),
        (
            "data-echoing/cpu.csv",
            CORES,
            have("fresh", "echo 1", "finetune 1", "finetune 3", "immediate 1"),
        ),
        ("many-models/experiment.csv", GPU, runs(14)),
        (
            "many-models/cpu.csv",
            CORES,
            have("concurrent", "sequential", "fcfs", "priority", "sjf", "round robin"),
        ),
        ("offload/experiment.csv", GPU, runs(7)),
        (
            "offload/cpu.csv",
            CORES,
            have("resident 1", "needed 1", "ahead 1", "ahead 4 disk", "ahead 16"),
        ),
        ("overhead/experiment.csv", CORES, are_single(*OVERHEAD)),
        ("overhead/experiment.csv", GPU, are_single(*OVERHEAD)),
        ("overlapped-validation/cpu.csv", CORES, DECODED),
        ("overlapped-validation/experiment.csv", GPU, DECODED),
        (
            "preemption/experiment.csv",
            GPU,
            have("alone", "streams", "sliced", "lease", "MPS", "processes", "migrate"),
        ),
        (
            "preemption/cpu.csv",
            CORES,
            are("alone", "free", "sliced", "lease", "free processes", "processes", "migrate"),
        ),
        ("progressive-resizing/cpu.csv", CORES, are(*(arm for arm in ARMS if arm != "epoch"))),
        ("progressive-resizing/accuracy.csv", CORES, are("fixed", "fixed lr 0.01", "copies")),
        ("progressive-resizing/decode.csv", CORES, are("fixed", "fixed copies", "copies")),
        ("progressive-resizing/experiment.csv", GPU, are(*ARMS)),
    ],
)
def test_it_is_valid(
    tmp_path: Path, file: str, machine: Machine, is_whole: Callable[[ExperimentPlan], bool]
) -> None:
    study = shutil.copytree((FOLDER / file).parent, tmp_path / "study")
    copy = study / Path(file).name
    # Whether a driver has MPS is another question.
    text = re.sub(r"(, 0 +, )MPS", r"\1-  ", copy.read_text(encoding="utf-8"))
    copy.write_text(text, encoding="utf-8")
    plan = open_source(copy).plan(machine, registry.load())
    assert is_whole(plan), labels(plan)
