"""The store's bars, in SQLite and in Postgres, against MLflow and a row a point in the same run.

    python -m benchmarks.storage [--quick] [--only bulk reading …] [--write docs/measurements.md]

Needs the binaries of Postgres. Prints tables, and at the end which bars are held. ``--write``
replaces the section on storage of that file.
"""

from __future__ import annotations

import argparse
import logging
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.storage import bulk, listing, reading, replicating, sizing
from benchmarks.storage.places import Places, places
from benchmarks.storage.results import Findings, bar_table
from benchmarks.storage.timing import Load

HEADING = "## Storage, against MLflow and a row a point"


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    points: int
    mlflow_points: int
    long_points: int
    runs: int
    replicated_s: int
    recorded_s: int


FULL = Extent(5_000_000, 50_000, 10_000_000, 10_000, 210, 3600)
QUICK = Extent(2_000_000, 5_000, 2_000_000, 1_000, 90, 600)

Measure = Callable[[Places, Extent], Findings]
PARTS: dict[str, Measure] = {
    "bulk": lambda at, extent: bulk.measure(at, extent.points, extent.mlflow_points),
    "reading": lambda at, extent: reading.measure(at, extent.long_points),
    "listing": lambda at, extent: listing.measure(at, extent.runs),
    "replication": lambda at, extent: replicating.measure(at, extent.replicated_s),
    "sizing": lambda at, extent: sizing.measure(at, extent.recorded_s),
}


def main() -> int:
    """Measure; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.storage", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: two minutes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace its section on storage")
    options = parser.parse_args()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    load, found = Load(), Findings()
    with places() as at:
        for name in options.only:
            part = PARTS[name](at, QUICK if options.quick else FULL)
            load.look()
            for table in part.tables:
                print(f"\n{table.plain()}", flush=True)
            found.tables += part.tables
            found.bars += part.bars
    found.tables.append(bar_table(found.bars))
    print(f"\n{found.tables[-1].plain()}\n\n{load}")
    if options.write is not None:
        _replace_section(options.write, _section(found, load, "--quick " * options.quick))
    return int(not all(bar.held for bar in found.bars))


def _section(found: Findings, load: Load, arguments: str) -> str:
    day = datetime.fromtimestamp(time.time(), UTC).date()
    command = f"python -m benchmarks.storage {arguments}".strip()
    head = (
        f"`{command}`, {day}, {load}, Linux, Python "
        f"{platform.python_version().rpartition('.')[0]}. SQLite and Postgres on one disk, each "
        "with the settings it has in use (fsync on)."
    )
    return "\n\n".join([HEADING, head, *(table.markdown() for table in found.tables)]) + "\n"


def _replace_section(path: Path, section: str) -> None:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before, found, after = text.partition(f"{HEADING}\n")
    if not found:
        path.write_text(f"{text.rstrip()}\n\n{section}", encoding="utf-8")
        return
    _, following, rest = after.partition("\n## ")
    path.write_text(f"{before}{section}{following}{rest}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
