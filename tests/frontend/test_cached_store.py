"""The store as the dashboard sees it: what is read when, errors."""

from __future__ import annotations

import math
import sqlite3

import numpy as np
import pytest

from radt.errors import StoreError
from radt.frontend.app import create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data import cached_store
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import read_catalog
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.series_cache import Ask
from radt.frontend.view import View
from radt.store import points
from radt.store.records import Samples, SeriesBatch


def test_nothing_is_read_again_until_something_was_written(demo, source):
    demo.quickstart()
    reads = []

    def ask():
        return source.remember(
            "names", lambda r: reads.append(1) or [e.name for e in r.experiments()]
        )

    revision = source.revision()
    assert ask() == ask() == ["quickstart"]
    assert source.revision() == revision
    assert len(reads) == 1
    source._hold_until = 0.0  # reading was dear or not; here the next look is due
    demo.quickstart("second")
    assert source.revision() != revision
    assert set(ask()) == {"quickstart", "second"}
    assert len(reads) == 2


def test_of_many_answers_the_oldest_are_forgotten(demo, source, monkeypatch):
    """Visitors choose what is asked, and the store of a finished study never changes."""
    monkeypatch.setattr(cached_store, "_MAX_ANSWERS", 3)
    demo.quickstart()
    source.revision()
    reads = []
    for key in (0, 1, 2, 3, 3, 1, 0):
        assert source.remember(key, lambda _, key=key: reads.append(key) or key) == key
    assert reads == [0, 1, 2, 3, 0]
    assert len(source._memory) == len(source._key_locks) == 3


def test_dear_reads_put_the_next_revision_off(demo, source):
    demo.quickstart()
    before = source.revision()
    source._hold_until = float("inf")
    demo.quickstart("second")
    assert source.revision() == before


def test_series_of_ended_runs_are_kept_over_revisions(demo, source, monkeypatch):
    # They are read again with every new minute, which may begin at any moment.
    monkeypatch.setattr(cached_store, "_ENDED_RECHECK_S", math.inf)
    demo.quickstart()
    source.revision()
    read = points.grown
    ask = Ask(source.reader.series([demo.run_ids["solo a"]])[0], 0)
    first = source.cells(ask, ended=True, revision=1)
    source._hold_until = 0.0
    demo.quickstart("second")
    source.revision()
    reads = []
    monkeypatch.setattr(points, "grown", lambda *given: reads.append(given) or read(*given))
    assert source.cells(ask, ended=True, revision=1) is first
    assert not reads
    source.cells(ask, ended=False, revision=1)
    assert reads


def test_late_samples_of_an_ended_run_are_read_with_its_next_revision(demo, source, monkeypatch):
    monkeypatch.setattr(cached_store, "_ENDED_RECHECK_S", math.inf)
    demo.quickstart()
    run_id = demo.run_ids["solo a"]
    record = source.reader.series([run_id])[0]

    def shown():
        run = read_catalog(source, "quickstart").runs[run_id]
        return source.cells(Ask(record, 0), ended=True, revision=run.revision)

    source.revision()
    before = shown()
    last = Samples(np.array([demo.now_ns]), np.array([1.0]))
    demo.writer.append(run_id, [SeriesBatch(record.series_no, last)])
    source._hold_until = 0.0
    source.revision()
    assert len(shown()) == len(before) + 1


def test_a_run_that_the_catalog_in_memory_does_not_have_comes_with_the_next_revision(demo, source):
    demo.quickstart()
    client = create_app(source, DashboardAccess()).server.test_client()
    source.revision()
    read_catalog(source, "quickstart")
    demo.workload("quickstart", "late", [demo.run("a", "n", 1.0)])
    run_id = demo.run_ids["late a"]

    def answer():
        return client.post("/run/data", json={"view": View(run=run_id).to_json()})

    early = answer()
    assert early.status_code == 200
    assert early.json["problem"]["cause"].endswith("has just been added or deleted.")
    source._hold_until = 0.0
    source.revision()
    assert answer().json["id"] == run_id


def test_a_missing_store_is_an_empty_dashboard_until_it_appears(store_path, source, request):
    assert source.revision().startswith("!")
    with pytest.raises(NothingRecordedError, match="no runs") as caught:
        _ = source.reader
    assert "radt train.py" in caught.value.remedy
    request.getfixturevalue("demo").quickstart()
    assert not source.revision().startswith("!")
    assert read_catalog(source, "quickstart").runs


def test_a_replaced_store_is_opened_anew(demo, store_path, source):
    demo.quickstart()
    before = source.revision()
    demo.writer.close()
    for name in ("radt.db", "radt.db-wal", "radt.db-shm"):
        (store_path.parent / name).unlink(missing_ok=True)
    type(demo)(store_path).quickstart("other")
    assert source.revision() != before
    assert read_catalog(source, "other").runs
    assert not read_catalog(source, "quickstart").runs


def test_what_is_no_store_is_an_error_with_a_remedy(store_path):
    store_path.parent.mkdir(parents=True)
    store_path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError) as caught:
        _ = CachedStore(store_path).reader
    assert caught.value.remedy


def test_a_store_of_a_later_radt_is_refused(demo, store_path):
    demo.quickstart()
    demo.writer.close()
    with sqlite3.connect(store_path) as connection:
        connection.execute("UPDATE schema_version SET version = version + 1000")
    with pytest.raises(StoreError) as caught:
        _ = CachedStore(store_path).reader
    assert caught.value.remedy
