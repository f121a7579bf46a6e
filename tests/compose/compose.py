"""compose.yaml as Docker Compose reads it: merged, with the variables of a `.env` put in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose.yaml"
#: https://github.com/compose-spec/compose-spec/blob/main/12-interpolation.md
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\}")


class MissingVariableError(Exception):
    """What ``${NAME:?why}`` is for."""


def interpolated(text: str, values: Mapping[str, str]) -> str:
    """With ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?why}`` replaced."""

    def value(match: re.Match[str]) -> str:
        found = values.get(match["name"], "")
        if not found and match["kind"] == "-":
            return str(match["rest"])
        if not found and match["kind"] == "?":
            raise MissingVariableError(match["name"])
        return found

    result = _VARIABLE.sub(value, text)
    assert "$" not in result
    return result


def read(path: Path, values: Mapping[str, str]) -> dict[str, Any]:
    """The whole file; YAML's anchors and merges are resolved."""
    found: dict[str, Any] = yaml.safe_load(interpolated(path.read_text("utf-8"), values))
    return {name: part for name, part in found.items() if not name.startswith("x-")}


def overlaid(base: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """As Compose merges a second file: mappings by key, what else the second has, wins."""
    merged = dict(base)
    for name, part in above.items():
        if isinstance(part, dict) and isinstance(merged.get(name), dict):
            merged[name] = overlaid(merged[name], part)
        else:
            merged[name] = part
    return merged
