"""``radt validate`` as users call it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from radt.experiment.lock import ExperimentLock
from radt.experiment.sweep_expand import Style, words
from tests.support.command import called


def validate(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return called(folder, os.environ | {"COLUMNS": "80"} | environment, "validate", *arguments)


def test_a_good_file(folder: Path) -> None:
    content = b"File,Workload,Devices,Status\r\ntrain.py,1,cpu,RUNNING\r\ntrain.py,1,cpu,\r\n"
    (folder / "e.csv").write_bytes(content)

    done = validate(folder, "e.csv")

    assert (done.returncode, done.stderr) == (0, "")
    assert "e · 1 workload, 2 runs · on cpu" in done.stdout
    assert "resume, RUNNING" in done.stdout
    assert "\x1b" not in done.stdout  # no colour in a pipe
    assert (folder / "e.csv").read_bytes() == content
    assert sorted(p.name for p in folder.iterdir()) == ["e.csv", "train.py"]


def test_a_bad_file(folder: Path) -> None:
    (folder / "e.csv").write_text("File,Listeners,Params\nnone.py,topp,it's\n")

    done = validate(folder, "e.csv")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("e.csv: 3 problems, nothing was started\n\n  line 2, File")
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in folder.iterdir()) == ["e.csv", "train.py"]


def test_a_file_of_models(folder: Path) -> None:
    """As the thesis has it: without File, beside a radt.toml that maps its models."""
    (folder / "radt.toml").write_text(
        '[models]\n"timm.*" = "train.py --model {Model} --data {Data} --{Params}"\n'
        '[environments]\npytorch = "local"\n'
    )
    (folder / "thesis.csv").write_text(
        "Experiment, Workload, Status, Run, Devices, Collocation, Environment, Model, Data, "
        "Listeners, Params\n"
        "20,1,,,cpu,-,pytorch, timm.resnet26,/data/cifar10/,smi+top+dcgmi,batch-size=128\n"
    )

    done = validate(folder, "thesis.csv", COLUMNS="160")

    assert (done.returncode, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    assert "train.py --model timm.resnet26 --data /data/cifar10/ --batch-size=128" in shown


def test_settings_that_cannot_be_used(folder: Path) -> None:
    (folder / "radt.toml").write_text("[models\n")
    (folder / "e.csv").write_text("File\ntrain.py\n")

    done = validate(folder, "e.csv")

    assert (done.returncode, done.stdout) == (2, "")
    assert "radt.toml is not TOML" in done.stderr and "Traceback" not in done.stderr


def test_a_sweep(folder: Path) -> None:
    (folder / "sweep.yaml").write_text(
        "file: train.py\nmethod: grid\nparameters:\n  lr: {values: [1, 2]}\n"
    )

    done = validate(folder, "sweep.yaml")

    assert (done.returncode, done.stderr) == (0, "")
    assert "2 workloads, 2 runs" in done.stdout and "train.py --lr 2" in done.stdout


def test_a_file_that_is_being_run(folder: Path) -> None:
    """By a process of its own: for its holder, the lock is free."""
    (folder / "e.csv").write_text("File,Status\ntrain.py,RUNNING\n")

    with ExperimentLock(folder / "e.csv"):
        done = subprocess.run(
            [sys.executable, "-m", "radt", "validate", "e.csv"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )

    assert f"process {os.getpid()} of " in done.stdout
    assert "is running this file" in done.stdout


@pytest.mark.parametrize("name", ["missing.csv", "."])
def test_no_file(folder: Path, name: str) -> None:
    done = validate(folder, name)

    assert done.returncode == 2
    assert done.stderr.startswith(f"{name}: 1 problem, nothing was started")


def test_colour_is_for_terminals(folder: Path) -> None:
    (folder / "e.csv").write_text("File\nnone.py\n")

    assert "\x1b[1;31m" in validate(folder, "e.csv", FORCE_COLOR="1").stderr
    assert "\x1b" not in validate(folder, "e.csv", NO_COLOR="1").stderr


def test_any_file_is_tried_on_cpus(folder: Path) -> None:
    (folder / "e.csv").write_text("Experiment,Workload,Devices,File\n7,1,0,train.py\n")
    assert "no GPU" in validate(folder, "e.csv", PATH="").stderr
    done = validate(folder, "e.csv", "--devices", "cpu")
    assert done.returncode == 0, done.stderr
    assert "on cpu" in done.stdout
    assert "experiment 7 is the one with this id at MLflow" in " ".join(done.stdout.split())


def test_the_command_of_each_row_is_that_of_a_shell(folder: Path) -> None:
    """What is shown is run by a real shell, and gives the program what the row gives it."""
    values = ["it's", "a\nb\\", "\x1b[1m", "\x85\u2028", "é", [1, 2], True, None, "--x"]
    (folder / "train.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    parameters = {"x": {"values": values}}
    sweep = {"file": "train.py", "params": "--n 'a b'", "parameters": parameters}
    (folder / "sweep.yaml").write_text(json.dumps(sweep))

    done = validate(folder, "sweep.yaml", COLUMNS="200")

    assert (done.returncode, done.stderr) == (0, "")
    commands = re.findall(r"\ba +train +(train\.py .*?) *$", done.stdout, re.MULTILINE)
    found = [
        json.loads(
            subprocess.run(
                ["bash", "-c", f"{sys.executable} {command}"],
                cwd=folder,
                env=os.environ | {"LC_ALL": "C.UTF-8"},
                capture_output=True,
                check=True,
            ).stdout
        )
        for command in commands
    ]
    assert found == [["--n", "a b", *words("x", value, Style.OPTION)] for value in values]
