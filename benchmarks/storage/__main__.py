"""Benchmarks of the store in SQLite and in Postgres, against MLflow and one row per point.

    python -m benchmarks.storage [--quick] [--only bulk reading …] [--write docs/measurements.md]

Needs the binaries of Postgres. Prints tables, and at the end the bars that are met. ``--write``
replaces the section on storage of that file.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.parts import run_parts
from benchmarks.results import Findings
from benchmarks.storage import bulk, listing, reading, replicating, sizing
from benchmarks.storage.places import Places, places

HEADING = "## Storage, against MLflow and a row a point"
_SETTING = "SQLite and Postgres on one disk, each with the settings it has in use (fsync on)."


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of the measurements."""

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
    """Run the parts; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.storage", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: two minutes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace its section on storage")
    options = parser.parse_args()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    extent = QUICK if options.quick else FULL
    command = f"python -m benchmarks.storage {'--quick' * options.quick}"
    with places() as at:
        parts = {name: partial(PARTS[name], at, extent) for name in options.only}
        return run_parts(parts, HEADING, command, _SETTING, options.write)


if __name__ == "__main__":
    sys.exit(main())
