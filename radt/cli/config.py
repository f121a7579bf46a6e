"""``radt config``: the settings of this folder, and where each comes from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from radt.cluster.settings import cluster_problems
from radt.render.model import printable
from radt.runner.console import shown_path
from radt.setting_values import PYPROJECT_NAME, PYPROJECT_TABLE, SETTINGS_NAME
from radt.settings import SETTINGS, VARIABLES, Found, Level, Settings

_GAP = 2
_MAX_VALUE = 34


@click.command("config")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show the meaning and names of each setting."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path | None, verbose: bool, as_json: bool) -> int:
    """Show every setting, its value for the experiment FILE or this folder, and its origin.

    The first of these counts: the command line, else a RADT_* variable, else the next radt.toml (or
    [tool.radt] of pyproject.toml) in the folder of FILE or above it, else the default. Passwords
    are not shown. The exit code is 2 if something is wrong with a setting.
    """
    settings = Settings.of(Path.cwd() if file is None else file.absolute().parent)
    problems = [*settings.problems(), *cluster_problems(settings.file)]
    if as_json:
        click.echo(json.dumps(_document(settings), indent=2))
    else:
        console = Console(highlight=False)
        for line in _lines(settings, console.width, verbose=verbose):
            console.print(line, soft_wrap=True)
        for problem in problems:
            console.print()
            console.print(Text(f"  {printable(problem.message)}", "red"), soft_wrap=True)
            console.print(Text(f"  {printable(problem.remedy or '')}", "dim"), soft_wrap=True)
    return 2 if problems else 0


def _lines(settings: Settings, width: int, *, verbose: bool) -> list[Text]:
    file = settings.file
    lines = [
        Text.assemble(
            ("settings", "bold"),
            f" · no {SETTINGS_NAME}, no [{PYPROJECT_TABLE}] in {PYPROJECT_NAME}, here or above"
            if file is None
            else f" · {_shown_file(settings)}",
        ),
        Text(),
    ]
    values = [settings.find(setting) for setting in SETTINGS]
    table = _table(values, settings, width, verbose=verbose)
    only_variables = next(n for n, value in enumerate(values) if value.setting in VARIABLES)
    for number, entry in enumerate(table):
        if number == only_variables:
            lines += [Text(), Text("  environment variables only", "dim")]
        lines += entry
    return lines


def _table(
    values: Sequence[Found[Any]], settings: Settings, width: int, *, verbose: bool
) -> list[list[Text]]:
    """Return the lines of each setting, in columns."""
    names = max(len(value.setting.label) for value in values)
    room = min(_MAX_VALUE, max(cell_len(_text(value)) for value in values))
    table: list[list[Text]] = []
    for value in values:
        text = _text(value)
        is_set = value.level is not Level.DEFAULT
        line = Text.assemble(
            (f"  {value.setting.label:<{names}}", "bold" if is_set else ""),
            " " * _GAP,
            (text, "red" if value.problem else "cyan" if is_set else ""),
            " " * (max(0, room - cell_len(text)) + _GAP),
            (_origin(value, settings), "dim"),
        )
        table.append([line])
        if verbose:
            ways = [f"--{value.setting.name}"] if value.setting.name else []
            help_text = f"{value.setting.help}  {', '.join([*ways, *value.setting.variables])}"
            table[-1] += [
                Text(f"      {part.plain.rstrip()}", "dim")
                for part in Text(help_text).wrap(Console(width=width), max(20, width - 6))
            ]
    return table


def _text(setting_value: Found[Any]) -> str:
    if setting_value.problem is not None:
        return "not valid, see below"
    value = setting_value.value
    return (
        printable(shown_path(value) if _is_own_path(setting_value) else setting_value.shown) or "–"
    )


def _is_own_path(setting_value: Found[Any]) -> bool:
    return isinstance(setting_value.value, Path) and setting_value.level is not Level.DEFAULT


def _origin(setting_value: Found[Any], settings: Settings) -> str:
    match setting_value.level:
        case Level.DEFAULT:
            return "default"
        case Level.FILE:
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
