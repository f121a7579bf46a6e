"""Parse and format values of settings, and find the settings file.

The file is the nearest ``radt.toml``, or ``[tool.radt]`` of a ``pyproject.toml``.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from radt.errors import UsageError
from radt.masking import is_postgres, masked, masked_addresses, with_driver
from radt.paths import expanded, uri_path
from radt.units import duration_text, memory_text, parse_duration_s, parse_memory_bytes

T = TypeVar("T")

#: Means "no limit", for settings that have one.
NONE = "none"

#: Words for yes and no, in lower case.
SWITCHES = {"true": True, "yes": True, "on": True, "1": True}
SWITCHES |= {"false": False, "no": False, "off": False, "0": False}
_RELATIVE_SQLITE = re.compile(r"(sqlite:///)(?![/?]|:memory:)(.+)")


@dataclass(frozen=True, slots=True)
class SettingKind(Generic[T]):
    """Type of a setting's values.

    Args:
        parse: Parses a text, given the base folder of relative paths; raises UsageError.
        metavar: Placeholder for a value in ``--help``; empty for a switch.
        in_toml: Types that a settings file may use besides a string.
        show: Formats a value for display.
    """

    parse: Callable[[str, Path], T]
    metavar: str
    in_toml: tuple[type, ...] = ()
    show: Callable[[T], str] = str

    def read(self, value: object, folder: Path, place: str, help_text: str) -> T:
        """Parse a text, or a value of a settings file.

        Raises:
            UsageError: It is not valid. The message begins with `place`.
        """
        if type(value) not in (str, *self.in_toml):
            raise UsageError(f"{place}: {value!r} is not a valid value", help_text)
        try:
            return self.parse(str(value), folder)
        except UsageError as error:
            raise UsageError(f"{place}: {error.message}", error.remedy) from error


def _parse_path(text: str, folder: Path) -> Path:
    return folder / expanded(text)


def _parse_uri(text: str, folder: Path) -> str:
    """Parse a URI. SQLite's relative paths become absolute, for processes in other folders."""
    absolute = _RELATIVE_SQLITE.sub(
        lambda match: f"{match[1]}{uri_path(str(folder))}/{match[2]}", text.strip()
    )
    return with_driver(absolute)


def _parse_store_uri(text: str, folder: Path) -> str:
    uri = _parse_uri(text, folder)
    if uri.lower() == NONE:
        return NONE
    if not is_postgres(uri):
        raise UsageError(
            f"{masked(uri)!r} is not the address of a Postgres database",
            "Write such as postgresql://me@db.example.org/radt; the store on this machine is in "
            "the data folder",
        )
    return uri


def _parse_count(text: str, _folder: Path) -> int:
    number = text.strip()
    if not (number.isascii() and number.isdigit()) or int(number) == 0:
        raise UsageError(f"expected a whole number of at least 1, got {number!r}", "Write 1, 2, …")
    return int(number)


def _parse_limit_s(text: str, _folder: Path) -> float:
    seconds = parse_duration_s(text)
    if seconds == 0:
        raise UsageError("a limit of 0 leaves no time", f"Write such as 10min, or {NONE}")
    return seconds


def _parse_switch(text: str, _folder: Path) -> bool:
    try:
        return SWITCHES[text.strip().lower()]
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


def choice(*names: str) -> SettingKind[str]:
    def parse(text: str, _folder: Path) -> str:
        chosen = text.strip().lower()
        if chosen not in names:
            near = difflib.get_close_matches(chosen, names, n=1)
            raise UsageError(
                f"{text.strip()!r} is not one of {', '.join(names)}",
                f"Did you mean {near[0]!r}?" if near else f"Write {' or '.join(names)}",
            )
        return chosen

    return SettingKind(parse, f"[{'|'.join(names)}]")


def _or_none(kind: SettingKind[T]) -> SettingKind[T | None]:
    """Return a kind whose values may also be "no limit"."""

    def parse(text: str, folder: Path) -> T | None:
        return None if text.strip().lower() == NONE else kind.parse(text, folder)

    def show(value: T | None) -> str:
        return NONE if value is None else kind.show(value)

    return SettingKind(parse, kind.metavar, kind.in_toml, show)


TEXT: SettingKind[str] = SettingKind(lambda text, _folder: text.strip(), "TEXT")
CLUSTER = replace(TEXT, metavar="CLUSTER")
PATH = SettingKind(_parse_path, "FOLDER")
URI = SettingKind(_parse_uri, "URI", show=lambda value: masked(value) if value else "")
STORE_URI = replace(URI, parse=_parse_store_uri)
NOTIFY_TARGET = replace(TEXT, metavar="COMMAND|URL", show=masked_addresses)
COUNT = SettingKind(_parse_count, "N", (int,))
LIMIT_COUNT = _or_none(replace(COUNT, show=lambda value: f"{value:,}"))
SECONDS = SettingKind(
    lambda text, _folder: parse_duration_s(text), "TIME", (int, float), show=duration_text
)
LIMIT_SECONDS = _or_none(replace(SECONDS, parse=_parse_limit_s))
SWITCH = SettingKind(_parse_switch, "", (bool,), show=lambda value: "on" if value else "off")
MEMORY = SettingKind(lambda text, _folder: parse_memory_bytes(text), "SIZE", show=memory_text)
NUMBER = SettingKind(_parse_number, "NUMBER", show=lambda value: f"{value:,g}")
POSITIVE = replace(NUMBER, parse=_parse_positive)


SETTINGS_NAME = "radt.toml"
PYPROJECT_NAME = "pyproject.toml"
PYPROJECT_TABLE = "tool.radt"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file; ``table`` is all of a radt.toml, or [tool.radt] of a pyproject.toml.

    ``where`` is its name in messages.
    """

    path: Path
    table: Mapping[str, Any]

    @property
    def where(self) -> str:
        if self.path.name == PYPROJECT_NAME:
            return f"{self.path} [{PYPROJECT_TABLE}]"
        return str(self.path)

    def key(self, *names: str) -> str:
        """Return a key's or table's full name in the file: ``[models]``, ``[tool.radt.models]``."""
        prefix = [PYPROJECT_TABLE] if self.path.name == PYPROJECT_NAME else []
        return f"[{'.'.join([*prefix, *names])}]"


def find_settings(folder: Path) -> SettingsFile | None:
    """Return the settings file for a folder: its own, else that of the nearest folder above.

    Within a folder, radt.toml takes precedence over pyproject.toml. A pyproject.toml without
    ``[tool.radt]`` is ignored. Settings name commands to run, so a file of another user in a
    world-writable folder (``/tmp``) is ignored, too.

    Raises:
        UsageError: A file cannot be read, or is not TOML.
    """
    # Not resolved: the folders above are those above a link itself.
    absolute = Path(os.path.abspath(folder))  # noqa: PTH100
    for place in (absolute, *absolute.parents):
        for name in (SETTINGS_NAME, PYPROJECT_NAME):
            path = place / name
            if path.is_file() and _is_trusted(path):
                file = _read(path)
                if file is not None:
                    return file
    return None


def _read(path: Path) -> SettingsFile | None:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Check its mode") from error
    in_pyproject = path.name == PYPROJECT_NAME
    if in_pyproject and b"radt" not in raw:
        return None  # even if it is broken: other tools will report that
    import tomllib  # costs a good part of a script's start, and few scripts have the file

    try:
        table = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is not TOML: {error}",
            "Fix that line; https://toml.io describes the syntax",
        ) from error
    if not in_pyproject:
        return SettingsFile(path, table)
    tool = table.get("tool")
    own = tool.get("radt") if isinstance(tool, dict) else None
    if own is None:
        return None
    if not isinstance(own, dict):
        raise UsageError(
            f"{path}: tool.radt is not a table", f"Write [{PYPROJECT_TABLE}] on a line of its own"
        )
    return SettingsFile(path, own)


def _is_trusted(path: Path) -> bool:
    open_to_all = path.parent.stat().st_mode & stat.S_IWOTH
    return not open_to_all or path.stat().st_uid in (0, os.getuid())
