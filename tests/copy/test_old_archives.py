"""Archives of the format before bundles, made with the last version that wrote it, are read."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from radt.delivery.archive import parquet
from radt.delivery.archive.locations import FileMissingError
from radt.delivery.archive.parquet import ArchiveManifest
from radt.delivery.archive.read import find_archive, import_archive
from radt.delivery.archive.spool import ArchiveSpool
from radt.errors import ArchiveError
from radt.load import load
from radt.model import RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import JournalCursor, SeriesRecord
from radt.store.tables import CURSORS
from radt.store.writer import StoreWriter
from tests.copy import kit

MADE = Path(__file__).parent / "old_archive"
PART = "samples/smi-00001.parquet"
MARKERS = "markers-00001.parquet"
LATE = SeriesRecord(kit.RUN_ID, 9, "top", "late", "1", Scope.HOST, SeriesKind.GAUGE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The archive of a run that has ended; ``running.json`` is its manifest of half-way."""
    folder = tmp_path / "artifacts" / "radt"
    shutil.copytree(MADE, folder)
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter(tmp_path / "imported" / "radt.db") as writer:
        yield writer


def recorded(path: Path, *, until: str = "the end") -> dict[str, Any]:
    """What was in the store of which the archive was made."""
    with StoreWriter(path) as writer:
        kit.make_run(writer, Path("/data/radt-data/runs") / kit.RUN_ID)
        kit.fill(writer, count=200)
        kit.add_rows(writer)
        if until == "the end":
            kit.fill(writer, count=200)
            writer.add_series([LATE])
            kit.add_points(writer, 9, [1.0])
            kit.add_rows(writer, closed=True)
            kit.end(writer)
        return kit.contents(writer)


def test_a_run_that_goes_on_and_ends(folder: Path, other: StoreWriter, tmp_path: Path) -> None:
    manifest = folder / "run.json"
    last = manifest.read_bytes()
    manifest.write_bytes((folder / "running.json").read_bytes())
    imported = import_archive(find_archive(folder.parent), other)
    assert (imported.is_new, imported.is_complete, imported.points) == (True, False, 415)
    assert kit.contents(other) == recorded(tmp_path / "a" / "radt.db", until="half-way")

    manifest.write_bytes(last)
    imported = import_archive(find_archive(folder), other)
    assert (imported.is_new, imported.points, imported.total_points) == (False, 416, 831)
    assert imported.run.status is RunStatus.FAILED
    assert kit.contents(other) == recorded(tmp_path / "b" / "radt.db")
    assert len(load(folder)) == 831

    flip(folder / PART)
    assert import_archive(find_archive(folder), other).points == 0, "it is not read again"


def test_journals_are_not_read_again(folder: Path, other: StoreWriter) -> None:
    """A store that was restored from a backup imports the archive, and then reads its journals."""
    path = folder / "run.json"
    data = json.loads(path.read_text())
    far, near = JournalCursor("rank 0", 1, 500, 900), JournalCursor("rank 1", 0, 2, 3)
    data["journals"] = [CURSORS.row(far), CURSORS.row(near)]
    path.write_text(json.dumps(data))
    kit.make_run(other, folder)
    kit.fill(other, count=200)
    further = JournalCursor("rank 1", 0, 7, 1)
    other.put_cursors(kit.RUN_ID, [JournalCursor("rank 0", 0, 600, 900), further])
    assert import_archive(find_archive(folder), other).points == 416
    with StoreReader(other.address) as reader:
        assert reader.cursors(kit.RUN_ID) == {"rank 0": far, "rank 1": further}


def test_bundles_take_its_place(folder: Path, other: StoreWriter, tmp_path: Path) -> None:
    """A run that goes on with this version is archived from its beginning, beside the old files."""
    (folder / "run.json").write_bytes((folder / "running.json").read_bytes())
    import_archive(find_archive(folder), other)
    store = tmp_path / "b" / "radt.db"
    wanted = recorded(store)
    with StoreReader(store) as reader:
        ArchiveSpool(folder).write_bundle(reader, kit.RUN_ID)
    assert import_archive(find_archive(folder), other).points == 416
    assert kit.contents(other) == wanted

    (folder / f"{kit.RUN_ID}.1.radt").unlink()
    (folder / "run.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(FileMissingError, match="does not contain an archive"):
        find_archive(folder)


def test_a_block_at_a_time(
    folder: Path, other: StoreWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group is as large as its writer liked: a thousand million zeros are some kilobytes."""
    monkeypatch.setattr(parquet, "_ROWS", 70)
    monkeypatch.setattr(parquet, "_MARKERS", 2)
    with find_archive(folder).batches(lambda _: parquet.Position()) as batches:
        assert max(sum(len(p.samples) for p in batch.pieces) for batch in batches) == 70
    import_archive(find_archive(folder), other)
    assert kit.contents(other) == recorded(tmp_path / "b" / "radt.db")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", [PART, MARKERS])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "damaged: its SHA-256"),
        (truncate, "damaged: its SHA-256"),
        (Path.unlink, "the archive is incomplete"),
    ],
)
def test_a_part_that_is_not_what_it_was(
    folder: Path, other: StoreWriter, name: str, damage: Callable[[Path], None], words: str
) -> None:
    damage(folder / name)
    with pytest.raises(ArchiveError, match=words) as caught:
        import_archive(find_archive(folder), other)
    assert str(folder / name) in caught.value.message
    assert kit.contents(other)["series"] == [], "nothing was written"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format": 1', '"format": "x"'),
        (PART, "../../../etc/passwd"),
        (PART, "/etc/passwd"),
        (PART, "samples/../../x"),
        ("[1, 0, 200, false]", "[1, 1, 200, false]"),
        ("[1, 0, 200, false]", "[99, 0, 200, false]"),
        (f'"run_id": "{kit.RUN_ID}"', '"run_id": "../../x"'),
        ('"status": "FAILED"', '"status": 7'),
        ('"created_ns": 1789999999123456789', '"created_ns": 1e99'),
        ('"host": "machine"', '"host": "half of a pair: \\ud800"'),
        ('"workload_id": "workload1", "experiment"', '"workload_id": "other", "experiment"'),
    ],
)
def test_a_manifest_that_makes_no_sense(folder: Path, old: str, new: str) -> None:
    path = folder / "run.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ArchiveError, match=r"run\.json is damaged"):
        find_archive(folder)


def test_a_manifest_that_promises_what_the_files_do_not_hold(
    folder: Path, other: StoreWriter
) -> None:
    """Sums and sizes are right: somebody has changed both."""
    path = folder / "run.json"
    old, new = "[1, 0, 200, false], [2, 0, 200,", "[1, 0, 201, false], [2, 0, 199,"
    text = path.read_text().replace(old, new, 1)
    following = "[1, 200, 200, false], [2, 200, 200,", "[1, 201, 199, false], [2, 199, 201,"
    path.write_text(text.replace(*following))
    with pytest.raises(ArchiveError, match=r"smi-00001\.parquet is damaged: it has other points"):
        import_archive(find_archive(folder), other)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"format": 1}', b"[" * 100_000])
def test_a_manifest_that_is_none(text: bytes) -> None:
    with pytest.raises(ArchiveError, match="it is damaged"):
        ArchiveManifest.of(text, "it")


def rewrite(folder: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a part, of which the manifest knows."""
    table = change(pq.read_table(folder / name))
    pq.write_table(table, folder / name, compression="zstd", dictionary_pagesize_limit=1 << 30)
    path = folder / "run.json"
    data = json.loads(path.read_text())
    (part,) = (part for part in data["parts"] if part["path"] == name)
    part["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("column", ["name", "detail"])
def test_texts_that_would_take_all_memory(folder: Path, other: StoreWriter, column: str) -> None:
    """A text that many rows have is in the file once, and some kilobytes there."""

    def long(table: pa.Table) -> pa.Table:
        (field,) = (field for field in table.schema if field.name == column)
        one = table.slice(0, 1)
        place = table.schema.names.index(column)
        text = pa.array(["x" * 2**20], field.type)
        return pa.concat_tables([one.set_column(place, field, text)] * 300)

    rewrite(folder, MARKERS, long)
    assert (folder / MARKERS).stat().st_size < 2**20
    with pytest.raises(ArchiveError, match="longer than any that radt writes"):
        import_archive(find_archive(folder), other)


@pytest.mark.parametrize(("name", "column"), [(PART, "step"), (MARKERS, "detail")])
def test_a_column_of_another_type(folder: Path, other: StoreWriter, name: str, column: str) -> None:
    """Its values may have any size."""

    def other_type(table: pa.Table) -> pa.Table:
        texts = pa.array([b"0"] * table.num_rows, pa.large_binary())
        return table.set_column(table.schema.names.index(column), column, texts)

    rewrite(folder, name, other_type)
    with pytest.raises(ArchiveError, match=f"is damaged: its column {column} is not"):
        import_archive(find_archive(folder), other)


def test_fields_of_other_versions(folder: Path, other: StoreWriter, tmp_path: Path) -> None:
    """A newer radt says more, an older one said less."""
    path = folder / "run.json"
    data = json.loads(path.read_text())
    data["weather"] = "fine"
    data["run"]["mood"] = 7
    for series in data["series"]:
        del series["method"], series["wraps_at"]
    path.write_text(json.dumps(data))
    import_archive(find_archive(folder), other)
    mine, theirs = kit.contents(other), recorded(tmp_path / "b" / "radt.db")
    assert {each.method for each in mine.pop("series")} == {""}
    theirs.pop("series")
    assert mine == theirs


def test_no_room_for_temporary_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder / "nowhere"))
    with pytest.raises(ArchiveError, match="cannot create a temporary folder"):
        find_archive(folder)
