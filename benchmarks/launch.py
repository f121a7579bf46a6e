"""What a workload of collocated rows costs beyond its scripts, against PyPI radt 0.2.30.

Each row notes the instant its first line runs and sleeps. Two workloads run one after the other;
what is compared:

- *whole*: wall time of the command beyond the scripts' own, everything cold (empty databases).
- *between*: from the end of the first workload's scripts to the start of the second's first line,
  which is what each further workload costs once the runner is up.
- *start skew*: between the first and the last row of a workload, at their first line.

The peer has its own environment (it needs pandas below 3). Both use SQLite for MLflow and the
listener ``top``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import peer_python

PEER = ("radt==0.2.30", "pandas<3")
SLEEP_S = 2.0
SCRIPT = f"""\
import os, pathlib, sys, time
started_ns = time.monotonic_ns()
pathlib.Path(os.environ["STAMPS"], sys.argv[-1] + str(os.getpid())).write_text(str(started_ns))
time.sleep({SLEEP_S})
"""
HEADER = "Experiment,Workload,Name,Status,Run,Devices,Collocation,Listeners,File,Params\n"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of two workloads, in seconds."""

    whole_s: float
    between_s: float
    skew_s: float


def launch(command: Sequence[str], folder: Path, rows: int, listeners: str, device: str) -> Launch:
    """Run two workloads of that many rows in an empty folder."""
    stamps = folder / "stamps"
    stamps.mkdir(parents=True)
    (folder / "row.py").write_text(SCRIPT, encoding="utf-8")
    lines = [
        f"0,{workload},row,,,{device},-,{listeners},row.py,w{workload}\n"
        for workload in (1, 2)
        for _ in range(rows)
    ]
    (folder / "launch.csv").write_text(HEADER + "".join(lines), encoding="utf-8")
    env = dict(os.environ, STAMPS=str(stamps), RADT_HOME=str(folder / "radt-data"))
    env["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
    env["PATH"] = f"{Path(command[0]).parent}:{env['PATH']}"
    started_s = time.perf_counter()
    done = subprocess.run(
        [*command, "launch.csv"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    wall_s = time.perf_counter() - started_s
    first_s, second_s = (
        [int(path.read_text(encoding="ascii")) / 1e9 for path in stamps.glob(f"w{workload}*")]
        for workload in (1, 2)
    )
    if len(first_s) != rows or len(second_s) != rows:
        raise SystemExit(
            f"{command[0]}: {len(first_s)} and {len(second_s)} of {rows} rows started\n"
            f"{done.stdout}{done.stderr}"
        )
    return Launch(
        whole_s=wall_s - 2 * SLEEP_S,
        between_s=min(second_s) - max(first_s) - SLEEP_S,
        skew_s=max(max(second_s) - min(second_s), max(first_s) - min(first_s)),
    )


def main() -> None:
    """Print a table of both, for one row and for several."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8])
    args = parser.parse_args()
    ours = [str(Path(sys.executable).with_name("radt"))]
    theirs = [str(peer_python("radt-0.2.30", PEER).with_name("radt"))]
    print(f"{'rows':>4}  {'':14}{'radt':>10}{'0.2.30':>10}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as scratch:
        # The first start of the day is not what is compared: modules come from disk.
        launch(ours, Path(scratch, "warm"), 1, "top", "cpu")
        for rows in args.rows:
            mine = launch(ours, Path(scratch, f"ours-{rows}"), rows, "top", "cpu")
            peer = launch(theirs, Path(scratch, f"theirs-{rows}"), rows, "top", "0")
            for label, own, other in (
                ("whole", mine.whole_s, peer.whole_s),
                ("between", mine.between_s, peer.between_s),
                ("start skew", mine.skew_s, peer.skew_s),
            ):
                ratio = f"{other / own:7.1f}×" if own > 0 else "      –"
                print(f"{rows:>4}  {label:14}{own:>8.3f} s{other:>8.3f} s{ratio}", flush=True)


if __name__ == "__main__":
    main()
