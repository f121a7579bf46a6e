"""Pruning on one side, and the copy on the other: nothing comes back, nothing is taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg2
import pytest
from psycopg2 import sql

from radt.delivery.backlog import postgres_backlogs
from radt.delivery.postgres.replicator import Replicator
from radt.delivery.postgres.run_copy import Pace
from radt.store.backend import Dialect, StoreAddress
from radt.store.pruning import Keep, candidates, prune_run
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import PRUNED

PutRun = Callable[..., str]

pytestmark = pytest.mark.parametrize("dialect", [Dialect.SQLITE], indirect=True, ids=str)


@pytest.fixture
def bring(store: StoreAddress, writer: StoreWriter, database: str) -> Iterator[Callable[[], None]]:
    """Bring all that is due to the database."""
    assert store.path is not None
    at_once = Pace(samples_s=1e-6, texts_s=1e-6, look_s=1e-6, look_share=1e6)
    replicator = Replicator(store.path, StoreAddress.of(database), at_once)

    def bring() -> None:
        replicator.turn(everything=True)
        assert not replicator.left

    yield bring
    replicator.close()


@pytest.mark.parametrize("keep", Keep)
def test_a_run_that_is_pruned_here_stays_whole_there(
    keep: Keep,
    bring: Callable[[], None],
    database: str,
    writer: StoreWriter,
    reader: StoreReader,
    put_run: PutRun,
) -> None:
    run_id = put_run(points=1000)
    bring()
    whole = reader.samples(run_id, 0).values.tobytes()
    (candidate,) = candidates(reader, 2**62, keep)
    assert candidate.held_back == ""
    prune_run(reader, writer, run_id, keep)
    other = put_run("b" * 32, points=10)
    bring()
    with StoreReader(database) as there:
        assert there.samples(run_id, 0).values.tobytes() == whole
        assert PRUNED not in there.tags(run_id)
        assert there.point_counts(other)[0] == 10


def test_what_is_not_there_yet_is_held_back(
    bring: Callable[[], None], writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    bring()
    put_run(points=10)
    (candidate,) = candidates(reader, 2**62, Keep.SUMMARIES)
    assert "does not have all of it yet" in candidate.held_back
    assert "p@ss" not in candidate.held_back
    assert "%40" not in candidate.held_back
    bring()
    (candidate,) = candidates(reader, 2**62, Keep.SUMMARIES)
    assert candidate.held_back == ""


def test_a_database_that_is_new_never_takes_a_thinned_run_for_whole(
    bring: Callable[[], None],
    store: StoreAddress,
    database: str,
    writer: StoreWriter,
    reader: StoreReader,
    put_run: PutRun,
) -> None:
    thinned, other = put_run(points=1000), put_run("b" * 32, points=10)
    prune_run(reader, writer, thinned, Keep.SUMMARIES)
    bring()
    with StoreReader(database) as there:
        assert [run.run_id for run in there.runs()] == [other]
    assert store.path is not None
    assert not any(one.waiting for one in postgres_backlogs(store.path))


def test_a_run_that_was_removed_there_stays_away(
    bring: Callable[[], None], database: str, writer: StoreWriter, put_run: PutRun
) -> None:
    removed, other = put_run(points=10), put_run("b" * 32, points=10)
    bring()
    with StoreReader(database) as there, StoreWriter(database) as writer_there:
        prune_run(there, writer_there, removed, Keep.NOTHING)
        for run_id in (removed, other):
            writer.put_tags(run_id, {"said": "later"})
        bring()
        assert [run.run_id for run in there.runs()] == [other]
        assert there.tags(other)["said"] == "later"


def test_no_password_of_mlflow_gets_there(
    bring: Callable[[], None], database: str, writer: StoreWriter, put_run: PutRun
) -> None:
    uri = "https://me:s3cret@mlflow.example.org"
    run_id = put_run(points=10, tracking_uri=uri)
    writer.update_workload(f"w-{run_id}", tracking_uri=uri)
    bring()
    found = []
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = 'radt' AND data_type = 'text'"
        )
        columns = cursor.fetchall()
        assert ("workload", "tracking_uri") in columns
        for table, column in columns:
            named = sql.SQL("SELECT {} FROM radt.{}").format(
                sql.Identifier(column), sql.Identifier(table)
            )
            cursor.execute(named)
            found += [text for (text,) in cursor.fetchall() if text]
    connection.close()
    assert "https://***@mlflow.example.org" in found
    assert not [text for text in found if "s3cret" in text]


def test_a_run_that_was_thinned_there_stays_thinned(
    bring: Callable[[], None],
    database: str,
    writer: StoreWriter,
    reader: StoreReader,
    put_run: PutRun,
) -> None:
    run_id = put_run(points=1000)
    bring()
    with StoreReader(database) as there, StoreWriter(database) as writer_there:
        prune_run(there, writer_there, run_id, Keep.SUMMARIES)
        left = there.point_counts(run_id)
        writer.put_tags(run_id, {"said": "later"})
        bring()
        assert there.tags(run_id)["said"] == "later"
        assert there.point_counts(run_id) == left
        assert there.summary([run_id])[0].count == 1000
    assert reader.point_counts(run_id)[0] == 1000
