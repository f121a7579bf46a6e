"""Cost of observing: CPU time and memory of observers, and the slowdown of a script.

    python -m benchmarks.listeners [--runs 8] [--seconds 30] [--pairs 7] [--fake-gpus] [--only NAME]

*Cost*: runs of four sleeping processes each, observed by this radt's collector (all default
listeners), by MLflow's system metrics and by PyPI radt 0.2.30. CPU time is that of the observers,
as a share of one core and per run and reading. The bars for radt: 2 % of one core and 150 MB at
1 Hz, 10 % at 10 Hz. Peers write to MLflow (SQLite); radt's collector writes its store, and in the
line whose name says so also uploads the values to MLflow. Memory of peers excludes pages shared by
processes; MLflow's is that of the whole run's process, most of which is MLflow itself.

*Slowdown*: a script that computes and one that writes to the disk, as many at once as there are
cores, with and without the observer, in pairs that alternate the order. A ratio compares the times
of a pair; the table shows the median and the middle half. *Noise* is the same with no observer in
either half of a pair: a slowdown within it cannot be measured.

``--fake-gpus`` reads two GPUs of the tests' fake NVML: this measures the cost of radt's code (and
of the fake), not of a driver.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.observers import (
    Mlflow,
    Observed,
    Original,
    Radt,
    original_listeners,
    private_folders,
)
from radt.listeners.registry import load
from radt.model import ListenerChoice

#: Excludes the cost of starting from the cost of observing.
SETTLE_S = 5.0
#: The limit on missed readings: an observer that reads less often also costs less.
_MAX_MISSED = 0.1
#: Left out of the pairs, which measure reading: uploading costs more, at any time.
_DELIVERING = "radt 1 Hz, to MLflow"


@dataclass(frozen=True, slots=True)
class Contender:
    """An observer, and its rate of readings; the bar is a share of one core."""

    name: str
    make: Callable[[Path], Observed]
    rate_hz: float
    bar: float | None = None


def contenders(devices: tuple[str, ...]) -> list[Contender]:
    """Return all compared observers."""
    names = [choice.name for choice in load().defaults]

    def radt(interval_s: float, *, delivers: bool = False) -> Callable[[Path], Observed]:
        chosen = tuple(ListenerChoice(name, interval_s) for name in names)
        return lambda folder: Radt(
            folder=folder, listeners=chosen, devices=devices, delivers=delivers
        )

    print(f"radt's default listeners here: {'+'.join(names)}")
    print(f"radt 0.2.30's: {'+'.join(original_listeners())}; MLflow's: CPU, memory, disk, network")
    return [
        Contender("radt 1 Hz", radt(1.0), 1, 0.02),
        Contender("radt 10 Hz", radt(0.1), 10, 0.10),
        Contender(_DELIVERING, radt(1.0, delivers=True), 1),
        Contender("MLflow 1 Hz", lambda folder: Mlflow(folder=folder), 1),
        Contender("radt 0.2.30 1 Hz", lambda folder: Original(folder=folder), 1),
    ]


def cost(contender: Contender, runs: int, seconds: float) -> str:
    """Return a line of the table of costs."""
    with private_folders() as folder:
        observed = contender.make(folder)
        observed.start("idle", runs)
        time.sleep(SETTLE_S)
        before, before_s = observed.use(), time.monotonic()
        time.sleep(seconds)
        after, took_s = observed.use(), time.monotonic() - before_s
        observed.stop()
        missed = observed.missed() if isinstance(observed, Radt) else None
    share = (after.cpu_s - before.cpu_s) / took_s
    values = (after.values - before.values) / took_s
    instants = runs * contender.rate_hz
    cells = (
        f"{contender.name:22}{share:9.2%}{share / instants * 1e6:13,.0f} µs"
        f"{after.memory_bytes / 1e6:9.0f} MB{values:12,.0f}"
    )
    if missed is not None:
        cells += f"{missed[0]:8,} of {missed[1]:,}"
        if missed[0] > _MAX_MISSED * missed[1]:
            return f"{cells}   too many: this says nothing"
    if contender.bar is not None:
        cells += f"   bar {contender.bar:.0%}: {'held' if share <= contender.bar else 'BROKEN'}"
    return cells


def slowdown(contender: Contender | None, kind: str, pairs: int) -> str:
    """Return a cell of the table of slowdowns: the ratio with and without the observer."""
    ratios = []
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)
        took = {on: _work_s(contender if on else None, contender, kind) for on in order}
        ratios.append(took[True] / took[False])
    ordered = sorted(ratios)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return f"{statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})"


def _work_s(contender: Contender | None, like: Contender | None, kind: str) -> float:
    """Return the scripts' mean time, in the same Python with and without an observer."""
    with private_folders() as folder:
        if contender is not None:
            observed = contender.make(folder)
        else:
            observed = Observed(folder=folder)
            if like is not None and like.name.startswith("radt 0.2.30"):
                observed.python = Original(folder=folder).python
        observed.start(kind, len(os.sched_getaffinity(0)))
        took_s = observed.work()
        observed.stop()
    return statistics.mean(took_s)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--pairs", type=int, default=7, help="0 leaves the slowdown out")
    parser.add_argument("--fake-gpus", action="store_true")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="contenders that begin so")
    args = parser.parse_args()
    devices: tuple[str, ...] = ()
    if args.fake_gpus and "FAKE_NVML" not in os.environ:
        sys.exit(_again_with_fake_gpus())
    if args.fake_gpus:
        devices = ("0",)
    chosen = [
        one
        for one in contenders(devices)
        if args.only is None or any(one.name.startswith(name) for name in args.only)
    ]
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores\n")
    print(
        f"{f'{args.runs} runs of 4 processes':22}{'one core':>9}{'run, reading':>16}{'memory':>12}"
        f"{'values/s':>12}   missed"
    )
    for contender in chosen:
        print(cost(contender, args.runs, args.seconds), flush=True)
    if args.pairs:
        print(f"\n{'slowdown':22}{'computing':>22}{'writing':>22}")
        for compared in (None, *(one for one in chosen if one.name != _DELIVERING)):
            _print_slowdowns(compared, args.pairs)
    print(f"\nload {os.getloadavg()[0]:.1f}")


def _print_slowdowns(contender: Contender | None, pairs: int) -> None:
    name = "noise" if contender is None else contender.name
    cells = (slowdown(contender, kind, pairs) for kind in ("cpu", "disk"))
    print(f"{name:22}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def _again_with_fake_gpus() -> int:
    """Run this again in a process whose loader finds the fake NVML; return its exit code."""
    from tests.support.nvml import TWO_GPUS, FakeNvml, build_library

    with tempfile.TemporaryDirectory() as name:
        fake = FakeNvml.in_folder(build_library(Path(name)), Path(name))
        fake.configure(*TWO_GPUS)
        env = fake.environment()
        del env["FAKE_NVML_LOG"]
        return subprocess.run(
            [sys.executable, "-m", __spec__.name, *sys.argv[1:]], env=env
        ).returncode


if __name__ == "__main__":
    main()
