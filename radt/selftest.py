"""Measure the tracking overhead on this machine (``radt selftest``).

Everything runs in a temporary folder with its own data folder and collector, which are removed
after the measurement; if that is killed, the collector exits after a few idle seconds.
``benchmarks/`` has comparisons with other trackers and measurements of radt's parts.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from radt import units
from radt.analysis.estimates import mean_interval
from radt.collector.client import CollectorClient
from radt.errors import LaunchError, RadtError
from radt.home import HOME_VARIABLE, RUNTIME_VARIABLE, Home, runtime_dir
from radt.processes import command, run_command, stop_child, stop_run
from radt.store.reader import StoreReader

#: Number of runs that are sampled and started together.
RUNS = 8
WORKLOADS = 3
#: Limits, as in docs/measurements.md.
RATIO_LIMIT = 1.02
CPU_LIMIT = 0.02
MISSED_LIMIT = 0.01
SKEW_LIMIT_S = 0.02

_STEP_S = 0.01
_TRIAL_ROUNDS = 50_000
#: Excludes the opening of the listeners from the sampling measurement.
_SETTLE_S = 1.5
_TIMEOUT_S = 300.0
_DELIVERY_S = 60.0
_POLL_S = 0.05
_COLLECTOR_IDLE_S = 2
#: Settings that change the overhead and are kept; others would lead to the user's own data.
_KEPT_VARIABLES = frozenset({"RADT_FLUSH_S", "RADT_ARCHIVE_S"})

#: The same work on all CPUs, with or without radt: any CPU time of radt delays the work.
_WORK = """\
import json, os, sys, time
from contextlib import nullcontext

tracked, steps, rounds, processes = (int(argument) for argument in sys.argv[1:])

def burn():
    value = 1
    for _ in range(rounds):
        value = value * 1103515245 + 12345 & 0x7FFFFFFF
    return float(value)

if tracked:
    import radt
    run = radt.Run("work", experiment="selftest")
else:
    run = nullcontext()
with run:
    begun_s = time.perf_counter()
    for _ in range(processes - 1):
        if os.fork() == 0:
            for _ in range(steps):
                burn()
            os._exit(0)
    for step in range(steps):
        value = burn()
        if tracked:
            run.log_metric("loss", value, step)
    for _ in range(processes - 1):
        os.wait()
    took_s = time.perf_counter() - begun_s
print(json.dumps(took_s))
"""


class LimitVerdict(StrEnum):
    """Position of a measurement relative to its limit."""

    WITHIN = "within the limit"
    OVER = "over the limit"
    INCONCLUSIVE = "inconclusive"  # the limit lies inside the interval
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class OverheadMeasurement:
    """A measured quantity.

    Attributes:
        key: Stable identifier, for programs.
        label: Name for display.
        value: In the unit that ``show`` formats; None if the measurement failed.
        limit: The value should be at most this.
        show: Formats the value and the limit.
        low, high: The 95 % confidence interval, or the lowest and highest of a few values.
        detail: How it was measured.
        error: Why it failed.
    """

    key: str
    label: str
    value: float | None = None
    limit: float = math.inf
    show: Callable[[float | None], str] = units.duration
    low: float | None = None
    high: float | None = None
    detail: str = ""
    error: str = ""

    @property
    def verdict(self) -> LimitVerdict:
        """Return a verdict; within or over the limit only if the whole interval is."""
        if self.value is None:
            return LimitVerdict.FAILED
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        if high <= self.limit:
            return LimitVerdict.WITHIN
        return LimitVerdict.OVER if low > self.limit else LimitVerdict.INCONCLUSIVE

    def document(self) -> dict[str, Any]:
        """Return the measurement for JSON: seconds and ratios, without a unit."""
        values = asdict(self) | {"verdict": self.verdict.value}
        del values["show"]
        return values


def run_selftest(
    pairs: int, seconds: float, seed: int, report: Callable[[OverheadMeasurement], None]
) -> list[OverheadMeasurement]:
    """Measure start skew, sampling, and the run time with radt relative to without.

    Args:
        pairs: Number of pairs of runs.
        seconds: How long a run of a pair computes and sampling is measured.
        seed: Determines which run of each pair goes first.
        report: Called with each measurement as soon as it is made.

    Raises:
        RadtError: The temporary folders cannot be created.
    """
    measurements: list[OverheadMeasurement] = []
    with _sandbox() as home:
        steps: list[tuple[str, str, Callable[[], list[OverheadMeasurement]]]] = [
            ("start_skew", f"start skew of {RUNS} rows", lambda: _start_skew(home)),
            ("sampling", f"sampling {RUNS} runs at 1 Hz", lambda: _sampling(home, seconds)),
            ("time_ratio", "run time with radt", lambda: _time_ratio(home, pairs, seconds, seed)),
        ]
        for key, label, measure in steps:
            try:
                made = measure()
            except (RadtError, OSError) as error:
                made = [OverheadMeasurement(key, label, error=str(error))]
            for measurement in made:
                measurements.append(measurement)
                report(measurement)
    return measurements


@contextmanager
def _sandbox() -> Iterator[Home]:
    """Yield a data folder; set up a runtime folder for this process and its child processes."""
    before = dict(os.environ)
    with (
        tempfile.TemporaryDirectory(prefix="radt-selftest-", ignore_cleanup_errors=True) as folder,
        # Inside the usual one: the path of a Unix socket may have only 107 characters.
        tempfile.TemporaryDirectory(dir=runtime_dir(), ignore_cleanup_errors=True) as runtime,
    ):
        home = Home(Path(folder) / "radt-data").create()
        for name in before:
            if name.startswith(("RADT_", "MLFLOW_")) and name not in _KEPT_VARIABLES:
                del os.environ[name]
        os.environ[HOME_VARIABLE] = str(home.path)
        os.environ[RUNTIME_VARIABLE] = runtime
        os.environ["RADT_COLLECTOR_IDLE_S"] = str(_COLLECTOR_IDLE_S)
        try:
            yield home
        finally:
            # The collector and its child processes are identified by their runtime folder.
            stop_run(runtime, kill_s=_TIMEOUT_S, variable=RUNTIME_VARIABLE)
            os.environ.clear()
            os.environ.update(before)


# Start skew of a workload's rows ------------------------------------------------------------------


def _start_skew(home: Home) -> list[OverheadMeasurement]:
    _run(_experiment(home, "starts", "", listeners="none", workloads=WORKLOADS), home)
    with StoreReader(home.store_path) as reader:
        workloads = reader.workloads("starts")
    skews_s = [
        workload.start_skew_ns / 1e9 for workload in workloads if workload.start_skew_ns is not None
    ]
    if len(skews_s) < WORKLOADS:
        raise LaunchError(f"{len(skews_s)} of {WORKLOADS} workloads started", "Run: radt doctor")
    low, high = min(skews_s), max(skews_s)
    return [
        OverheadMeasurement(
            "start_skew",
            f"start skew of {RUNS} rows",
            statistics.median(skews_s),
            SKEW_LIMIT_S,
            low=low,
            high=high,
            detail=f"{units.duration(low)} to {units.duration(high)}, n = {WORKLOADS}",
        )
    ]


def _experiment(
    home: Home, name: str, program: str, *, listeners: str, workloads: int = 1
) -> list[str]:
    """Write an experiment whose rows run a program. Return the command that runs it."""
    (home.path / f"{name}.py").write_text(program, encoding="utf-8")
    file = home.path / f"{name}.csv"
    lines = ["Experiment,Workload,Name,Devices,Listeners,File,Status,Run"]
    for workload in range(1, workloads + 1):
        lines += [f"{name},{workload},row,cpu,{listeners},{name}.py,,"] * RUNS
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return command("radt", "run", str(file), "--quiet", "--yes")


# Cost of sampling ---------------------------------------------------------------------------------


def _sampling(home: Home, seconds: float) -> list[OverheadMeasurement]:
    """Record idle rows without uploads, so that sampling is the collector's only work."""
    start = _experiment(home, "idle", "import signal; signal.pause()\n", listeners="default")
    output = home.path / "idle.log"
    with CollectorClient().reach() as client, output.open("wb") as log:
        runner = subprocess.Popen(
            [*start, "--tracking-uri", "none"],
            cwd=home.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        try:
            deadline_s = time.monotonic() + _TIMEOUT_S
            while len(run_ids := client.status().runs) < RUNS:
                if runner.poll() is not None or time.monotonic() > deadline_s:
                    last = _last_line(output.read_text(encoding="utf-8", errors="replace"))
                    started = f"{len(run_ids)} of {RUNS} idle rows started"
                    raise LaunchError(f"{started}: {last}", "Run: radt doctor")
                time.sleep(_POLL_S)
            time.sleep(_SETTLE_S)
            before, begun_s = client.status(), time.monotonic()
            time.sleep(max(seconds, 1.0) * 2.5)
            after, took_s = client.status(), time.monotonic() - begun_s
        finally:
            stop_child(runner, _TIMEOUT_S)
    with StoreReader(home.store_path) as reader:
        ledger = reader.ledger(run_ids)
    expected, missed = sum(row.expected for row in ledger), sum(row.missed for row in ledger)
    if not expected:
        raise LaunchError("the collector recorded no readings", "Run: radt listeners")
    listeners = ", ".join(sorted({row.listener for row in ledger}))
    return [
        OverheadMeasurement(
            "sampling.cpu",
            f"sampling {RUNS} runs at 1 Hz",
            (after.cpu_s - before.cpu_s) / took_s,
            CPU_LIMIT,
            units.percent,
            detail=f"of one core, {units.size(after.rss_bytes)} of memory; {listeners}",
        ),
        OverheadMeasurement(
            "sampling.missed",
            "readings missed",
            missed / expected,
            MISSED_LIMIT,
            units.percent,
            detail=f"{missed:,} of {units.plural(expected, 'reading')}",
        ),
    ]


# The same work with and without radt --------------------------------------------------------------


def _time_ratio(home: Home, pairs: int, seconds: float, seed: int) -> list[OverheadMeasurement]:
    """Return the geometric mean of the ratios with the t interval of their logarithms."""
    script = home.path / "work.py"
    script.write_text(_WORK, encoding="utf-8")
    processes = len(os.sched_getaffinity(0))
    steps = max(2, round(seconds / _STEP_S))
    trial_s = _work(home, tracked=False, steps=10, rounds=_TRIAL_ROUNDS, processes=processes) / 10
    rounds = max(1, round(_TRIAL_ROUNDS * _STEP_S / trial_s))
    sizes = {"steps": steps, "rounds": rounds, "processes": processes}
    _work(home, tracked=True, **{**sizes, "steps": 2})  # starts what runs share
    logs = []
    for tracked_first in drawn_orders(pairs, seed):
        took_s = {}
        for tracked in (tracked_first, not tracked_first):
            _wait_delivered(home)
            took_s[tracked] = _work(home, tracked=tracked, **sizes)
        logs.append(math.log(took_s[True] / took_s[False]))
    interval = mean_interval(logs)
    return [
        OverheadMeasurement(
            "time_ratio",
            "run time with radt",
            math.exp(statistics.fmean(logs)),
            RATIO_LIMIT,
            lambda value: units.NO_VALUE if value is None else f"{value:.3f}×",
            # One pair has no interval and no verdict.
            low=0.0 if interval is None else math.exp(interval.low),
            high=math.inf if interval is None else math.exp(interval.high),
            detail="no confidence interval from 1 pair"
            if interval is None
            else f"95 % CI {math.exp(interval.low):.3f} to {math.exp(interval.high):.3f}, "
            f"{units.plural(pairs, 'pair')} on {units.plural(processes, 'CPU')}",
        )
    ]


def drawn_orders(pairs: int, seed: int) -> list[bool]:
    """Return, for each pair, True if the run with radt goes first.

    Two neighbouring pairs start with different runs, so that drift (temperature, other processes)
    favours neither.
    """
    chance = random.Random(seed)  # noqa: S311 - not about secrets
    orders: list[bool] = []
    while len(orders) < pairs:
        two = [True, False]
        chance.shuffle(two)
        orders += two
    return orders[:pairs]


def _work(home: Home, *, tracked: bool, steps: int, rounds: int, processes: int) -> float:
    """Run the work once; return its duration, excluding imports and radt's start and end."""
    arguments = (str(int(tracked)), str(steps), str(rounds), str(processes))
    output = _run([sys.executable, "-P", "work.py", *arguments], home)
    return float(json.loads(output.strip().splitlines()[-1]))


def _wait_delivered(home: Home) -> None:
    """Wait until no data of an earlier run is being uploaded to MLflow."""
    deadline_s = time.monotonic() + _DELIVERY_S
    while time.monotonic() < deadline_s:
        with StoreReader(home.store_path) as reader:
            if not reader.runs_to_deliver(home.default_tracking_uri):
                return
        time.sleep(0.25)
    raise LaunchError(f"a run was not delivered to MLflow within {_DELIVERY_S:.0f} s")


def _run(command: Sequence[str], home: Home) -> str:
    """Run a program to completion in the data folder; return its output."""
    name = "radt" if "-m" in command else command[2]
    try:
        result = run_command(command, _TIMEOUT_S, cwd=home.path)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{name} took longer than {_TIMEOUT_S:.0f} s") from None
    if result.returncode != 0:
        last = _last_line(result.stderr.strip() or result.stdout)
        raise LaunchError(f"{name} ended with exit code {result.returncode}: {last}")
    return result.stdout


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no output"])[-1]
