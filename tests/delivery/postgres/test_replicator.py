"""A store and its copy in a real Postgres: what comes over, when, and only once."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest

import radt
from radt.delivery import process
from radt.delivery.postgres.replicator import GoneError, Replicator
from radt.delivery.postgres.shipment import Shipment
from radt.delivery.postgres.target import PostgresTarget, StaleError
from radt.errors import StoreError
from radt.model import MarkerKind, RunStatus, Scope, SeriesKind
from radt.processes import Backoff
from radt.store.backend import StoreAddress
from radt.store.notes import Edit, edit_notes, read_notes
from radt.store.reader import StoreReader
from radt.store.records import MARKERS_OF_A_NODE, Samples, SeriesBatch, SeriesRecord
from radt.store.writer import StoreWriter
from radt.tags import CLUSTER_SUPERSEDED
from tests.delivery.postgres.conftest import AT_ONCE, persistent, problem_of
from tests.support.bench import wait_until
from tests.support.links import Link
from tests.support.stores import add_runs, add_totals, differences

Make = Callable[..., Replicator]
#: Number of chunks whose times are not where they should be.
TORN = (
    "SELECT COUNT(*) FROM chunk WHERE time_data IS NULL AND NOT EXISTS (SELECT 1 FROM chunk o "
    "WHERE o.run_id = chunk.run_id AND o.series_no = chunk.time_series_no "
    "AND o.chunk_no = chunk.time_chunk_no AND o.time_data IS NOT NULL "
    "AND o.point_count = chunk.point_count)"
)


def rows(uri: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(uri, options="-c search_path=radt")) as connection:
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            found = cursor.fetchall() if cursor.description else []
        connection.commit()
        return found


def local(store: Path, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(store)) as connection:
        found = connection.execute(statement, parameters).fetchall()
        connection.commit()
        return found


def test_totals_are_those_of_the_store(
    tmp_path: Path, store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    (run,) = add_runs(writer)
    run.record(10)
    replicator = replicators(database)
    replicator.turn()
    own = add_totals(writer, run.run_id)
    run.end()
    replicator.turn()
    assert differences(store, database) == []
    totals = radt.totals(run.run_id, home=store.parent)
    assert own.items() <= totals.items()
    assert radt.totals(run.run_id, home=tmp_path / "none", store_uri=database) == totals


def test_what_is_there_is_not_sent_again(
    store: Path, writer: StoreWriter, database: str, by_link: str, link: Link, replicators: Make
) -> None:
    for run in add_runs(writer, 3):
        run.record(4000)
        run.end()
    persistent(replicators(by_link))
    first = link.traffic.bytes_up
    before = rows(database, "SELECT run_id, revision FROM run ORDER BY run_id")
    persistent(replicators(by_link))
    assert link.traffic.bytes_up - first < 6000, "a look, nothing else"
    assert rows(database, "SELECT run_id, revision FROM run ORDER BY run_id") == before
    # What this side knows of it is lost: it is looked at, and not sent.
    local(store, "DELETE FROM replicated")
    persistent(replicators(by_link))
    assert link.traffic.bytes_up - first < 60_000
    assert differences(store, database) == []


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("part", range(3))
def test_a_link_that_is_cut_anywhere(
    part: int,
    store: Path,
    writer: StoreWriter,
    database: str,
    by_link: str,
    link: Link,
    replicators: Make,
) -> None:
    """Also between a commit and its answer: nothing comes twice."""
    runs = add_runs(writer, 2, series=4)
    replicator = replicators(by_link)
    persistent(replicator)
    for turn in range(12):
        for run in runs:
            run.record(300)
            run.log([1.0])
            run.mark()
        link.cut_now()
        # A connection begins with some 4,500 bytes of talk.
        link.cut_after(4000 + 700 * turn + 117 * part)
        try:
            replicator.turn(everything=True)
        except StoreError:
            pass
        link.cut_after(None)
    for run in runs:
        run.end()
    persistent(replicator)
    assert differences(store, database) == []


def test_a_link_that_stalls_holds_nobody_up_for_good(
    store: Path,
    writer: StoreWriter,
    database: str,
    by_link: str,
    link: Link,
    replicators: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (run,) = add_runs(writer)
    replicator = replicators(by_link)
    replicator.turn()  # with all the patience that it may need
    run.record(100)
    link.stall()
    with monkeypatch.context() as impatient, pytest.raises(StoreError):
        impatient.setattr("radt.delivery.postgres.target._PATIENCE_S", 0.3)
        replicator.turn()
    assert problem_of(store)
    assert "wörd" not in problem_of(store)
    link.pass_through()
    persistent(replicator)
    assert differences(store, database) == []
    assert problem_of(store) == ""


@pytest.mark.long
def test_a_link_that_stalls_from_the_beginning(
    writer: StoreWriter, by_link: str, link: Link, replicators: Make
) -> None:
    add_runs(writer)
    link.stall()
    with pytest.raises(StoreError, match="cannot be reached"):
        replicators(f"{by_link}?connect_timeout=2").turn()


def test_small_pieces_are_made_one(
    store: Path,
    writer: StoreWriter,
    database: str,
    replicators: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run at 1 Hz, a minute at a time."""
    merged: list[int] = []
    ship = PostgresTarget.ship

    def noted(target: PostgresTarget, shipment: Shipment) -> None:
        if shipment.cuts:
            merged.append(shipment.size_bytes)
        ship(target, shipment)

    monkeypatch.setattr(PostgresTarget, "ship", noted)
    (run,) = add_runs(writer, series=3)
    replicator = replicators(database)
    for _ in range(70):
        run.record(60, flush=30, odd=False)
        run.log([1.0])
        replicator.turn()
    assert rows(database, "SELECT COUNT(*) < 15 FROM chunk WHERE series_no = 0") == [(True,)]
    sizes = rows(database, "SELECT point_count FROM chunk WHERE series_no = 1 ORDER BY chunk_no")
    assert sizes[0] == (3600,)
    assert len(sizes) <= 12
    assert differences(store, database) == []
    run.end()
    persistent(replicator)
    sizes = rows(database, "SELECT series_no, point_count FROM chunk ORDER BY 1, 2 DESC")
    assert [size for size in sizes if size[0]] == [(n, c) for n in (1, 2, 3) for c in (3600, 600)]
    assert min(merged) > 5000, "a slow link gets time for what is sent again"
    assert differences(store, database) == []


def test_pieces_of_different_sizes_that_share_their_times(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """A big piece whose times lie in one that is made anew is made anew itself."""
    (run,) = add_runs(writer, series=9)
    replicator = replicators(database)
    for ticks in (10, 10, 700, 20, 30, 700, 5, 5, 5):
        run.record(ticks, odd=False)
        replicator.turn()
    run.end()
    persistent(replicator)
    assert differences(store, database) == []
    assert rows(database, TORN) == [(0,)]


def test_pieces_whose_times_are_in_series_of_another_shipment(
    store: Path,
    writer: StoreWriter,
    database: str,
    replicators: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are more series than one shipment holds: all of them can be read at any time."""
    monkeypatch.setattr("radt.store.copy._SERIES_AT_A_TIME", 2)
    monkeypatch.setattr("radt.store.copy.BATCH_POINTS", 1)
    (run,) = add_runs(writer, series=10)
    replicator = replicators(database)
    replicator.turn()
    torn: list[int] = []
    ship = PostgresTarget.ship

    def checked(target: PostgresTarget, shipment: Shipment) -> None:
        ship(target, shipment)
        torn.extend(count for (count,) in rows(database, TORN))

    monkeypatch.setattr(PostgresTarget, "ship", checked)
    for numbers in ((4, 7), (4, 7), (1, 4, 7, 10)):  # of one listener
        points = Samples(np.arange(10, dtype=np.int64), np.arange(10, dtype=np.float64))
        writer.append(run.run_id, [SeriesBatch(number, points) for number in numbers])
        replicator.turn()
    sent = len(torn)
    run.end()
    persistent(replicator)
    assert len(torn) > sent + 1
    assert sum(torn) == 0
    assert differences(store, database) == []


def test_a_small_piece_whose_times_are_needed_by_one_that_stays(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """Series 1 falls silent, and its small pieces are made one; series 4 shares their times."""
    (run,) = add_runs(writer, series=4)
    replicator = replicators(database)
    for _ in range(2):
        run.record(10, odd=False)
        replicator.turn()
    times = np.arange(700, dtype=np.int64) + run.now_ns
    more = SeriesBatch(4, Samples(times, np.arange(700, dtype=np.float64)))
    writer.append(run.run_id, [more])
    replicator.turn()
    run.end()
    persistent(replicator)
    assert differences(store, database) == []


def test_somebody_else_made_the_pieces_one_meanwhile(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """A process that was thought dead goes on with what it knew of the other side."""
    (run,) = add_runs(writer, series=2)
    slow, quick = replicators(database), replicators(database)
    for _ in range(58):
        run.record(60, odd=False)
        slow.turn()
    for _ in range(4):
        run.record(60, odd=False)
        quick.turn()
    assert rows(database, "SELECT MAX(chunk_no) < 10 FROM chunk") == [(True,)]
    run.record(60, odd=False)
    slow.turn()
    slow.turn()
    assert differences(store, database) == []


def test_spans_get_their_ends_and_many_markers_come_once(
    store: Path, writer: StoreWriter, database: str, by_link: str, link: Link, replicators: Make
) -> None:
    (run,) = add_runs(writer, series=1)
    replicator = replicators(by_link)
    spans = run.mark(3, MarkerKind.SPAN)
    run.mark(12_000)
    persistent(replicator)
    assert differences(store, database) == []
    before = link.traffic.bytes_up
    run.close(spans)
    replicator.turn()
    assert differences(store, database) == []
    assert link.traffic.bytes_up - before < 4000
    run.end()
    persistent(replicator)
    assert differences(store, database) == []


def test_markers_of_several_nodes_that_go_on(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """Those of each node have numbers of their own."""
    (run,) = add_runs(writer, series=1)
    for _ in range(3):
        for marker in run.mark(2, MarkerKind.SPAN):
            number = marker.marker_no + 2 * MARKERS_OF_A_NODE
            writer.put_markers([replace(marker, marker_no=number, process="node3")])
        replicators(database).turn()
        assert differences(store, database) == []


def test_counters_whose_times_go_back(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """Only all of their points say how much they have grown: the database is asked for them."""
    (run,) = add_runs(writer, series=1)
    counter = SeriesRecord(run.run_id, 7, "rapl", "energy", "J", Scope.HOST, SeriesKind.COUNTER)
    writer.add_series([counter])
    replicator = replicators(database)
    for at_s, values in ((10, [1.0, 2.0, 3.0]), (5, [0.5, 0.6, 0.7]), (20, [7.0, 9.0])):
        times = np.arange(len(values), dtype=np.int64) + at_s
        writer.append(run.run_id, [SeriesBatch(7, Samples(times, np.array(values)))])
        replicator.turn()
        assert differences(store, database) == []


def test_live_runs_before_old_ones_and_the_newest_of_those_first(
    store: Path,
    writer: StoreWriter,
    database: str,
    replicators: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("radt.delivery.postgres.replicator._RUNS_AT_A_TIME", 1)
    old = add_runs(writer, 3)
    for age, run in enumerate(old):
        run.record(10 * (age + 1))
        run.end()
    (live,) = add_runs(writer)
    live.record(5)
    replicators(database).turn(everything=True)
    order = [
        run_id for (run_id,) in rows(database, "SELECT run_id FROM run ORDER BY xmin::text::int")
    ]
    # The end of a run writes its row a second time, if at all, right behind the first.
    assert order.index(live.run_id) == 0
    assert [key for key in order if key != live.run_id] == [run.run_id for run in reversed(old)]


def test_a_store_that_lost_its_last_seconds_takes_nothing_away(
    tmp_path: Path, store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """A power cut may undo SQLite's last transactions, which were brought over already."""
    (run,) = add_runs(writer, series=3)
    run.record(100, odd=False)
    replicators(database).turn()
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = tmp_path / "after the power cut" / "radt.db"
    copy.parent.mkdir()
    shutil.copy(store, copy)
    for _ in range(3):
        run.record(20, odd=False)
        replicator = replicators(database)
        replicator.turn()
    before = rows(database, "SELECT series_no, SUM(point_count) FROM chunk GROUP BY 1 ORDER BY 1")
    with StoreWriter(copy) as again:
        again.end_run(run.run_id, RunStatus.KILLED, run.now_ns)
        again.seal(run.run_id)
    persistent(replicators(database, store=copy))
    assert before == rows(
        database, "SELECT series_no, SUM(point_count) FROM chunk GROUP BY 1 ORDER BY 1"
    )
    assert rows(database, "SELECT status FROM run") == [("KILLED",)]
    with StoreReader(store) as ours, StoreReader(database) as theirs:
        for number in (1, 2, 3):
            here = ours.samples(run.run_id, number)
            there = theirs.samples(run.run_id, number)
            assert here.values.tolist() == there.values.tolist()


def test_a_copy_that_is_not_the_same_is_made_anew(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    (run,) = add_runs(writer, series=4)
    run.record(800, odd=False)
    run.mark(3)
    replicator = replicators(database)
    replicator.turn()
    rows(database, "UPDATE chunk SET value_max = 1e9, last_value = 1e9 WHERE series_no = 4")
    rows(database, "UPDATE marker SET end_ns = 5 WHERE marker_no = 1")
    run.end()
    persistent(replicator)
    assert differences(store, database) == []
    assert rows(database, "SELECT COUNT(*) FROM chunk WHERE value_max > 1e8") == [(0,)]


def test_a_damaged_chunk_keeps_nothing_else(
    store: Path,
    writer: StoreWriter,
    database: str,
    replicators: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "Backoff", partial(Backoff, first_s=60.0))
    damaged, sound = add_runs(writer, 2, series=3)
    for run in (damaged, sound):
        run.record(5000, odd=False)
        run.end()
    local(
        store,
        "UPDATE chunk SET value_data = zeroblob(9) WHERE run_id = ? AND series_no = 2 "
        "AND chunk_no = 0",
        damaged.run_id,
    )
    replicator = replicators(database)
    replicator.turn(everything=True)
    assert replicator.left == 1
    assert differences(store, database, [sound.run_id]) == []
    counts = dict(
        rows(
            database,
            "SELECT series_no, SUM(point_count) FROM chunk WHERE run_id = %s GROUP BY 1",
            damaged.run_id,
        )
    )
    assert counts == {1: 5000, 3: 5000}
    assert "damaged" in problem_of(store)
    before = rows(database, "SELECT run_id, revision FROM run ORDER BY run_id")
    for _ in range(3):
        sound.log([1.0])
        replicator.turn()
    changed = set(rows(database, "SELECT run_id, revision FROM run")) - set(before)
    assert {run_id for run_id, _ in changed} == {sound.run_id}, "the other waits"


def test_what_is_damaged_here_after_it_was_copied_stays_there(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """Its small pieces could not be sent once more."""
    (run,) = add_runs(writer, series=3)
    replicator = replicators(database)
    for _ in range(2):
        run.record(20, odd=False)
        replicator.turn()
    run.end()
    local(store, "UPDATE chunk SET value_data = zeroblob(9) WHERE series_no = 2")
    replicator.turn(everything=True)
    counts = dict(rows(database, "SELECT series_no, SUM(point_count) FROM chunk GROUP BY 1"))
    assert counts == {1: 40, 2: 40, 3: 40}


def test_a_run_that_waited_for_another_process_is_tried_as_often_again(
    writer: StoreWriter, database: str, replicators: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = add_runs(writer)
    replicator = replicators(database)
    replicator.turn()
    tries: list[Shipment] = []
    ship = PostgresTarget.ship

    def too_late(target: PostgresTarget, shipment: Shipment) -> None:
        if not shipment.revisions:
            return ship(target, shipment)
        tries.append(shipment)
        raise StaleError

    monkeypatch.setattr(PostgresTarget, "ship", too_late)
    counts = []
    for _ in range(2):
        run.record(20)
        replicator.turn(everything=True)
        counts.append(len(tries))
        tries.clear()
    assert counts[0] == counts[1] > 1


def test_a_run_that_the_database_refuses_keeps_no_other(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """Running and ended ones; nobody is kept busy by it."""
    refused, sound, ended = add_runs(writer, 3)
    replicator = replicators(database, pace=replace(AT_ONCE, texts_s=60, samples_s=60))
    replicator.turn()
    rows(database, "ALTER TABLE tag ADD CONSTRAINT picky CHECK (value <> 'odd')")
    for run in (refused, sound, ended):
        run.record(20)
    for run in (refused, ended):
        writer.put_tags(run.run_id, {"why": "odd"})
    ended.end()
    for run in (refused, sound):
        replicator._copies[run.run_id].flush()
    wait_s = replicator.turn()
    assert wait_s is not None
    assert wait_s > 0
    assert differences(store, database, [sound.run_id]) == []
    assert "picky" in problem_of(store)
    rows(database, "ALTER TABLE tag DROP CONSTRAINT picky")
    persistent(replicator)
    assert differences(store, database) == []
    assert problem_of(store) == ""


def test_two_copies_of_one_store_bring_it_once(
    tmp_path: Path, store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """A data folder that was copied to another machine, both of which go on."""
    runs = add_runs(writer, 3)
    first = replicators(database)
    for run in runs:
        run.record(40)
    first.turn()
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = tmp_path / "copy.db"
    shutil.copy(store, copy)
    second = replicators(database, store=copy)
    second.turn()
    for run in runs:
        run.record(60)
        run.end()
    persistent(first)
    with StoreWriter(copy) as other:
        for run in runs:
            other.put_tags(run.run_id, {"seen": "twice"})
    second.turn()
    assert [one for one in differences(store, database) if "tags" not in one] == []


def test_what_people_change_there_stays(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """Also while the run goes on, whose machine sends it all again: it was written to meanwhile."""
    (run,) = add_runs(writer)
    writer.put_tags(run.run_id, {"team": "vision", "seed": "1"})
    replicator = replicators(database)
    replicator.turn()
    with StoreWriter(database) as there:
        edit_notes(there, [run.run_id], Edit("baseline", tags={"team": "text"}))
    for seed in ("2", "3"):
        run.record(40)
        writer.put_tags(run.run_id, {"seed": seed})
        replicator.turn()
        with StoreReader(database) as copy:
            notes = read_notes(copy, run.run_id)
            assert notes.name == "baseline"
            assert (notes.tags["team"], notes.tags["seed"]) == ("text", seed)
    run.end()
    persistent(replicator)
    with StoreReader(database) as copy:
        assert read_notes(copy, run.run_id).name == "baseline"
        assert copy.run(run.run_id).status is RunStatus.FINISHED
        assert set(copy.point_counts(run.run_id).values()) == {80}


def test_an_attempt_that_another_one_superseded_does_not_finish_its_run(
    tmp_path: Path, store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    """Its node does not know of it yet, or reaches the database and not the shared folder."""
    (run,) = add_runs(writer)
    run.record(40)
    node = replicators(database)
    node.turn()
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    there = tmp_path / "submit host.db"
    shutil.copy(store, there)
    with StoreWriter(there) as submit_host:
        submit_host.end_run(run.run_id, RunStatus.KILLED, run.now_ns, reason="superseded")
        submit_host.put_tags(run.run_id, {CLUSTER_SUPERSEDED: "2"})
    persistent(replicators(database, store=there))
    run.record(40)
    run.end()
    persistent(node)
    with StoreReader(database) as copy:
        (found,) = copy.runs()
        assert (found.status, found.end_reason) == (RunStatus.KILLED, "superseded")
        assert set(copy.point_counts(run.run_id).values()) == {80}  # what it measured stays


def test_newer_and_older_schemas_are_left_alone_until_they_fit(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    (run,) = add_runs(writer)
    replicator = replicators(database)
    replicator.turn()
    ((version,),) = rows(database, "SELECT MAX(version) FROM schema_version")
    for change, words in ((1, "newer|later|knows versions"), (-1, "db upgrade")):
        rows(
            database,
            "UPDATE schema_version SET version = %s WHERE version = %s",
            version + change if change > 0 else -1,
            version,
        )
        run.record(50)
        with pytest.raises(StoreError, match=words):
            replicators(database).turn()
        rows(
            database,
            "UPDATE schema_version SET version = %s WHERE version IN (%s, -1)",
            version,
            version + 1,
        )
    persistent(replicator)
    assert differences(store, database) == []


def test_a_store_that_is_deleted_ends_it(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    add_runs(writer)
    replicator = replicators(database)
    replicator.turn()
    store.unlink()
    with pytest.raises(GoneError):
        replicator.turn()


def test_a_store_that_cannot_be_opened_for_writing_says_so(
    store: Path, writer: StoreWriter, replicators: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_runs(writer)
    monkeypatch.setattr("radt.store.sqlite.BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr("radt.store.migrations._PATIENCE_S", 0.01)
    with closing(sqlite3.connect(store)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="busy"):
            replicators("postgresql://nowhere/db")
    assert "has been busy" in problem_of(store)


def test_a_local_store_that_takes_no_record_does_not_keep_the_copy(
    store: Path,
    writer: StoreWriter,
    database: str,
    replicators: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disk is full."""
    (run,) = add_runs(writer)
    run.record(10)

    def full(*_: object, **__: object) -> None:
        raise StoreError("disk full")

    replicator = replicators(database)
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="disk full"):
        patch.setattr(StoreWriter, "mark_replica", full)
        replicator.turn()
    assert differences(store, database) == []
    assert local(store, "SELECT label FROM replica") == []
    replicator.turn()
    assert local(store, "SELECT label FROM replica") == [(str(StoreAddress.of(database)),)]


def test_no_password_where_others_read(
    store: Path, writer: StoreWriter, database: str, replicators: Make
) -> None:
    add_runs(writer)
    wrong = database.replace("p%40ss", "geheim")
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        replicators(wrong).turn()
    (file,) = (store.parent / "delivery").iterdir()
    for text in (str(caught.value), file.read_text(), str(StoreAddress.of(wrong))):
        assert "geheim" not in text
    replicators(database).turn()
    assert problem_of(store) == ""
    ((label,),) = local(store, "SELECT label FROM replica")
    assert label == str(StoreAddress.of(database))


def test_a_run_that_nobody_ends_costs_nothing(
    store: Path,
    writer: StoreWriter,
    database: str,
    by_link: str,
    link: Link,
    replicators: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its machine is gone; the connection is let go, and taken up when there is something again."""
    monkeypatch.setattr("radt.delivery.postgres.replicator._IDLE_S", 0.0)
    (run,) = add_runs(writer)
    run.record(10)
    replicator = replicators(by_link)
    for _ in range(5):
        replicator.turn()
    assert differences(store, database) == []
    assert replicator.turn() is None
    assert link.traffic.connections == 1
    ours = "datname = current_database() AND application_name = 'radt'"
    count = f"SELECT COUNT(*) FROM pg_stat_activity WHERE {ours}"
    wait_until(lambda: rows(database, count) == [(0,)], "the connection is let go")
    run.record(10)
    replicator.turn()
    assert differences(store, database) == []
    assert link.traffic.connections == 2
