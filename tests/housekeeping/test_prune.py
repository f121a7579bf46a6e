"""What stays of old runs says the same in summary, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import text

from radt.analysis.reading import gauge_stats
from radt.analysis.report import read_report
from radt.analysis.stretches import EARLIEST_NS, LATEST_NS, Within
from radt.errors import CodecError
from radt.model import Scope, SeriesKind
from radt.store import pruning
from radt.store.backend import Dialect, StoreAddress
from radt.store.check import check, check_deep
from radt.store.counters import total_of
from radt.store.pruning import KEPT_POINTS, Keep, candidates, prune_run
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch, SeriesRecord
from radt.store.tables import TABLES_OF_RUNS
from radt.store.writer import StoreWriter
from radt.tags import PRUNED
from tests.housekeeping.conftest import COUNTER, FEW, GAUGE, LOSS, POINTS, S, rows

PutRun = Callable[..., str]
Execute = Callable[..., None]
FAR_NS = 2**62
SQLITE_ONLY = pytest.mark.parametrize("dialect", [Dialect.SQLITE], indirect=True, ids=str)


def due(reader: StoreReader, keep: Keep = Keep.SUMMARIES, **more: object) -> list[str]:
    found = candidates(reader, FAR_NS, keep, **more)  # type: ignore[arg-type]
    return [one.run_id for one in found if not one.held_back]


def test_summaries_stay_exact(writer: StoreWriter, reader: StoreReader, put_run: PutRun) -> None:
    run_id = put_run()
    before = reader.summary([run_id])
    series = {one.series_no: one for one in reader.series([run_id])}
    total = total_of(reader.samples(run_id, COUNTER), series[COUNTER])
    done = prune_run(reader, writer, run_id, Keep.SUMMARIES)
    assert done is not None
    assert done.point_count == 3 * POINTS + 3
    assert done.kept_count < 4 * KEPT_POINTS

    for old, new in zip(before, reader.summary([run_id]), strict=True):
        assert replace(old, stored_count=new.stored_count) == new
    assert total_of(reader.samples(run_id, COUNTER), series[COUNTER]) == pytest.approx(total)
    assert reader.point_counts(run_id)[GAUGE] == len(reader.samples(run_id, GAUGE)) < POINTS
    assert reader.samples(run_id, FEW).values.tolist() == [0.1, 0.5, 0.9]
    assert reader.tags(run_id)[PRUNED].endswith(f"{done.kept_count:,} of 27,003 points kept")
    assert [*check(reader), *check_deep(reader)] == []


@SQLITE_ONLY
def test_what_stays_are_points_that_were_there(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    run_id = put_run()
    before = reader.samples(run_id, LOSS)
    spike = np.nanmax(reader.samples(run_id, GAUGE).values)
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    after = reader.samples(run_id, LOSS)
    assert after.steps is not None
    places = np.searchsorted(before.times_ns, after.times_ns)
    assert after.values.tolist() == before.values[places].tolist()
    assert after.steps.tolist() == places.tolist()
    left = reader.samples(run_id, GAUGE).values
    assert np.nanmax(left) == spike
    assert np.isnan(left).any()


@SQLITE_ONLY
def test_the_mean_over_epochs_that_count_stays_exact(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    run_id = put_run()
    epochs = reader.markers([run_id])
    start_ns, end_ns = epochs[1].start_ns, epochs[-1].end_ns
    assert end_ns is not None
    exact = np.nanmean(reader.samples(run_id, GAUGE, start_ns=start_ns, end_ns=end_ns).values)

    def mean(start_ns: int, end_ns: int) -> float | None:
        key = (run_id, GAUGE)
        found = gauge_stats(reader, {key: Within([(start_ns, end_ns)])}, ["gpu.power"])
        return found[key].mean if key in found else None

    assert mean(start_ns, end_ns) == pytest.approx(exact, rel=1e-12)
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    assert mean(start_ns, end_ns) == pytest.approx(exact, rel=1e-12)
    other = mean(start_ns + 50 * S, LATEST_NS)
    assert other is not None
    assert 190 < other < 260  # from what is left, which has the peaks
    assert mean(EARLIEST_NS, 0) is None


@SQLITE_ONLY
def test_a_run_is_thinned_once(writer: StoreWriter, reader: StoreReader, put_run: PutRun) -> None:
    run_id = put_run()
    assert due(reader) == [run_id]
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    assert due(reader) == []
    assert due(reader, Keep.NOTHING) == [run_id]


def test_nothing_stays_of_a_run_and_all_of_others(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    gone, other = put_run("a" * 32), put_run("b" * 32, experiment="words")
    before = reader.summary([other])
    prune_run(reader, writer, gone, Keep.NOTHING)
    assert [run.run_id for run in reader.runs()] == [other]
    assert [one.name for one in reader.experiments()] == ["words"]
    assert [one.workload_id for one in reader.workloads()] == [f"w-{other}"]
    assert reader.summary([gone, other]) == before
    with reader.snapshot() as connection:
        for table in TABLES_OF_RUNS:
            statement = f"SELECT 1 FROM {table} WHERE run_id = :run_id"
            assert rows(connection, statement, run_id=gone) == []
        assert rows(connection, "SELECT run_id, kept, point_count, kept_count FROM pruned") == [
            (gone, "nothing", 27_003, 0)
        ]


@SQLITE_ONLY
def test_who_shares_a_workload_keeps_it(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    first, second = (put_run(key * 32, workload_id="w") for key in "ab")
    prune_run(reader, writer, first, Keep.NOTHING)
    assert reader.workload("w")
    prune_run(reader, writer, second, Keep.NOTHING)
    assert reader.workloads() == []
    assert reader.experiments() == []


@SQLITE_ONLY
def test_only_old_runs_that_ended_are_candidates(reader: StoreReader, put_run: PutRun) -> None:
    old = put_run("a" * 32, experiment="words", points=10)
    put_run("b" * 32, ended_ns=None, points=10)
    young = put_run("c" * 32, days_ago=1, points=10)
    month_ago = reader.run(young).ended_ns
    assert month_ago is not None
    assert [one.run_id for one in candidates(reader, month_ago, Keep.NOTHING)] == [old]
    assert due(reader) == [old, young]
    assert due(reader, experiment="words") == [old]
    assert due(reader, experiment="absent") == []


def test_what_mlflow_lacks_is_held_back(
    dialect: Dialect, reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    put_run(tracking_uri="sqlite:///mlflow.db", points=10)
    assert len(due(reader)) == 1
    execute("UPDATE run SET delivery_done_ns = NULL")
    # Only the machine that ran it delivers; what is in Postgres is a copy.
    assert len(due(reader)) == (0 if dialect is Dialect.SQLITE else 1)


def test_what_a_copy_lacks_is_held_back_and_then_left_alone(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    """A pruned run is as if brought over: it must not take the place of the complete one."""
    run_id = put_run(points=1000)
    execute("INSERT INTO replica (target, label) VALUES ('t', 'postgresql://db/radt')")
    (held,) = candidates(reader, FAR_NS, Keep.SUMMARIES)
    assert held.held_back == "postgresql://db/radt does not have all of it yet"
    execute("INSERT INTO replicated (target, key, revision) SELECT 't', run_id, revision FROM run")
    assert due(reader) == [run_id]
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    with reader.snapshot() as connection:
        ahead = "SELECT run.revision - replicated.revision FROM run, replicated"
        assert rows(connection, ahead) == [(0,)]
    prune_run(reader, writer, run_id, Keep.NOTHING)
    with reader.snapshot() as connection:
        assert rows(connection, "SELECT key FROM replicated") == []


def test_what_is_written_meanwhile_is_not_lost(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = put_run(points=1000)
    late = SeriesBatch(GAUGE, Samples(np.array([FAR_NS]), np.array([1.0])))

    def slow(reader: StoreReader, run_id: str) -> object:
        found = thin_run(reader, run_id)
        writer.append(run_id, [late])
        return found

    thin_run = pruning.thin_run
    monkeypatch.setattr(pruning, "thin_run", slow)
    assert prune_run(reader, writer, run_id, Keep.SUMMARIES) is None
    assert reader.point_counts(run_id)[GAUGE] == 1001
    assert PRUNED not in reader.tags(run_id)


@SQLITE_ONLY
def test_a_damaged_run_is_left_as_it_is(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    run_id = put_run(points=1000)
    execute("UPDATE chunk SET checksum = 1 WHERE series_no = 0")
    with pytest.raises(CodecError):
        prune_run(reader, writer, run_id, Keep.SUMMARIES)
    assert reader.point_counts(run_id)[COUNTER] == 1000
    assert PRUNED not in reader.tags(run_id)


def test_points_that_come_after_pruning_count(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    """A journal that was found in a backup, say."""
    run_id = put_run()
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    late = Samples(np.array([FAR_NS, FAR_NS + S]), np.array([5000.0, 1.0]))
    writer.append(run_id, [SeriesBatch(GAUGE, late)])
    gauge = reader.summary([run_id])[GAUGE]
    assert (gauge.count, gauge.maximum, gauge.last) == (POINTS + 2, 5000.0, 1.0)
    stored = reader.point_counts(run_id)[GAUGE]
    assert reader.points_after(run_id, GAUGE, stored - 2, 10).values.tolist() == [5000.0, 1.0]
    writer.seal(run_id)
    assert [*check(reader), *check_deep(reader)] == []


@SQLITE_ONLY
def test_reports_say_the_same(writer: StoreWriter, reader: StoreReader, put_run: PutRun) -> None:
    run_id = put_run()
    before = read_report(reader, "digits").workloads
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    after = read_report(reader, "digits").workloads
    assert [one.groups for one in after] == [one.groups for one in before]
    assert after[0].energy.gpus_j == pytest.approx(before[0].energy.gpus_j)


@SQLITE_ONLY
def test_a_long_series_is_read_in_pages(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radt.store.pruning._PAGE_POINTS", 1100)
    run_id = put_run()
    before = reader.summary([run_id])
    total = total_of(reader.samples(run_id, COUNTER), reader.series([run_id])[COUNTER])
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    after = reader.summary([run_id])
    assert [(one.count, one.minimum, one.maximum, one.last_ns) for one in after] == [
        (one.count, one.minimum, one.maximum, one.last_ns) for one in before
    ]
    left = reader.samples(run_id, COUNTER)
    assert total_of(left, reader.series([run_id])[COUNTER]) == pytest.approx(total)
    assert len(left) < 400
    assert list(check_deep(reader)) == []


@SQLITE_ONLY
def test_a_counter_that_often_began_again_comes_to_the_same_total(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    """More often than there are stretches of which the extremes stay."""
    run_id = put_run(points=3)
    numbers = np.arange(9000)
    # A value that differs each time, so that a fall that is lost shows in the sum.
    counted = Samples(numbers * S, (numbers % 20) * (1.0 + numbers // 20))
    record = SeriesRecord(run_id, 9, "net", "rx", "By", Scope.HOST, SeriesKind.COUNTER)
    writer.add_series([record])
    writer.append(run_id, [SeriesBatch(9, counted)])
    total = total_of(counted, record)
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    left = reader.samples(run_id, 9)
    assert len(left) < 9000 / 5
    assert total_of(left, record) == total


@SQLITE_ONLY
def test_a_pruned_run_that_is_brought_back_counts_as_whole(
    store: StoreAddress, writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    run_id = put_run(points=1000)
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    pruning.forget_pruned(writer, run_id)
    assert PRUNED not in reader.tags(run_id)
    with reader.snapshot() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM pruned")).scalar() == 0
    assert due(reader) == [run_id]
