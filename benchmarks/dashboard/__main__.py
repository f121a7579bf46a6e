"""Benchmarks of the dashboard on generated stores.

    python -m benchmarks.dashboard [--quick] [--only charts …] [--stores FOLDER] [--write FILE]

Prints tables, and at the end the bars that are met. ``--stores`` keeps the generated stores (4 GB,
three of which are MLflow's database) for the next time. ``--write`` replaces the section on the
dashboard of that file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.dashboard import browser, charts, listing, mlflow_ui, stores
from benchmarks.dashboard.stores import FULL, QUICK, Size
from benchmarks.document import replace_section, section
from benchmarks.results import Findings, bar_table
from benchmarks.timing import Load

HEADING = "## Dashboard"

STORES: dict[str, Callable[[Path, Size], Path]] = {
    "many": stores.many,
    "wide": stores.wide,
    "long": stores.long,
    "live": stores.live,
    "mlflow": mlflow_ui.database,
}
#: The parts of the benchmark, and the stores that they need.
PARTS: dict[str, tuple[Callable[[Path, Size], Findings], tuple[str, ...]]] = {
    "charts": (charts.measure, ("wide", "long", "live")),
    "listing": (listing.measure, ("many",)),
    "browser": (browser.measure, ("many", "wide", "long")),
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
    load, found = Load(), Findings()
    with ExitStack() as stack:
        folder = options.stores or Path(stack.enter_context(TemporaryDirectory()))
        for name in dict.fromkeys(one for part in options.only for one in PARTS[part][1]):
            prepare(folder, name, size)
        for name in options.only:
            part = PARTS[name][0](folder / _kind(size), size)
            load.look()
            for table in part.tables:
                print(f"\n{table.plain()}", flush=True)
            found.tables += part.tables
            found.bars += part.bars
    found.tables.append(bar_table(found.bars))
    print(f"\n{found.tables[-1].plain()}\n\n{load}")
    if options.write is not None:
        command = f"python -m benchmarks.dashboard {'--quick' * options.quick}"
        text = section(HEADING, command, load, found.tables)
        replace_section(options.write, text)
    return int(not all(bar.held for bar in found.bars))


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
