"""A collector's writes, without its listeners: every second, some points of every series.

    python -m benchmarks.storage.writing FILE --runs 8 --series 60 --hertz 10 --seconds 150

Values are generated first; ``ready`` is then printed, and ``written`` after the last second. The
runs are ended when standard input is closed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.storage.data import SECOND_NS, START_NS, instants, realistic
from radt.model import RunStatus, Scope, SeriesKind
from radt.store.records import (
    LedgerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter

LISTENERS = ("smi", "top")


def main() -> None:
    """Write at the pace of a collector."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--series", type=int, default=60)
    parser.add_argument("--hertz", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=150)
    given = parser.parse_args()
    ids = [f"{number:032x}" for number in range(given.runs)]
    data = [
        _samples(run, number, given.hertz, given.seconds)
        for run in range(given.runs)
        for number in range(given.series)
    ]
    with StoreWriter(given.store) as writer:
        _begin(writer, ids, given.series, given.hertz)
        print("ready", flush=True)
        begun_s = time.monotonic()
        for second in range(given.seconds):
            with writer.transaction():
                for place, run_id in enumerate(ids):
                    of_run = data[place * given.series : (place + 1) * given.series]
                    _write(writer, run_id, of_run, second, given.hertz)
            time.sleep(max(0.0, begun_s + second + 1 - time.monotonic()))
        print("written", flush=True)
        sys.stdin.read()
        for run_id in ids:
            writer.seal(run_id)
            writer.end_run(run_id, RunStatus.FINISHED, START_NS + given.seconds * SECOND_NS, 0)
        writer.end_workload(ids[0])


def _samples(run: int, number: int, hertz: int, seconds: int) -> Samples:
    """Return the samples of a series; half of the series share instants of their own."""
    times_ns = instants(hertz * seconds, SECOND_NS // hertz) + 50_000_000 * (number % 2) + run
    return realistic(run * 1000 + number, hertz * seconds, times_ns)


def _begin(writer: StoreWriter, ids: list[str], series_count: int, hertz: int) -> None:
    with writer.transaction():
        writer.put_workload(WorkloadRecord(ids[0], "bench", "1", START_NS))
        for place, run_id in enumerate(ids):
            writer.put_run(
                RunRecord(
                    run_id,
                    ids[0],
                    "bench",
                    "1",
                    "abcdefghijklmnopqrstuvwxyz"[place % 26],
                    "resnet50",
                    START_NS,
                    RunStatus.RUNNING,
                    listeners="+".join(LISTENERS),
                    command="python train.py",
                    started_ns=START_NS,
                )
            )
            writer.put_params(run_id, {"model": "resnet50", "batch-size": "256"})
            writer.put_tags(run_id, {"radt.version": "1", "radt.python": "3.11"})
            writer.add_series(
                [
                    SeriesRecord(
                        run_id,
                        number,
                        LISTENERS[number % 2],
                        f"metric {number}",
                        "1",
                        Scope.HOST,
                        SeriesKind.GAUGE,
                        interval_s=1 / hertz,
                    )
                    for number in range(series_count)
                ]
            )


def _write(writer: StoreWriter, run_id: str, data: list[Samples], second: int, hertz: int) -> None:
    part = slice(second * hertz, (second + 1) * hertz)
    writer.append(
        run_id,
        [
            SeriesBatch(number, Samples(one.times_ns[part], one.values[part]))
            for number, one in enumerate(data)
        ],
    )
    count = (second + 1) * hertz
    for listener in LISTENERS:
        writer.put_ledger(
            LedgerRecord(run_id, listener, 1 / hertz, count, count, 0, count * 1_000_000)
        )


if __name__ == "__main__":
    main()
