"""How the values of settings are written, and shown."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from radt.durations import duration_text, parse_duration_s
from radt.errors import UsageError
from radt.masking import masked
from radt.uris import is_postgres, with_driver

T = TypeVar("T")

#: What stands for "no limit" where a setting has one.
NONE = "none"
HIDDEN = "***"

_SWITCHES = {"true": True, "yes": True, "on": True, "1": True}
_SWITCHES |= {"false": False, "no": False, "off": False, "0": False}
_RELATIVE_SQLITE = re.compile(r"(sqlite:///)(?![/?]|:memory:)(.+)")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How the values of a setting are written.

    Args:
        parse: The value of a text, and the folder that relative paths in it start at; raises
            UsageError.
        metavar: What help shows for a value; empty for a switch.
        in_toml: Types that a settings file may write besides a string.
        show: The value for people.
    """

    parse: Callable[[str, Path], T]
    metavar: str
    in_toml: tuple[type, ...] = ()
    show: Callable[[T], str] = str


def _parse_path(text: str, folder: Path) -> Path:
    return folder / Path(text).expanduser()


def _parse_uri(text: str, folder: Path) -> str:
    """A URI; SQLite's relative paths become absolute, as other processes have other folders."""
    absolute = _RELATIVE_SQLITE.sub(lambda found: f"{found[1]}{folder / found[2]}", text.strip())
    return with_driver(absolute)


def _parse_store_uri(text: str, folder: Path) -> str:
    uri = _parse_uri(text, folder)
    if not is_postgres(uri):
        raise UsageError(
            f"{masked(uri)!r} is no address of a Postgres database",
            "Write such as postgresql://me@db.example.org/radt; the store on this machine is in "
            "the data folder",
        )
    return uri


def _parse_count(text: str, _folder: Path) -> int:
    number = text.strip()
    if not (number.isascii() and number.isdigit()) or int(number) == 0:
        raise UsageError(f"expected a whole number of at least 1, got {number!r}", "Write 1, 2, …")
    return int(number)


def _parse_limit_s(text: str, _folder: Path) -> float | None:
    if text.strip().lower() == NONE:
        return None
    seconds = parse_duration_s(text)
    if seconds == 0:
        raise UsageError("a limit of 0 leaves no time", f"Write such as 10min, or {NONE}")
    return seconds


def _parse_switch(text: str, _folder: Path) -> bool:
    try:
        return _SWITCHES[text.strip().lower()]
    except KeyError:
        raise UsageError(f"{text.strip()!r} is neither on nor off", "Write on or off") from None


def _parse_number(text: str, _folder: Path) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(
            f"expected a number of at least 0, got {text.strip()!r}", "Write such as 10 or 0.5"
        )
    return number


def _parse_positive(text: str, folder: Path) -> float:
    number = _parse_number(text, folder)
    if number == 0:
        raise UsageError("expected a number above 0, got 0", "Write such as 10 or 0.5")
    return number


def choice(*names: str) -> Kind[str]:
    def parse(text: str, _folder: Path) -> str:
        chosen = text.strip().lower()
        if chosen not in names:
            near = difflib.get_close_matches(chosen, names, n=1)
            raise UsageError(
                f"{text.strip()!r} is not one of {', '.join(names)}",
                f"Did you mean {near[0]!r}?" if near else f"Write {' or '.join(names)}",
            )
        return chosen

    return Kind(parse, f"[{'|'.join(names)}]")


def _show_notify(value: str) -> str:
    """Hide the secrets of an address: from the path on, of chat services also the host."""
    scheme, separator, _ = value.partition("://")
    if not separator or not scheme.isalnum():
        return masked(value)
    is_web = scheme.lower() in ("http", "https", "json", "jsons")
    return f"{scheme}://{urlsplit(value).hostname}/{HIDDEN}" if is_web else f"{scheme}://{HIDDEN}"


TEXT: Kind[str] = Kind(lambda text, _folder: text.strip(), "TEXT")
PATH = Kind(_parse_path, "FOLDER")
URI = Kind(_parse_uri, "URI", show=lambda value: masked(value) if value else "")
STORE_URI = replace(URI, parse=_parse_store_uri)
NOTIFY_TARGET = replace(TEXT, metavar="COMMAND|URL", show=_show_notify)
COUNT = Kind(_parse_count, "N", (int,))
LIMIT_COUNT: Kind[int | None] = Kind(
    lambda text, folder: None if text.strip().lower() == NONE else _parse_count(text, folder),
    "N",
    (int,),
    show=lambda value: NONE if value is None else f"{value:,}",
)
SECONDS = Kind(
    lambda text, _folder: parse_duration_s(text), "TIME", (int, float), show=duration_text
)
LIMIT_SECONDS = Kind(
    _parse_limit_s,
    "TIME",
    (int, float),
    show=lambda value: NONE if value is None else duration_text(value),
)
SWITCH = Kind(_parse_switch, "", (bool,), show=lambda value: "on" if value else "off")
NUMBER = Kind(_parse_number, "NUMBER", show=lambda value: f"{value:,g}")
POSITIVE = replace(NUMBER, parse=_parse_positive)
