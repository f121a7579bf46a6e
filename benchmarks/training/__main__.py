"""Benchmarks of training techniques, with the target beside each ratio.

python -m benchmarks.training [--only validation trainer] [--rounds 5]
    [--ray PYTHON] [--hivemind PYTHON] [--write docs/measurements.md]

``--ray`` names an interpreter with torch, Pillow and ray[train] 2.60 in an environment of its own,
``--hivemind`` one with torch and hivemind 1.1.12.
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
#: The part of each peer that needs an environment of its own.
_PEERS = {"ray": "validation", "hivemind": "averaging"}


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
    for peer in _PEERS:
        parser.add_argument(f"--{peer}", metavar="PYTHON", help=f"an interpreter with {peer}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace its section")
    options = parser.parse_args()
    parts = {name: partial(_measure, name, options.rounds) for name in options.only}
    command = f"python -m benchmarks.training --rounds {options.rounds}"
    for peer, part in _PEERS.items():
        python = getattr(options, peer)
        if python is not None and part in parts:
            parts[part] = partial(parts[part], **{peer: python})
            command += f" --{peer} PYTHON"
    return run_parts(parts, HEADING, command, _SETTING, options.write)


if __name__ == "__main__":
    sys.exit(main())
