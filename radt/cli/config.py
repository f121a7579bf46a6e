"""``radt config``: the settings of this folder, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from radt.cli.options import json_option, print_json
from radt.cli.render import text_table
from radt.cluster.settings import cluster_problems
from radt.errors import RadtError
from radt.render.model import Cell, Document, Note, Notes, Tone, printable
from radt.render.terminal import print_document
from radt.runner.console import shown_path
from radt.setting_values import PYPROJECT_NAME, PYPROJECT_TABLE, SETTINGS_NAME
from radt.settings import SETTINGS, VARIABLES, FoundSetting, SettingLevel, Settings


@click.command("config")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show the meaning and names of each setting."
)
@json_option
def command(file: Path | None, verbose: bool, as_json: bool) -> int:
    """Show every setting, its value for the experiment FILE or this folder, and its origin.

    The first of these counts: the command line, else a RADT_* variable, else the next radt.toml (or
    [tool.radt] of pyproject.toml) in the folder of FILE or above it, else the default. Passwords
    are not shown. The exit code is 2 if something is wrong with a setting.
    """
    settings = Settings.of(Path.cwd() if file is None else file.absolute().parent)
    problems = [*settings.problems(), *cluster_problems(settings.file)]
    if as_json:
        print_json("config", _document(settings))
    else:
        print_document(Console(highlight=False), _shown(settings, problems, verbose=verbose))
    return 2 if problems else 0


def _shown(settings: Settings, problems: Sequence[RadtError], *, verbose: bool) -> Document:
    no_file = f"no {SETTINGS_NAME}, no [{PYPROJECT_TABLE}] in {PYPROJECT_NAME}, here or above"
    file = no_file if settings.file is None else _shown_file(settings)
    values = [settings.find(setting) for setting in SETTINGS]
    of_variables = [value.setting in VARIABLES for value in values]
    notes = [
        Note(problem.message, Tone.BAD, details=(problem.remedy or "",)) for problem in problems
    ]
    tables = [
        text_table(
            (
                row
                for value, is_variable in zip(values, of_variables, strict=True)
                if is_variable is wanted
                for row in _rows(value, settings, verbose=verbose)
            ),
            title,
        )
        for wanted, title in ((False, ""), (True, "environment variables only"))
    ]
    return Document(f"settings · {file}", (), [*tables, Notes(notes)])


def _rows(
    value: FoundSetting[Any], settings: Settings, *, verbose: bool
) -> Iterator[Sequence[Cell | str]]:
    """Yield a setting, its origin and value; below that, its meaning and names."""
    is_set = value.level is not SettingLevel.DEFAULT
    tone = Tone.STRONG if is_set else Tone.NORMAL
    yield (
        Cell(value.setting.label, tone=tone),
        Cell(_origin(value, settings), tone=Tone.DIM),
        Cell(_text(value), tone=Tone.BAD if value.problem else tone),
    )
    if verbose:
        ways = [f"--{value.setting.name}"] if value.setting.name else []
        names = ", ".join([*ways, *value.setting.variables])
        yield "", "", Cell(f"{value.setting.help}  {names}", tone=Tone.DIM)


def _text(setting_value: FoundSetting[Any]) -> str:
    if setting_value.problem is not None:
        return "not valid, see below"
    value = setting_value.value
    if isinstance(value, Path) and setting_value.level is not SettingLevel.DEFAULT:
        return printable(shown_path(value)) or "–"
    return printable(setting_value.shown) or "–"


def _origin(setting_value: FoundSetting[Any], settings: Settings) -> str:
    match setting_value.level:
        case SettingLevel.DEFAULT:
            return "default"
        case SettingLevel.FILE:
            return _shown_file(settings)
    return setting_value.place


def _shown_file(settings: Settings) -> str:
    assert settings.file is not None
    path = printable(shown_path(settings.file.path))
    return f"{path} [{PYPROJECT_TABLE}]" if settings.file.path.name == PYPROJECT_NAME else path


def _document(settings: Settings) -> dict[str, Any]:
    return {
        "file": None if settings.file is None else str(settings.file.path),
        "settings": [
            {
                "name": setting_value.setting.label,
                "value": setting_value.shown,
                "level": str(setting_value.level),
                "place": setting_value.place,
                "variables": list(setting_value.setting.variables),
                "problem": None if setting_value.problem is None else str(setting_value.problem),
            }
            for setting_value in map(settings.find, SETTINGS)
        ],
    }
