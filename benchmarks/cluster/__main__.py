"""What an experiment on a cluster costs the submit host, on a simulated cluster.

python -m benchmarks.cluster [--rows 1000 3000 10000] [--nodes 10 30 100]
    [--write docs/measurements.md]

The largest numbers of rows and nodes are those of the targets.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks.cluster import page
from benchmarks.cluster.scale import measure
from benchmarks.parts import run_parts

HEADING = "## Experiments on a cluster"
_SETTING = (
    "A simulated cluster whose nodes write the files that real ones write; its time is virtual, "
    "the CPU time of the follower is not. Each workload is one row and takes a minute. "
    "5 % of starts end by a failure of the node, 5 % by a preemption."
)


def main() -> int:
    """Run the parts; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 3000, 10_000])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace its section")
    options = parser.parse_args()
    parts = {
        "scale": partial(measure, options.rows, options.nodes),
        "page": partial(page.measure, max(options.rows), max(options.nodes)),
    }
    return run_parts(parts, HEADING, "python -m benchmarks.cluster", _SETTING, options.write)


if __name__ == "__main__":
    sys.exit(main())
