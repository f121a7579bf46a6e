"""Size of a typical run: in the store on its machine, in Postgres, as an archive."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.results import Findings, Table
from benchmarks.storage import replicating
from benchmarks.storage.data import SECOND_NS, START_NS, instants, realistic
from benchmarks.storage.places import Kind, Places
from radt.delivery.archive.spool import ArchiveSpool
from radt.model import SOFTWARE, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesBatch, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter

RUNS = 8
#: Series of one run by listener, similar to the default listeners on a machine with a GPU.
LISTENERS = {"top": 15, "iostat": 10, "smi": 20, SOFTWARE: 3}
#: Seconds of points written at a time, as the collector does with this many series.
_FLUSH_S = 5
_TABLES = ("chunk", "series", "marker", "gap", "ledger", "param", "tag", "run")


def measure(places: Places, seconds: int) -> Findings:
    """Measure eight runs at 1 Hz, written as the collector does, ended, and replicated."""
    store = places.folder / "typical.db"
    ids = [f"{number:032x}" for number in range(RUNS)]
    _record(store, ids, seconds)
    series_count = sum(LISTENERS.values())
    points = series_count * seconds
    sizes = {
        "SQLite, pages in use": _used_bytes(store) / RUNS,
        "SQLite, the file after the first runs": store.stat().st_size / RUNS,
        "Postgres, tables and indexes": _replicated_bytes(places, store) / RUNS,
        "archive, a bundle": _archive_bytes(places.folder, store, ids[0]),
    }
    table = Table(
        f"A run of {series_count} series at 1 Hz, {RUNS} together",
        ("", "KB/run-hour", "bytes/point"),
        [
            (name, f"{size / 1000 * 3600 / seconds:,.0f}", f"{size / points:.2f}")
            for name, size in sizes.items()
        ],
        "Pages that pieces took before they were merged are free, and the next runs' to take.",
    )
    return Findings([table])


def _record(store: Path, ids: list[str], seconds: int) -> None:
    data = {run_id: _data(place, seconds) for place, run_id in enumerate(ids)}
    with StoreWriter(store) as writer:
        _begin(writer, ids)
        for second in range(0, seconds, _FLUSH_S):
            part = slice(second, second + _FLUSH_S)
            with writer.transaction():
                for run_id, samples in data.items():
                    writer.append(
                        run_id,
                        [
                            SeriesBatch(
                                number,
                                Samples(
                                    one.times_ns[part],
                                    one.values[part],
                                    None if one.steps is None else one.steps[part],
                                ),
                            )
                            for number, one in enumerate(samples)
                        ],
                    )
        for run_id in ids:
            writer.seal(run_id)
            writer.end_run(run_id, RunStatus.FINISHED, START_NS + seconds * SECOND_NS, 0)
        writer.end_workload(ids[0])


def _data(place: int, seconds: int) -> list[Samples]:
    found = []
    for index, (listener, count) in enumerate(LISTENERS.items()):
        times_ns = instants(seconds) + index * 50_000_000 + place * 1000
        for number in range(count):
            samples = realistic(place * 1000 + index * 100 + number, seconds, times_ns)
            if listener == SOFTWARE:  # a script's values have full precision
                random = np.random.default_rng(number)
                values = np.exp(-np.arange(seconds) / seconds) + random.normal(0, 0.01, seconds)
                samples = Samples(times_ns, values, np.arange(seconds, dtype=np.int64))
            found.append(samples)
    return found


def _begin(writer: StoreWriter, ids: list[str]) -> None:
    names = [listener for listener, count in LISTENERS.items() for _ in range(count)]
    with writer.transaction():
        writer.put_workload(WorkloadRecord(ids[0], "typical", "1", START_NS))
        for place, run_id in enumerate(ids):
            writer.put_run(
                RunRecord(run_id, ids[0], "typical", "1", "abcdefgh"[place], "cnn", START_NS)
            )
            writer.put_params(run_id, {"model": "resnet50", "batch-size": "256"})
            writer.add_series(
                [
                    SeriesRecord(
                        run_id,
                        number,
                        listener,
                        f"metric {number}",
                        "1",
                        Scope.RUN if listener == SOFTWARE else Scope.HOST,
                        SeriesKind.GAUGE,
                        interval_s=None if listener == SOFTWARE else 1.0,
                    )
                    for number, listener in enumerate(names)
                ]
            )


def _used_bytes(store: Path) -> int:
    with closing(sqlite3.connect(store)) as connection:
        counts = [
            int(connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        ]
    return (counts[0] - counts[1]) * counts[2]


def _replicated_bytes(places: Places, store: Path) -> int:
    name = "typical"
    uri = places.new(Kind.POSTGRES, name)
    replicator = replicating.start(store, uri, places.folder)
    replicator.communicate()  # closing its input makes it upload everything and end
    assert replicator.returncode == 0
    replicating.check(str(store), uri)
    size = places.relation_bytes(name, tuple(f"radt.{table}" for table in _TABLES))
    places.drop(Kind.POSTGRES, name)
    return size


def _archive_bytes(folder: Path, store: Path, run_id: str) -> int:
    spool = ArchiveSpool(folder / "archive")
    with StoreReader(store) as reader:
        spool.write_bundle(reader, run_id)
    return sum(path.stat().st_size for path in spool.waiting(run_id))
