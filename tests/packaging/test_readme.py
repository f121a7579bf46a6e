"""README names what there is: commands and their options, environment variables, columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from radt.cli import COMMANDS, group
from radt.experiment.columns import Column

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Not those that end with an underscore: they are prefixes of others.
_VARIABLE = re.compile(r"\bRADT_[A-Z][A-Z_]*[A-Z]\b")


def variables() -> set[str]:
    sources = [
        path for part in ("radt", "listeners", "frontend") for path in (ROOT / part).rglob("*.py")
    ]
    return {name for path in sources for name in _VARIABLE.findall(path.read_text("utf-8"))}


def options() -> Iterator[str]:
    """Long names of the options of all commands."""
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield next(text for text in parameter.opts if text.startswith("--"))


@pytest.mark.parametrize("name", sorted(variables()))
def test_variable_is_documented(name: str) -> None:
    assert re.search(rf"`{name}\b", README)


def test_no_variable_is_made_up() -> None:
    assert set(_VARIABLE.findall(README)) <= variables()


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_documented(name: str) -> None:
    assert f"`radt {name}" in README


@pytest.mark.parametrize("name", sorted(set(options())))
def test_option_is_documented(name: str) -> None:
    assert re.search(rf"`(radt [^`]*)?{name}\b", README)


@pytest.mark.parametrize("name", Column)
def test_column_is_documented(name: str) -> None:
    assert re.search(rf"^\|.*`{name}`", README, re.MULTILINE)
