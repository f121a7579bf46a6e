"""Cost of logging one scalar in the training process: radt, MLflow, W&B and TensorBoard.

    python -m benchmarks.log_metric [--rounds 3] [--worst 5000000]

Each tracker runs in its own process, configured as users do (MLflow with SQLite, W&B offline,
TensorBoard through torch's SummaryWriter), in turns, so that other load on the machine affects all
of them. Times are of single calls, minus the time to read the clock; "total" is the loop's time
divided by the calls, including work that a call defers. ``--worst`` then logs that many values with
radt alone, collector included, and shows the longest calls beside those of a loop that logs
nothing, which shows the machine's own delays.
"""

from __future__ import annotations

import argparse
import json
import os
import site
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import peer_python

FOLDER = Path(__file__).parent
WARM_UP_CALLS = 100
_EMPTY_CALLS = 10_000
Log = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of calls, in nanoseconds, minus the time to read the clock.

    ``total_ns`` is the loop's time by the number of calls, including work that a call defers;
    ``over_1ms`` counts calls that took longer than a millisecond.
    """

    median_ns: float
    p99_ns: float
    p999_ns: float
    max_ns: float
    total_ns: float
    over_1ms: int


def measure(log: Log, calls: int) -> Measured:
    """Time ``calls`` calls, one by one."""
    clock = time.perf_counter_ns
    for step in range(WARM_UP_CALLS):
        log(step)
    times = array("q", bytes(8 * calls))
    begun = clock()
    for step in range(calls):
        before = clock()
        log(step)
        times[step] = clock() - before
    total = (clock() - begun) / calls
    empty = array("q", bytes(8 * _EMPTY_CALLS))
    for step in range(len(empty)):
        before = clock()
        empty[step] = clock() - before
    overhead = sorted(empty)[len(empty) // 2]
    ordered = sorted(times)
    return Measured(
        median_ns=ordered[calls // 2] - overhead,
        p99_ns=ordered[calls * 99 // 100] - overhead,
        p999_ns=ordered[calls * 999 // 1000] - overhead,
        max_ns=ordered[-1] - overhead,
        total_ns=total,
        over_1ms=sum(1 for taken in ordered[calls * 99 // 100 :] if taken > 1_000_000),
    )


def nothing(calls: int, _folder: Path) -> Measured:
    """Measure calls of a Python function that does nothing."""
    return measure(lambda _: None, calls)


def radt_log(calls: int, folder: Path) -> Measured:
    """Measure radt, in a run of its own with its own collector."""
    os.environ["RADT_HOME"] = str(folder / "radt-data")
    os.environ["RADT_RUNTIME_DIR"] = str(folder)
    os.environ["RADT_COLLECTOR_IDLE_S"] = "0"
    import radt

    with radt.Run(listeners="none") as run:
        return measure(lambda step: run.log_metric("loss", 0.5, step), calls)


def mlflow_log(calls: int, folder: Path) -> Measured:
    """Measure MLflow's fluent API with SQLite."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    with mlflow.start_run():
        return measure(lambda step: mlflow.log_metric("loss", 0.5, step), calls)


def wandb_log(calls: int, folder: Path) -> Measured:
    """Measure W&B offline, without its own system monitor."""
    import wandb

    os.environ["WANDB_SILENT"] = "true"
    settings = wandb.Settings(x_disable_stats=True)
    with wandb.init(mode="offline", dir=folder, settings=settings) as run:
        return measure(lambda _: run.log({"loss": 0.5}), calls)


def tensorboard_log(calls: int, folder: Path) -> Measured:
    """Measure torch's SummaryWriter; tensorboard itself comes from the peers' environment."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        return measure(lambda step: writer.add_scalar("loss", 0.5, step), calls)


@dataclass(frozen=True, slots=True)
class Tracker:
    """One line of the table; ``calls`` is chosen so that a round takes seconds."""

    label: str
    log: Callable[[int, Path], Measured]
    calls: int
    own_environment: bool = False


TRACKERS = {
    "nothing": Tracker("(empty function)", nothing, 500_000),
    "radt": Tracker("radt", radt_log, 500_000),
    "tensorboard": Tracker("TensorBoard", tensorboard_log, 30_000),
    "wandb": Tracker("W&B offline", wandb_log, 10_000, own_environment=True),
    "mlflow": Tracker("MLflow SQLite", mlflow_log, 300),
}


def in_a_process(name: str, calls: int, peers: Path) -> Measured | str:
    """Measure in a fresh process; return a sentence with the reason if that failed."""
    python = str(peers) if TRACKERS[name].own_environment else sys.executable
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            [python, "-m", "benchmarks.log_metric", "--measure", name, str(calls), folder],
            cwd=FOLDER.parent,
            env=os.environ | {"BENCH_PEERS": str(peers)},
            capture_output=True,
            text=True,
            check=False,
        )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            return Measured(**json.loads(line))
    return (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]


def row(label: str, rounds: list[Measured], reference_ns: float | None) -> str:
    """Return the table's line: the median of the rounds, and the maximum of their worst calls."""

    def middle(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    median = middle([one.median_ns for one in rounds])
    ratio = f"{median / reference_ns:>8.1f}×" if reference_ns else f"{'':>9}"
    return (
        f"{label:<18}{median / 1e3:>10.2f}{middle([r.p99_ns for r in rounds]) / 1e3:>10.2f}"
        f"{middle([r.p999_ns for r in rounds]) / 1e3:>10.2f}"
        f"{max(r.max_ns for r in rounds) / 1e3:>12.0f}"
        f"{middle([r.total_ns for r in rounds]) / 1e3:>10.2f}{ratio}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worst", type=int, default=0, help="values for the search of stalls")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, calls, folder = args.measure
        if not TRACKERS[name].own_environment:
            for path in (
                Path(os.environ["BENCH_PEERS"]).parents[1].glob("lib/python*/site-packages")
            ):
                site.addsitedir(str(path))  # this environment's packages come first
        measured = TRACKERS[name].log(int(calls), Path(folder))
        print(json.dumps({name: getattr(measured, name) for name in Measured.__slots__}))
        return
    lines = (FOLDER / "requirements.txt").read_text(encoding="utf-8").splitlines()
    peers = peer_python("trackers", [line for line in lines if line and line[0] != "#"])
    rounds: dict[str, list[Measured]] = {name: [] for name in TRACKERS}
    failed: dict[str, str] = {}
    for _ in range(args.rounds):
        for name, tracker in TRACKERS.items():
            found = in_a_process(name, tracker.calls, peers)
            if isinstance(found, str):
                failed[name] = found
            else:
                rounds[name].append(found)
    print(f"{'µs a call':<18}{'median':>10}{'p99':>10}{'p99.9':>10}{'max':>12}{'total':>10}")
    ours = sorted(one.median_ns for one in rounds["radt"])
    for name, tracker in TRACKERS.items():
        if rounds[name]:
            print(row(tracker.label, rounds[name], ours[len(ours) // 2] if ours else None))
        else:
            print(f"{tracker.label:<18}could not be measured: {failed[name]}")
    if args.worst:
        print(f"\n{args.worst:,} calls")
        for name in ("nothing", "radt"):
            worst = in_a_process(name, args.worst, peers)
            if isinstance(worst, str):
                raise SystemExit(worst)
            line = row(TRACKERS[name].label, [worst], None)
            print(f"{line.rstrip()}   {worst.over_1ms} calls over 1 ms")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the text."""


if __name__ == "__main__":
    main()
