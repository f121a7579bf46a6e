"""The reference of settings and of the variables behind them."""

from __future__ import annotations

from typing import Any

from docs.generator import markdown
from radt.cluster.settings import CLUSTER_KEYS
from radt.settings import OPTIONS, VARIABLES, Setting


def settings_reference() -> str:
    """Settings that the command line, variables and files know."""
    rows = [
        (
            f'<span id="{one.name}"></span>{markdown.code(one.name)}',
            f"{_option(one)}<br>{_variables(one)}",
            _default(one),
            markdown.plain(one.help),
        )
        for one in OPTIONS
    ]
    return markdown.table(("setting", "option, variable", "default", "meaning"), rows)


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


def cluster_reference() -> str:
    """Keys of ``[cluster]`` and ``[cluster.NAME]``."""
    rows = [
        (
            markdown.code(name),
            f"list of {markdown.code(key.kind.metavar)}"
            if key.is_list
            else markdown.code(key.kind.metavar or "true or false"),
            markdown.plain(key.default_text),
            markdown.plain(key.help),
        )
        for name, key in CLUSTER_KEYS.items()
    ]
    return markdown.table(("key", "value", "default", "meaning"), rows)


def _option(setting: Setting[Any]) -> str:
    value = setting.kind.metavar
    return markdown.code(f"--{setting.name} {value}" if value else f"--{setting.name}")


def _variables(setting: Setting[Any]) -> str:
    return ",<br>else ".join(markdown.code(name) for name in setting.variables)


def _default(setting: Setting[Any]) -> str:
    if setting.default_text:
        return markdown.plain(setting.default_text)
    return markdown.code(setting.shown(setting.default))
