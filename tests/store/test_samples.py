"""Points come back as they were written, however they were cut, merged and read."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text

from radt.errors import CodecError, StoreError
from radt.model import NO_STEP, Scope, SeriesKind
from radt.store import chunks
from radt.store.backend import Dialect, StoreAddress
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch, SeriesRecord
from radt.store.writer import StoreWriter

DATABASES = tuple(Dialect)


def points(start: int, count: int, *, steps: bool = False) -> Samples:
    numbers = np.arange(start, start + count, dtype=np.int64)
    return Samples(numbers * 1000, numbers / 7, numbers if steps else None)


def chunk_rows(writer: StoreWriter) -> list[tuple[int, ...]]:
    statement = text("SELECT series_no, chunk_no, sealed, point_count FROM chunk ORDER BY 1, 2")
    with writer._engine.connect() as connection:
        return [tuple(row) for row in connection.execute(statement)]


@st.composite
def writing(draw: st.DrawFn) -> list[tuple[str, int, bool]]:
    """Appends of some size with or without steps, compactions, seals, new processes."""
    sizes = st.sampled_from([0, 1, 1, 1, 2, 7, 59, 1200, 3599, 3600, 3601, 8000])
    append = st.tuples(st.just("append"), sizes, st.booleans())
    other = st.tuples(st.sampled_from(["seal", "reopen", "many"]), st.just(0), st.just(0))
    return draw(st.lists(append | append | other, min_size=1, max_size=12))


@given(data=st.data())
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_is_appended_is_read_in_order(store: StoreAddress, data: st.DataObject) -> None:
    operations = data.draw(writing(), "operations")
    backwards = data.draw(st.booleans(), "backwards")
    run_id = uuid.uuid4().hex  # the examples share a store
    writer = StoreWriter(store)
    writer.add_series([SeriesRecord(run_id, 4, "run", "x", "1", Scope.RUN, SeriesKind.GAUGE)])
    written: list[tuple[int, float, int]] = []

    def append(count: int, with_steps: bool) -> None:
        first = len(written)
        numbers = np.arange(first, first + count, dtype=np.int64)
        times = -numbers if backwards else numbers
        samples = Samples(times, numbers * 1.5, numbers * 2 if with_steps else None)
        writer.append(run_id, [SeriesBatch(4, samples)])
        written.extend(
            (
                int(times[i]),
                float(numbers[i] * 1.5),
                int(numbers[i] * 2) if with_steps else NO_STEP,
            )
            for i in range(count)
        )

    for operation, count, with_steps in operations:
        if operation == "append":
            append(count, with_steps)
        elif operation == "many":
            for _ in range(chunks.MAX_LOOSE_CHUNKS + 1):
                append(1, with_steps=True)
        elif operation == "reopen":
            writer.close()
            writer = StoreWriter(store)
        else:
            getattr(writer, operation)(run_id)

    with writer, StoreReader(store) as reader:
        samples = reader.samples(run_id, 4)
        steps = samples.steps if samples.steps is not None else [NO_STEP] * len(samples)
        got = list(
            zip(samples.times_ns.tolist(), samples.values.tolist(), map(int, steps), strict=True)
        )
        assert got == sorted(written)
        for skip in {0, 1, 3600, len(written) // 2, len(written), len(written) + 5}:
            for limit in (1, 100, len(written) + 1):
                next_points = reader.points_after(run_id, 4, skip, limit)
                expected = written[skip : skip + limit]
                assert next_points.times_ns.tolist() == [time for time, _, _ in expected]
        assert reader.point_counts(run_id).get(4, 0) == len(written)
        summaries = reader.summary([run_id])
        assert [summary.count for summary in summaries] == ([len(written)] if written else [])


def test_flushes_are_merged_on_the_way(
    writer: StoreWriter, reader: StoreReader, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "POINTS_PER_CHUNK", 180)  # three times what is loose, at most
    for second in range(200):
        writer.append(run_id, [SeriesBatch(1, points(second, 1))])
    rows = chunk_rows(writer)
    assert [row[3] for row in rows if row[2]] == [chunks.POINTS_PER_CHUNK]
    assert len(rows) <= chunks.MAX_LOOSE_CHUNKS + 2
    samples = reader.samples(run_id, 1)
    assert samples.times_ns.tolist() == (np.arange(200) * 1000).tolist()
    assert samples.steps is None


def test_seal_leaves_nothing_loose_and_keeps_late_points(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    for number in range(5):
        batches = [SeriesBatch(series, points(number * 10, 10)) for series in (0, 1)]
        writer.append(run_id, batches)
    writer.seal(run_id)
    assert chunk_rows(writer) == [(0, 0, 1, 50), (1, 0, 1, 50)]
    writer.append(run_id, [SeriesBatch(0, points(50, 1))])
    writer.seal(run_id)
    writer.seal(run_id)
    assert chunk_rows(writer) == [(0, 0, 1, 50), (0, 1, 1, 1), (1, 0, 1, 50)]
    assert reader.samples(run_id, 0).times_ns.tolist() == (np.arange(51) * 1000).tolist()


def test_small_and_large_batches_of_one_call_keep_their_order(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    writer.append(
        run_id,
        [
            SeriesBatch(0, points(0, 10)),
            SeriesBatch(0, points(10, 5000)),
            SeriesBatch(0, points(5010, 3)),
        ],
    )
    first = reader.points_after(run_id, 0, 5008, 10)
    assert first.times_ns.tolist() == [5008_000, 5009_000, 5010_000, 5011_000, 5012_000]


@pytest.mark.parametrize(
    ("start", "end"), [(None, 5), (3, None), (3, 5), (5, 3), (-10, 0), (9999, None), (3600, 3600)]
)
def test_a_time_range_includes_both_ends(
    writer: StoreWriter, reader: StoreReader, run_id: str, start: int | None, end: int | None
) -> None:
    times = np.arange(5000, dtype=np.int64)
    writer.append(run_id, [SeriesBatch(0, Samples(times, times * 1.0))])
    low, high = -1 if start is None else start, 5000 if end is None else end
    got = reader.samples(run_id, 0, start_ns=start, end_ns=end)
    assert got.times_ns.tolist() == [time for time in range(5000) if low <= time <= high]
    assert got.values.tolist() == got.times_ns.tolist()


def test_summaries_leave_out_what_is_not_finite_and_keep_the_ends_as_they_are(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    values = np.array([3.0, np.nan, np.inf, 1.0, 5.0, -np.inf])
    for index, value in enumerate(values):
        sample = Samples(np.array([index]), np.array([value]), np.array([index * 10]))
        writer.append(run_id, [SeriesBatch(0, sample)])
    writer.append(run_id, [SeriesBatch(1, Samples(np.array([1, 2]), np.array([np.nan, np.nan])))])
    before = reader.summary([run_id])
    writer.seal(run_id)
    loss, power = reader.summary([run_id])
    assert [loss, power] == before
    assert (loss.series.metric, loss.count, loss.mean) == ("loss", 6, 3.0)
    assert (loss.minimum, loss.maximum, loss.first, loss.last) == (1.0, 5.0, 3.0, -np.inf)
    assert (loss.first_ns, loss.last_ns) == (0, 5)
    assert (power.count, power.mean, power.minimum, power.maximum) == (2, None, None, None)
    assert np.isnan([power.first, power.last]).all()


def test_a_sum_that_overflows_makes_no_mean(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    for series_no, count in ((0, 2), (1, 100)):
        times = np.arange(count, dtype=np.int64)
        writer.append(run_id, [SeriesBatch(series_no, Samples(times, np.full(count, 1.7e308)))])
        writer.append(run_id, [SeriesBatch(series_no, Samples(times, np.full(count, -1.0)))])
    assert [summary.mean for summary in reader.summary([run_id])] == [None, None]
    assert [summary.maximum for summary in reader.summary([run_id])] == [1.7e308, 1.7e308]


def test_ends_are_by_time_even_when_written_backwards(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    writer.append(run_id, [SeriesBatch(0, Samples(np.array([7, 5]), np.array([70.0, 50.0])))])
    writer.append(run_id, [SeriesBatch(0, Samples(np.array([1, 3]), np.array([10.0, 30.0])))])
    (summary,) = reader.summary([run_id])
    assert (summary.first, summary.last) == (10.0, 70.0)
    assert (summary.first_ns, summary.last_ns) == (1, 7)


def test_a_series_must_be_declared(writer: StoreWriter, reader: StoreReader, run_id: str) -> None:
    with pytest.raises(StoreError, match="no series 7"):
        writer.append(run_id, [SeriesBatch(0, points(0, 1)), SeriesBatch(7, points(0, 1))])
    with pytest.raises(StoreError, match="no series 0"):
        writer.append("nobody", [SeriesBatch(0, points(0, 1))])
    assert len(reader.samples(run_id, 0)) == 0
    assert len(reader.samples("nobody", 0)) == 0


def test_a_series_number_cannot_change_its_meaning(writer: StoreWriter, run_id: str) -> None:
    same = SeriesRecord(run_id, 0, "run", "loss", "1", Scope.RUN, SeriesKind.GAUGE)
    writer.add_series([same])
    other = SeriesRecord(run_id, 0, "run", "accuracy", "1", Scope.RUN, SeriesKind.GAUGE)
    with pytest.raises(StoreError, match="is loss already"):
        writer.add_series([other])


@pytest.mark.parametrize(
    "samples",
    [
        Samples(np.array([1.0]), np.array([1.0])),  # type: ignore[arg-type]
        Samples(np.array([1]), np.array([1])),  # type: ignore[arg-type]
        Samples(np.array([1, 2]), np.array([1.0])),
        Samples(np.array([1]), np.array([1.0]), np.array([1, 2])),
        Samples(np.array([[1]]), np.array([[1.0]])),
    ],
)
def test_wrong_columns_are_refused(writer: StoreWriter, run_id: str, samples: Samples) -> None:
    with pytest.raises(StoreError, match="samples must"):
        writer.append(run_id, [SeriesBatch(0, samples)])


def test_a_damaged_chunk_is_an_error_not_wrong_data(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    writer.append(run_id, [SeriesBatch(0, points(0, 5000))])
    with writer._engine.begin() as connection:
        data = connection.execute(text("SELECT value_data FROM chunk WHERE chunk_no = 0")).scalar()
        damaged = bytes([*data[:100], data[100] ^ 4, *data[101:]])
        connection.execute(
            text("UPDATE chunk SET value_data = :d WHERE chunk_no = 0"), {"d": damaged}
        )
    with pytest.raises(CodecError, match=r"damaged.*checksum.*backup"):
        reader.samples(run_id, 0)
    assert len(reader.samples(run_id, 0, start_ns=4000_000)) == 1000


def test_instants_that_series_share_are_stored_once(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    """Full chunks merged on the way, large batches and the rest that `seal` finds."""
    writer.add_series(
        [SeriesRecord(run_id, 2, "smi", "other", "1", Scope.GPU, SeriesKind.GAUGE, "gpu0")]
    )
    random = np.random.default_rng(1)
    times = np.cumsum(random.integers(1, 10**9, 9000))
    for start, stop in [(0, 2000), (2000, 3650), (3650, 8000), (8000, 9000)]:
        part = times[start:stop]
        batches = [SeriesBatch(number, Samples(part, part * float(number))) for number in (1, 2)]
        own = SeriesBatch(0, Samples(part + 1, part * 0.5))
        writer.append(run_id, [own, *batches])
        for number in (1, 2):
            assert reader.samples(run_id, number).times_ns.tolist() == times[:stop].tolist()
    writer.seal(run_id)
    with writer._engine.connect() as connection:
        statement = text(
            "SELECT series_no, COUNT(time_data), COUNT(time_series_no), COUNT(*) "
            "FROM chunk GROUP BY series_no ORDER BY series_no"
        )
        rows = [tuple(row) for row in connection.execute(statement)]
    assert rows == [(0, 3, 0, 3), (1, 3, 0, 3), (2, 0, 3, 3)]
    for number in (1, 2):
        samples = reader.samples(run_id, number)
        assert samples.times_ns.tolist() == times.tolist()
        assert samples.values.tolist() == (times * float(number)).tolist()
    late = reader.samples(run_id, 2, start_ns=int(times[7000]), end_ns=int(times[7002]))
    assert late.times_ns.tolist() == times[7000:7003].tolist()


def test_points_are_skipped_rightly_while_chunks_are_merged(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    """The merge comes just between asking how many points there are and asking for them."""
    for number in range(10):
        writer.append(run_id, [SeriesBatch(0, points(number * 10, 10))])
    merged = []

    def merge(connection, cursor, statement, *_) -> None:
        if "FROM series_summary" in statement and not merged:
            merged.append(statement)
            writer.seal(run_id)

    event.listen(reader.engine, "after_cursor_execute", merge)
    assert reader.point_counts(run_id) == {0: 100}
    assert reader.points_after(run_id, 0, 55, 45).times_ns.tolist() == list(
        range(55_000, 100_000, 1000)
    )
    assert merged
    assert chunk_rows(writer) == [(0, 0, 1, 100)]


@pytest.mark.parametrize("count", [1, 100])
def test_nothing_finite_is_no_statistics(
    writer: StoreWriter, reader: StoreReader, run_id: str, count: int
) -> None:
    values = np.full(count, np.nan)
    writer.append(run_id, [SeriesBatch(0, Samples(np.arange(count), values))])
    (summary,) = reader.summary([run_id])
    assert (summary.count, summary.mean, summary.minimum, summary.maximum) == (count, *[None] * 3)
