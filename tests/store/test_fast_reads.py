"""What makes reading fast gives the same answers as reading everything the plain way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sqlalchemy import text

from radt.errors import CodecError, StoreError
from radt.model import NO_STEP, SOFTWARE, Scope, SeriesKind
from radt.store import chunks, counters, metric_columns, points
from radt.store.chunks import decoded
from radt.store.metric_columns import Statistic
from radt.store.overview import ChunkHeader, envelope, plan
from radt.store.points import Part, chunks_between
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


def in_chunks(samples: Samples) -> tuple[list[ChunkHeader], list[chunks.ChunkData]]:
    """What the store would have of them, in chunks of 20 points."""
    headers, data = [], []
    rows: list[Any] = []
    for number, start in enumerate(range(0, len(samples), POINTS_PER_CHUNK)):
        part = chunks.sliced(samples, start, start + POINTS_PER_CHUNK)
        rows += chunks.compacted_rows(RUN, 0, number, part, chunks.SharedTimes(), seal_rest=True)
    for row in rows:
        of_header = {
            name: row[name] for name in ChunkHeader._fields if name not in ("has_steps", "thinned")
        }
        headers.append(
            ChunkHeader(**of_header, has_steps=row["step_data"] is not None, thinned=False)
        )
        data.append(chunks.ChunkData(*(row[name] for name in chunks.ChunkData._fields)))
    return headers, data


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


def from_headers(
    samples: Samples, max_points: int, start_ns: int | None = None, end_ns: int | None = None
) -> tuple[Samples, int]:
    """The overview of a part, and how many of the chunks it takes."""
    headers, data = in_chunks(samples)
    concerned = [
        one
        for one in headers
        if (start_ns is None or one.last_ns >= start_ns)
        and (end_ns is None or one.first_ns <= end_ns)
    ]
    found = plan(concerned, Part(RUN, 0, start_ns, end_ns), max_points)
    assert found is not None
    return found.points([data[number] for number in found.numbers]), len(found.numbers)


# -- a chart from headers -------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    values=npst.arrays(np.float64, st.integers(1000, 1300), elements=ODD),
    steps_from=st.none() | st.integers(0, 1200),
    max_points=st.integers(0, 34),
    cut=st.tuples(st.integers(0, 100), st.integers(0, 100)),
)
def test_overview_has_real_points_ends_extremes_and_gaps(
    values: np.ndarray, steps_from: int | None, max_points: int, cut: tuple[int, int]
) -> None:
    times = np.cumsum(np.arange(len(values), dtype=np.int64) % 3)  # some are equal
    steps = None
    if steps_from is not None:
        steps = np.where(times < steps_from, NO_STEP, np.arange(len(values)))
    samples = Samples(times, values, steps)
    start_ns, end_ns = int(times[0]) + cut[0], int(times[-1]) - cut[1]
    whole = chunks.between(samples, start_ns, end_ns)

    chosen, _ = from_headers(samples, max_points, start_ns, end_ns)

    assert len(chosen) <= max(max_points, 16)
    assert set(as_tuples(chosen)) <= set(as_tuples(whole))
    assert np.all(np.diff(chosen.times_ns) >= 0)
    assert (as_tuples(chosen)[0], as_tuples(chosen)[-1]) == (
        as_tuples(whole)[0],
        as_tuples(whole)[-1],
    )
    finite = whole.values[np.isfinite(whole.values)]
    kept = chosen.values[np.isfinite(chosen.values)]
    if len(finite):
        assert (kept.min(), kept.max()) == (finite.min(), finite.max())
    assert np.isfinite(whole.values).all() == np.isfinite(chosen.values).all()


@settings(max_examples=30)
@given(place=st.integers(0, 9999), other=st.integers(0, 9999))
def test_opposite_spikes_survive_and_few_chunks_are_decoded(place: int, other: int) -> None:
    values = np.zeros(10_000)
    values[other] -= 1.0
    values[place] += 2.0
    chosen, decoded_count = from_headers(Samples(np.arange(10_000), values), 50)
    for index in {place, other}:
        assert (index, values[index]) in zip(
            chosen.times_ns.tolist(), chosen.values.tolist(), strict=True
        )
    assert decoded_count <= 50 < 10_000 / POINTS_PER_CHUNK


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_every_stretch_shows_its_extremes(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.random(20_000)
    # Further apart than a stretch of the chart is long (208 points and a chunk).
    high = np.arange(0, 20_000, 500) + random.integers(125, 375, 40)
    low = np.arange(0, 20_000, 500) + random.integers(125, 375, 40)
    values[high] += 10 + random.random(40)
    values[low] -= 30 + random.random(40)
    chosen, _ = from_headers(Samples(np.arange(20_000), values), 200)
    assert set(low.tolist()) <= set(chosen.times_ns.tolist())
    assert set(high.tolist()) - set(low.tolist()) <= set(chosen.times_ns.tolist())


@pytest.mark.parametrize("kind", ["few", "backward", "thinned"])
def test_overview_leaves_alone_what_headers_do_not_tell(kind: str) -> None:
    headers, _ = in_chunks(Samples(np.arange(2000), np.zeros(2000)))
    assert plan(headers, Part(RUN, 0), 20) is not None
    if kind == "few":
        headers = headers[:10]
    elif kind == "backward":
        headers[7] = headers[7]._replace(first_ns=headers[6].last_ns - 1)
    else:
        headers[7] = headers[7]._replace(thinned=True)
    assert plan(headers, Part(RUN, 0), 20) is None


def test_damage_in_a_chunk_that_is_needed_is_noticed() -> None:
    values = np.zeros(2000)
    values[777] = 1.0
    headers, data = in_chunks(Samples(np.arange(2000), values))
    found = plan(headers, Part(RUN, 0), 20)
    assert found is not None
    data[38] = data[38]._replace(checksum=data[38].checksum ^ 1)
    with pytest.raises(CodecError, match="damaged"):
        found.points([data[number] for number in found.numbers])


# -- through the reader, in both databases --------------------------------------------------------


def test_a_chart_of_many_chunks(
    filled: Callable[..., StoreReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.sin(np.arange(4000) / 50)
    values[[100, 2345]] = np.nan, 7.0
    samples = Samples(np.arange(4000) * 1000, values, np.arange(4000))
    reader = filled(samples)
    read = []
    real = chunks.ChunkData.samples
    monkeypatch.setattr(
        chunks.ChunkData, "samples", lambda chunk: read.append(chunk) or real(chunk)
    )
    chosen = reader.envelope(RUN, 0, start_ns=5500, end_ns=3_990_500, max_points=40)
    assert len(read) <= 40 < 4000 / POINTS_PER_CHUNK
    assert set(as_tuples(chosen)) <= set(as_tuples(samples))
    assert (2_345_000, 7.0) in zip(chosen.times_ns.tolist(), chosen.values.tolist(), strict=True)
    assert np.isnan(chosen.values).any()
    assert (chosen.times_ns[0], chosen.times_ns[-1]) == (6000, 3_990_000)


def test_a_chart_where_the_clock_was_set_back_is_that_of_all_points(
    filled: Callable[..., StoreReader],
) -> None:
    forward = np.arange(1500, dtype=np.int64)
    reader = filled(
        Samples(forward, np.sin(forward / 9.0)),
        Samples(forward - 700, np.cos(forward / 9.0)),
    )
    plain = envelope(reader.samples(RUN, 0), 30)
    assert as_tuples(reader.envelope(RUN, 0, max_points=30)) == as_tuples(plain)


def test_a_chart_of_a_series_that_is_not_there(filled: Callable[..., StoreReader]) -> None:
    assert len(filled().envelope(RUN, 99)) == 0


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


@given(
    values=npst.arrays(
        np.float64, st.integers(0, 40), elements=st.sampled_from([0.0, 1.0, 5.0, 9.0, np.nan])
    ),
    block=st.integers(1, 6),
    wraps_at=st.sampled_from([None, 10.0]),
)
def test_rates_of_blocks_are_those_of_all(
    values: np.ndarray, block: int, wraps_at: float | None
) -> None:
    times = np.cumsum(np.arange(len(values), dtype=np.int64) % 3) * 10**9
    whole = counters.rate(times, values, wraps_at)
    with mock.patch.object(counters, "_BLOCK", block):
        assert counters.rate(times, values, wraps_at).tolist() == pytest.approx(
            whole.tolist(), abs=0, rel=0, nan_ok=True
        )


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
        data += in_chunks(Samples(times, values, times if has_steps else None))[1]
    plain = chunks.joined([chunk.samples() for chunk in data])
    together = decoded(data)
    assert (together.steps is None) == (plain.steps is None)
    assert as_tuples(together) == as_tuples(plain)


def test_copied_rows_are_those_of_a_cursor(filled: Callable[..., StoreReader]) -> None:
    reader = filled(Samples(np.arange(105), np.arange(105.0)), Samples(np.array([1]), np.ones(1)))
    statement = text(
        "SELECT chunk_no, NULL, checksum, -chunk_no, value_data, step_data FROM chunk "
        "WHERE run_id = :run_id AND chunk_no <> :number ORDER BY chunk_no"
    )
    kinds = (int, bytes, int, int, bytes, bytes)
    with reader.snapshot() as connection:
        for run_id, count in ((RUN, 5), ("none' or '%s", 0)):
            parameters = {"run_id": run_id, "number": 2}
            plain = [tuple(row) for row in connection.execute(statement, parameters)]
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
        points.fetch(connection, text("SELECT 1 FROM pg_sleep(60)"), {}, (int,))


def test_an_answer_that_is_cut_short_is_an_error() -> None:
    whole = b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\2\0\0\0\4\0\0\0\7\0\0\0\2ab" + b"\xff\xff"
    assert points.rows_of(whole, (int, bytes)) == [(7, b"ab")]
    for stop in range(len(whole)):
        with pytest.raises(StoreError, match="cannot be read"):
            points.rows_of(whole[:stop], (int, bytes))
    with pytest.raises(StoreError, match="cannot be read"):
        points.rows_of(whole, (int, bytes, int))


def test_damage_is_noticed_when_decoding_into_an_array() -> None:
    _, data = in_chunks(Samples(np.arange(100), np.arange(100.0)))
    decoded(data)
    data[3] = data[3]._replace(value_data=data[3].value_data[:-1] + b"?")
    with pytest.raises(CodecError, match="damaged"):
        decoded(data)


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
                for part in (
                    (samples,)
                    if record.entity
                    else (chunks.sliced(samples, 0, 1), chunks.sliced(samples, 1))
                ):
                    writer.append(run, [SeriesBatch(record.series_no, part)])
    with StoreReader(store) as reader, reader.snapshot() as connection:
        names = metric_columns.read_names(connection)
        columns = metric_columns.read_columns(connection, ["loss", "energy", "unknown"])
    assert [(name.metric, name.is_logged, name.run_count) for name in names] == [
        ("loss", True, 2),
        ("energy", False, 2),
    ]
    energy, loss = columns
    ids = ["none", "b", "a"]
    for statistic, expected in {
        Statistic.LAST: [np.nan, np.nan, 7.0],
        Statistic.MIN: [np.nan, 1.0, 3.0],
        Statistic.MAX: [np.nan, 5.0, 7.0],
        Statistic.MEAN: [np.nan, 8 / 3, 5.0],
    }.items():
        np.testing.assert_allclose(loss.values(statistic, ids), expected)
    assert ("none" in loss, "b" in loss) == (False, True)
    assert dict(zip(loss.run_ids, loss.count, strict=True)) == {"a": 3, "b": 4}
    np.testing.assert_allclose(energy.values(Statistic.LAST, ids), [np.nan, 5.0, 6.0])
    np.testing.assert_allclose(energy.values(Statistic.MEAN, ids), [np.nan, 5.0, 6.0])
    assert np.isnan(energy.all_of(Statistic.MAX)).all()
