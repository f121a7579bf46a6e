"""Finding experiments, workloads and runs, and what is known of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import event

from radt.errors import RunNotFoundError
from radt.model import MarkerKind, MissingReason, RunStatus
from radt.store.backend import Dialect
from radt.store.reader import StoreReader
from radt.store.records import (
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter

MakeRun = Callable[..., RunRecord]

DATABASES = tuple(Dialect)


def test_records_come_back_equal(
    writer: StoreWriter, reader: StoreReader, run_record: MakeRun
) -> None:
    run = run_record(
        status=RunStatus.RUNNING,
        devices="1+2",
        command="python train.py",
        host="h",
        spool="/s",
        tracking_uri="sqlite:///x",
        mlflow_run_id="f" * 32,
        pid=2**31,
        started_ns=2**62,
        ended_ns=2**62 + 1,
        exit_code=-9,
        end_reason="killed by signal 9",
    )
    workload = WorkloadRecord("w", "e", "7", 1, RunStatus.KILLED, "uri", "3", "m", 4, 5, 6)
    markers = [
        MarkerRecord(run.run_id, 0, MarkerKind.EPOCH, "epoch", 5, 6, 1, "rank 1", "detail"),
        MarkerRecord(run.run_id, 1, MarkerKind.EVENT, "restarted", 7),
    ]
    ledger = LedgerRecord(run.run_id, "top", 0.5, 10, 9, 1, 12345, "unavailable", "no GPU")
    gap = GapRecord(run.run_id, "top", -1, 1, 2, MissingReason.LOST, "collector restarted")
    cursors = {"j": JournalCursor("j", 1, 2, 3, ("loss", "a,b\n")), "k": JournalCursor("k")}
    writer.put_run(run)
    writer.put_workload(workload)
    writer.put_markers(markers)
    writer.put_ledger(ledger)
    writer.put_gaps([gap])
    writer.put_cursors(run.run_id, list(cursors.values()))
    assert reader.run(run.run_id) == run
    assert reader.workload("w") == workload
    assert reader.markers([run.run_id]) == markers
    assert reader.ledger([run.run_id]) == [ledger]
    assert reader.gaps([run.run_id]) == [gap]
    assert reader.cursors(run.run_id) == cursors


def test_writing_again_replaces(
    writer: StoreWriter, reader: StoreReader, run_id: str, run_record: MakeRun
) -> None:
    marker = MarkerRecord(run_id, 0, MarkerKind.SPAN, "load", 5)
    writer.put_markers([marker])
    writer.put_markers([replace(marker, end_ns=9)])
    ledger = LedgerRecord(run_id, "top", 1.0, 1, 1, 0, 5)
    writer.put_ledger(ledger)
    writer.put_ledger(replace(ledger, expected=2, missed=1))
    gap = GapRecord(run_id, "top", -1, 1, 2, MissingReason.LOST)
    writer.put_gaps([gap])
    writer.put_gaps([replace(gap, end_ns=3)])
    writer.put_params(run_id, {"lr": "1", "batch": "8"})
    writer.put_params(run_id, {"lr": "2"})
    writer.put_cursors(run_id, [JournalCursor("j", slot=1)])
    writer.put_cursors(run_id, [JournalCursor("j", slot=2)])
    writer.put_run(run_record(name="renamed"))
    assert reader.markers([run_id]) == [replace(marker, end_ns=9)]
    assert reader.ledger([run_id]) == [replace(ledger, expected=2, missed=1)]
    assert reader.gaps([run_id]) == [replace(gap, end_ns=3)]
    assert reader.params(run_id) == {"lr": "2", "batch": "8"}
    assert reader.cursors(run_id) == {"j": JournalCursor("j", slot=2)}
    assert [run.name for run in reader.runs()] == ["renamed"]


def test_a_run_ends_once(writer: StoreWriter, reader: StoreReader, run_id: str) -> None:
    assert [run.run_id for run in reader.unended_runs()] == [run_id]
    assert writer.end_run(run_id, RunStatus.KILLED, 9, -9, "killed by signal 9")
    assert not writer.end_run(run_id, RunStatus.FINISHED, 10, 0, "")
    run = reader.run(run_id)
    assert (run.status, run.ended_ns, run.exit_code) == (RunStatus.KILLED, 9, -9)
    assert run.end_reason == "killed by signal 9"
    assert reader.unended_runs() == []


def test_none_is_written_as_null(writer: StoreWriter, reader: StoreReader, run_id: str) -> None:
    writer.update_run(run_id, pid=5, mlflow_run_id="m", status=RunStatus.RUNNING)
    writer.update_run(run_id, pid=None, mlflow_run_id=None)
    run = reader.run(run_id)
    assert (run.pid, run.mlflow_run_id, run.status) == (None, None, RunStatus.RUNNING)
    writer.update_workload("workload1", barrier_ns=5, start_skew_ns=0)
    writer.update_workload("workload1", barrier_ns=None)
    workload = reader.workload("workload1")
    assert (workload.barrier_ns, workload.start_skew_ns) == (None, 0)


@pytest.fixture
def three_runs(writer: StoreWriter, run_record: MakeRun) -> list[RunRecord]:
    runs = [
        run_record("aaaa1111" * 4, mlflow_run_id="cccc" * 8, letter="a"),
        run_record("aaaa2222" * 4, mlflow_run_id="dddd" * 8, letter="z"),
        run_record("bbbb0000" * 4, experiment="other", letter="aa", status=RunStatus.FINISHED),
    ]
    for run in reversed(runs):
        writer.put_run(run)
    return runs


@pytest.mark.parametrize(
    ("given", "index"),
    [
        ("aaaa1111" * 4, 0),
        ("aaaa2", 1),
        ("cccc", 0),
        ("dddd" * 8, 1),
        (" BBBB \n", 2),
        ("BBBB0000" * 4, 2),
    ],
)
def test_a_run_is_found_by_either_id_or_its_beginning(
    reader: StoreReader, three_runs: list[RunRecord], given: str, index: int
) -> None:
    assert reader.find_run(given) == three_runs[index]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("aaaa", r"several runs match.*aaaa1111aaaa, aaaa2222aaaa.*more characters"),
        ("aaa", "too short"),
        ("", "too short"),
        ("%%%%", "no run matches"),
        ("____", "no run matches"),
        ("'; --", "no run matches"),
        ("aaaa1111" * 5, "no run matches"),
    ],
)
def test_what_is_no_run_is_said(
    reader: StoreReader, three_runs: list[RunRecord], given: str, message: str
) -> None:
    with pytest.raises(RunNotFoundError, match=message) as caught:
        reader.find_run(given)
    assert caught.value.exit_code == 2


def test_a_whole_id_wins_over_longer_ones(
    writer: StoreWriter, reader: StoreReader, run_record: MakeRun
) -> None:
    for run_id in ("abcdef", "abcdef01", "abcdef02"):
        writer.put_run(run_record(run_id))
    assert reader.find_run("abcdef").run_id == "abcdef"


def test_runs_are_filtered_and_ordered(reader: StoreReader, three_runs: list[RunRecord]) -> None:
    first, second, third = (run.run_id for run in three_runs)
    assert [run.run_id for run in reader.runs()] == [first, second, third], "z comes before aa"
    ids = [third, first, "nobody", first]
    assert [run.run_id for run in reader.runs(run_ids=ids)] == [first, third]
    assert [run.run_id for run in reader.runs(run_ids=ids, experiment="other")] == [third]
    assert [run.run_id for run in reader.runs(status=RunStatus.FINISHED)] == [third]
    assert [run.run_id for run in reader.runs(experiment="digits", workload_id="no")] == []
    assert reader.runs(run_ids=[]) == []


def test_experiments_are_summed_up_latest_first(
    writer: StoreWriter, reader: StoreReader, three_runs: list[RunRecord]
) -> None:
    writer.put_workload(WorkloadRecord("w1", "digits", "1", 5))
    writer.put_workload(WorkloadRecord("w2", "empty", "1", 7))
    writer.end_run(three_runs[2].run_id, RunStatus.FAILED, 2 * 10**18)
    other, digits, empty = reader.experiments()
    assert (other.name, other.run_count) == ("other", 1)
    assert other.statuses == {RunStatus.FAILED: 1}
    assert other.last_activity_ns == 2 * 10**18
    assert digits.run_count == 2
    assert digits.statuses == {RunStatus.SCHEDULED: 2}
    assert (empty.name, empty.run_count, empty.last_activity_ns) == ("empty", 0, 7)
    assert [workload.workload_id for workload in reader.workloads("digits")] == ["w1"]
    assert [workload.workload_id for workload in reader.workloads()] == ["w1", "w2"]


def test_delivery_is_remembered(
    writer: StoreWriter, reader: StoreReader, run_record: MakeRun
) -> None:
    run = run_record(tracking_uri="http://a")
    writer.put_run(run)
    writer.put_run(run_record("other", tracking_uri="http://b"))
    writer.put_workload(WorkloadRecord("w", "e", "1", 5, tracking_uri="http://a"))
    writer.mark_delivered(run.run_id, {0: 5, 3: 1_790_000_000_000_000_000})
    writer.mark_delivered(run.run_id, {0: 8})
    writer.mark_artifacts(run.run_id, ["a/b.txt", "c"])
    writer.mark_artifacts(run.run_id, ["c"])
    assert reader.delivered(run.run_id) == {0: 8, 3: 1_790_000_000_000_000_000}
    assert reader.delivered_artifacts(run.run_id) == {"a/b.txt", "c"}
    assert reader.runs_to_deliver("http://a") == [run]
    assert [one.workload_id for one in reader.workloads_to_deliver("http://a")] == ["w"]
    revision = reader.revisions(run.experiment)[run.run_id]
    assert not writer.mark_run_delivered(run.run_id, revision=revision - 1)
    assert not writer.mark_workload_delivered("w", revision=0)
    assert reader.runs_to_deliver("http://a") == [run]
    assert [one.workload_id for one in reader.workloads_to_deliver("http://a")] == ["w"]
    assert writer.mark_run_delivered(run.run_id, revision=revision)
    assert writer.mark_workload_delivered("w", "deleted in MLflow")
    assert reader.runs_to_deliver("http://a") == []
    assert reader.workloads_to_deliver("http://a") == []
    assert [one.run_id for one in reader.runs_to_deliver("http://b")] == ["other"]


def test_many_runs_are_asked_for_at_once(
    writer: StoreWriter, reader: StoreReader, run_record: MakeRun
) -> None:
    """More than SQLite takes as parameters of one statement."""
    ids = [f"{number:08x}" for number in range(1200)]
    with writer.transaction():
        for run_id in ids:
            writer.put_run(run_record(run_id))
            writer.put_params(run_id, {"n": run_id})
    assert [run.run_id for run in reader.runs(run_ids=ids)] == ids
    assert reader.params_of([*ids, *ids]) == {run_id: {"n": run_id} for run_id in ids}
    assert reader.series(ids) == reader.summary(ids) == reader.markers(ids) == []


def test_no_lookup_reads_all_runs(
    dialect: Dialect, writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    """With 10,000 runs a scan would be felt, so every statement must use an index."""
    plans: list[tuple[str, str]] = []

    def explain(connection, cursor, statement, parameters, *_) -> None:
        if statement.startswith("SELECT"):
            with closing(cursor.connection.cursor()) as asking:
                # An empty table is read whole unless that is forbidden.
                setting = "" if dialect is Dialect.SQLITE else "SET LOCAL enable_seqscan = off; "
                how = "EXPLAIN QUERY PLAN" if dialect is Dialect.SQLITE else "EXPLAIN"
                asking.execute(f"{setting}{how} {statement}", parameters)
                plans.extend((statement, str(row[-1])) for row in asking.fetchall())

    event.listen(reader.engine, "before_cursor_execute", explain)
    reader.find_run(run_id[:6])
    reader.run(run_id)
    reader.runs(experiment="digits")
    reader.runs(workload_id="workload1")
    reader.runs(run_ids=[run_id])
    reader.workloads("digits")
    reader.unended_runs()
    reader.runs_to_deliver("uri")
    reader.workloads_to_deliver("uri")
    reader.params(run_id)
    reader.series([run_id])
    reader.samples(run_id, 0, start_ns=1, end_ns=2)
    reader.point_counts(run_id)
    reader.points_after(run_id, 0, 1, 10)
    reader.summary([run_id])
    reader.markers([run_id])
    reader.delivered(run_id)
    assert len(plans) > 16
    # These are subqueries of one run's chunks; a partial index is scanned for what it selects.
    subqueries = {"SCAN t", "SCAN counted"}
    scans = [
        plan
        for _, plan in plans
        if (plan.startswith("SCAN") or "Seq Scan" in plan)
        and plan not in subqueries
        and not plan.startswith("SCAN (subquery-")
        and not re.search("USING INDEX run_un(ended|summarised)", plan)
    ]
    assert scans == []


def test_a_workload_ends_with_its_last_run_as_the_worst_of_them(
    writer: StoreWriter, reader: StoreReader
) -> None:
    writer.put_workload(WorkloadRecord("w", "digits", "1", 1))
    assert not writer.end_workload("w")
    for run_id in ("a", "b"):
        writer.put_run(RunRecord(run_id, "w", "digits", "1", run_id, run_id, 1))
    writer.end_run("a", RunStatus.FAILED, 7)
    assert not writer.end_workload("w")
    assert reader.workload("w").ended_ns is None
    writer.end_run("b", RunStatus.KILLED, 9)
    assert writer.end_workload("w")
    assert (reader.workload("w").status, reader.workload("w").ended_ns) == (RunStatus.FAILED, 9)
    writer.update_workload("w", ended_ns=10)
    assert not writer.end_workload("w")
    assert reader.workload("w").ended_ns == 10


def test_the_change_token_changes_with_every_write_and_only_then(
    writer: StoreWriter, reader: StoreReader, run_record: MakeRun
) -> None:
    tokens = [reader.change_token()]
    for write in (
        lambda: writer.put_run(run_record()),
        lambda: writer.put_tags(run_record().run_id, {"a": "b"}),
        lambda: writer.update_run(run_record().run_id, pid=7),
    ):
        write()
        tokens.append(reader.change_token())
        reader.runs()
        assert reader.change_token() == tokens[-1]
    assert len(set(tokens)) == len(tokens)
    assert max(tokens) < 2**53, "must be exact in JavaScript"
