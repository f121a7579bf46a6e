"""Benchmarks of training techniques, with the target beside each ratio.

python -m benchmarks.training [--only validation trainer] [--rounds 5]
    [--write docs/measurements.md]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from functools import partial
from pathlib import Path

from benchmarks.parts import run_parts
from benchmarks.results import Findings

HEADING = "## Training techniques"
_SETTING = "PyTorch 2.13, no GPU."
#: A module here with ``measure(rounds)`` for each technique.
PARTS = ("validation", "trainer", "preemption", "offload", "averaging")


def _measure(name: str, rounds: int) -> Findings:
    """Measure one technique; the others' modules are not imported for it."""
    found: Findings = importlib.import_module(f"benchmarks.training.{name}").measure(rounds)
    return found


def main() -> int:
    """Run the parts; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace its section")
    options = parser.parse_args()
    parts = {name: partial(_measure, name, options.rounds) for name in options.only}
    command = f"python -m benchmarks.training --rounds {options.rounds}"
    return run_parts(parts, HEADING, command, _SETTING, options.write)


if __name__ == "__main__":
    sys.exit(main())
