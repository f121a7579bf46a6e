"""Options that several commands have."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from radt.setting_values import NONE
from radt.settings import HOME, STORE_URI, Setting, Settings

if TYPE_CHECKING:
    from radt.store.locate import Places

F = TypeVar("F", bound=Callable[..., Any])


def setting_option(setting: Setting[Any], *names: str) -> Callable[[F], F]:
    """The option of a setting: a text that `radt.settings` reads, None if it is not given.

    Args:
        setting: A switch gets ``--name/--no-name`` unless ``names`` say otherwise.
        names: Further names, such as ``-q``.
    """
    option = f"--{setting.name}"
    variable = setting.name.replace("-", "_")
    if setting.kind.metavar:
        default = _default(setting)
        text = f"{setting.help}  [default: {default}]" if default else setting.help
        return click.option(
            *names, option, variable, metavar=setting.kind.metavar, default=None, help=text
        )
    full = [name for name in names if name.startswith("--")]
    return click.option(
        *names,
        *(() if full else (f"{option}/--no-{setting.name}",)),
        variable,
        default=None,
        help=setting.help,
        callback=lambda _ctx, _param, value: None if value is None else str(value),
    )


def call(file: Path, command: str = "") -> str:
    """How a command is called with a file, as in a shell: ``radt stop 'my study.csv'``."""
    return " ".join(filter(None, ("radt", command, shlex.quote(str(file)))))


def _default(setting: Setting[Any]) -> str:
    if setting.default_text:
        return setting.default_text
    text = setting.shown(setting.default)
    return "" if text == NONE else text


def _usual_home(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Path:
    return Settings.of(Path.cwd(), {HOME: value})[HOME]


#: Gives the command's ``home``: what is given, else what the settings of this folder say.
home_option = click.option(
    "--home",
    metavar=HOME.kind.metavar,
    callback=_usual_home,
    help=f"{HOME.help}  [default: ${HOME.variables[0]}, else {HOME.default_text}]",
)


def reading_options(command: F) -> F:
    """Adds ``--home`` and ``--store-uri``, and gives the command ``places``: where it may read."""

    @click.option(
        "--home",
        metavar=HOME.kind.metavar,
        default=None,
        help="Look only into the store of this data folder.  [default: the usual one, then "
        f"${STORE_URI.variables[0]}]",
    )
    @click.option(
        f"--{STORE_URI.name}",
        metavar=STORE_URI.kind.metavar,
        default=None,
        help="Look only into this Postgres store.",
    )
    @functools.wraps(command)
    def with_places(*args: Any, home: str | None, store_uri: str | None, **options: Any) -> Any:
        return command(*args, places=places_of(home, store_uri), **options)

    return with_places  # type: ignore[return-value]


def places_of(home: str | None, store_uri: str | None) -> Places:
    """See `radt.store.locate.Places.of`."""
    from radt.store.locate import Places

    return Places.of(home, store_uri)
