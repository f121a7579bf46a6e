"""Gives scripts the fake torch, and reads the traces that they leave."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

from tests.run import fake_torch
from tests.run.conftest import Joined, Scripts


def give_fake_torch(scripts: Scripts) -> None:
    shutil.copyfile(fake_torch.__file__, scripts.folder / "torch.py")


def asked(scripts: Scripts) -> list[str]:
    """What the fake torch was asked, without by whom."""
    lines = (scripts.folder / "asked.txt").read_text().splitlines()
    return [line.rsplit(" ", 1)[0] for line in lines]


def traces(folder: Path) -> dict[str, Any]:
    """All traces in a folder by name; what is there must be whole."""
    found = {}
    for path in sorted(folder.rglob("*")) if folder.exists() else []:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found[path.name] = json.load(file)
    return found


def reports(joined: Joined) -> Path:
    return joined.run_dir.artifacts / "profiles"


def names(trace: Any) -> list[str]:
    return [event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"]
