"""Damage of journals costs the blocks and lines that it hit, and is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from radt.journal.format import (
    BLOCK_BYTES,
    BLOCK_SLOTS,
    EVENTS_FILE,
    HEAD_BYTES,
    RECORD,
    SEAL,
    SEGMENT_BYTES,
    SEGMENT_SLOTS,
    EventKind,
)
from radt.journal.reader import JournalReader
from radt.journal.writer import JournalWriter
from tests.support.journal import Found

_TOTAL = 2 * SEGMENT_SLOTS + 300


def write(folder: Path, total: int = _TOTAL) -> None:
    writer = JournalWriter(folder, rank=None, warn=pytest.fail)
    for step in range(total):
        writer.scalar("loss", step * 0.5, step)
    writer.close()


def read(folder: Path) -> tuple[Found, int]:
    found = Found(JournalReader(folder, {}))
    found.read(final=True)
    return found, sum(batch.lost for batch in found.batches)


_DAMAGE = st.tuples(
    st.sampled_from(["flip", "zero", "cut"]),
    st.integers(0, 2),
    st.integers(HEAD_BYTES, HEAD_BYTES + SEGMENT_BYTES - 1),
    st.integers(1, 9000),
)


@settings(max_examples=30, deadline=None)
@example(damages=[("flip", 2, HEAD_BYTES + 391 * 32 + 28, 1)])  # where nothing was written
@given(damages=st.lists(_DAMAGE, min_size=1, max_size=4))
def test_what_comes_out_is_right_and_the_rest_is_counted(
    tmp_path_factory: pytest.TempPathFactory, damages: list[tuple[str, int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("run") / "journal"
    write(folder)
    hit = set()
    for kind, number, offset, length in damages:
        (path,) = folder.glob(f"*-*/segment-{number:06d}.bin")
        content = bytearray(path.read_bytes())
        if offset >= len(content):
            continue  # cut before
        end = len(content) if kind == "cut" else min(len(content), offset + length)
        if kind == "flip":
            end = offset + 1
            content[offset] ^= 1 << length % 8
        elif kind == "zero":
            content[offset:end] = bytes(end - offset)
        else:
            del content[offset:]
        path.write_bytes(content)
        first, last = ((at - HEAD_BYTES) // BLOCK_BYTES for at in (offset, end - 1))
        if kind == "cut":
            last = SEGMENT_SLOTS // BLOCK_SLOTS - 1
        hit |= {(number, block) for block in range(first, last + 1)}
    found, lost = read(folder)
    steps = found.steps("loss")
    assert found.values("loss") == [step * 0.5 for step in steps]
    assert lost == _TOTAL - len(steps), "each is there or counted"
    kept = set(steps)
    for step in set(range(_TOTAL)) - kept:
        assert (step // SEGMENT_SLOTS, step % SEGMENT_SLOTS // BLOCK_SLOTS) in hit
    assert not lost or list(folder.parent.glob("damaged/*-*/segment-*.bin")), "kept"
    if lost:
        reader = JournalReader(folder, {})
        Found(reader).read(final=True)
        reader.remove_finished()
        assert list(folder.parent.glob("damaged/*-*/segment-*.bin")), "removed with the journal"


def test_a_lost_segment_is_counted(tmp_path: Path) -> None:
    write(tmp_path / "journal")
    for number in (0, 2):
        (path,) = tmp_path.glob(f"journal/*-*/segment-{number:06d}.bin")
        path.unlink()
    found, lost = read(tmp_path / "journal")
    assert found.steps("loss") == list(range(SEGMENT_SLOTS, 2 * SEGMENT_SLOTS))
    assert lost == SEGMENT_SLOTS + 300


@pytest.mark.parametrize("delta_ns", [-(10**15), 2**62])
def test_a_time_outside_the_life_of_the_run_is_refused(tmp_path: Path, delta_ns: int) -> None:
    write(tmp_path / "journal", 10)
    (path,) = tmp_path.glob("journal/*-*/segment-000000.bin")
    content = bytearray(path.read_bytes())
    SEAL.pack_into(content, 0, 0)  # a process that was killed leaves none
    time_ns, *others = RECORD.unpack_from(content, HEAD_BYTES + 3 * 32)
    RECORD.pack_into(content, HEAD_BYTES + 3 * 32, time_ns + delta_ns, *others)
    path.write_bytes(content)
    found, lost = read(tmp_path / "journal")
    assert found.steps("loss") == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert lost == 1


def test_a_damaged_line_costs_that_line(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal", rank=None, warn=pytest.fail)
    writer.scalar("loss", 0.5)
    for name in "abc":
        writer.say(EventKind.PARAMS, values={name: "1"})
    writer.close()
    (events,) = tmp_path.glob(f"journal/*-*/{EVENTS_FILE}")
    events.write_bytes(events.read_bytes().replace(b'"b"', b'"d"'))
    found, lost = read(tmp_path / "journal")
    assert found.values("loss") == [0.5]
    assert [dict(batch.params) for batch in found.batches] == [{"a": "1", "c": "1"}]
    assert (lost, found.batches[0].lost_events) == (0, 1)
