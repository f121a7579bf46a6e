"""What a workload of collocated rows costs beyond its scripts, against PyPI radt 0.2.30.

Each row notes the instant its first line runs and sleeps; wall time beyond that sleep is the
launcher's. The peer's own rows run in a copy of the folder with its own environment (it needs
pandas below 3). Both use SQLite for MLflow and no listeners that are not on the machine.
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
import os, pathlib, time
started_ns = time.monotonic_ns()
pathlib.Path(os.environ["STAMPS"], str(os.getpid())).write_text(str(started_ns))
time.sleep({SLEEP_S})
"""
HEADER = "Experiment,Workload,Name,Status,Run,Devices,Collocation,Listeners,File,Params\n"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one workload, in seconds."""

    wall_s: float
    skew_s: float

    @property
    def beyond_s(self) -> float:
        """Wall time beyond the scripts' own."""
        return self.wall_s - SLEEP_S


def launch(command: Sequence[str], folder: Path, rows: int, listeners: str, device: str) -> Launch:
    """Run a workload of that many rows in an empty folder."""
    stamps = folder / "stamps"
    stamps.mkdir(parents=True)
    (folder / "row.py").write_text(SCRIPT, encoding="utf-8")
    row = f"0,1,row,,,{device},-,{listeners},row.py,\n"
    (folder / "launch.csv").write_text(HEADER + row * rows, encoding="utf-8")
    env = dict(os.environ, STAMPS=str(stamps), RADT_HOME=str(folder / "radt-data"))
    env["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
    env["PATH"] = f"{Path(command[0]).parent}:{env['PATH']}"
    started_s = time.perf_counter()
    done = subprocess.run(
        [*command, "launch.csv"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    wall_s = time.perf_counter() - started_s
    starts_ns = [int(path.read_text(encoding="ascii")) for path in stamps.iterdir()]
    if len(starts_ns) != rows:
        raise SystemExit(
            f"{command[0]}: {len(starts_ns)} of {rows} rows started\n{done.stdout}{done.stderr}"
        )
    return Launch(wall_s, (max(starts_ns) - min(starts_ns)) / 1e9)


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
                ("beyond scripts", mine.beyond_s, peer.beyond_s),
                ("start skew", mine.skew_s, peer.skew_s),
            ):
                ratio = f"{other / own:7.1f}×" if own > 0 else "      –"
                print(f"{rows:>4}  {label:14}{own:>8.3f} s{other:>8.3f} s{ratio}", flush=True)


if __name__ == "__main__":
    main()
