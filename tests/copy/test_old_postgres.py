"""A store and its half-made copy in Postgres, both written by radt before `radt.store.copy`."""

from __future__ import annotations

import gzip
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg2

from radt.delivery.postgres.replicator import Replicator
from radt.store.backend import StoreAddress
from tests.delivery.postgres.conftest import AT_ONCE
from tests.support.postgres import binaries
from tests.support.stores import differences

OLD = Path(__file__).parent / "old_store"


def test_it_goes_on(tmp_path: Path, database: str) -> None:
    """Only what is new is sent: the record of progress counts."""
    store = tmp_path / "radt.db"
    store.write_bytes(gzip.decompress((OLD / "radt.db.gz").read_bytes()))
    subprocess.run(
        [binaries() / "psql", "--quiet", f"--dbname={database}"],
        input=gzip.decompress((OLD / "postgres.sql.gz").read_bytes()),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    before = written(database)
    with closing(Replicator(store, StoreAddress.of(database), AT_ONCE)) as replicator:
        replicator.turn(everything=True)
    assert differences(store, database) == []
    # Rows of 8 series had been copied; those of the running one have one more chunk each.
    assert len(before) > 16
    assert before <= written(database)
    assert len(written(database) - before) == 4


def written(uri: str) -> set[tuple[object, ...]]:
    """Chunks in the order of their transactions."""
    statement = "SELECT run_id, series_no, chunk_no, xmin::text FROM chunk"
    with (
        closing(psycopg2.connect(uri, options="-c search_path=radt")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
        return set(cursor.fetchall())
