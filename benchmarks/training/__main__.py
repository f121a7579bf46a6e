"""Benchmarks of training techniques, with the target beside each ratio.

python -m benchmarks.training [--only validation trainer] [--rounds 5]
    [--hivemind PYTHON] [--write docs/measurements.md]

``--hivemind`` names an interpreter with torch and hivemind 1.1.12 in an environment of its own.
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


def _measure(name: str, rounds: int, **peers: str) -> Findings:
    """Measure one technique; the others' modules are not imported for it."""
    module = importlib.import_module(f"benchmarks.training.{name}")
    found: Findings = module.measure(rounds, **peers)
    return found


def main() -> int:
    """Run the parts; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hivemind", metavar="PYTHON", help="an interpreter with hivemind")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace its section")
    options = parser.parse_args()
    parts = {name: partial(_measure, name, options.rounds) for name in options.only}
    command = f"python -m benchmarks.training --rounds {options.rounds}"
    if options.hivemind is not None and "averaging" in parts:
        parts["averaging"] = partial(
            _measure, "averaging", options.rounds, hivemind=options.hivemind
        )
        command += " --hivemind PYTHON"
    return run_parts(parts, HEADING, command, _SETTING, options.write)


if __name__ == "__main__":
    sys.exit(main())
