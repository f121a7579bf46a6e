"""The summary of a series is what numpy says of all its points, after every transaction."""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from radt.errors import SchemaTooOldError
from radt.model import NO_STEP, SOFTWARE, RunStatus, Scope, SeriesKind
from radt.store import chunks, migrations, pruning, summaries
from radt.store.check import check, check_deep
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesBatch, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter

WRAPS_AT = 100.0
KINDS = {
    0: (SeriesKind.GAUGE, None),
    1: (SeriesKind.COUNTER, None),
    2: (SeriesKind.COUNTER, WRAPS_AT),
}
VALUES = st.sampled_from([0.0, 1.5, 2.0, 40.0, 90.0, 99.0, -7.0, math.nan, math.inf, -math.inf])
POINTS = st.lists(st.tuples(st.integers(-3, 20), VALUES, st.sampled_from([NO_STEP, -2, 5, 2**40])))
BATCH = st.tuples(st.sampled_from(sorted(KINDS)), st.booleans(), POINTS)
ACTIONS = st.lists(
    st.one_of(
        st.lists(BATCH, min_size=1, max_size=4),
        st.sampled_from(["seal", "interrupted upgrade", "another writer"]),
    ),
    min_size=1,
    max_size=8,
)


@dataclass
class Written:
    """All points of a run's series in the order of writing."""

    times: dict[int, list[int]] = field(default_factory=lambda: {n: [] for n in KINDS})
    values: dict[int, list[float]] = field(default_factory=lambda: {n: [] for n in KINDS})
    steps: dict[int, list[int]] = field(default_factory=lambda: {n: [] for n in KINDS})

    def batch(self, number: int, points: Sequence[tuple[int, float, int]], *, steps: bool) -> Any:
        """A batch whose points follow the earlier ones, or go back in time."""
        start = max(self.times[number], default=0)
        times = (start + np.cumsum([ahead for ahead, _, _ in points], dtype=np.int64)).astype(int)
        own = [step if steps else NO_STEP for _, _, step in points]
        self.times[number] += times.tolist()
        self.values[number] += [value for _, value, _ in points]
        self.steps[number] += own
        return SeriesBatch(
            number,
            Samples(
                times.astype(np.int64),
                np.array([value for _, value, _ in points], dtype=np.float64),
                np.array(own, dtype=np.int64) if steps else None,
            ),
        )

    def expected(self, number: int) -> dict[str, Any]:
        """Its summary, computed the plain way."""
        order = np.argsort(self.times[number], kind="stable")
        times, values = (np.array(each[number])[order] for each in (self.times, self.values))
        finite = np.isfinite(values)
        steps = [step for step in self.steps[number] if step != NO_STEP]
        known_ns, known = times[finite], values[finite]
        return {
            "count": len(values),
            "stored_count": len(values),
            "finite_count": len(known),
            "first_ns": times[0],
            "last_ns": times[-1],
            "first": values[0],
            "last": values[-1],
            "minimum": known.min() if len(known) else None,
            "maximum": known.max() if len(known) else None,
            "total": known.sum() if len(known) else None,
            "first_finite_ns": known_ns[0] if len(known) else None,
            "last_finite_ns": known_ns[-1] if len(known) else None,
            "first_finite": known[0] if len(known) else None,
            "last_finite": known[-1] if len(known) else None,
            "growth": growth(known.tolist(), *KINDS[number]),
            "lowest_step": min(steps, default=None),
            "highest_step": max(steps, default=None),
        }


def growth(values: Sequence[float], kind: SeriesKind, wraps_at: float | None) -> float | None:
    """The increase of a counter, reading by reading."""
    if kind is SeriesKind.GAUGE or len(values) < 2:
        return None
    total = 0.0
    for before, after in itertools.pairwise(values):
        if after >= before:
            total += after - before
        elif wraps_at is not None and 0 <= after + wraps_at - before < wraps_at / 2:
            total += after + wraps_at - before
        else:
            total += max(after, 0.0)
    return total


def check_all(
    reader: StoreReader, run_id: str, written: Written, *, unlike: Sequence[str] = ()
) -> None:
    found = {each.series.series_no: each for each in reader.summary([run_id])}
    assert sorted(found) == [number for number in KINDS if written.times[number]]
    for number, summary in found.items():
        for name, value in written.expected(number).items():
            if name not in unlike:
                margin = 1e-9 if name in ("total", "growth") else 0.0
                close = None if value is None else pytest.approx(value, margin, margin, nan_ok=True)
                assert getattr(summary, name) == close, (number, name)


@pytest.fixture(params=["sqlite", "postgres"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[StoreWriter, StoreReader]]:
    """A store of each kind whose chunks are merged after a few points."""
    address = (
        tmp_path / "radt.db" if request.param == "sqlite" else request.getfixturevalue("database")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "POINTS_PER_CHUNK", 12)
        patch.setattr(chunks, "MAX_LOOSE_CHUNKS", 3)
        patch.setattr(pruning, "KEPT_POINTS", 16)
        with StoreWriter(address) as writer, StoreReader(address) as reader:
            writer.put_workload(WorkloadRecord("w", "digits", "1", 1))
            yield writer, reader


RUN_IDS = (f"{number:032x}" for number in itertools.count())


def new_run(writer: StoreWriter) -> str:
    run_id = next(RUN_IDS)
    writer.put_run(
        RunRecord(run_id, "w", "digits", "1", "a", "cnn", 1, RunStatus.FINISHED, ended_ns=2)
    )
    writer.add_series(
        [
            SeriesRecord(run_id, n, SOFTWARE, "m", "1", Scope.RUN, kind, f"{n}", wraps_at=wraps_at)
            for n, (kind, wraps_at) in KINDS.items()
        ]
    )
    return run_id


def interrupt_upgrade(writer: StoreWriter, run_id: str) -> None:
    """Leave the run without summaries, as an upgrade does that has not got to it."""
    with writer._engine.begin() as connection:
        for statement in (
            "DELETE FROM series_summary WHERE run_id = :id",
            "UPDATE run SET summary_revision = -1 WHERE run_id = :id",
        ):
            connection.execute(text(statement), {"id": run_id})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, is_thinned=st.booleans())
def test_summaries_are_those_of_all_points(
    store: tuple[StoreWriter, StoreReader], actions: list[Any], is_thinned: bool
) -> None:
    writer, reader = store
    run_id, written = new_run(writer), Written()
    for action in actions:
        if action == "seal":
            writer.seal(run_id)
        elif action == "another writer":
            with StoreWriter(writer.address) as other:
                other.append(run_id, [written.batch(1, [(1, 3.0, 0)], steps=False)])
        elif isinstance(action, str):
            interrupt_upgrade(writer, run_id)
            if writer.address.is_postgres:
                with pytest.raises(SchemaTooOldError, match="interrupted"):
                    StoreReader(writer.address)
            StoreWriter(writer.address).close()  # completes it
        else:
            writer.append(
                run_id, [written.batch(n, points, steps=steps) for n, steps, points in action]
            )
        check_all(reader, run_id, written)
    if is_thinned:
        assert prune_run(reader, writer, run_id, Keep.SUMMARIES) is not None
        for more in ([], [(1, 5.0, 3), (2, math.inf, 4), (0, 1.0, 5)]):
            writer.append(run_id, [written.batch(n, more, steps=True) for n in KINDS])
            check_all(reader, run_id, written, unlike=["stored_count"])
            for each in reader.summary([run_id]):
                number = each.series.series_no
                assert each.stored_count == len(reader.samples(run_id, number)) <= each.count
    assert [*check(reader), *check_deep(reader)] == []


def test_a_store_of_the_version_before_gets_its_summaries_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upgrade is interrupted in the second run, and completed by whoever opens the store."""
    newer, older = tmp_path / "newer.db", tmp_path / "older.db"
    written = {}
    with StoreWriter(newer) as writer:
        for _ in range(3):
            run_id = new_run(writer)
            written[run_id] = Written()
            points = [(1, float(number % 7), number) for number in range(5000)]
            batches = [written[run_id].batch(number, points, steps=True) for number in KINDS]
            writer.append(run_id, batches)
    with closing(sqlite3.connect(older)) as store:
        for migration in migrations.migrations()[:5]:
            store.executescript(migration.sql)
        store.execute(migrations._CREATE_VERSION_TABLE)
        store.execute("INSERT INTO schema_version VALUES (5, 'saved_views', 0, 'radt')")
        store.execute("ATTACH ? AS newer", (str(newer),))
        for table in ("experiment", "run", "series", "chunk"):
            names = ", ".join(row[1] for row in store.execute(f"PRAGMA main.table_info({table})"))
            store.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM newer.{table}")
        store.commit()
    complete, begun = summaries.again, []

    def interrupted(connection: Connection, run_id: str, series: Sequence[SeriesRecord]) -> None:
        begun.append(run_id)
        if len(begun) == 2:
            raise KeyboardInterrupt
        complete(connection, run_id, series)

    monkeypatch.setattr(summaries, "again", interrupted)
    with pytest.raises(KeyboardInterrupt):
        StoreReader(older)
    with StoreReader(older) as reader:
        for run_id, points in written.items():
            check_all(reader, run_id, points)
    assert begun == [begun[0], begun[1], begun[1], begun[3]]


def test_a_sum_beyond_a_float_is_infinite_and_a_counter_declared_late_is_counted(
    store: tuple[StoreWriter, StoreReader],
) -> None:
    writer, reader = store
    run_id = new_run(writer)
    for value in (1.7e308, 1.7e308, -1.7e308):
        samples = Samples(np.array([1]), np.array([value]))
        writer.append(run_id, [SeriesBatch(0, samples)])
    (summary,) = reader.summary([run_id])
    assert (summary.total, summary.mean, summary.growth) == (math.inf, None, None)
    writer.add_series([replace(summary.series, kind=SeriesKind.COUNTER)])
    (summary,) = reader.summary([run_id])
    assert summary.growth == 0.0
