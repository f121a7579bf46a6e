"""The nearest ``radt.toml`` or ``[tool.radt]`` of a ``pyproject.toml``."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radt.errors import UsageError

SETTINGS_NAME = "radt.toml"
PYPROJECT_NAME = "pyproject.toml"
PYPROJECT_TABLE = "tool.radt"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file with settings: ``table`` is the whole of a radt.toml, or [tool.radt] of a pyproject.

    ``where`` is how messages name it.
    """

    path: Path
    table: Mapping[str, Any]

    @property
    def where(self) -> str:
        if self.path.name == PYPROJECT_NAME:
            return f"{self.path} [{PYPROJECT_TABLE}]"
        return str(self.path)

    def key(self, *names: str) -> str:
        """How a key or table of it is written in the file: ``[models]``, ``[tool.radt.models]``."""
        prefix = [PYPROJECT_TABLE] if self.path.name == PYPROJECT_NAME else []
        return f"[{'.'.join([*prefix, *names])}]"


def find_settings(folder: Path) -> SettingsFile | None:
    """The settings file that holds for this folder: its own, else that of the nearest folder above.

    In one folder radt.toml comes before pyproject.toml. A pyproject.toml without ``[tool.radt]`` is
    none. Settings name commands to run, so a file that another user has put into a folder open to
    everybody (``/tmp``) is none either.

    Raises:
        UsageError: A file cannot be read, or is not TOML.
    """
    # Not resolved: above a linked folder is where the link stands.
    absolute = Path(os.path.abspath(folder))  # noqa: PTH100
    for place in (absolute, *absolute.parents):
        for name in (SETTINGS_NAME, PYPROJECT_NAME):
            path = place / name
            if path.is_file() and _is_trusted(path):
                found = _read(path)
                if found is not None:
                    return found
    return None


def _read(path: Path) -> SettingsFile | None:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Check its mode") from error
    in_pyproject = path.name == PYPROJECT_NAME
    if in_pyproject and b"radt" not in raw:
        return None  # also where it is broken: somebody else's tools will say so
    try:
        table = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is not TOML: {error}",
            "Mend that place; https://toml.io shows how it is written",
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
