"""Other ways to store samples: one row per point, MLflow's ``log_batch``."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2

from benchmarks.storage.places import Kind, Places
from benchmarks.timing import median_s
from radt.masking import with_driver
from radt.store.records import Samples

#: The limit on metrics in one call of MLflow.
METRICS_A_CALL = 1000
_ROWS_A_COPY = 250_000
_MILLISECOND_NS = 1_000_000
_ROW = np.dtype(
    [
        ("fields", ">i2"),
        ("series_bytes", ">i4"),
        ("series", ">i4"),
        ("time_bytes", ">i4"),
        ("time", ">i8"),
        ("value_bytes", ">i4"),
        ("value", ">f8"),
    ]
)


@dataclass(frozen=True, slots=True)
class Ingested:
    """Results of one way to store samples; reading is of one whole series, if measured."""

    points: int
    duration_s: float
    bytes_total: int
    read_s: float | None = None
    read_points: int = 0

    @property
    def points_per_s(self) -> float:
        return self.points / self.duration_s

    @property
    def bytes_per_point(self) -> float:
        return self.bytes_total / self.points


def copy_rows(places: Places, data: list[Samples], *, indexed: bool) -> Ingested:
    """Write rows made by numpy with binary COPY, the fastest way to store a row per point."""
    name = f"rows_{'indexed' if indexed else 'bare'}"
    with closing(psycopg2.connect(places.new(Kind.POSTGRES, name))) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE point (series int4, time int8, value float8)")
            if indexed:
                cursor.execute("CREATE INDEX point_of_series ON point (series, time)")
        start = time.perf_counter()
        with connection, connection.cursor() as cursor:
            for number, samples in enumerate(data):
                for begin in range(0, len(samples), _ROWS_A_COPY):
                    block = _binary_rows(number, samples, slice(begin, begin + _ROWS_A_COPY))
                    cursor.copy_expert("COPY point FROM STDIN (FORMAT binary)", block)
        duration_s = time.perf_counter() - start
        places.settle(Kind.POSTGRES, name)
        read_s = None
        if indexed:
            read_s = median_s(lambda: _read_copied(connection), 3)
    size = places.relation_bytes(name, ("point",))
    places.drop(Kind.POSTGRES, name)
    return Ingested(sum(map(len, data)), duration_s, size, read_s, len(data[0]))


def _binary_rows(series_no: int, samples: Samples, part: slice) -> BytesIO:
    """Format rows for COPY, https://www.postgresql.org/docs/17/sql-copy.html, "Binary Format"."""
    rows = np.empty(len(samples.times_ns[part]), dtype=_ROW)
    rows["fields"] = 3
    rows["series_bytes"], rows["time_bytes"], rows["value_bytes"] = 4, 8, 8
    rows["series"] = series_no
    rows["time"] = samples.times_ns[part]
    rows["value"] = samples.values[part]
    return BytesIO(b"PGCOPY\n\xff\r\n\0" + bytes(8) + rows.tobytes() + b"\xff\xff")


def _read_copied(connection: Any) -> Any:
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT time, value FROM point WHERE series = 1 ORDER BY time")
        return np.array(cursor.fetchall())


def insert_rows(places: Places, data: list[Samples], points_a_transaction: int) -> Ingested:
    """Write one row per point in SQLite with one index, a prepared statement for many rows."""
    path = Path(places.new(Kind.SQLITE, "rows"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("CREATE TABLE point (series INTEGER, time INTEGER, value REAL)")
        connection.execute("CREATE INDEX point_of_series ON point (series, time)")
        start = time.perf_counter()
        for begin in range(0, len(data[0]), points_a_transaction):
            connection.execute("BEGIN")
            for number, samples in enumerate(data):
                part = slice(begin, begin + points_a_transaction)
                times, values = samples.times_ns[part].tolist(), samples.values[part].tolist()
                connection.executemany(
                    f"INSERT INTO point VALUES ({number}, ?, ?)", zip(times, values, strict=True)
                )
            connection.execute("COMMIT")
        duration_s = time.perf_counter() - start
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        select = "SELECT time, value FROM point WHERE series = 1 ORDER BY time"
        read_s = median_s(lambda: np.array(connection.execute(select).fetchall()), 3)
        size = path.stat().st_size
    places.drop(Kind.SQLITE, "rows")
    return Ingested(sum(map(len, data)), duration_s, size, read_s, len(data[0]))


def log_batches(places: Places, kind: Kind, data: list[Samples]) -> Ingested:
    """Write with MLflow's client into its own tables, as many metrics per call as it accepts."""
    # Imported here: its import takes seconds and is not measured.
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    name = "mlflow"
    uri = places.new(kind, name)
    client = MlflowClient(f"sqlite:///{uri}" if kind is Kind.SQLITE else with_driver(uri))
    run_id = client.create_run(client.create_experiment("bench")).info.run_id
    before = Path(uri).stat().st_size if kind is Kind.SQLITE else 0
    metrics = [
        Metric(f"metric {number}", value, time_ns // _MILLISECOND_NS, step)
        for number, samples in enumerate(data)
        for step, (time_ns, value) in enumerate(
            zip(samples.times_ns.tolist(), samples.values.tolist(), strict=True)
        )
    ]
    start = time.perf_counter()
    for begin in range(0, len(metrics), METRICS_A_CALL):
        client.log_batch(run_id, metrics[begin : begin + METRICS_A_CALL])
    duration_s = time.perf_counter() - start
    if kind is Kind.SQLITE:
        with closing(sqlite3.connect(uri)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = Path(uri).stat().st_size - before
    else:
        places.settle(kind, name)
        size = places.relation_bytes(name, ("metrics", "latest_metrics"))
    read_s = median_s(lambda: client.get_metric_history(run_id, "metric 0"), 3)
    places.drop(kind, name)
    return Ingested(len(metrics), duration_s, size, read_s, len(data[0]))


def short(data: list[Samples], points: int) -> list[Samples]:
    """Return the first ``points`` points of each series."""
    return [Samples(one.times_ns[:points], one.values[:points]) for one in data]
