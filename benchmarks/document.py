"""Sections of docs/measurements.md that benchmarks write themselves."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.results import Table
from benchmarks.timing import Load


def section(
    heading: str, command: str, load: Load, tables: Sequence[Table], setting: str = ""
) -> str:
    """Return a heading, the command, time and machine, and the tables."""
    day = datetime.fromtimestamp(time.time(), UTC).date()
    python = platform.python_version().rpartition(".")[0]
    head = f"`{' '.join(command.split())}`, {day}, {load}, Linux, Python {python}. {setting}"
    return "\n\n".join([heading, head.strip(), *(table.markdown() for table in tables)]) + "\n"


def replace_section(path: Path, text: str) -> None:
    """Replace the section with the same heading, or append it."""
    heading = text.partition("\n")[0]
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    before, found, after = known.partition(f"{heading}\n")
    if not found:
        path.write_text(f"{known.rstrip()}\n\n{text}", encoding="utf-8")
        return
    _, following, rest = after.partition("\n## ")
    path.write_text(f"{before}{text}{following}{rest}", encoding="utf-8")
