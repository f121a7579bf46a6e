"""Many points at once: write rate, size, and read rate of a series."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.results import Bar, Findings, Table, ratio
from benchmarks.storage import peers
from benchmarks.storage.data import RUN_ID, batches, realistic, series
from benchmarks.storage.peers import Ingested
from benchmarks.storage.places import Kind, Places
from benchmarks.timing import median_s
from radt.store.reader import StoreReader
from radt.store.records import Samples
from radt.store.writer import StoreWriter

SERIES_COUNT = 50
POINTS_A_TRANSACTION = 18_000
LEAST_POINTS_PER_S = 1_000_000
MOST_BYTES_PER_POINT = 3.0
_NOTES = {
    Kind.SQLITE: "Bytes are the file's. ×: how much faster and smaller radt is.",
    Kind.POSTGRES: "Bytes are of tables, TOAST and indexes, before any vacuum. COPY is binary.",
}
_TABLES = ("radt.chunk", "radt.series")


def measure(places: Places, points: int, mlflow_points: int) -> Findings:
    """Measure radt's chunks, one row per point, and MLflow, in both databases."""
    data = [realistic(number, points // SERIES_COUNT) for number in range(SERIES_COUNT)]
    few = peers.short(data, mlflow_points // SERIES_COUNT)
    found = Findings()
    for kind in Kind:
        ours = _ingest(places, kind, data)
        others = {"MLflow log_batch": peers.log_batches(places, kind, few)}
        if kind is Kind.POSTGRES:
            others["rows, COPY, indexed"] = peers.copy_rows(places, data, indexed=True)
            others["rows, COPY, no index"] = peers.copy_rows(places, data, indexed=False)
        else:
            others["rows, indexed"] = peers.insert_rows(places, data, POINTS_A_TRANSACTION)
        found.tables.append(_table(kind, ours, others))
        found.bars += _bars(kind, ours)
    return found


def _ingest(places: Places, kind: Kind, data: list[Samples]) -> Ingested:
    name = "bulk"
    address = places.new(kind, name)
    with StoreWriter(address) as writer:
        writer.add_series([series(number) for number in range(len(data))])
        start = time.perf_counter()
        for together in batches(data, POINTS_A_TRANSACTION):
            writer.append(RUN_ID, together)
        writer.seal(RUN_ID)
        duration_s = time.perf_counter() - start
    if kind is Kind.SQLITE:
        size = Path(address).stat().st_size
    else:
        size = places.relation_bytes(name, _TABLES)
        places.settle(kind, name)
    with StoreReader(address) as reader:
        for number, samples in enumerate(data):
            back = reader.samples(RUN_ID, number)
            assert np.array_equal(back.values, samples.values)
            assert np.array_equal(back.times_ns, samples.times_ns)
        read_s = median_s(lambda: reader.samples(RUN_ID, 1))
    places.drop(kind, name)
    return Ingested(sum(map(len, data)), duration_s, size, read_s, len(data[0]))


def _table(kind: Kind, ours: Ingested, others: dict[str, Ingested]) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, one in {"radt": ours, **others}.items():
        rows.append(
            (
                name,
                f"{one.points:,}",
                f"{one.points_per_s / 1e6:.3g}",
                ratio(ours.points_per_s, one.points_per_s) if one is not ours else "",
                f"{one.bytes_per_point:.2f}",
                ratio(one.bytes_per_point, ours.bytes_per_point) if one is not ours else "",
                "" if one.read_s is None else f"{one.read_s / one.read_points * 1e9:,.0f}",
            )
        )
    columns = (str(kind), "points", "M points/s", "", "bytes/point", "", "read, ns/point")
    return Table(f"Bulk ingest into {kind}", columns, rows, _NOTES[kind])


def _bars(kind: Kind, ours: Ingested) -> list[Bar]:
    return [
        Bar(
            f"1 M points/s into {kind}",
            f"{ours.points_per_s / 1e6:.2f} M",
            ours.points_per_s >= LEAST_POINTS_PER_S,
        ),
        Bar(
            f"3 bytes a point in {kind}",
            f"{ours.bytes_per_point:.2f}",
            ours.bytes_per_point <= MOST_BYTES_PER_POINT,
        ),
    ]
