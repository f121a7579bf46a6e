"""The store as the dashboard sees it: what is read when, errors, lists, search."""

from __future__ import annotations

import sqlite3

import pytest

from radt.errors import StoreError
from radt.frontend.catalog import AUTOMATIC_RUNS, read_catalog
from radt.frontend.keepers import NothingRecordedError
from radt.frontend.pages.board import facts
from radt.frontend.pages.picker import PAGE_SIZE, nodes
from radt.frontend.search import search
from radt.frontend.selection import Level
from radt.frontend.source import Source, Stretch
from radt.model import RunStatus


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


def test_dear_reads_put_the_next_revision_off(demo, source):
    demo.quickstart()
    before = source.revision()
    source._hold_until = float("inf")
    demo.quickstart("second")
    assert source.revision() == before


def test_samples_of_ended_runs_are_kept_over_revisions(demo, source):
    demo.quickstart()
    source.revision()
    stretch = Stretch(source.reader.series([demo.run_ids["solo a"]])[0])
    first = source.samples(stretch, ended=True)
    live = source.samples(stretch, ended=False)
    source._hold_until = 0.0
    demo.quickstart("second")
    source.revision()
    assert source.samples(stretch, ended=True) is first
    assert source.samples(stretch, ended=False) is not live


def test_a_missing_store_is_an_empty_dashboard_until_it_appears(store_path, source, request):
    assert source.revision().startswith("!")
    with pytest.raises(NothingRecordedError, match="nothing is recorded") as caught:
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
        _ = Source(store_path).reader
    assert caught.value.remedy


def test_a_store_of_a_later_radt_is_refused(demo, store_path):
    demo.quickstart()
    demo.writer.close()
    with sqlite3.connect(store_path) as connection:
        connection.execute("UPDATE schema_version SET version = version + 1000")
    with pytest.raises(StoreError) as caught:
        _ = Source(store_path).reader
    assert caught.value.remedy


def test_automatic_selection_is_whole_workloads_that_began(demo, source):
    demo.quickstart()
    catalog = read_catalog(source, "quickstart")
    assert len(catalog.automatic()) == 6
    for number in range(3):
        demo.workload("quickstart", f"x{number}", [demo.run(letter, "n", 1.0) for letter in "abc"])
    source._hold_until = 0.0
    source.revision()
    catalog = read_catalog(source, "quickstart")
    chosen = [catalog.runs[run_id].short for run_id in catalog.automatic()]
    assert len(chosen) <= AUTOMATIC_RUNS
    assert chosen == ["x1 a", "x1 b", "x1 c", "x2 a", "x2 b", "x2 c"]


def test_beginnings_of_ids_stand_for_runs(demo, source):
    demo.quickstart()
    catalog = read_catalog(source, "quickstart")
    ids = tuple(catalog.runs)
    assert catalog.resolve([ids[2][:12], ids[0][:12], "no-such-run"]) == (ids[0], ids[2])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["solo", "three a", "three b", "three c", "mix a", "mix b"]),
        ("three", ["three a", "three b", "three c"]),
        ("status:failed", ["mix b"]),
        ("STATUS:Finished mix", ["mix a"]),
        ("model:cnn-large", ["mix b"]),
        ("batch-size:64 workload:solo", ["solo"]),
        ("device:cpu cnn-large", ["mix b"]),
        ("no-such-word", []),
        ("no-such-param:1", []),
    ],
)
def test_search(demo, source, text, expected):
    demo.quickstart()
    catalog = read_catalog(source, "quickstart")
    found = search(catalog, text, source.reader.params_of)
    # A single match of a workload keeps its letter: the other runs still exist.
    assert [run.short for workload in found for run in workload.runs] == expected


def test_rows_of_the_list_say_how_runs_went(demo, source):
    demo.quickstart()
    demo.workload("quickstart", "now", [demo.run("a", "n", 9.0, status=RunStatus.RUNNING)])
    rows = nodes(read_catalog(source, "quickstart").workloads, Level.RUN)
    assert [row["label"] for row in rows] == ["solo", "three", "mix", "now"]
    assert rows[0]["nodeProps"]["data-note"] == "23.4 s"
    assert rows[1]["nodeProps"]["data-note"] == ""
    assert rows[2]["children"][1]["nodeProps"]["data-note"] == "failed"
    assert rows[3]["nodeProps"]["data-status"] == "RUNNING"
    assert len(rows) <= PAGE_SIZE


def test_every_state_of_a_run_has_its_word(demo, source):
    states = list(RunStatus)
    runs = [
        demo.run(letter, "n", 2.0, status=status)
        for letter, status in zip("abcdefgh", states, strict=True)
    ]
    demo.workload("states", "all", runs)
    catalog = read_catalog(source, "states")
    (workload,) = nodes(catalog.workloads, Level.RUN)
    notes = {
        row["nodeProps"]["data-status"]: row["nodeProps"]["data-note"]
        for row in workload["children"]
    }
    assert notes.keys() == set(states)
    assert notes["FINISHED"] == "12.4 s"
    assert [notes[name] for name in ("OOM", "TIMEOUT", "SKIPPED")] == [
        "OOM",
        "timed out",
        "skipped",
    ]
    assert facts(catalog) == (
        "1 workload · 8 runs · 1 waiting · 1 running · 1 failed · 1 killed · 1 timed out · 1 OOM "
        "· 1 skipped"
    )
    for text, letter in (("status:oom", "g"), ("status:timeout", "f"), ("status:skipped", "h")):
        (found,) = search(catalog, text, source.reader.params_of)
        assert [run.record.letter for run in found.runs] == [letter]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("FINISHED", "OOM"), "OOM"),
        (("OOM", "FAILED"), "FAILED"),
        (("TIMEOUT", "FINISHED"), "TIMEOUT"),
        (("OOM", "RUNNING"), "RUNNING"),
        (("SKIPPED", "SKIPPED"), "SKIPPED"),
    ],
)
def test_workload_shows_the_worst_of_its_runs(demo, source, states, expected):
    runs = [
        demo.run(letter, "n", 2.0, status=RunStatus(state))
        for letter, state in zip("ab", states, strict=True)
    ]
    demo.workload("states", "two", runs)
    (workload,) = read_catalog(source, "states").workloads
    assert workload.status == expected
