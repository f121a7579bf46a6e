"""The nearest radt.toml or [tool.radt]."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radt.errors import UsageError
from radt.setting_values import find_settings


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder ``project/ä b`` two levels below ``tmp_path``."""
    inner = tmp_path / "project" / "ä b"
    inner.mkdir(parents=True)
    return inner


def test_the_nearest_file_holds(project: Path) -> None:
    (project.parent / "radt.toml").write_text("cooldown = 1\n")
    assert find_settings(project) is not None
    (project / "radt.toml").write_text("cooldown = 2\n[models]\nb = 'B'\na = 'A'\n")

    found = find_settings(project)

    assert found is not None
    assert found.path == project / "radt.toml"
    assert found.table["cooldown"] == 2
    assert list(found.table["models"]) == ["b", "a"]
    assert (found.where, found.key("models")) == (str(project / "radt.toml"), "[models]")


def test_a_pyproject_without_the_table_is_passed_over(project: Path) -> None:
    (project.parent / "pyproject.toml").write_text("[tool.radt]\ncooldown = 3\n")
    (project / "pyproject.toml").write_text("[project]\nname = 'uses-radt'\n")

    found = find_settings(project)

    assert found is not None
    assert found.path == project.parent / "pyproject.toml"
    assert found.table == {"cooldown": 3}
    assert found.where.endswith("pyproject.toml [tool.radt]")
    assert found.key("models") == "[tool.radt.models]"


def test_radt_toml_comes_before_pyproject_in_one_folder(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.radt]\ncooldown = 3\n")
    (project / "radt.toml").write_text("")

    found = find_settings(project)

    assert found is not None
    assert found.table == {}


def test_a_broken_file_is_named(project: Path) -> None:
    (project / "radt.toml").write_text("cooldown = \n")

    with pytest.raises(UsageError, match=r"radt\.toml is not TOML: .*line 1"):
        find_settings(project)


def test_a_broken_pyproject_of_others_does_not_matter(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.ruff\n")
    (project.parent / "radt.toml").write_text("")

    found = find_settings(project)

    assert found is not None
    assert found.path == project.parent / "radt.toml"


def test_tool_radt_must_be_a_table(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool]\nradt = 1\n")

    with pytest.raises(UsageError, match=r"tool\.radt is not a table"):
        find_settings(project)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_strangers_file_in_an_open_folder_is_passed_over(project: Path) -> None:
    """It could name a command to run."""
    stranger = project / "radt.toml"
    stranger.write_text("cooldown = 1\n")
    os.chown(stranger, 12345, 12345)
    assert find_settings(project) is not None  # the folder's owner let them in
    project.chmod(0o1777)
    (project.parent / "radt.toml").write_text("")

    found = find_settings(project)

    assert found is not None
    assert found.path == project.parent / "radt.toml"
