"""One script from the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radt.devices.machine import Machine
from radt.errors import ExperimentError
from radt.experiment.columns import Column
from radt.experiment.source import direct_plan
from radt.listeners.api import Registry
from radt.model import ListenerChoice


def test_arguments_reach_the_script_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, two_gpus: Machine, registry: Registry
) -> None:
    monkeypatch.chdir(folder)
    arguments = ["--name", "it's", "a b", "", "$HOME", 'x"y', "new\nline", "-1"]

    plan = direct_plan(Path("train.py"), arguments, machine=two_gpus, registry=registry)

    (workload,) = plan.workloads
    (run,) = workload.runs
    assert run.params == tuple(arguments)
    assert run.program.path == folder / "train.py" and run.program.folder == folder
    assert (run.experiment, run.workload, run.letter, run.line) == ("train", "", "a", 0)
    assert run.devices.gpus == (0,)
    assert run.status is None


def test_options_mean_what_columns_mean(
    folder: Path, two_gpus: Machine, registry: Registry
) -> None:
    plan = direct_plan(
        folder / "train.py",
        [],
        machine=two_gpus,
        registry=registry,
        cells={
            Column.EXPERIMENT: "e",
            Column.WORKLOAD: "w",
            Column.NAME: "n",
            Column.DEVICES: "0+1",
            Column.COLLOCATION: "-",
            Column.LISTENERS: "top@2s+dcgmi",
            Column.ENVIRONMENT: "docker:image",
            Column.CPUS: "2",
            Column.TIMEOUT: "1h",
            Column.MODEL: "vit",
            Column.DATA: str(folder),
        },
    )

    (run,) = plan.runs
    assert (run.experiment, run.workload, run.name) == ("e", "w", "n")
    assert run.devices.gpus == (0, 1)
    assert run.listeners == (ListenerChoice("top", 2.0), ListenerChoice("dcgm"))
    assert plan.name == "e"
    assert (run.environment.image, run.environment.data) == ("image", (folder,))
    assert (run.cpus.count, run.timeout_s) == (2, 3600)
    assert run.columns == {"Model": "vit", "Data": str(folder)}
    (warning,) = plan.warnings
    assert warning.startswith("listener dcgm does not work here: no hostengine answers; 1 run ")


@pytest.mark.parametrize(
    ("launcher", "arguments"),
    [
        ("torchrun", ["--nproc-per-node", "2", "train.py", "--lr", "0.1"]),
        ("accelerate", ["launch", "--config_file", "x.yaml", "train.py"]),
        ("deepspeed", ["--num_gpus=2", "train.py", "--deepspeed"]),
        ("sh", ["-c", 'exec "$@"', "train.py", "--lr", "0.1"]),
        ("-m torch.distributed.run", ["--nproc-per-node", "2", "train.py"]),
    ],
)
def test_a_launcher_names_the_experiment_after_its_script(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpu_only: Machine,
    registry: Registry,
    launcher: str,
    arguments: list[str],
) -> None:
    for name in ("torchrun", "accelerate", "deepspeed"):
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    plan = direct_plan(launcher, arguments, machine=cpu_only, registry=registry)
    ((run,),) = (workload.runs for workload in plan.workloads)
    assert (run.experiment, run.program.folder) == ("train", folder)
    assert (run.program.command or f"-m {run.program.module}") == launcher
    assert run.params == tuple(arguments)


def test_all_problems_at_once(cpu_only: Machine, registry: Registry) -> None:
    with pytest.raises(ExperimentError, match=r"^radt none\.py: 4 problems") as caught:
        direct_plan(
            Path("none.py"),
            [],
            machine=cpu_only,
            registry=registry,
            cells={
                Column.DEVICES: "7",
                Column.COLLOCATION: "MSP",
                Column.LISTENERS: "topp",
            },
        )

    assert [problem.column for problem in caught.value.problems] == [
        None,  # the script
        "--devices",
        "--collocation",
        "--listeners",
    ]
