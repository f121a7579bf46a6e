"""Benchmarks of the dashboard on generated stores.

    python -m benchmarks.dashboard [--quick] [--only charts …] [--stores FOLDER] [--write FILE]

Prints tables, and at the end the bars that are met. ``--stores`` keeps the generated stores (5 GB,
three of which are MLflow's database) for the next time. ``--write`` replaces the section on the
dashboard of that file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.dashboard import (
    browser,
    charts,
    listing,
    mlflow_runs,
    mlflow_ui,
    reports,
    stores,
    tables,
    weight,
)
from benchmarks.dashboard.stores import FULL, QUICK, Size
from benchmarks.parts import run_parts
from benchmarks.results import Findings

HEADING = "## Dashboard"

STORES: dict[str, Callable[[Path, Size], Path]] = {
    "many": stores.many,
    "vast": stores.vast,
    "searched": stores.searched,
    "wide": stores.wide,
    "long": stores.long,
    "live": stores.live,
    "mlflow": mlflow_ui.database,
    "mlflow_runs": mlflow_runs.database,
}
#: The parts of the benchmark, and the stores that they need.
PARTS: dict[str, tuple[Callable[[Path, Size], Findings], tuple[str, ...]]] = {
    "charts": (charts.measure, ("wide", "long", "live")),
    "listing": (listing.measure, ("many",)),
    "reports": (reports.measure, ("searched",)),
    "tables": (tables.measure, ("many", "vast")),
    "mlflow-runs": (mlflow_runs.measure, ("many", "mlflow_runs")),
    "browser": (browser.measure, ("many", "wide", "long")),
    "weight": (weight.measure, ("wide",)),
    "mlflow": (mlflow_ui.measure, ("mlflow",)),
}


def main() -> int:
    """Run the parts; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dashboard", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: a minute")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--stores", type=Path, metavar="FOLDER", help="keep the stores there")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace its section")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    command = f"python -m benchmarks.dashboard {'--quick' * options.quick}"
    with ExitStack() as stack:
        folder = options.stores or Path(stack.enter_context(TemporaryDirectory()))
        for name in dict.fromkeys(one for part in options.only for one in PARTS[part][1]):
            prepare(folder, name, size)
        at = folder / _kind(size)
        parts = {name: partial(PARTS[name][0], at, size) for name in options.only}
        return run_parts(parts, HEADING, command, write=options.write)


def prepare(folder: Path, name: str, size: Size) -> None:
    """Generate a store if it does not exist yet; a partial one is generated again."""
    made = folder / _kind(size) / name
    done = made / "done"
    if done.exists():
        return
    for left in made.glob("radt.db*"):
        left.unlink()
    STORES[name](made / "radt.db", size)
    done.touch()


def _kind(size: Size) -> str:
    return "full" if size == FULL else "quick"


if __name__ == "__main__":
    sys.exit(main())
