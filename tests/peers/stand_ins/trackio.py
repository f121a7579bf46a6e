"""What Trackio records, where it is not installed: the tables of its version 0.43."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TABLES = """
CREATE TABLE IF NOT EXISTS metrics (run_id TEXT, run_name TEXT, step INTEGER, metrics TEXT);
CREATE TABLE IF NOT EXISTS configs (run_id TEXT, run_name TEXT, config TEXT);
"""
_state: dict[str, Any] = {}


def init(project: str, name: str, config: Mapping[str, object]) -> None:
    """Begin a run; the one before it ends."""
    folder = Path(os.environ["TRACKIO_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(folder / f"{project}.db", isolation_level=None)
    database.executescript(_TABLES)
    _state.update(database=database, name=name, id=uuid.uuid4().hex, step=0)
    database.execute(
        "INSERT INTO configs VALUES (?, ?, ?)", (_state["id"], name, json.dumps(dict(config)))
    )


def log(metrics: Mapping[str, object], step: int | None = None) -> None:
    """Record values."""
    at = _state["step"] if step is None else step
    _state["step"] = at + 1
    _state["database"].execute(
        "INSERT INTO metrics VALUES (?, ?, ?, ?)",
        (_state["id"], _state["name"], at, json.dumps(dict(metrics))),
    )


def finish() -> None:
    """End the run."""
    _state.clear()
