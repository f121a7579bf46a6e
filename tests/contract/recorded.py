"""One real experiment with every kind of run, recorded once for all surfaces."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from radt.store.records import RunRecord
from tests.support.bench import Bench, bench_in

TRAIN = """
import os, pathlib, signal, sys, time
import radt
mode, epoch_s = sys.argv[1], float(pathlib.Path("epoch_s").read_text())
with radt.Run() as run:
    run.log_param("width", 8)
    for epoch in run.epochs(3):
        time.sleep(epoch_s / 10 if mode == "fail" else epoch_s)
        diverged = mode == "diverge" and epoch == 3
        run.log_metric("loss", float("inf") if diverged else 1 / (epoch + 1), step=epoch)
        run.log_metric("sentiment_accuracy", 0.5 + epoch / 10, step=epoch)
        if mode == "fail" and epoch == 1:
            raise RuntimeError("made to fail")
        if mode == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
"""
CHILDREN = """
import time
import radt
with radt.Run() as run:
    for name in ("first", "second"):
        with run.child(name) as child:
            for epoch in child.epochs(2):
                time.sleep(0.05)
                child.log_metric("loss", 0.25, step=epoch)
"""
SERVICE = """
import radt, signal
with radt.Run() as run:
    signal.pause()
"""
HEAD = "Workload,Name,Role,File,Params,Devices,Listeners\n"
ROWS = {
    "1": ["net,,train.py,plain --seed 0"],
    "2": ["net,,train.py,plain --seed 1", "net,,train.py,plain --seed 2"],
    "3": ["net,,train.py,plain --seed 3", "server,service,serve.py,"],
    "4": ["bad,,train.py,fail --seed 0"],
    "5": ["gone,,train.py,kill --seed 0"],
    "6": ["wild,,train.py,diverge --seed 0"],
    "7": ["quiet,,quiet.py,"],
    "8": ["outer,,children.py,"],
    "9": ["old,,train.py,plain --seed 9 --kind old"],
}
EXPERIMENT = "study"
#: Workloads that have a second start: a row run again at another speed, and a repeat.
AGAIN, REPEATED, ARCHIVED = "1", "2", "9"


@dataclass
class Recorded:
    """The experiment ``study`` in a user's folder, delivered to MLflow."""

    bench: Bench

    @cached_property
    def runs(self) -> list[RunRecord]:
        """All runs, the oldest first."""
        with self.bench.reader as reader:
            return sorted(reader.runs(), key=lambda run: (run.created_ns, run.letter))

    def of(self, workload: str, letter: str = "a") -> list[RunRecord]:
        """Return the starts of a row, the oldest first."""
        return [run for run in self.runs if (run.workload, run.letter) == (workload, letter)]


@contextmanager
def recorded_in(folder: Path) -> Iterator[Recorded]:
    """Record the experiment; the collector is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="radt-", ignore_cleanup_errors=True) as runtime,
        bench_in(folder, columns=400, RADT_RUNTIME_DIR=runtime) as bench,
    ):
        for name, source in (
            *(("train.py", TRAIN), ("children.py", CHILDREN), ("serve.py", SERVICE)),
            ("quiet.py", "print('nothing to log')\n"),
        ):
            bench.script(name, source)
        _start(bench, "0.2", list(ROWS), code=1)
        _start(bench, "0.3", [AGAIN])
        _start(bench, "0.3", [REPEATED], "--repeat", "2")
        recorded = Recorded(bench)
        (old,) = recorded.of(ARCHIVED)
        bench.shown("note", old.run_id, "--archive")
        bench.wait_delivered()
        del recorded.runs
        yield recorded


def _start(bench: Bench, epoch_s: str, workloads: list[str], *options: str, code: int = 0) -> None:
    """Run workloads of a file without statuses, so that what has finished runs again."""
    bench.script("epoch_s", epoch_s)
    lines = [f"{label},{row},cpu,top\n" for label in ROWS for row in ROWS[label]]
    bench.experiment(HEAD + "".join(lines), "study.csv")
    bench.radt("study.csv", "--only", ",".join(workloads), *options, code=code)
