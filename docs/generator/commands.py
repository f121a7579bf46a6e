"""The reference of the command line, from click's own description of it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import click

from docs.generator import markdown
from radt.cli import group
from radt.settings import OPTIONS

_DEFAULT = re.compile(r"\s*\[default: (?P<value>.*)\]\s*$", re.DOTALL)
_SETTINGS = {setting.help: setting for setting in OPTIONS}
_WIDTH = 200


def command_reference() -> str:
    """Every command with its usage, arguments and options."""
    with click.Context(group, info_name="radt", terminal_width=_WIDTH) as context:
        return "\n\n".join(_sections(group, context, 2))


def _sections(command: click.Group, context: click.Context, level: int) -> Iterator[str]:
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _section(found, click.Context(found, context, name), level)


def _section(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    path = context.command_path
    yield markdown.heading(level, path, path.replace(" ", "-"))
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield markdown.fenced(" ".join(usage.split()), "text")
    yield from _texts(command.help or "")
    rows = [_row(one, context) for one in command.params if isinstance(one, click.Option)]
    yield markdown.table(("option", "what it does", "default"), rows)
    if command.epilog:
        yield markdown.prose(command.epilog)
    if isinstance(command, click.Group):
        yield from _sections(command, context, level + 1)


def _texts(text: str) -> Iterator[str]:
    """The paragraphs of a help text; those after a ``\\b`` keep their lines."""
    for paragraph in re.split(r"\n\s*\n", textwrap.dedent(text).strip()):
        if paragraph.startswith("\b"):
            yield markdown.fenced(textwrap.dedent(paragraph.lstrip("\b\n")), "text")
        else:
            yield markdown.prose(paragraph)


def _row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = [*option.opts, *option.secondary_opts]
    names.sort(key=lambda name: not name.startswith("--"))
    value = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
    shown = ", ".join(markdown.code(f"{name}{value}") for name in names if name.strip())
    text, default = option.help or "", _default(option, context)
    if said := _DEFAULT.search(text):
        text, default = text[: said.start()], said["value"]
    meaning = markdown.prose(text)
    if setting := _SETTINGS.get(" ".join(text.split())):
        shown = f"[{shown}](settings.md#{setting.name})"
    if option.multiple and "repeated" not in text:
        meaning += " May be repeated."
    return shown, meaning, markdown.code(default) if default else ""


def _default(option: click.Option, context: click.Context) -> str:
    found = option.get_default(context, call=False)
    if option.is_flag or not isinstance(found, str | int | float) or found == "":
        return ""
    return str(found)
