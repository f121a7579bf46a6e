"""The sample store against a table of single points, in one run on one disk.

    python benchmarks/store.py [--points 5000000] [--long 10000000] [--runs 10000]

Prints ingest (points a second), size (bytes a point) and the time to read a whole series and 1 % of
it, for radt's store and for what most trackers do: one row a point in SQLite, with one index, in
the same batches and transactions. Then a chart of one long series, and lists of many runs. Ratios
are what counts; the absolute numbers are this machine's.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radt.model import RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import (
    Int64Array,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter

SERIES_COUNT = 50
START_NS = 1_790_000_000_000_000_000
BATCH_POINTS = 18_000
RUN_ID = "0" * 32


@dataclass(frozen=True)
class Result:
    """What one layout achieved."""

    name: str
    points_per_s: float
    bytes_per_point: float
    whole_s: float
    zoom_s: float

    def line(self) -> str:
        return (
            f"{self.name:<22}{self.points_per_s / 1e6:>12.2f}{self.bytes_per_point:>13.2f}"
            f"{self.whole_s * 1e3:>15.2f}{self.zoom_s * 1e3:>12.2f}"
        )


def instants(count: int) -> Int64Array:
    """One a second, up to 0.2 ms late: all metrics of a listener are read at the same ones."""
    late = np.random.default_rng(0).integers(0, 200_000, count)
    return START_NS + np.arange(count, dtype=np.int64) * 1_000_000_000 + late


def realistic(series_no: int, count: int) -> Samples:
    """Noisy values of the precision that drivers give."""
    random = np.random.default_rng(series_no)
    level = 50 + np.cumsum(random.normal(0, 0.2, count))
    kind = series_no % 3
    if kind == 0:  # a ratio in whole per cent
        values = np.round(level + random.normal(0, 3, count)) / 100
    elif kind == 1:  # power in milliwatts
        values = np.round((level + random.normal(0, 3, count)) * 1000) / 1000
    else:  # memory in pages, most readings like the one before
        steps = np.where(random.random(count) < 0.1, random.integers(-50, 50, count), 0)
        values = (200_000 + np.cumsum(steps)) * 4096.0
    return Samples(instants(count), values)


def median_s(action: Callable[[], object], repeat: int = 15) -> float:
    """Median time of an action in seconds, after one to warm up."""
    action()
    durations = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def batches(data: list[Samples]) -> Iterator[list[SeriesBatch]]:
    """Points as a busy collector would bring them: some of every series at a time."""
    for start in range(0, len(data[0]), BATCH_POINTS):
        part = slice(start, start + BATCH_POINTS)
        yield [
            SeriesBatch(number, Samples(samples.times_ns[part], samples.values[part]))
            for number, samples in enumerate(data)
        ]


def zoom_range(data: list[Samples]) -> tuple[int, int]:
    times = data[0].times_ns
    middle, width = len(times) // 2, len(times) // 100
    return int(times[middle]), int(times[middle + width])


def measure_chunks(path: Path, data: list[Samples]) -> Result:
    writer = StoreWriter(path)
    writer.add_series([series(number) for number in range(len(data))])
    start = time.perf_counter()
    for together in batches(data):
        writer.append(RUN_ID, together)
    writer.seal(RUN_ID)
    duration_s = time.perf_counter() - start
    writer.close()
    points = sum(map(len, data))
    first, last = zoom_range(data)
    with StoreReader(path) as reader:
        assert np.array_equal(reader.samples(RUN_ID, 1).values, data[1].values)
        return Result(
            "radt chunks",
            points / duration_s,
            path.stat().st_size / points,
            median_s(lambda: reader.samples(RUN_ID, 1)),
            median_s(lambda: reader.samples(RUN_ID, 1, start_ns=first, end_ns=last)),
        )


def measure_rows(path: Path, data: list[Samples]) -> Result:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE metrics (run TEXT, series INTEGER, time INTEGER, value REAL)")
    connection.execute("CREATE INDEX metrics_of_series ON metrics (run, series, time)")
    start = time.perf_counter()
    for together in batches(data):
        connection.execute("BEGIN")
        for batch in together:
            times, values = batch.samples.times_ns.tolist(), batch.samples.values.tolist()
            connection.executemany(
                f"INSERT INTO metrics VALUES ('{RUN_ID}', {batch.series_no}, ?, ?)",
                zip(times, values, strict=True),
            )
        connection.execute("COMMIT")
    duration_s = time.perf_counter() - start
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    points = sum(map(len, data))
    select = "SELECT time, value FROM metrics WHERE run = ? AND series = ?"

    def read(condition: str = "", *parameters: int) -> np.ndarray:
        rows = connection.execute(
            f"{select} {condition} ORDER BY time", (RUN_ID, 1, *parameters)
        ).fetchall()
        return np.array(rows)

    first, last = zoom_range(data)
    result = Result(
        "one row a point",
        points / duration_s,
        path.stat().st_size / points,
        median_s(read),
        median_s(lambda: read("AND time BETWEEN ? AND ?", first, last)),
    )
    connection.close()
    return result


def series(number: int) -> SeriesRecord:
    return SeriesRecord(RUN_ID, number, "top", f"m{number}", "1", Scope.HOST, SeriesKind.GAUGE)


def measure_long(path: Path, count: int) -> None:
    samples = realistic(1, count)
    with StoreWriter(path) as writer:
        writer.add_series([series(0)])
        writer.append(RUN_ID, [SeriesBatch(0, samples)])
        writer.seal(RUN_ID)
    first, last = zoom_range([samples])
    with StoreReader(path) as reader:
        whole = median_s(lambda: reader.envelope(RUN_ID, 0), 5)
        zoom = median_s(lambda: reader.envelope(RUN_ID, 0, start_ns=first, end_ns=last))
        summary = median_s(lambda: reader.summary([RUN_ID]))
    print(f"\none series of {count:,} points, to 2000 points of a chart")
    print(f"  whole {whole * 1e3:.0f} ms, 1 % of it {zoom * 1e3:.1f} ms", end="")
    print(f", mean and extremes {summary * 1e3:.1f} ms")


def measure_many(path: Path, count: int) -> None:
    """Runs of 10 experiments, 4 in a workload."""
    with StoreWriter(path) as writer, writer.transaction():
        for number in range(count):
            workload, experiment = f"{number // 4:032x}", f"experiment {number % 40 // 4}"
            created_ns = START_NS + number // 4
            if number % 4 == 0:
                writer.put_workload(
                    WorkloadRecord(workload, experiment, str(number // 4), created_ns)
                )
            writer.put_run(
                RunRecord(
                    f"{number:032x}",
                    workload,
                    experiment,
                    str(number // 4),
                    "abcd"[number % 4],
                    "resnet50",
                    created_ns,
                    RunStatus.FINISHED,
                    command="python train.py --batch-size 256 --epochs 5 --model resnet50",
                    spool=f"/data/runs/{number:032x}",
                    ended_ns=START_NS + 10**12,
                )
            )
    with StoreReader(path) as reader:
        for name, action in (
            ("experiments()", reader.experiments),
            ("workloads()", reader.workloads),
            ("runs()", reader.runs),
            ("runs(experiment=…)", lambda: reader.runs(experiment="experiment 3")),
            ("find_run(…)", lambda: reader.find_run(f"{count // 2:032x}")),
            ("unended_runs()", reader.unended_runs),
            ("change_token()", reader.change_token),
        ):
            print(f"  {name:<22}{median_s(action, 7) * 1e3:>10.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--points", type=int, default=5_000_000)
    parser.add_argument("--long", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=10_000)
    options = parser.parse_args()
    data = [realistic(number, options.points // SERIES_COUNT) for number in range(SERIES_COUNT)]
    with tempfile.TemporaryDirectory(prefix="radt-bench-") as name:
        folder = Path(name)
        print(f"{options.points:,} points in {SERIES_COUNT} series")
        print(f"{'':<22}{'M points/s':>12}{'bytes/point':>13}{'series ms':>15}{'1 % ms':>12}")
        chunks = measure_chunks(folder / "chunks.db", data)
        print(chunks.line())
        rows = measure_rows(folder / "rows.db", data)
        print(rows.line())
        print(
            f"{'ratio':<22}{chunks.points_per_s / rows.points_per_s:>11.1f}×"
            f"{rows.bytes_per_point / chunks.bytes_per_point:>12.1f}×"
            f"{rows.whole_s / chunks.whole_s:>14.1f}×{rows.zoom_s / chunks.zoom_s:>11.1f}×"
        )
        measure_long(folder / "long.db", options.long)
        print(f"\nlists with {options.runs:,} runs")
        measure_many(folder / "many.db", options.runs)


if __name__ == "__main__":
    main()
