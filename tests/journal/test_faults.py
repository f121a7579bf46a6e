"""Killed at any time, disk full at any time: what was logged is there, and training goes on."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from radt.journal.format import SEGMENT_BYTES
from radt.journal.reader import JournalReader
from radt.journal.source import JournalSource
from radt.journal.writer import JournalWriter
from tests.support.bench import wait_until
from tests.support.descriptors import no_descriptors
from tests.support.disk import SmallDisk
from tests.support.journal import Found

PER_SEGMENT = SEGMENT_BYTES // 32

#: Logs for ever; after each value it notes in a shared mapping how many there are.
ENDLESS = """\
import mmap, struct, sys
from radt.journal.writer import JournalWriter
writer = JournalWriter(sys.argv[1], rank=None, warn=print)
with open(sys.argv[2], "r+b") as file:
    count = mmap.mmap(file.fileno(), 8)
step = 0
while True:
    writer.scalar(f"metric {step % 7}", float(step), step)
    step += 1
    struct.pack_into("@q", count, 0, step)
"""


def counted(path: Path) -> int:
    return int.from_bytes(path.read_bytes(), "little")


@pytest.mark.parametrize("round_", range(5))
def test_nothing_is_lost_by_sigkill(tmp_path: Path, folder: Path, round_: int) -> None:
    counter = tmp_path / "count"
    counter.write_bytes(bytes(8))
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(folder), str(counter)])
    wanted = random.Random(round_).choice([1, 100, PER_SEGMENT - 1, PER_SEGMENT, 40_000, 200_000])
    reader = JournalReader(folder, {})
    found = Found(reader)
    while counted(counter) < wanted:
        assert process.poll() is None
        reader.delete_consumed(found.read().cursors)  # as the collector does meanwhile
    process.kill()
    process.wait()
    found.read()
    steps = sorted(step for number in range(7) for step in found.steps(f"metric {number}"))
    # All that the process knows to be logged, and at most the one that it was about to count.
    assert steps == list(range(len(steps)))
    assert counted(counter) <= len(steps) <= counted(counter) + 1
    assert found.steps("metric 3") == list(range(3, len(steps), 7))


#: Logs in rounds, each on demand, and says after each what the writer has warned of.
ROUNDS = """\
import os, sys
from radt.journal.writer import JournalWriter
warnings = []
writer = JournalWriter(sys.argv[1], rank=None, warn=warnings.append)
step = 0
for line in sys.stdin:
    for _ in range(int(line)):
        writer.scalar("loss", float(step), step)
        step += 1
    print(len(warnings), *warnings[-1:], flush=True)
writer.close()
"""


class Rounds:
    """A training process that logs as much as it is told to."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        def limit() -> None:
            if limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))

        self.process = subprocess.Popen(
            [sys.executable, "-c", ROUNDS, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )

    def log(self, count: int) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(180)


@pytest.fixture
def tiny_disk(small_disk: SmallDisk) -> Path:
    """A file system of 1 MiB: three segments fit."""
    small_disk.resize(1 << 20)
    return small_disk.path


def test_full_disk_drops_and_counts_and_goes_on_when_there_is_space(tiny_disk: Path) -> None:
    folder = tiny_disk / "journal"
    rounds = Rounds(folder)
    total = 6 * PER_SEGMENT
    assert "No space left on device" in rounds.log(total)
    reader = JournalReader(folder, {})
    found = Found(reader)
    reader.delete_consumed(found.read().cursors)  # makes space, as the collector does
    kept = len(found.steps("loss"))
    assert 0 < kept < total
    assert found.steps("loss") == list(range(kept))

    def goes_on() -> bool:
        rounds.log(1)
        found.read()
        return len(found.steps("loss")) > kept

    wait_until(goes_on, "recording goes on")  # within the second between two attempts
    assert rounds.end() == 0
    found.read()
    last = found.steps("loss")[-1]
    assert found.dropped == last + 1 - len(found.steps("loss"))
    assert found.steps("loss") == [*range(kept), last]


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_dropped_is_counted_though_the_disk_stays_full(
    tiny_disk: Path, killed: bool
) -> None:
    folder = tiny_disk / "journal"
    rounds = Rounds(folder)
    assert "No space left on device" in rounds.log(6 * PER_SEGMENT)
    with (tiny_disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(b"x"):
            pass
    if killed:
        rounds.process.kill()
        rounds.process.wait()
    else:
        assert rounds.end() == 0
    found = Found(JournalReader(folder, {}))
    found.read()
    assert found.dropped == 6 * PER_SEGMENT - len(found.steps("loss")) > 0
    found.read(final=True)
    assert found.dropped == 6 * PER_SEGMENT - len(found.steps("loss")), "once"


def test_disk_that_is_full_from_the_start_stops_nobody(tiny_disk: Path) -> None:
    (tiny_disk / "filler").write_bytes(bytes(1 << 20))
    rounds = Rounds(tiny_disk / "journal")
    assert "No space left on device" in rounds.log(100)
    (tiny_disk / "filler").unlink()
    found = Found(JournalReader(tiny_disk / "journal", {}))

    def goes_on() -> bool:
        rounds.log(1)
        found.read()
        return bool(found.steps("loss"))

    wait_until(goes_on, "recording goes on")
    assert rounds.end() == 0
    found.read()
    assert found.dropped == found.steps("loss")[0]


def test_limit_on_file_sizes_is_a_full_disk(folder: Path) -> None:
    rounds = Rounds(folder, limit_bytes=SEGMENT_BYTES - 1)
    assert "File too large" in rounds.log(100)
    assert rounds.end() == 0
    found = Found(JournalReader(folder, {}))
    found.read()
    assert (found.steps("loss"), found.dropped) == ([], 100)


def test_folder_that_vanishes_stops_nobody(folder: Path) -> None:
    rounds = Rounds(folder)
    rounds.log(10)
    folder.rename(folder.with_name("elsewhere"))
    assert "No such file" in rounds.log(3 * PER_SEGMENT)
    assert rounds.end() == 0


def test_folder_that_may_not_be_written_stops_nobody(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way", encoding="utf-8")
    rounds = Rounds(file / "journal")
    assert "Not a directory" in rounds.log(10)
    assert rounds.end() == 0


def test_stopped_and_continued_process_loses_nothing(tmp_path: Path, folder: Path) -> None:
    counter = tmp_path / "count"
    counter.write_bytes(bytes(8))
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(folder), str(counter)])
    found = Found(JournalReader(folder, {}))
    wait_until(lambda: counted(counter) > 0, "logging")
    for _ in range(20):
        os.kill(process.pid, signal.SIGSTOP)
        found.read()
        seen = counted(counter)
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: counted(counter) > seen, "going on")  # noqa: B023
    process.kill()
    process.wait()
    found.read()
    assert found.steps("metric 0") == list(range(0, 7 * len(found.steps("metric 0")), 7))


def test_without_a_free_descriptor_nothing_counts_as_read_or_gone(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    writer = JournalWriter(journal, rank=None, warn=pytest.fail)
    writer.scalar("loss", 1.0, 0)
    found = Found(JournalReader(journal, {}))
    found.read()
    writer.scalar("loss", 2.0, 1)
    (folder,) = journal.glob("*-*")
    source, new = JournalSource(folder, None), JournalReader(journal, {})
    codes = []
    with no_descriptors():
        writing = source.is_being_written
        for reader in (found.reader, new):
            try:
                reader.read(final=True)
            except OSError as error:
                codes.append(error.errno)
    assert writing
    assert codes == [errno.EMFILE, errno.EMFILE]
    writer.close()
    found.read(final=True)
    assert found.steps("loss") == [0, 1]
    later = Found(new)
    later.read(final=True)
    assert later.steps("loss") == [0, 1]
    assert not new.unreadable


def test_what_was_read_before_reading_failed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path / "journal", rank=None, warn=pytest.fail)
    writer.scalar("loss", 1.0, 0)
    found = Found(JournalReader(tmp_path / "journal", {}))
    found.read()
    writer.scalar("loss", 2.0, 1)

    def fails(source: JournalSource) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(JournalSource, "read_events", fails)
        with pytest.raises(OSError, match="Input/output"):
            found.read()
    writer.close()
    found.read(final=True)
    assert found.steps("loss") == [0, 1]


def test_what_no_journal_could_take_is_counted_once(tiny_disk: Path) -> None:
    journal = tiny_disk / "run" / "journal"
    journal.mkdir(parents=True)
    warned: list[str] = []
    writers = [JournalWriter(journal, rank=None, warn=warned.append) for _ in range(2)]
    with SmallDisk(tiny_disk).read_only():
        for step in range(100):
            for writer in writers:
                writer.scalar("loss", 1.0, step)
        found = Found(JournalReader(journal, {}))
        found.read()
        found.read()
        assert found.dropped == 200
        later = Found(JournalReader(journal, found.cursors))
        writers[0].scalar("loss", 1.0, 100)
        later.read(final=True)
        assert later.dropped == 1
        writers[1].close()
    assert not any("nowhere counted" in text for text in warned)
    again = Found(JournalReader(journal, later.cursors))
    again.read(final=True)
    assert again.dropped == 0
    again.reader.remove_finished()
    assert not list(Path(os.environ["RADT_RUNTIME_DIR"]).glob("unwritten/*"))
