"""Models mapped to commands by radt.toml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from radt.devices.machine import Machine
from radt.environments.spec import EnvironmentKind
from radt.errors import Problem, UsageError
from radt.experiment.plan import ExperimentPlan
from radt.experiment.program import ProgramKind
from radt.model import RunStatus

Plan = Callable[..., ExperimentPlan]
Problems = Callable[..., list[Problem]]

#: The header and the kind of rows that the thesis shows for radT.
THESIS = """\
Experiment, Workload, Status, Run, Devices, Collocation, Environment, Model, Data, Listeners, Params
20,1,,,0,-,pytorch, timm.resnet26,/data/cifar10/,smi+top+dcgmi,batch-size=128
20,2,FINISHED,5c,0,-,pytorch, timm.resnet26,/data/cifar10/,smi+top+dcgmi,batch-size=128
20,2,,,0,-,pytorch, timm.vgg11,/data/cifar10/,smi+top+dcgmi,batch-size=128 amp
20,3,,,0,MPS,,own,,smi,
"""

SETTINGS = """\
[models]
"timm.*" = "train.py --model {Model} --data {Data} --{Params}"
"timm.vgg11" = "-m timm_train.vgg"
own = "./own program.sh --name '{Workload} {Letter}'"

[environments]
pytorch = "conda:pytorch.yaml"
"""


@pytest.fixture
def project(folder: Path) -> Path:
    (folder / "radt.toml").write_text(SETTINGS.replace("./own program.sh", "'own program.sh'"))
    (folder / "pytorch.yaml").write_text("dependencies: [python]\n")
    (folder / "timm_train").mkdir()
    (folder / "timm_train/vgg.py").touch()
    own = folder / "own program.sh"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    return folder


def without_mps(text: str) -> str:
    """The planner is asked nothing where nobody divides a GPU."""
    return text.replace("MPS", "-")


def test_the_thesis_file(plan: Plan, project: Path, two_gpus: Machine) -> None:
    planned = plan(without_mps(THESIS), two_gpus)

    assert [(w.experiment, w.label, len(w.runs)) for w in planned.workloads] == [
        ("20", "1", 1),
        ("20", "2", 2),
        ("20", "3", 1),
    ]
    resnet, _, vgg, own = planned.runs
    assert resnet.program.path == project / "train.py"
    assert resnet.params == (
        "--model", "timm.resnet26", "--data", "/data/cifar10/", "--batch-size=128",
    )  # fmt: skip
    assert resnet.params_text == "batch-size=128"
    assert resnet.columns == {"Model": "timm.resnet26", "Data": "/data/cifar10/"}
    assert resnet.model == "timm.resnet26"
    assert resnet.environment.kind is EnvironmentKind.CONDA
    assert resnet.environment.source == project / "pytorch.yaml"
    assert vgg.program.kind is ProgramKind.MODULE
    assert (vgg.program.module, vgg.program.folder) == ("timm_train.vgg", project)
    assert vgg.params == ("batch-size=128", "amp")  # its command does not say where they go
    assert own.program.path == project / "own program.sh"
    assert own.params == ("--name", "3 a")
    assert own.environment.kind is EnvironmentKind.LOCAL
    assert (vgg.status, next(planned.runs).status) == (None, None)
    assert planned.workloads[1].runs[0].status is RunStatus.FINISHED
    *_, warning = planned.warnings
    assert warning.startswith("listener dcgm does not work here: no hostengine answers; 3 runs ")


def test_paths_start_where_the_settings_are(plan: Plan, folder: Path, tmp_path: Path) -> None:
    """The file may lie in a folder above those of the experiments."""
    (tmp_path / "radt.toml").write_text(
        '[models]\nvit = "shared/vit.py"\n[environments]\ne = "uv:e.txt"\n'
    )
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/vit.py").touch()
    (tmp_path / "e.txt").touch()

    (run,) = plan("Model,Environment\nvit,e\n").runs

    assert run.program.path == tmp_path / "shared/vit.py"
    assert run.environment.source == tmp_path / "e.txt"


def test_names_with_blanks_in_a_command(plan: Plan, folder: Path) -> None:
    (folder / "radt.toml").write_text('[models]\nvit = "train.py -b {Batch Size} {Params}"\n')

    (run,) = plan("Model,Batch Size,Params\nvit,8 x,--lr 1\n").runs

    assert run.params == ("-b", "8 x", "--lr", "1")


def test_file_comes_before_the_model(plan: Plan, project: Path) -> None:
    first, second = plan("Model,File\ntimm.x,train.py\nunmapped,train.py\n").runs

    assert first.params == second.params == ()


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ('"v*" = "1.py"\n"vit" = "2.py"', "2.py"),  # the name before any pattern
        ('"*" = "1.py"\n"v*" = "2.py"', "1.py"),  # else the first
        ('"V*" = "1.py"\n"v?t" = "2.py"', "2.py"),
    ],
)
def test_which_entry_counts(plan: Plan, folder: Path, settings: str, chosen: str) -> None:
    (folder / "1.py").touch()
    (folder / "2.py").touch()
    (folder / "radt.toml").write_text(f"[models]\n{settings}\n")

    (run,) = plan("Model\nvit\n").runs

    assert run.program.path.name == chosen


@pytest.mark.parametrize(
    ("settings", "cause", "remedy"),
    [
        ("", "has no command for 'vit'", 'Add "vit" = "train.py --model {Model} {Params}"'),
        ('[models]\nvit2 = "train.py"', "has no command for 'vit'", "Did you mean 'vit2'?"),
        (
            '[models]\nvit = "none.py"',
            "there is no file 'none.py'",
            "radt looks in this file's folder",
        ),
        ('[models]\nvit = "train.py \'"', "radt.toml [models] 'vit': no closing", "Quote it"),
        ('[models]\nvit = ""', "radt.toml [models] 'vit' is empty", "Write a command"),
        ('[models]\nvit = "train.py {Data}"', "{Data} in radt.toml [models] 'vit'", "Add it"),
        ('[models]\nvit = "train.py {Seed}"', "'vit' is empty in this row", "row's Seed"),
        ('[models]\nvit = "train.py {File}"', "'vit' cannot be filled in", "{{File}}"),
    ],
)
def test_problems_of_a_command_are_said_once(
    problems: Problems, folder: Path, settings: str, cause: str, remedy: str
) -> None:
    (folder / "radt.toml").write_text(settings)

    (problem,) = problems("Model,Seed\nvit,\nvit,\n")

    assert (problem.line, problem.column) == (2, "Model")
    assert cause in problem.cause and remedy in problem.remedy


def test_without_settings_a_model_needs_a_file(problems: Problems) -> None:
    (problem,) = problems("Model,Params\nvit,x\n")

    assert problem.cause == "no script is known for the model 'vit'"
    assert "Fill File, or put [models]" in problem.remedy


def test_a_row_needs_a_file_or_a_model(problems: Problems, project: Path) -> None:
    (problem,) = problems("Model,Params\n-,x\n")

    assert (problem.line, problem.column, problem.cause) == (2, "File", "the cell is empty")


@pytest.mark.parametrize(
    ("settings", "cause", "remedy"),
    [
        ("models = 1", "[models] of", "on its own line"),
        ("[models]\nvit = 1", "vit is not a text", 'Write "vit" = "…"'),
        ('[models]\ntimm.resnet.x = "a"', "timm is a table", '"timm.resnet.x" = …'),
        ("[environments]\ne = []", "e is not a text", 'Write "e" = "…"'),
    ],
)
def test_tables_that_are_none(
    plan: Plan, folder: Path, settings: str, cause: str, remedy: str
) -> None:
    (folder / "radt.toml").write_text(settings)

    with pytest.raises(UsageError) as caught:
        plan("File\ntrain.py\n")

    assert cause in caught.value.message and str(folder / "radt.toml") in caught.value.message
    assert remedy in str(caught.value.remedy)
