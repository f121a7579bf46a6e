"""However a run travels: what was there arrives, bit for bit, whatever happens on the way."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from threading import Thread

import pytest

from radt.errors import RadtError
from radt.model import RunStatus, Scope, SeriesKind
from radt.store import copy
from radt.store.check import check_deep
from radt.store.pruning import Keep, prune_run, pruned_run
from radt.store.reader import StoreReader
from radt.store.records import SERIES_OF_A_NODE, SeriesRecord
from radt.store.writer import StoreWriter
from radt.tags import PARENT, PRUNED
from tests.copy import kit
from tests.copy.postgres_way import PostgresWay
from tests.copy.ways import WAYS, Fate, OtherNodeWay, SharedFolderWay, Way
from tests.support.disk import SmallDisk

LATE = SeriesRecord(kit.RUN_ID, 9, "top", "late", "1", Scope.HOST, SeriesKind.GAUGE)

#: All ways but the one to Postgres, which reads the store itself.
with_files = pytest.mark.parametrize("way", WAYS, indirect=True)
one_file = pytest.mark.parametrize("way", ["file"], indirect=True)
several_files = pytest.mark.parametrize("way", WAYS[1:], indirect=True)


def whole_run(way: Way, points: int = 500) -> None:
    way.new_run()
    kit.fill(way.lab.writer, count=points)
    kit.add_rows(way.lab.writer, closed=True)
    kit.end(way.lab.writer)


def assert_sound(way: Way) -> None:
    way.assert_same()
    with StoreReader(way.there) as reader:
        assert list(check_deep(reader)) == []


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if memory were very short: many batches, and so many transactions."""
    monkeypatch.setattr(copy, "BATCH_POINTS", 200)
    monkeypatch.setattr(copy, "_SERIES_AT_A_TIME", 2)
    monkeypatch.setattr(copy, "ROWS_AT_A_TIME", 2)


def test_a_whole_run(way: Way) -> None:
    whole_run(way, points=10_000)
    way.travel()
    assert_sound(way)


@pytest.mark.quick_variants(2)
def test_a_whole_run_in_many_batches(way: Way, small_batches: None) -> None:
    whole_run(way, points=10_000)
    way.travel()
    assert_sound(way)


def test_a_run_without_anything(way: Way) -> None:
    way.new_run()
    kit.end(way.lab.writer)
    way.travel()
    assert_sound(way)


def test_a_run_that_goes_on(way: Way) -> None:
    """What arrived stays, and only what is new travels; the open epoch gets its end."""
    writer = way.lab.writer
    way.new_run()
    way.travel()
    kit.fill(writer, count=500)
    kit.add_rows(writer)
    way.travel()
    way.assert_same()
    before = way.files.all()

    way.travel()
    assert way.files.all().keys() == before.keys(), "nothing new, nothing sent"

    kit.add_points(writer, 1, [1.0, 2.0], first_ns=kit.START_NS - 9 * kit.SECOND_NS)
    writer.add_series([LATE])
    kit.add_points(writer, 9, [1.0])
    way.travel()
    kit.add_rows(writer, closed=True)
    way.send()  # nothing but the end of a marker
    writer.put_tags(kit.RUN_ID, {"some": "tag"})
    way.travel()
    way.assert_same()
    kit.end(writer)
    way.travel()
    assert_sound(way)
    after = way.files.all()
    if way.keeps_files:
        assert {name: after[name] for name in before} == before, "files stay as they are"
        assert len(after) > len(before)

    writer.put_tags(kit.RUN_ID, {"late": "tag"})
    kit.add_points(writer, 0, [4.0], first_ns=kit.START_NS - 1)
    writer.deliver_again(kit.RUN_ID)
    way.travel()
    assert_sound(way)


def test_taking_again_changes_nothing(way: Way) -> None:
    whole_run(way)
    way.send()
    files = way.files.all()
    way.take()
    before = way.contents()
    if not isinstance(way, SharedFolderWay):
        assert way.files.all() == files
        way.take()
    assert way.contents() == before


@pytest.mark.quick_variants(2)
@with_files
def test_a_full_disk(way: Way, small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles are built in a temporary folder. What needs room says so, and travels later."""
    whole_run(way)
    with monkeypatch.context() as full:
        full.setattr(tempfile, "tempdir", str(small_disk.path))
        small_disk.fill()
        with pytest.raises((RadtError, OSError), match=r"full|No space left"):
            way.send()
        assert not way.files.all(), "no half of a file"
        small_disk.clear()
        way.send()
        files = way.files.all()
        small_disk.fill()
        before = way.contents()
        with pytest.raises(RadtError, match=r"full|No space left"):
            way.take()
        assert (way.files.all(), way.contents()) == (files, before)
    way.travel()
    assert_sound(way)


@pytest.mark.quick_variants(2)
def test_two_take_at_once(way: Way, small_batches: None) -> None:
    whole_run(way, points=3000)
    way.send()
    failures: list[BaseException] = []

    def take() -> None:
        try:
            way.take()
        except FileNotFoundError:
            assert isinstance(way, SharedFolderWay)  # the other one has removed it
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert_sound(way)


@pytest.mark.quick_variants(1)
def test_killed_at_every_step(way: Way) -> None:
    """Each time, one step further on; an ended run is never there with points missing."""
    writer = way.lab.writer
    way.new_run()
    for step in count(1):
        kit.add_points(writer, step % 3, [float(step)] * 40, first_ns=kit.START_NS + step)
        if step % 5 == 0:
            kit.add_rows(writer, closed=step > 5)
        fate = Fate(step)
        with fate.decides():
            way.travel()
        if not fate.is_dead:
            break
        way.travel()
    way.assert_same()
    kit.end(writer)
    for step in count(1):
        fate = Fate(step)
        with fate.decides():
            way.travel()
        runs = way.contents()["runs"]
        if any(run.status.ended for run in runs):
            way.assert_same()
        if not fate.is_dead:
            break
    assert_sound(way)
    if isinstance(way, SharedFolderWay):
        assert way.files.all() == {}


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@with_files
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flip, "is damaged"),
        (lambda content: content[:-1], "is damaged"),
        (lambda content: content[: len(content) // 2], "is damaged"),
        (lambda content: b"", "is damaged"),
        (lambda content: b"x" * len(content), "is damaged"),
    ],
)
def test_a_damaged_file(way: Way, change: Callable[[bytes], bytes], words: str) -> None:
    """It is named, nothing of the run is written, and the right file is taken later."""
    whole_run(way)
    way.send()
    ((name, content),) = way.files.all().items()
    before = way.contents()
    way.files.put(name, change(content))
    with pytest.raises(RadtError, match=words) as caught:
        way.take()
    assert name in caught.value.message
    assert way.contents() == before
    way.files.put(name, content)
    way.take()
    assert_sound(way)


@pytest.mark.quick_variants(1)
@one_file
def test_any_byte_may_be_damaged(way: Way) -> None:
    """What is there then is what was sent, or an error."""
    whole_run(way, points=20)
    way.send()
    ((name, content),) = way.files.all().items()
    for place in range(0, len(content), 97):
        way.files.put(name, content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            way.take()
        except RadtError:
            continue
        way.assert_same()


@several_files
def test_a_missing_file(way: Way) -> None:
    """An archive without one of its bundles is incomplete, wherever it is missing."""
    writer = way.lab.writer
    way.new_run()
    for number in range(3):
        kit.add_points(writer, 0, [float(number)])
        way.send()
    name, content = sorted(way.files.all().items())[1]
    way.files.put(name, None)
    if isinstance(way, SharedFolderWay):
        with pytest.raises(RadtError, match="continues a file that is not there yet"):
            way.take()
    else:
        with pytest.raises(RadtError, match=f"incomplete: .*{name} is missing"):
            way.take()
    way.files.put(name, content)
    way.take()
    assert_sound(way)


@with_files
def test_another_run_of_the_same_id_is_left_alone(way: Way) -> None:
    whole_run(way)
    with StoreWriter(way.there) as writer:
        run = kit.make_run(writer, way.home.path)
        number = 0
        if isinstance(way, OtherNodeWay):
            number = SERIES_OF_A_NODE
            loss = SeriesRecord(run.run_id, number, "run", "loss", "1", Scope.RUN, SeriesKind.GAUGE)
            writer.add_series([replace(loss, entity="node2")])
        kit.add_points(writer, number, [17.0])
    before = way.contents()
    with pytest.raises(RadtError, match="the values in the store differ"):
        way.travel()
    assert way.contents() == before


def test_damaged_points_do_not_travel(way: Way) -> None:
    """A chunk of the source is damaged: nothing passes for the whole run."""
    whole_run(way)
    with way.lab.writer._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE chunk SET checksum = checksum + 1 WHERE series_no = 1")
    try:
        way.travel()
    except RadtError as error:
        assert "damaged" in error.message
    assert not any(name for name in way.files.all() if kit.RUN_ID in name)


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("keep", Keep)
def test_a_pruned_run_comes_back(way: Way, keep: Keep) -> None:
    """From what was sent before; what is left in the source takes the place of nothing.

    Until all of it is there again, it counts as pruned, whenever the import is killed.
    """
    whole_run(way)
    way.travel()
    kit.add_points(way.lab.writer, 1, [7.0] * 400, first_ns=kit.START_NS + 9000 * kit.SECOND_NS)
    way.lab.writer.deliver_again(kit.RUN_ID)
    way.travel()
    way.send()
    files, wanted = way.files.all(), way.wanted()
    prune_run(way.lab.reader, way.lab.writer, kit.RUN_ID, keep)
    if keep is Keep.SUMMARIES:
        try:
            way.lab.writer.deliver_again(kit.RUN_ID)
            way.send()
        except RadtError as error:
            assert "was pruned" in error.message
        if way.keeps_files:
            assert way.files.all() == files
    if isinstance(way, PostgresWay):
        way.take()
        assert way.contents()[f"{kit.RUN_ID} 1"] == wanted[f"{kit.RUN_ID} 1"]
    if isinstance(way, SharedFolderWay | PostgresWay):
        return  # nothing is kept in between
    with StoreReader(way.there) as reader, StoreWriter(way.there) as writer:
        total = sum(reader.point_counts(kit.RUN_ID).values())
        prune_run(reader, writer, kit.RUN_ID, keep)
        for step in count(1):
            fate = Fate(step)
            with fate.decides():
                way.take()
            if pruned_run(reader, kit.RUN_ID) is None:
                assert sum(reader.point_counts(kit.RUN_ID).values()) == total
            if not fate.is_dead:
                break
        there = way.contents()
        assert PRUNED not in reader.tags(kit.RUN_ID)
        assert list(check_deep(reader)) == []
    for name in ("series", "markers", f"{kit.RUN_ID} 0", f"{kit.RUN_ID} 1", "params"):
        assert there[name] == wanted[name]


def test_children_and_workloads(way: Way) -> None:
    """A workload ends with the last of its runs, whichever arrives first; children do not count."""
    writer = way.lab.writer
    ids = ["a" * 32, "b" * 32, "c" * 32]
    for letter, run_id in zip(("a", "b", "a.fold"), ids, strict=True):
        way.new_run(run_id, letter=letter)
        kit.fill(writer, run_id, count=10)
    writer.put_tags(ids[2], {PARENT: ids[0]})
    writer.end_run(ids[2], RunStatus.FAILED, kit.START_NS + 3)
    writer.end_run(ids[0], RunStatus.FINISHED, kit.START_NS + 5)
    way.travel()
    writer.end_run(ids[1], RunStatus.FINISHED, kit.START_NS + 4)
    writer.end_workload("workload1")
    way.travel()
    if not isinstance(way, OtherNodeWay):
        assert_sound(way)
        assert way.contents()["workloads"][0].status is RunStatus.FINISHED


@one_file
def test_what_the_other_store_knows_is_not_taken_back(way: Way) -> None:
    """The store that records the run takes an older copy of it."""
    writer = way.lab.writer
    way.new_run()
    kit.fill(writer, count=10)
    kit.add_rows(writer)
    way.send()
    way.home = way.lab.home
    kit.add_points(writer, 0, [4.0])
    kit.add_rows(writer, closed=True)
    for end in (lambda: None, lambda: kit.end(writer)):
        end()
        before = kit.contents(writer)
        way.take()
        assert kit.contents(writer) == before
    assert way.lab.reader.runs_to_deliver(way.lab.tracking_uri), "it still has to be delivered"
