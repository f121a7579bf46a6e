"""Damage of journals costs the blocks and lines that it hit, and is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from radt.journal.format import (
    BLOCK_BYTES,
    BLOCK_SLOTS,
    EVENTS_FILE,
    HEAD_BYTES,
    META_FILE,
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


#: A process that is killed: it seals no last block and leaves no word of its end.
KILLED = """\
import os, sys
from radt.journal.writer import JournalWriter
writer = JournalWriter(sys.argv[1], rank=None, warn=print)
for step in range(int(sys.argv[2])):
    writer.scalar("loss", step * 0.5, step)
os.kill(os.getpid(), 9)
"""


def write_and_die(folder: Path, total: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(total)], check=False)
    assert done.returncode == -9


@pytest.mark.parametrize("total", [_TOTAL, 2 * SEGMENT_SLOTS, 2 * SEGMENT_SLOTS + 1, 40])
@pytest.mark.parametrize("cut", [HEAD_BYTES, HEAD_BYTES + 32 * 10 + 5, HEAD_BYTES + 32 * 280])
def test_a_killed_process_says_how_many_values_are_cut_off(
    tmp_path: Path, total: int, cut: int
) -> None:
    write_and_die(tmp_path / "journal", total)
    number = (total - 1) // SEGMENT_SLOTS
    (path,) = tmp_path.glob(f"journal/*-*/segment-{number:06d}.bin")
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    found, lost = read(tmp_path / "journal")
    steps = found.steps("loss")
    assert found.values("loss") == [step * 0.5 for step in steps]
    assert steps == list(range(len(steps)))
    assert lost == total - len(steps)
    written = total - number * SEGMENT_SLOTS
    assert lost >= max(0, written - (cut - HEAD_BYTES) // 32)
    assert list(tmp_path.glob("damaged/*-*/segment-*.bin")), "kept"


def test_a_killed_process_has_lost_nothing(tmp_path: Path) -> None:
    write_and_die(tmp_path / "journal", _TOTAL)
    found, lost = read(tmp_path / "journal")
    assert found.steps("loss") == list(range(_TOTAL))
    assert lost == 0
    assert not (tmp_path / "damaged").exists()


@pytest.mark.parametrize("slot", [0, 5, 20, 39])
@pytest.mark.parametrize("byte", [0, 12, 24, 28, 30])
def test_the_values_without_checksum_must_be_plausible(
    tmp_path: Path, slot: int, byte: int
) -> None:
    write_and_die(tmp_path / "journal", 40)
    (path,) = tmp_path.glob("journal/*-*/segment-000000.bin")
    content = bytearray(path.read_bytes())
    content[HEAD_BYTES + slot * 32 + byte] ^= 1
    path.write_bytes(content)
    found, lost = read(tmp_path / "journal")
    assert lost + sum(len(c.steps) for batch in found.batches for c in batch.scalars) == 40
    if byte >= 24:  # of its name and its kind; time and step may be as they are now
        assert lost == 1
        assert found.steps("loss") == [step for step in range(40) if step != slot]


def test_a_cut_head_is_kept_though_nobody_knows_what_it_held(tmp_path: Path) -> None:
    write_and_die(tmp_path / "journal", 40)
    (path,) = tmp_path.glob("journal/*-*/segment-000000.bin")
    path.write_bytes(path.read_bytes()[:100])
    found, _ = read(tmp_path / "journal")
    assert not found.steps("loss")
    assert list(tmp_path.glob("damaged/*-*/segment-*.bin")), "kept"


@pytest.mark.parametrize("how", ["flip", "empty", "gone"])
def test_who_writes_is_said_twice(tmp_path: Path, how: str) -> None:
    write(tmp_path / "journal", 10)
    (path,) = tmp_path.glob(f"journal/*-*/{META_FILE}")
    told = json.loads(path.read_text())
    if how == "gone":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.write_text(json.dumps(told | {"offset_ns": told["offset_ns"] ^ 2**50}))
    reader = JournalReader(tmp_path / "journal", {})
    assert [meta.offset_ns for meta in reader.metas()] == [told["offset_ns"]]
    found = Found(reader)
    found.read(final=True)
    assert found.steps("loss") == list(range(10))
    (events,) = tmp_path.glob(f"journal/*-*/{EVENTS_FILE}")
    events.write_bytes(b"x" + events.read_bytes())
    reader = JournalReader(tmp_path / "journal", {})
    assert reader.metas() == []
    assert len(reader.unreadable) == 1, "nothing is believed"
