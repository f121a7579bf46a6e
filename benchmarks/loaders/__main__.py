"""Benchmarks of loaders, with the target beside each ratio.

    python -m benchmarks.loaders [--only sharing handover] [--rounds 5] [--seconds 5]
        [--peer PYTHON] [--monai PYTHON] [--write docs/measurements.md]

``--peer`` names an interpreter with torch, pillow and tensorsocket 0.0.5 (``pip install`` them in
an environment of their own), ``--monai`` one with torch, pillow and monai; without them the peers
are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.loaders import echoing, handover, sharing
from benchmarks.parts import run_parts
from benchmarks.results import Findings

HEADING = "## Loaders"
_SETTING = (
    "PyTorch 2.13, no GPU. Own loaders and the shared one have the same number of worker processes "
    "in all. Each process that shares reads a thousandth of each batch."
)

Measure = Callable[[argparse.Namespace], Findings]
#: A target of a loader: its line here, and a module with ``measure``.
PARTS: dict[str, Measure] = {
    "sharing": lambda chosen: sharing.measure(chosen.rounds, chosen.seconds, chosen.peer),
    "handover": lambda chosen: handover.measure(chosen.rounds, chosen.seconds),
    "echoing": lambda chosen: echoing.measure(chosen.rounds, chosen.monai),
}


def main() -> int:
    """Run the parts; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loaders", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter with tensorsocket 0.0.5")
    parser.add_argument("--monai", metavar="PYTHON", help="an interpreter with MONAI")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace its section on loaders")
    options = parser.parse_args()
    command = f"python -m benchmarks.loaders --rounds {options.rounds}"
    command += " --peer PYTHON" * (options.peer is not None)
    command += " --monai PYTHON" * (options.monai is not None)
    parts = {name: partial(PARTS[name], options) for name in options.only}
    return run_parts(parts, HEADING, command, _SETTING, options.write)


if __name__ == "__main__":
    sys.exit(main())
