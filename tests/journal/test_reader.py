"""The reader takes everything exactly once, and is put off by nothing that a dying process left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from radt.journal import source
from radt.journal.format import (
    CLOSED_FILE,
    EVENTS_FILE,
    FORMAT_VERSION,
    HEAD_BYTES,
    META_FILE,
    RECORD,
    SEGMENT_BYTES,
    EventKind,
    JournalMeta,
    RecordKind,
)
from radt.journal.reader import JournalReader
from radt.journal.segments import Segments
from radt.journal.writer import JournalWriter
from radt.model import NO_STEP
from radt.store.records import JournalCursor
from tests.support.journal import Found

PER_SEGMENT = SEGMENT_BYTES // 32


def take_slot(writer: JournalWriter) -> Callable[[], None]:
    """Take a slot as a thread does that then loses its turn; the result writes it at last."""
    take, buffer, *_ = writer._slots
    offset = take() * 32
    assert offset < len(buffer)
    return lambda: RECORD.pack_into(buffer, offset, time.monotonic_ns(), 99, 9.0, 0, 1)


def process_folder(folder: Path) -> Path:
    (found,) = folder.glob("*-*")
    return found


def test_nothing_there_yet(folder: Path) -> None:
    reader = JournalReader(folder, {})
    batch = reader.read()
    assert (batch.scalars, batch.pids, batch.cursors, batch.more) == ([], set(), [], False)


def test_each_value_once_while_it_is_written(writer: JournalWriter, found: Found) -> None:
    step = 0
    for size in (0, 1, 1000, PER_SEGMENT, 3, 2 * PER_SEGMENT + 7):
        for _ in range(size):
            writer.scalar("loss", float(step), step)
            step += 1
        found.read()
        assert found.steps("loss") == list(range(step))
    assert found.read().cursors == []


def test_new_reader_goes_on_from_stored_cursors(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    def log(name: str, start: int, count: int) -> None:
        for step in range(start, start + count):
            writer.scalar(name, 0.5, step)

    log("loss", 0, 100)
    writer.say(EventKind.PARAMS, values={"a": "1"})
    found.read()
    later = Found(JournalReader(folder, found.cursors))
    assert later.read().scalars == []
    log("loss", 100, PER_SEGMENT)
    log("accuracy", 0, 3)
    batch = later.read()
    assert later.steps("loss") == list(range(100, 100 + PER_SEGMENT))
    assert later.steps("accuracy") == [0, 1, 2]
    assert batch.params == {}  # had been read


def test_limit_is_kept_and_no_process_starves(folder: Path) -> None:
    writers = [JournalWriter(folder, rank=rank, warn=pytest.fail) for rank in range(3)]
    for writer in writers:
        for step in range(5000):
            writer.scalar("loss", 0.5, step)
    found = Found(JournalReader(folder, {}))
    first = [found.reader.read(max_records=1000) for _ in range(3)]
    assert [sum(len(column.steps) for column in batch.scalars) for batch in first] == [1024] * 3, (
        "whole blocks"
    )
    assert {column.process for batch in first for column in batch.scalars} == {
        "", "rank 1", "rank 2"
    }  # fmt: skip
    assert all(batch.more for batch in first)
    found.batches += first
    found.read(max_records=1000)
    for process in ("", "rank 1", "rank 2"):
        assert found.steps("loss", process) == list(range(5000))


def test_consumed_segments_are_deleted_and_only_those(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    for step in range(2 * PER_SEGMENT + 5):
        writer.scalar("loss", 0.5, step)
    batch = found.read()
    segments = lambda: sorted(path.name for path in folder.glob("*-*/segment-*"))  # noqa: E731
    assert len(segments()) == 4  # one of them spare
    found.reader.delete_consumed(batch.cursors)
    assert segments() == ["segment-000002.bin", "segment-000003.bin"]
    for step in range(PER_SEGMENT):
        writer.scalar("loss", 0.5, 2 * PER_SEGMENT + 5 + step)
    found.read()
    assert found.steps("loss") == list(range(3 * PER_SEGMENT + 5))
    again = Found(JournalReader(folder, found.cursors))
    assert again.read().scalars == []


def test_segments_that_come_while_the_reader_looks_are_not_passed_over(
    writer: JournalWriter, found: Found, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that begins has a journal first, then its first segment and a spare at once."""
    for step in range(3):
        writer.scalar("loss", 0.5, step)
    away = {path: path.read_bytes() for path in folder.glob("*-*/segment-*.bin")}
    assert len(away) == 2
    for path in away:
        path.unlink()
    look = Segments.after

    def both_come_first(segments: Segments, segment: int) -> int | None:
        for path, content in away.items():
            path.write_bytes(content)
        away.clear()
        return look(segments, segment)

    monkeypatch.setattr(Segments, "after", both_come_first)
    found.read()
    assert not away
    assert found.steps("loss") == [0, 1, 2]


def test_slot_that_is_not_written_yet_is_waited_for(writer: JournalWriter, found: Found) -> None:
    writer.scalar("loss", 0.0, 0)
    write = take_slot(writer)
    writer.scalar("loss", 1.0, 1)
    found.read()
    assert found.steps("loss") == [0]
    write()
    found.read()
    assert found.steps("loss") == [0, 99, 1]


@pytest.mark.parametrize("behind", [1, PER_SEGMENT])
def test_slot_that_is_not_written_for_long_comes_later(
    writer: JournalWriter,
    found: Found,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    behind: int,
) -> None:
    monkeypatch.setattr(source, "PATIENCE_S", 0.0)
    writer.scalar("loss", 0.0, 0)
    write = take_slot(writer)
    for step in range(1, behind + 1):
        writer.scalar("loss", 1.0, step)
    batch = found.read()
    assert found.steps("loss") == list(range(behind + 1))
    found.reader.delete_consumed(batch.cursors)
    write()
    found.read()
    assert found.steps("loss") == [*range(behind + 1), 99]


def test_slots_that_a_killed_process_left_are_passed_over(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    writer.scalar("loss", 0.0, 0)
    for _ in range(3):
        take_slot(writer)
    writer.scalar("loss", 1.0, 1)
    for _ in range(PER_SEGMENT - 5):
        take_slot(writer)  # to the very end of the segment
    writer.scalar("loss", 2.0, 2)
    found.read()
    assert found.steps("loss") == [0]
    found.read(final=True)
    assert found.steps("loss") == [0, 1, 2]


def test_dead_process_is_noticed_without_being_told(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    writer.scalar("loss", 0.0, 0)
    child = os.fork()
    if not child:
        writer.scalar("loss", 0.0, 0)
        take_slot(writer)
        writer.scalar("loss", 1.0, 1)
        os._exit(0)
    os.waitpid(child, 0)
    found.read()
    assert found.steps("loss", "child 1") == [0, 1]


def test_what_a_full_disk_left_of_an_event_is_passed_over(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    writer.say(EventKind.PARAMS, values={"a": "1"})
    with (process_folder(folder) / EVENTS_FILE).open("ab") as file:
        file.write(b'{"event":"params","val')
    assert found.read().params == {"a": "1"}
    with (process_folder(folder) / EVENTS_FILE).open("ab") as file:
        file.write(b"\n")
    writer.say(EventKind.PARAMS, values={"b": "2"})
    writer.scalar("loss", 0.5)
    assert found.read().params == {"b": "2"}
    assert found.values("loss") == [0.5]


def test_a_lost_name_costs_the_values_of_its_series_and_they_are_counted(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    writer.scalar("loss", 0.5)
    writer.scalar("accuracy", 0.25)
    path = process_folder(folder) / EVENTS_FILE
    path.write_bytes(path.read_bytes().replace(b'{"event":"name","id":1', b'{"event":"na'))
    found.read()
    assert found.values("loss") == [0.5]
    assert [batch.lost for batch in found.batches] == [1]
    assert [batch.lost_events for batch in found.batches] == [1]
    assert list(folder.parent.glob(f"damaged/*-*/{EVENTS_FILE}")), "kept"


def test_records_of_later_versions_are_skipped(writer: JournalWriter, found: Found) -> None:
    writer.scalar("loss", 0.5)
    take, buffer, *_ = writer._slots
    RECORD.pack_into(buffer, take() * 32, 1, NO_STEP, 0.0, 0, max(RecordKind) + 1)
    writer.scalar("loss", 1.5)
    found.read()
    assert found.values("loss") == [0.5, 1.5]


@pytest.mark.parametrize("damage", ["newer", "empty", "missing"])
def test_journal_that_cannot_be_read_costs_the_others_nothing(
    writer: JournalWriter,
    folder: Path,
    found: Found,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer.scalar("loss", 0.5)
    other = JournalWriter(folder, rank=1, warn=pytest.fail)
    other.scalar("loss", 1.5)
    (path,) = (p for p in folder.glob("*-*/" + META_FILE) if b"rank 1" in p.read_bytes())
    if damage == "newer":
        meta = JournalMeta.from_json(json.loads(path.read_bytes()))
        meta = replace(meta, format_version=FORMAT_VERSION + 1)
        path.write_text(json.dumps(meta.to_json()), encoding="utf-8")
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    path.with_name(EVENTS_FILE).unlink()  # which begins with a copy
    found.read()
    found.read()
    assert found.values("loss") == [0.5]
    assert found.processes == {""}
    assert len(caplog.records) == 1
    assert str(path.parent) in caplog.text


def test_segment_that_was_cut_does_not_kill_the_reader(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    for step in range(100):
        writer.scalar("loss", 0.5, step)
    writer.close()
    (segment,) = folder.glob("*-*/segment-*")
    os.truncate(segment, HEAD_BYTES + 40 * 32 + 7)
    found.read()
    assert found.steps("loss") == []
    assert sum(batch.lost for batch in found.batches) == 100


def test_closed_journal_says_so(writer: JournalWriter, folder: Path) -> None:
    writer.scalar("loss", 0.5)
    assert not (process_folder(folder) / CLOSED_FILE).exists()
    writer.close()
    assert (process_folder(folder) / CLOSED_FILE).exists()


def test_cursor_survives_names_that_came_out_of_order(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    writer.scalar("a", 0.0)
    writer._next_id()  # a definition that was never written
    writer.scalar("b", 1.0)
    found.read()
    assert found.values("b") == [1.0]
    cursor = found.cursors[process_folder(folder).name]
    assert cursor == JournalCursor(cursor.journal, 0, 2, cursor.event_offset, ("a", "", "b"))
    writer.scalar("b", 2.0)
    later = Found(JournalReader(folder, found.cursors))
    later.read()
    assert later.values("b") == [2.0]
