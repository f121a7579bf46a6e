"""Generated stores: many runs, very many, wide runs, one very long series with one spike."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from radt.model import SOFTWARE, MarkerKind, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import (
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.summaries import SeriesSummary
from radt.store.writer import StoreWriter

START_NS = 1_780_000_000_000_000_000
SECOND_NS = 1_000_000_000
SPIKE = 1000.0
#: The metric of which each run of `wide` has `Size.points`; the first of many.
METRIC = "process.cpu.utilization"
LONG_METRIC = "process.power"
EXPERIMENT = "bench"
_PAGE_POINTS = 1_000_000
_WORKLOADS_A_TIME = 250
#: By how many digits the ids of each doubling of a store are turned.
_TURNS = (16, 8, 4)
_METRICS = (
    *("loss", "accuracy", "process.cpu.utilization"),
    *("process.memory.rss", "gpu.power", "gpu.utilization"),
)


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the stores."""

    runs: int = 10_000
    vast_runs: int = 100_000
    wide_runs: int = 20
    wide_series: int = 40
    points: int = 100_000
    long_points: int = 10_000_000

    @property
    def spike_at(self) -> int:
        """Index of the spike's point in the long series."""
        return round(self.long_points * 0.7654321)


FULL = Size()
QUICK = Size(1_000, 8_000, 20, 4, 100_000, 2_000_000)


def many(path: Path, size: Size) -> Path:
    """Create ``size.runs`` runs of one experiment, four in a workload.

    Each has two metrics of the script and four of the hardware, and parameters that differ.
    """
    rng = np.random.default_rng(14)
    with StoreWriter(_made(path)) as writer:
        for first in range(0, size.runs // 4, _WORKLOADS_A_TIME):
            with writer.transaction():
                for place in range(first, min(first + _WORKLOADS_A_TIME, size.runs // 4)):
                    for run_id, origin_ns in _workload(writer, place, "abcd", 100.0):
                        _few_samples(writer, rng, run_id, origin_ns)
    return path


def vast(path: Path, size: Size) -> Path:
    """Create ``size.vast_runs`` runs: an eighth as `many` does, and these again in SQL.

    The copies have workloads and ids of their own; their times, params and samples are the same.
    """
    many(path, replace(size, runs=size.vast_runs // 2 ** len(_TURNS)))
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("PRAGMA synchronous = OFF")
        for turn in _TURNS:
            (labels,) = store.execute("SELECT COUNT(*) FROM workload").fetchone()
            turned = f"substr({{0}}, {turn + 1}) || substr({{0}}, 1, {turn})"
            label = f"CAST({{0}} + {labels} AS TEXT)"
            changes = dict.fromkeys(("run_id", "workload_id"), turned)
            changes |= dict.fromkeys(("label", "workload"), label)
            store.execute("BEGIN")
            for table in (
                *("workload", "run", "param", "series", "marker", "chunk", "series_summary"),
            ):
                columns = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
                values = ", ".join(changes.get(name, "{0}").format(name) for name in columns)
                store.execute(
                    f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table}"
                )
            store.execute("COMMIT")
    return path


def searched(path: Path, size: Size) -> Path:
    """Create ``size.runs`` runs of a search for hyperparameters, each its own workload.

    Each has params, five epochs, logged accuracy and throughput, and hardware series.
    """
    rng = np.random.default_rng(13)
    with StoreWriter(_made(path)) as writer:
        for first in range(0, size.runs, 100):
            with writer.transaction():
                for place in range(first, min(first + 100, size.runs)):
                    _trial(writer, place, rng)
    return path


def _trial(writer: StoreWriter, place: int, rng: np.random.Generator) -> None:
    """Write a run whose accuracy follows from its learning rate and its width."""
    span_s = float(rng.uniform(60, 120))
    ((run_id, origin_ns),) = _workload(writer, place, "a", span_s)
    lr, width = float(10 ** rng.uniform(-4, -1)), int(rng.choice([32, 64, 128, 256]))
    writer.put_params(
        run_id,
        {
            "lr": f"{lr:.6g}",
            "width": str(width),
            "optimizer": str(rng.choice(["adam", "sgd", "adamw"])),
            "dropout": f"{rng.uniform(0, 0.5):.3f}",
            "seed": str(place),
        },
    )
    best = 0.95 - 0.08 * (np.log10(lr) + 2.5) ** 2 + 0.01 * np.log2(width / 32)
    epochs = np.arange(1, 6)
    accuracy = best * (1 - 0.6 * np.exp(-epochs)) + 0.004 * rng.normal(size=5)
    seconds = np.arange(1, 61) * span_s / 60
    power = 90 + 0.5 * width + 8 * rng.normal(size=60).round(2)
    readings: list[tuple[str, str, str, Scope, SeriesKind, Any, Any]] = [
        (SOFTWARE, "accuracy", "1", Scope.RUN, SeriesKind.GAUGE, epochs * span_s / 5, accuracy),
        (
            *(SOFTWARE, "samples_per_s", "1/s", Scope.RUN, SeriesKind.GAUGE),
            *(epochs * span_s / 5, 40_000 / width + 20 * rng.normal(size=5)),
        ),
        (
            *("top", METRIC, "cores", Scope.PROCESS, SeriesKind.GAUGE),
            *(seconds, 0.9 + 0.05 * rng.normal(size=60).round(3)),
        ),
        (
            *("top", "process.memory.rss", "By", Scope.PROCESS, SeriesKind.GAUGE),
            *(seconds, (4e8 + 2e6 * width + rng.integers(0, 10_000_000, 60)).round()),
        ),
        ("smi", "gpu.power", "W", Scope.GPU, SeriesKind.GAUGE, seconds, power),
        (
            *("smi", "gpu.energy", "J", Scope.GPU, SeriesKind.COUNTER),
            *(seconds, np.cumsum(power * span_s / 60).round(1)),
        ),
    ]
    writer.add_series(
        [
            SeriesRecord(run_id, number, listener, metric, unit, scope, kind)
            for number, (listener, metric, unit, scope, kind, *_) in enumerate(readings)
        ]
    )
    writer.append(
        run_id,
        [
            SeriesBatch(
                number,
                Samples(
                    origin_ns + (np.asarray(at_s) * SECOND_NS).astype(np.int64),
                    np.asarray(values, dtype=np.float64),
                    epochs if listener == SOFTWARE else None,
                ),
            )
            for number, (listener, *_, at_s, values) in enumerate(readings)
        ],
    )
    writer.seal(run_id)


def _few_samples(
    writer: StoreWriter, rng: np.random.Generator, run_id: str, origin_ns: int
) -> None:
    """Write parameters that differ, and 20 samples of each metric."""
    params = {"lr": f"{10 ** rng.uniform(-5, -1):.2e}", "depth": str(2 ** rng.integers(1, 7))}
    writer.put_params(run_id, params)
    writer.add_series(
        [_series(run_id, number, metric, 5.0) for number, metric in enumerate(_METRICS)]
    )
    times = origin_ns + np.arange(20) * 5 * SECOND_NS
    reached = 1 - np.exp(-np.arange(20) / 5) * rng.uniform(0.5, 1)
    values = {"loss": 1 - reached, "accuracy": reached}
    batches = [
        SeriesBatch(number, Samples(times, values.get(metric, rng.random(20)).round(4)))
        for number, metric in enumerate(_METRICS)
    ]
    writer.append(run_id, batches)


def live(path: Path, size: Size) -> Path:
    """Create a store like `wide`, with one series per run, whose runs are still running."""
    return wide(path, replace(size, wide_series=1), RunStatus.RUNNING)


def wide(path: Path, size: Size, status: RunStatus = RunStatus.FINISHED) -> Path:
    """Create runs in workloads of five, each with many series of many points, 10 a second."""
    rng = np.random.default_rng(11)
    step_ns = SECOND_NS // 10
    span_s = size.points / 10
    drift = np.sin(np.arange(size.points) / size.points * 20)
    with StoreWriter(_made(path)) as writer:
        for place in range(max(1, size.wide_runs // 5)):
            for run_id, origin_ns in _workload(writer, place, "abcde", span_s, status):
                jitter = rng.integers(0, 2_000_000, size.points)
                times = origin_ns + np.arange(size.points) * step_ns + jitter
                batches = []
                for number in range(size.wide_series):
                    metric = METRIC if number == 0 else f"process.metric{number:02}"
                    writer.add_series([_series(run_id, number, metric, 0.1)])
                    noise = rng.normal(size=size.points).round(3)
                    batches.append(SeriesBatch(number, Samples(times, drift + noise)))
                writer.append(run_id, batches)
                if status.ended:
                    writer.seal(run_id)
    return path


def long(path: Path, size: Size) -> Path:
    """Create one run with a series of 1,000 points a second; one is `SPIKE`, the others below 2."""
    rng = np.random.default_rng(12)
    with StoreWriter(_made(path)) as writer:
        ((run_id, origin_ns),) = _workload(writer, 0, "a", size.long_points / 1000)
        writer.add_series([_series(run_id, 0, LONG_METRIC, 0.001)])
        for first in range(0, size.long_points, _PAGE_POINTS):
            number = first + np.arange(min(_PAGE_POINTS, size.long_points - first))
            values = 1 + 0.2 * np.sin(number / 3e5) + 0.05 * rng.normal(size=len(number)).round(3)
            values[number == size.spike_at] = SPIKE
            times = origin_ns + number * 1_000_000
            writer.append(run_id, [SeriesBatch(0, Samples(times, values))])
        writer.seal(run_id)
    return path


def grow(path: Path, run_ids: list[str]) -> None:
    """Append a point to the first series of each run, as the collector's flush does."""
    with StoreWriter(path) as writer, writer.transaction():
        for summary in newest(path, run_ids):
            at_ns = summary.last_ns + SECOND_NS // 10
            samples = Samples(np.array([at_ns]), np.array([0.5]))
            writer.append(summary.series.run_id, [SeriesBatch(0, samples)])


def newest(path: Path, run_ids: list[str]) -> list[SeriesSummary]:
    """Return the summary of each run's first series."""
    with StoreReader(path) as reader:
        return [one for one in reader.summary(run_ids) if one.series.series_no == 0]


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _workload(
    writer: StoreWriter,
    place: int,
    letters: str,
    span_s: float,
    status: RunStatus = RunStatus.FINISHED,
) -> list[tuple[str, int]]:
    """Write a workload with its runs, params and epochs; return the ids and zeros of time."""
    workload_id, origin_ns = uuid.uuid4().hex, START_NS + place * 60 * SECOND_NS
    writer.put_workload(
        WorkloadRecord(
            *(workload_id, EXPERIMENT, str(place), origin_ns - SECOND_NS),
            status=status,
            barrier_ns=origin_ns,
        )
    )
    found = []
    for letter in letters:
        run_id = uuid.uuid4().hex
        writer.put_run(
            RunRecord(
                *(run_id, workload_id, EXPERIMENT, str(place), letter, "resnet50"),
                origin_ns - SECOND_NS,
                status,
                command="python train.py --model resnet50",
                started_ns=origin_ns,
                ended_ns=origin_ns + round(span_s * SECOND_NS) if status.ended else None,
            )
        )
        writer.put_params(run_id, {"model": "resnet50", "batch-size": "256", "seed": letter})
        writer.put_markers(
            [
                MarkerRecord(
                    *(run_id, epoch, MarkerKind.EPOCH, f"epoch {epoch + 1}"),
                    origin_ns + round(epoch * span_s / 5 * SECOND_NS),
                    origin_ns + round((epoch + 1) * span_s / 5 * SECOND_NS),
                    step=epoch + 1,
                )
                for epoch in range(5)
            ]
        )
        found.append((run_id, origin_ns))
    return found


def _series(run_id: str, number: int, metric: str, interval_s: float) -> SeriesRecord:
    listener = SOFTWARE if metric in ("loss", "accuracy") else "top"
    return SeriesRecord(
        *(run_id, number, listener, metric, "cores", Scope.PROCESS, SeriesKind.GAUGE),
        interval_s=interval_s,
    )
