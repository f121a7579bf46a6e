"""MLproject folders, compared with what MLflow itself makes of them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from mlflow.projects import _project_spec

from radt.environments.mlproject import read_project
from radt.environments.spec import LOCAL, EnvironmentKind
from radt.errors import UsageError

PROJECT = """
name: iris forest
python_env: python_env.yaml
entry_points:
  main:
    parameters:
      epochs: {type: float, default: 5}
      lr: {type: float, default: 1e-3}
      name: {type: string, default: "two words; $HOME"}
      data: path
      source: {type: uri, default: "s3://bucket/x"}
      kind: string
    command: "python train.py {epochs} --lr {lr} --name={name} {data} {source} -k {kind}"
  validate:
    command: "python validate.py"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project; MLflow takes paths from the current folder, radt from the project's."""
    made = tmp_path / "my projéct"
    made.mkdir()
    (made / "MLproject").write_text(PROJECT, encoding="utf-8")
    (made / "python_env.yaml").write_text("dependencies: []\n")
    (made / "iris data.csv").touch()
    monkeypatch.chdir(made)
    return made


def write(folder: Path, text: str, name: str = "MLproject") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("params", "given"),
    [
        (["data=iris data.csv", "--kind", "a"], {"data": "iris data.csv", "kind": "a"}),
        (
            ["--data=iris data.csv", "--kind=$(rm -rf /)", "--lr", "-0.5", "epochs=1"],
            {"data": "iris data.csv", "kind": "$(rm -rf /)", "lr": "-0.5", "epochs": "1"},
        ),
        (
            ["kind=it's", "data=.", "--extra", "a b", "other=", "--name", ""],
            {"kind": "it's", "data": ".", "extra": "a b", "other": "", "name": ""},
        ),
        (["kind=a", "kind=b=c", "data=."], {"kind": "b=c", "data": "."}),
    ],
)
def test_commands_are_mlflows(
    folder: Path, params: list[str], given: dict[str, str], tmp_path: Path
) -> None:
    project = read_project(folder)
    theirs = _project_spec.load_project(str(folder))
    line = theirs.get_entry_point("main").compute_command(given, str(tmp_path))
    assert project.command(params) == ["bash", "-c", line]
    assert project.name == theirs.name
    assert set(project.entry_points) == {"main", "validate"}
    assert project.command([], "validate") == ["bash", "-c", "python validate.py"]


@pytest.mark.parametrize(
    ("text", "files", "kind", "source"),
    [
        ("python_env: env/a.yaml", ["env/a.yaml"], EnvironmentKind.UV, "env/a.yaml"),
        ("conda_env: a.yaml", ["a.yaml", "python_env.yaml"], EnvironmentKind.CONDA, "a.yaml"),
        ("name: x", ["conda.yaml"], EnvironmentKind.CONDA, "conda.yaml"),
        ("name: x", ["conda.yaml", "python_env.yaml"], EnvironmentKind.UV, "python_env.yaml"),
    ],
)
def test_environments_are_mlflows(
    text: str, files: list[str], kind: EnvironmentKind, source: str, tmp_path: Path
) -> None:
    write(tmp_path, text, "mlPROJECT")
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    theirs = _project_spec.load_project(str(tmp_path))
    ours = read_project(tmp_path).environment
    assert (ours.kind, ours.source) == (kind, tmp_path / source)
    assert theirs.env_config_path == str(ours.source)
    assert theirs.env_type == ("python_env" if kind is EnvironmentKind.UV else "conda_env")


def test_without_an_environment_it_is_radts_own(tmp_path: Path) -> None:
    project = read_project(write(tmp_path, "entry_points: {main: {command: ls}}"))
    assert project.environment is LOCAL
    assert project.name == tmp_path.name


def test_a_container_is_mlflows(tmp_path: Path) -> None:
    data = (tmp_path,)
    write(
        tmp_path,
        "docker_env:\n  image: a/b:1\n  volumes: ['/x:/y:ro']\n  environment: [[NEW, 1], COPIED]\n",
    )
    found = read_project(tmp_path, data).environment
    assert (found.kind, found.image, found.data) == (EnvironmentKind.DOCKER, "a/b:1", data)
    assert found.volumes == ("/x:/y:ro",)
    assert found.variables == (("NEW", "1"), ("COPIED", None))
    assert _project_spec.load_project(str(tmp_path)).docker_env["image"] == found.image


def test_an_option_without_a_value_is_added_as_it_is(folder: Path) -> None:
    line = read_project(folder).command(["--amp", "--data", ".", "kind=a", "--fast"])[2]
    assert shlex.split(line)[-2:] == ["--amp", "--fast"]


def test_missing_parameters_are_named_together(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_project(folder).command(["--knid", "a", "--data"])
    assert "kind, data" in caught.value.message
    assert "--kind rather than --knid" in (caught.value.remedy or "")
    with pytest.raises(UsageError, match="--data VALUE --kind VALUE"):
        read_project(folder).command([])


@pytest.mark.parametrize(
    ("params", "cause"),
    [
        (["data=.", "kind=a", "lr=fast"], "parameter lr is 'fast', not a number"),
        (["data=nothing.csv", "kind=a"], "there is no .*nothing.csv"),
        (["data=s3://bucket/x", "kind=a"], "not on this machine"),
        (["data=.", "kind=a", "source=local"], "not a URI"),
        (["data=.", "kind=a", "stray"], "expected --name value in Params, got 'stray'"),
    ],
)
def test_values_that_do_not_fit_are_refused(folder: Path, params: list[str], cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        read_project(folder).command(params)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("entry_points: {validate: {command: ls}}", "no entry point main"),
        ("", "no entry point main"),
        ("entry_points: {main: {}}", "main has no command"),
        ("entry_points: {main: ls}", "main has no command"),
        ("entry_points: [main]", "entry_points is not a mapping"),
        ("entry_points: {main: {command: ls, parameters: [a]}}", "parameters of entry point"),
        ("entry_points: {main: {command: 'ls {unknown}'}}", "cannot be filled in: 'unknown'"),
        ("entry_points: {main: {command: 'ls ${HOME'}}", "cannot be filled in"),
        ("python_env: a\nconda_env: b", "several environments"),
        ("python_env: missing.yaml", "missing.yaml"),
        ("docker_env: {}", "no entry point main"),
        ("docker_env: {volumes: []}", "names no image"),
        ("docker_env: {image: a, volumes: /x}", "volumes of docker_env"),
        ("docker_env: {image: a, environment: [[A]]}", "environment of docker_env"),
        ("databricks_spark_job: {}", "Databricks"),
        ("- a", "not a mapping"),
        ("{", "cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_refused(text: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=cause):
        read_project(write(tmp_path, text)).command([])


def test_a_folder_without_the_file_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no MLproject in"):
        read_project(tmp_path)
    with pytest.raises(UsageError, match="no MLproject in"):
        read_project(tmp_path / "missing")


def test_parameters_without_a_type_are_texts(tmp_path: Path) -> None:
    write(
        tmp_path,
        "entry_points: {main: {command: 'x {a} {b} {c}', "
        "parameters: {a: {default: 1}, b: {type: int, default: yes}, c: }}}",
    )
    assert read_project(tmp_path).command(["c=3"])[2] == "x 1 True 3"
