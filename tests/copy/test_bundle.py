"""A file with a run, from a friend or from a stranger: all of it, or an error that says why."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from radt.errors import ArchiveError, CodecError, RadtError
from radt.model import MarkerKind, MissingReason
from radt.store import bundle, copy
from radt.store.applying import OtherRunError, apply
from radt.store.backend import Dialect
from radt.store.chunks import POINTS_PER_CHUNK
from radt.store.copy import Position, changes, position_of
from radt.store.reader import StoreReader
from radt.store.records import GapRecord, MarkerRecord
from radt.store.writer import StoreWriter
from tests.support.stores import WrittenRun, add_runs, differences

LOST = MissingReason.LOST


@dataclass
class Ends:
    """Two stores, and a run of the first."""

    here: Path
    there: Path | str
    run: WrittenRun
    spans: list[MarkerRecord]

    def write(self, since: Position, number: int = 1) -> Position | None:
        with StoreReader(self.here) as source:
            path = self.file(number)
            return bundle.write(changes(source, self.run.run_id, since), path, since)

    def file(self, number: int = 1) -> Path:
        return self.here.parent / bundle.name_of(self.run.run_id, number)

    def take(self, number: int = 1) -> None:
        with StoreWriter(self.there) as target, bundle.open(self.file(number)) as opened:
            for batch in opened.batches():
                apply(target, batch)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with StoreWriter(tmp_path / "here.db") as writer:
        (run,) = add_runs(writer)
        run.record(5000)
        run.log([1.0, 2.0])
        spans = run.mark(3, MarkerKind.SPAN)
        run.miss()
        yield Ends(tmp_path / "here.db", tmp_path / "there.db", run, spans)


def forge(path: Path, *statements: str) -> None:
    """Change a bundle as a stranger may, whose checksum is right."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            database.execute(statement)
        head = list(database.execute("SELECT * FROM bundle").fetchone())[:-1]
        try:
            digest = bundle.digest(database, head)
        except sqlite3.Error:
            return  # no longer readable at all
        database.execute("UPDATE bundle SET sha256 = ?", (digest,))


@pytest.mark.parametrize("kind", Dialect)
def test_bundles_follow_each_other(
    ends: Ends, kind: Dialect, request: pytest.FixtureRequest
) -> None:
    if kind is Dialect.POSTGRES:
        ends.there = request.getfixturevalue("database")
    first = ends.write(Position())
    assert first is not None
    assert first.open_markers == {0, 1, 2}
    ends.run.record(20)
    ends.run.close(ends.spans)
    ends.run.mark(1)
    ends.run.end()
    with StoreReader(ends.here) as source:
        ends.run.writer.end_workload(source.run(ends.run.run_id).workload_id)
    second = ends.write(first, 2)
    assert second is not None
    assert not second.open_markers
    assert ends.write(second, 3) is None
    assert not ends.file(3).exists(), "nothing new, no file"
    with pytest.raises(OtherRunError, match="missing"):
        ends.take(2)
    for number in (1, 2, 1, 2):
        ends.take(number)
    assert differences(ends.here, ends.there) == []
    with StoreReader(ends.there) as there, StoreReader(ends.here) as source:
        reached = position_of(there, ends.run.run_id)
        assert (reached.points, reached.markers) == (second.points, second.markers)
        assert there.runs() == source.runs()


def test_what_killed_writers_left_does_not_pile_up(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as context:
        context.setattr(shutil, "copyfileobj", killed)
        context.setattr(Path, "unlink", lambda *_, **__: None)  # it has no time for that
        with pytest.raises(Killed):
            ends.write(Position())
    assert [path for path in ends.here.parent.iterdir() if ends.run.run_id in path.name]
    ends.write(Position())
    left = [path for path in ends.here.parent.iterdir() if ends.run.run_id in path.name]
    assert left == [ends.file()]


def test_a_batch_is_small_however_long_the_run(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are those of a bundle, whoever has written it."""
    ends.run.record(20_000)
    most = 4 * POINTS_PER_CHUNK
    monkeypatch.setattr(copy, "BATCH_POINTS", most)
    ends.write(Position())
    with StoreReader(ends.here) as source, bundle.open(ends.file()) as opened:
        for batches in (copy.changes(source, ends.run.run_id, Position()), opened.batches()):
            sizes = [sum(len(piece.samples) for piece in batch.pieces) for batch in batches]
            assert sum(sizes) == 6 * 25_000 + 2
            assert max(sizes) < 2 * most


@pytest.mark.parametrize("name", ["a.1.radt", "a.b.20.radt"])
def test_names(name: str) -> None:
    found = bundle.number_of(name)
    assert found is not None
    assert bundle.name_of(*found) == name
    for other in (f".{name}", name.removesuffix(".radt"), "a.0.radt", "a.01.radt", f"../{name}"):
        assert bundle.number_of(other) is None


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW note AS SELECT load_extension('x')",
        "CREATE TRIGGER t AFTER INSERT ON run BEGIN SELECT load_extension('x'); END",
        "CREATE INDEX i ON run (abs(run_id))",
        "CREATE TABLE extra (a)",
        "CREATE VIRTUAL TABLE extra USING fts5(a)",
        "ALTER TABLE run ADD COLUMN g AS (abs(run_id))",
        "ALTER TABLE run ADD COLUMN d DEFAULT 5",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE piece (a)' WHERE name = 'piece'",
        "DROP TABLE gap",
        "ALTER TABLE piece DROP COLUMN step_data",
        "DELETE FROM run",
        "INSERT INTO run SELECT * FROM run",
        "UPDATE run SET run_id = '../../etc'",
        "UPDATE series SET run_id = 'another'",
        "UPDATE workload SET workload_id = 'another'",
        "UPDATE run SET status = 'FLYING'",
        "UPDATE run SET pid = 'one'",
        "UPDATE run SET name = CAST(x'ff' AS TEXT)",
        "DELETE FROM series WHERE series_no = 1",
        "UPDATE piece SET series_no = 77 WHERE rowid = 1",
        "UPDATE piece SET first = first + 1 WHERE rowid = 1",
        "UPDATE piece SET count = 1000000000000",
        "UPDATE piece SET count = count - 1 WHERE rowid = 1",
        "UPDATE piece SET codec = 99",
        "UPDATE piece SET time_piece = 999, time_data = NULL",
        "UPDATE piece SET value_data = zeroblob(20)",
        "DELETE FROM piece WHERE rowid = (SELECT MAX(rowid) FROM piece)",
        "DELETE FROM marker",
        "UPDATE bundle SET until = '[]'",
        "UPDATE bundle SET since = '{}'",
        "UPDATE bundle SET points = 'x'",
        "UPDATE bundle SET points = '{\"0\": 1000000000}'",
        'UPDATE bundle SET points = \'{"0": 1000000000}\', until = \'{"points": '
        '{"0": 1000000000}, "markers": {}, "open_markers": [], "revision": 9}\'',
        "UPDATE piece SET count = -count WHERE rowid = 1",
        "UPDATE bundle SET format = 'new'",
        "PRAGMA application_id = 1",
        "UPDATE tag SET value = CAST(zeroblob(70000000) AS TEXT)",
    ],
)
def test_a_strangers_file(ends: Ends, statement: str) -> None:
    """It is refused, and the run is not listed; the file of its owner is taken."""
    ends.write(Position())
    content = ends.file().read_bytes()
    forge(ends.file(), statement)
    with pytest.raises(RadtError, match=r"damaged|no series"):
        ends.take()
    with StoreReader(ends.there) as reader:
        assert reader.runs() == []
    ends.file().write_bytes(content)
    ends.take()
    assert differences(ends.here, ends.there) == []


def test_versions(ends: Ends) -> None:
    """A newer one may write more columns, and an older one fewer, but no other format."""
    ends.write(Position())
    forge(
        ends.file(),
        "ALTER TABLE series ADD COLUMN colour",
        "ALTER TABLE ledger DROP COLUMN late_max_ns",
    )
    ends.take()
    assert differences(ends.here, ends.there) == []
    forge(ends.file(), f"UPDATE bundle SET format = {bundle.FORMAT + 1}, written_by = 'radt 9'")
    with pytest.raises(ArchiveError, match=r"written by radt 9.*Upgrade radt"):
        ends.take()


@pytest.mark.parametrize(
    "content", [b"", b"radt", b"SQLite format 3\0", b"SQLite format 3\0" + bytes(5000)]
)
def test_no_bundle_at_all(ends: Ends, content: bytes) -> None:
    ends.file().write_bytes(content)
    with pytest.raises(ArchiveError, match=f"{ends.file()} is damaged"):
        ends.take()


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (bundle, "_MOST_BYTES", r"too large: it has [\d,]+ bytes, and radt reads up to 2\."),
        (bundle, "_MOST_ROWS", r"too large: its table \w+ has \d+ rows, .* up to 2\."),
        (bundle, "_MOST_TEXT_BYTES", r"too large: its texts have .* up to 2 at once\."),
    ],
)
def test_one_that_is_too_large(
    ends: Ends, module: Any, name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is named: the file may well be whole."""
    ends.write(Position())
    monkeypatch.setattr(module, name, 2)
    with pytest.raises(ArchiveError, match=words):
        ends.take()


def test_a_run_may_have_any_number_of_markers_and_gaps(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read in blocks; a block is bounded. What radt writes, it reads."""
    monkeypatch.setattr(bundle, "_MOST_TEXT_BYTES", 20_000)
    monkeypatch.setattr(bundle, "_MOST_ROWS", 500)
    for module in (bundle, copy):
        monkeypatch.setattr(module, "ROWS_AT_A_TIME", 10)
    monkeypatch.setattr(copy, "BATCH_POINTS", 2000)
    ends.run.mark(1000)
    ends.run.writer.put_gaps(
        [
            GapRecord(ends.run.run_id, "smi", number % 3 - 1, number, number + 1, LOST)
            for number in range(1000)
        ]
    )
    ends.write(Position())
    ends.take()
    assert differences(ends.here, ends.there) == []
    for table in ("marker", "gap"):
        huge = f"UPDATE {table} SET detail = CAST(zeroblob(30000) AS TEXT) WHERE rowid = 700"
        forge(ends.file(), huge)
        with pytest.raises(ArchiveError, match="too large: its texts"):
            ends.take()
        ends.file().unlink()
        ends.write(Position())


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_folder_that_cannot_be_synced(
    ends: Ends, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network file systems."""
    fsync = os.fsync

    def refusing(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    assert ends.write(Position()) is not None
    ends.take()


def test_a_failure_leaves_no_file(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk here or there, a damaged chunk."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("copyfileobj", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(
                *("shutil.copyfileobj", full) if name == "copyfileobj" else ("os.replace", full)
            )
            with pytest.raises(OSError, match="No space"):
                ends.write(Position())
    with closing(sqlite3.connect(ends.here)) as database, database:
        database.execute("UPDATE chunk SET value_data = zeroblob(9) WHERE series_no = 2")
    with pytest.raises((ArchiveError, CodecError), match="series 2"):
        ends.write(Position())
    assert list(ends.here.parent.glob("*.radt*")) == []
    assert list(ends.here.parent.glob(".*")) == []
