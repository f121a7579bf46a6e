"""What makes reading fast gives the same answers as reading everything the plain way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sqlalchemy import text

from radt.analysis.metric_columns import read_columns, read_names
from radt.analysis.quantities import Statistic
from radt.errors import CodecError, StoreError
from radt.model import NO_STEP, SOFTWARE, Scope, SeriesKind
from radt.store import chunks, points
from radt.store.codec import EncodedSamples, decode
from radt.store.points import chunks_between
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesBatch, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import PROFILED
from radt.usage import KERNEL
from tests.support.postgres import Postgres

RUN = "0" * 32
POINTS_PER_CHUNK = 20
ODD = st.floats(width=64)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new store in each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path / "radt.db")
    return str(request.getfixturevalue("database"))


@pytest.fixture
def filled(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StoreReader]]:
    """Makes a reader of a store that has these samples as series 0, in chunks of 20 points."""
    monkeypatch.setattr(chunks, "POINTS_PER_CHUNK", POINTS_PER_CHUNK)
    readers = []

    def make(*batches: Samples, seal: bool = True) -> StoreReader:
        with StoreWriter(store) as writer:
            writer.put_run(RunRecord(RUN, "w", "digits", "1", "a", "cnn", 1))
            writer.add_series(
                [SeriesRecord(RUN, 0, "run", "loss", "1", Scope.RUN, SeriesKind.GAUGE)]
            )
            for samples in batches:
                writer.append(RUN, [SeriesBatch(0, samples)])
            if seal:
                writer.seal(RUN)
        readers.append(StoreReader(store))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def in_chunks(samples: Samples) -> list[EncodedSamples]:
    """What the store would have of them, in chunks of 20 points."""
    rows: list[Any] = []
    for number, start in enumerate(range(0, len(samples), POINTS_PER_CHUNK)):
        part = samples[start : start + POINTS_PER_CHUNK]
        rows += chunks.compacted_rows(RUN, 0, number, part, chunks.SharedTimes(), seal_rest=True)
    names = ("codec", "point_count", "checksum", "time_data", "value_data", "step_data")
    return [EncodedSamples(*(row[name] for name in names)) for row in rows]


def as_tuples(samples: Samples) -> list[tuple[int, int, int]]:
    """Each point's time, the bits of its value, and its step."""
    steps = np.full(len(samples), NO_STEP) if samples.steps is None else samples.steps
    return list(
        zip(
            samples.times_ns.tolist(),
            samples.values.view(np.int64).tolist(),
            steps.tolist(),
            strict=True,
        )
    )


# -- through the reader, in both databases --------------------------------------------------------


def test_series_come_back_bit_by_bit(filled: Callable[..., StoreReader]) -> None:
    values = np.random.default_rng(0).normal(size=999)
    values[:5] = np.nan, np.inf, -np.inf, -0.0, 5e-324
    with_steps = Samples(np.arange(999) ** 3, values, np.arange(999))
    without = Samples(np.arange(999) + 2**40, values[::-1].copy())
    loose = Samples(np.array([2**41]), np.array([1.5]))
    reader = filled(with_steps, without, loose, seal=False)
    expected = as_tuples(with_steps) + as_tuples(without) + as_tuples(loose)
    assert as_tuples(reader.samples(RUN, 0)) == expected
    assert as_tuples(reader.points_after(RUN, 0, 990, 30)) == expected[990:1020]
    assert as_tuples(reader.points_after(RUN, 0, 5000, 30)) == []


def test_one_tag_of_an_experiment(store: str) -> None:
    with StoreWriter(store) as writer:
        for run_id, experiment in (("a", "one"), ("b", "one"), ("c", "two")):
            writer.put_workload(WorkloadRecord(f"w{run_id}", experiment, "1", 1))
            writer.put_run(RunRecord(run_id, f"w{run_id}", experiment, "1", "a", "cnn", 1))
            writer.put_tags(run_id, {"other": "x"})
        writer.put_tags("b", {PROFILED: "nsys"})
        writer.put_tags("c", {PROFILED: "ncu"})
    with StoreReader(store) as reader:
        assert reader.tagged(PROFILED, "one") == {"b": "nsys"}
        assert reader.tagged(PROFILED, "none") == {}


# -- how it gets there ----------------------------------------------------------------------------


@given(
    parts=st.lists(
        st.tuples(npst.arrays(np.float64, st.integers(1, 40), elements=ODD), st.booleans()),
        max_size=6,
    )
)
def test_decoding_into_one_array_is_joining(parts: list[tuple[np.ndarray, bool]]) -> None:
    data, plain = [], []
    for values, has_steps in parts:
        times = np.arange(len(values), dtype=np.int64) ** 2
        data += in_chunks(Samples(times, values, times if has_steps else None))
    plain = chunks.joined([decode([chunk]) for chunk in data])
    together = decode(data)
    assert (together.steps is None) == (plain.steps is None)
    assert as_tuples(together) == as_tuples(plain)


def test_copied_rows_are_those_of_a_cursor(filled: Callable[..., StoreReader]) -> None:
    reader = filled(Samples(np.arange(105), np.arange(105.0)), Samples(np.array([1]), np.ones(1)))
    statement = (
        "SELECT chunk_no, NULL, checksum, -chunk_no, value_data, step_data FROM chunk "
        "WHERE run_id = :run_id AND chunk_no <> :number ORDER BY chunk_no"
    )
    kinds = (int, bytes, int, int, bytes, bytes)
    with reader.snapshot() as connection:
        for run_id, count in ((RUN, 5), ("none' or '%s", 0)):
            parameters = {"run_id": run_id, "number": 2}
            plain = [tuple(row) for row in connection.execute(text(statement), parameters)]
            assert points.fetch(connection, statement, parameters, kinds) == plain
            assert len(plain) == count


def test_a_server_that_goes_away_while_it_copies_is_a_store_error(
    database: str, postgres: Postgres
) -> None:
    with StoreWriter(database) as writer:
        writer.add_series([SeriesRecord(RUN, 0, "run", "loss", "1", Scope.RUN, SeriesKind.GAUGE)])
        writer.append(RUN, [SeriesBatch(0, Samples(np.arange(99), np.arange(99.0)))])
    with StoreReader(database) as reader:
        with pytest.raises(StoreError, match="cannot be reached"), reader.snapshot() as connection:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with closing(postgres.connect()) as other, other.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
            chunks_between(connection, RUN, 0, None, None)
        assert len(reader.samples(RUN, 0)) == 99


def test_a_server_that_refuses_to_copy_is_a_store_error(database: str) -> None:
    StoreWriter(database).close()
    with (
        StoreReader(database) as reader,
        pytest.raises(StoreError, match="took too long"),
        reader.snapshot() as connection,
    ):
        connection.execute(text("SET LOCAL statement_timeout TO 1"))
        points.fetch(connection, "SELECT 1 FROM pg_sleep(60)", {}, (int,))


def test_an_answer_that_is_cut_short_is_an_error() -> None:
    whole = b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\2\0\0\0\4\0\0\0\7\0\0\0\2ab" + b"\xff\xff"
    assert points.rows_of(whole, (int, bytes)) == [(7, b"ab")]
    for stop in range(len(whole)):
        with pytest.raises(StoreError, match="cannot be read"):
            points.rows_of(whole[:stop], (int, bytes))
    with pytest.raises(StoreError, match="cannot be read"):
        points.rows_of(whole, (int, bytes, int))


def test_damage_is_noticed_when_decoding_into_an_array() -> None:
    data = in_chunks(Samples(np.arange(100), np.arange(100.0)))
    decode(data)
    data[3] = data[3]._replace(values=data[3].values[:-1] + b"?")
    with pytest.raises(CodecError, match="damaged"):
        decode(data)


def test_columns_of_metrics_agree_with_the_points(store: str) -> None:
    """Two devices are one number a run; a counter has its growth, the kernel's where there is."""
    gauges = {("a", ""): [3.0, np.nan, 7.0], ("b", "0"): [1.0, 2.0], ("b", "1"): [5.0, np.nan]}
    runs: dict[str, list[tuple[SeriesRecord, list[float]]]] = {"a": [], "b": [], "none": []}

    def add(
        run: str, listener: str, metric: str, kind: SeriesKind, entity: str, values: list[float]
    ) -> None:
        number = len(runs[run])
        record = SeriesRecord(run, number, listener, metric, "1", Scope.RUN, kind, entity)
        runs[run].append((record, values))

    for (run, entity), values in gauges.items():
        add(run, SOFTWARE, "loss", SeriesKind.GAUGE, entity, values)
    add("a", "top", "energy", SeriesKind.COUNTER, "", [10.0, 12.0, 15.0])
    add("a", KERNEL, "energy", SeriesKind.COUNTER, "", [0.0, 6.0])
    add("b", "top", "energy", SeriesKind.COUNTER, "0", [10.0, 14.0])
    add("b", "top", "energy", SeriesKind.COUNTER, "1", [20.0, 21.0])
    with StoreWriter(store) as writer:
        for run, series in runs.items():
            writer.put_run(RunRecord(run, "w", "digits", "1", run, "cnn", 1))
            writer.add_series([record for record, _ in series])
            for record, values in series:
                samples = Samples(np.arange(len(values)) * 10**9, np.array(values))
                for part in (samples,) if record.entity else (samples[:1], samples[1:]):
                    writer.append(run, [SeriesBatch(record.series_no, part)])
    with StoreReader(store) as reader:
        names = read_names(reader)
        columns = read_columns(reader, ["loss", "energy", "unknown"])
    assert [(name.metric, name.is_logged, name.run_count) for name in names] == [
        ("loss", True, 2),
        ("energy", False, 2),
    ]
    energy, loss = columns["energy"], columns["loss"]
    ids = ["none", "b", "a"]
    for statistic, expected in {
        Statistic.LAST: [np.nan, np.nan, 7.0],
        Statistic.MIN: [np.nan, 1.0, 3.0],
        Statistic.MAX: [np.nan, 5.0, 7.0],
        Statistic.MEAN: [np.nan, 3.25, 5.0],
    }.items():
        np.testing.assert_allclose(loss.values(statistic, ids), expected)
    assert ("none" in loss, "b" in loss) == (False, True)
    assert dict(zip(loss.run_ids, loss.count, strict=True)) == {"a": 3, "b": 4}
    np.testing.assert_allclose(energy.values(Statistic.LAST, ids), [np.nan, 5.0, 6.0])
    np.testing.assert_allclose(energy.values(Statistic.MEAN, ids), [np.nan, 5.0, 6.0])
    assert np.isnan(energy.numbers[Statistic.MAX]).all()


def test_the_mean_of_a_counter_is_a_rate_in_its_unit(store: str) -> None:
    with StoreWriter(store) as writer:
        writer.put_run(RunRecord("a", "w", "digits", "1", "a", "cnn", 1))
        of_gpu = SeriesRecord("a", 0, "carbon", "carbon", "g", Scope.GPU, SeriesKind.COUNTER)
        writer.add_series([of_gpu])
        hour_ns = 3600 * 10**9
        samples = Samples(np.array([0, hour_ns]), np.array([0.0, 3.6]))
        writer.append("a", [SeriesBatch(0, samples)])
    with StoreReader(store) as reader:
        carbon = read_columns(reader, ["carbon"])["carbon"]
    np.testing.assert_allclose(carbon.numbers[Statistic.MEAN], [3.6])
    assert (carbon.unit_of(Statistic.MEAN), carbon.unit_of(Statistic.LAST)) == ("g/h", "g")
