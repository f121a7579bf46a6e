"""Somebody sets the wall clock while a run goes on: an hour back, then two forward."""

from __future__ import annotations

import fcntl
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from radt.model import MarkerKind
from tests.support.bench import Bench, has_store, wait_until

_SOURCE = Path(__file__).parents[1] / "support" / "clock_shift.c"

#: Says what it measured itself, by the clock that nobody sets.
TRAINS = """\
import json, os, sys, time
import radt
with radt.Run() as run:
    begun_s = time.monotonic()
    wall_s = []
    for epoch in run.epochs(1000):
        for batch in range(5):
            time.sleep(0.01)
            run.log_metric("loss", 1 / (1 + epoch))
            run.step(samples=8)
        wall_s.append(time.time())
        if os.path.exists(sys.argv[1]):
            break
    took_s = time.monotonic() - begun_s
json.dump({"took_s": took_s, "epochs": epoch, "wall_s": wall_s}, open(sys.argv[2], "w"))
"""


class WallClock:
    """The wall clock of the processes that a bench starts."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        library = folder / "clock_shift.so"
        subprocess.run(
            [
                "cc",
                "-shared",
                "-fPIC",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-o",
                library,
                _SOURCE,
                "-ldl",
            ],
            check=True,
        )
        self._file = folder / "shift"
        self._file.write_bytes(struct.pack("d", 0.0))
        bench.env |= {"LD_PRELOAD": str(library), "CLOCK_SHIFT_FILE": str(self._file)}

    def set(self, shift_s: float) -> None:
        with self._file.open("r+b") as file:  # processes have it mapped
            file.write(struct.pack("d", shift_s))


@pytest.fixture
def wall_clock(bench: Bench, tmp_path: Path) -> WallClock:
    return WallClock(tmp_path, bench)


ALONE = """\
import radt, sys, time
with radt.Run(name=sys.argv[1]) as run:
    run.log_metric("loss", 1.0)
    print(time.time(), flush=True)
    sys.stdin.readline()
"""
_DAYS_S = 30 * 86_400.0


def test_a_clock_that_was_wrong_before_dates_no_later_run_wrongly(
    bench: Bench, wall_clock: WallClock
) -> None:
    script = bench.script("alone.py", ALONE)
    bench.env |= {"RADT_COLLECTOR_IDLE_S": "600", "RADT_LISTENERS": "none"}

    def begin(name: str) -> tuple[subprocess.Popen[str], float]:
        process = subprocess.Popen(
            [sys.executable, str(script), name],
            cwd=bench.folder,
            env=bench.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        bench.started.append(process)
        assert process.stdout is not None
        return process, float(process.stdout.readline())

    def free() -> bool:
        """Whether the collector, which lives, has nothing to do."""
        with Path(bench.env["RADT_RUNTIME_DIR"], "clock.lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def recorded() -> bool:
        return has_store(bench.home) and len(bench.reader.runs()) == 1

    wall_clock.set(-_DAYS_S)
    first, first_s = begin("first")
    wait_until(recorded, "the collector, which began after the script, has the run")
    wall_clock.set(0.0)
    second, second_s = begin("second")
    assert second_s - first_s > _DAYS_S - 600
    assert not free()
    for process in (second, first):
        process.communicate("\n", timeout=180)
    wait_until(free, "nothing is left to do")
    third, third_s = begin("third")
    third.communicate("\n", timeout=180)
    wait_until(lambda: len(bench.reader.runs()) == 3, "all are recorded")
    created_s = {run.name: run.created_ns / 1e9 for run in bench.reader.runs()}
    assert abs(created_s["first"] - first_s) < 600
    assert abs(created_s["second"] - first_s) < 600, "runs beside each other share one clock"
    assert abs(created_s["third"] - third_s) < 600
    (third_run,) = (run for run in bench.reader.runs() if run.name == "third")
    (series,) = (one for one in bench.reader.series([third_run.run_id]) if one.metric == "loss")
    times_ns = bench.reader.samples(third_run.run_id, series.series_no).times_ns
    assert abs(times_ns[0] / 1e9 - third_s) < 600


@pytest.mark.long
@pytest.mark.mlflow
def test_a_clock_that_is_set_reorders_nothing(
    bench: Bench, wall_clock: WallClock, tmp_path: Path
) -> None:
    bench.env["RADT_FLUSH_S"] = "0.1"
    script = bench.script("train.py", TRAINS)
    stop, said = tmp_path / "stop", tmp_path / "said"
    path = bench.experiment(
        "Workload,Status,Run,Devices,Listeners,File,Params\n"
        f"1,,,cpu,top@100ms,{script},{stop} {said}\n"
    )
    runner = bench.start(path.name)

    def epochs() -> int:
        if not has_store(bench.home) or not (runs := bench.reader.runs()):
            return 0
        markers = bench.reader.markers([runs[0].run_id])
        return sum(one.kind is MarkerKind.EPOCH for one in markers)

    wait_until(lambda: epochs() > 5, "it trains")
    for shift_s in (-3600.0, 3600.0):
        wall_clock.set(shift_s)
        before = epochs()
        wait_until(lambda: epochs() > before + 15, "it goes on")  # noqa: B023
        status = bench.radt("status", path.name).stdout
        # The time of day is in it, too.
        status, since = re.subn(r"running since [\d:]+", "", status)
        assert since == 1
        assert "60:" not in status, "elapsed times are not by the wall clock"
        assert "1:00:" not in status
    stop.touch()
    output, _ = runner.communicate(timeout=180)
    assert runner.returncode == 0, output
    told = json.loads(said.read_text())
    assert np.ptp(np.diff(told["wall_s"])) > 3000, "the script saw the clock being set"

    (run,) = bench.reader.runs()
    assert run.started_ns is not None
    assert run.ended_ns is not None
    took_s = (run.ended_ns - run.started_ns) / 1e9
    assert told["took_s"] <= took_s < told["took_s"] + 600
    (workload,) = bench.reader.workloads()
    assert workload.barrier_ns is not None
    assert workload.ended_ns is not None
    assert workload.created_ns < workload.barrier_ns <= workload.ended_ns
    metrics = set()
    for series in bench.reader.series([run.run_id]):
        samples = bench.reader.samples(run.run_id, series.series_no)
        assert np.all(np.diff(samples.times_ns) > 0), series.metric
        # Listeners go on until the collector has heard of the end.
        heard_s = 600 if series.interval_s is not None else 0
        last_ns = run.ended_ns + heard_s * 10**9
        assert run.started_ns <= samples.times_ns[0] <= samples.times_ns[-1] <= last_ns
        metrics.add(series.metric)
        if series.metric == "step.time":
            assert 0.01 <= samples.values.min() <= samples.values.max() < 600
        if series.metric == "loss":
            assert len(samples) == 5 * told["epochs"]
    assert {"loss", "step.time", "system.load"} <= metrics
    spans = [one for one in bench.reader.markers([run.run_id]) if one.kind is MarkerKind.EPOCH]
    assert [one.step for one in spans] == list(range(1, told["epochs"] + 1))
    ends_ns = [one.end_ns or 0 for one in spans]
    assert all(one.start_ns < end_ns for one, end_ns in zip(spans, ends_ns, strict=True))
    assert ends_ns == sorted(ends_ns)
    (ledger,) = bench.reader.ledger([run.run_id])
    assert ledger.expected < 36_000, "no hour of readings is missing"
    assert not [gap for gap in bench.reader.gaps([run.run_id]) if gap.end_ns - gap.start_ns > 6e11]

    bench.wait_delivered()
    delivered = bench.reader.run(run.run_id).mlflow_run_id
    assert delivered is not None
    mlflow_run = bench.mlflow.get_run(delivered)
    assert mlflow_run.info.end_time == run.ended_ns // 10**6
    assert run.created_ns // 10**6 <= mlflow_run.info.start_time <= run.started_ns // 10**6
    history = bench.mlflow.get_metric_history(mlflow_run.info.run_id, "loss")
    times_ms = [metric.timestamp for metric in history]
    assert times_ms == sorted(times_ms)
    assert times_ms[-1] - times_ms[0] < took_s * 1000
