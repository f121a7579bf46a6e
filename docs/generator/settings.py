"""The reference of settings and of the variables behind them."""

from __future__ import annotations

from typing import Any

from docs.generator import markdown
from radt.settings import OPTIONS, VARIABLES, Setting

_HEAD = ("setting", "option", "variable", "value", "default", "meaning")


def settings_reference() -> str:
    """Settings that the command line, variables and files know."""
    rows = [
        (
            f'<span id="{one.name}"></span>{markdown.code(one.name)}',
            markdown.code(f"--{one.name}"),
            _variables(one),
            markdown.code(one.kind.metavar.strip("[]") or "on|off"),
            _default(one),
            markdown.plain(one.help),
        )
        for one in OPTIONS
    ]
    return markdown.table(_HEAD, rows)


def variables_reference() -> str:
    """Settings of the user and the machine, which are variables only."""
    rows = [
        (
            f'<span id="{one.label.lower()}"></span>{_variables(one)}',
            markdown.code(one.kind.metavar),
            _default(one),
            markdown.plain(one.help),
        )
        for one in VARIABLES
    ]
    return markdown.table(("variable", "value", "default", "meaning"), rows)


def _variables(setting: Setting[Any]) -> str:
    return ", else ".join(markdown.code(name) for name in setting.variables)


def _default(setting: Setting[Any]) -> str:
    if setting.default_text:
        return markdown.plain(setting.default_text)
    return markdown.code(setting.shown(setting.default))
