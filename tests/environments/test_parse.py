"""Texts of the Environment column."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.environments.spec import LOCAL, EnvironmentKind, EnvironmentSpec, parse_environment
from radt.errors import UsageError


def parse(text: str, folder: Path, **named: str) -> EnvironmentSpec:
    return parse_environment(text, folder, named)


@pytest.mark.parametrize("text", ["", "  ", "local", " Local "])
def test_local_is_what_an_empty_cell_means(text: str, tmp_path: Path) -> None:
    assert parse(text, tmp_path) == LOCAL


@pytest.mark.parametrize(
    ("word", "file", "kind"),
    [
        ("uv", "requirements.txt", EnvironmentKind.UV),
        ("uv", "python_env.yaml", EnvironmentKind.UV),
        ("UV", "requirements.txt", EnvironmentKind.UV),
        ("conda", "conda.yaml", EnvironmentKind.CONDA),
        ("conda", "environment.yml", EnvironmentKind.CONDA),
    ],
)
def test_the_usual_files_are_found(
    word: str, file: str, kind: EnvironmentKind, tmp_path: Path
) -> None:
    (tmp_path / file).touch()
    assert parse(word, tmp_path) == EnvironmentSpec(kind, tmp_path / file)
    assert str(parse(word, tmp_path)) == f"{kind}:{file}"


def test_a_pyproject_counts_if_it_has_a_project(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    project = tmp_path / "pyproject.toml"
    project.write_text("[tool.radt]\n")
    assert parse("uv", tmp_path).source == tmp_path / "requirements.txt"
    project.write_text('[project]\nname = "x"\n')
    with pytest.raises(UsageError, match=r"uv:requirements\.txt or uv:pyproject\.toml"):
        parse("uv", tmp_path)


@pytest.mark.parametrize("word", ["uv", "conda"])
def test_without_any_of_the_usual_files_their_names_are_told(word: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        parse(word, tmp_path)
    assert str(tmp_path) in caught.value.message
    assert f"{word}:FILE" in (caught.value.remedy or "")


def test_a_named_file_is_looked_up_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "envs"
    folder.mkdir()
    (folder / "big one.txt").touch()
    assert parse("uv: envs/big one.txt", tmp_path).source == folder / "big one.txt"
    assert parse(f"uv:{folder}/big one.txt", Path("/")).source == folder / "big one.txt"


def test_a_missing_file_is_named_with_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "requirements-gpu.txt").touch()
    with pytest.raises(UsageError) as caught:
        parse("uv:requirement-gpu.txt", tmp_path)
    assert str(tmp_path / "requirement-gpu.txt") in caught.value.message
    assert caught.value.remedy == "Did you mean requirements-gpu.txt?"


def test_a_folder_is_no_description(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        parse("conda:.", tmp_path)


@pytest.mark.parametrize(
    "image", ["python", "python:3.12", "nvcr.io:443/nvidia/pytorch:24.10-py3", "a@sha256:00ff"]
)
def test_images_keep_their_tags(image: str, tmp_path: Path) -> None:
    data = (tmp_path / "data",)
    found = parse_environment(f"docker:{image}", tmp_path, {}, data)
    assert found == EnvironmentSpec(EnvironmentKind.DOCKER, image=image, data=data)
    assert str(found) == f"docker:{image}"


@pytest.mark.parametrize("text", ["docker", "docker:", "docker:--privileged", "docker:a b"])
def test_what_is_no_image_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="docker:"):
        parse(text, tmp_path)


def test_data_are_for_containers_only(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    assert parse_environment("uv", tmp_path, {}, (tmp_path,)).data == ()
    assert parse_environment("", tmp_path, {}, (tmp_path,)) is LOCAL


def test_a_name_stands_for_its_text(tmp_path: Path) -> None:
    (tmp_path / "gpu.txt").touch()
    assert parse("gpu", tmp_path, gpu="uv:gpu.txt").source == tmp_path / "gpu.txt"
    assert parse("uv", tmp_path, uv="docker:python").image == "python"


def test_a_name_is_not_looked_up_twice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="environment a: unknown environment 'b'"):
        parse("a", tmp_path, a="b", b="local")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("loacl", "local"),
        ("vision-gqu", "vision-gpu"),
        ("dcoker:python", "docker"),
        ("envs.txt", "uv:envs.txt"),
        ("environment.yml", "conda:environment.yml"),
    ],
)
def test_what_was_meant_is_guessed(text: str, meant: str, tmp_path: Path) -> None:
    (tmp_path / "envs.txt").touch()
    (tmp_path / "environment.yml").touch()
    with pytest.raises(UsageError) as caught:
        parse(text, tmp_path, **{"vision-gpu": "local"})
    assert meant in (caught.value.remedy or "").partition("? Write")[0]


def test_what_nobody_can_guess_gets_the_list(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="docker:IMAGE"):
        parse("zzzzzzzz", tmp_path)
