"""The JSON of all commands: one object in an envelope that names its format and version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from radt.units import in_json


def json_text(name: str, document: Mapping[str, Any], version: int = 1) -> str:
    """Return ``{"format": "radt-NAME", "version": 1, …}``, on several lines.

    Numbers that JSON does not have are the texts ``NaN``, ``Infinity`` and ``-Infinity``. The
    version is raised when a field is removed or changes its meaning; additions do not change it.
    """
    envelope = in_json({"format": f"radt-{name}", "version": version, **document})
    return json.dumps(envelope, indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def attributes(of: object, *names: str) -> dict[str, Any]:
    """Return attributes of an object that have the same names in JSON."""
    return {name: getattr(of, name) for name in names}
