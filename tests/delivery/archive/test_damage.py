"""An archive that is not what was written is refused: the file is named, and nothing is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from radt.delivery.archive import markers, read
from radt.delivery.archive.importing import import_archive
from radt.delivery.archive.manifest import FORMAT, Manifest
from radt.delivery.archive.markers import marker_table, read_markers
from radt.delivery.archive.read import Archive
from radt.errors import ArchiveError
from radt.load import load
from radt.model import MarkerKind
from radt.store.records import MarkerRecord, RunRecord
from radt.store.writer import StoreWriter
from tests.delivery.archive import kit

PART = "samples/smi-00001.parquet"
MARKERS = "markers-00001.parquet"


@pytest.fixture
def folder(writer: StoreWriter, run: RunRecord) -> Path:
    kit.fill(writer, count=500)
    kit.add_rows(writer, closed=True)
    kit.end(writer)
    kit.archive(writer, run)
    return kit.archive_folder(run)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap(path: Path) -> None:
    path.write_bytes((path.parent.parent / "samples" / "run-00001.parquet").read_bytes())


@pytest.mark.parametrize("name", [PART, MARKERS])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "damaged: its SHA-256"),
        (truncate, "damaged: it has .* bytes instead of"),
        (Path.unlink, "the archive is incomplete"),
    ],
)
def test_a_part_that_is_not_what_it_was(
    folder: Path, other: StoreWriter, name: str, damage: Callable[[Path], None], words: str
) -> None:
    damage(folder / name)
    with pytest.raises(ArchiveError, match=words) as caught:
        import_archive(folder, other)
    assert str(folder / name) in caught.value.message
    assert kit.contents(other)["series"] == [], "nothing was written"


def test_a_manifest_that_promises_what_the_files_do_not_hold(
    folder: Path, other: StoreWriter
) -> None:
    """Sums and sizes are right: somebody has changed both."""
    text = (folder / "run.json").read_text()
    assert "[1, 0, 500, false], [2, 0, 500, false]" in text
    changed = text.replace(
        "[1, 0, 500, false], [2, 0, 500, false]", "[1, 0, 501, false], [2, 0, 499, false]"
    )
    (folder / "run.json").write_text(changed)
    with pytest.raises(ArchiveError, match=r"smi-00001\.parquet is damaged: it has other points"):
        import_archive(folder, other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": "x"}',
        '{"format": 1}',
        '{"format": 1, "run": {"run_id": "a"}, "workload": null}',
    ],
)
def test_a_manifest_that_is_none(folder: Path, other: StoreWriter, text: str) -> None:
    (folder / "run.json").write_text(text)
    with pytest.raises(ArchiveError, match=r"run\.json is damaged"):
        import_archive(folder, other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PART, "../../../etc/passwd"),
        (PART, "/etc/passwd"),
        (PART, "samples/../../x"),
        ("[1, 0, 500, false]", "[1, 1, 500, false]"),
        ("[1, 0, 500, false]", "[99, 0, 500, false]"),
    ],
)
def test_a_manifest_that_makes_no_sense(
    folder: Path, other: StoreWriter, old: str, new: str
) -> None:
    path = folder / "run.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ArchiveError, match=r"run\.json is damaged"):
        import_archive(folder, other)


@pytest.mark.parametrize("run_id", ["../../x", "..", "/etc", "a/b", "", "a\0b", "x" * 300])
def test_an_id_that_would_lead_elsewhere(folder: Path, other: StoreWriter, run_id: str) -> None:
    """Runs have folders of their name, which `radt prune` removes."""
    path = folder / "run.json"
    data = json.loads(path.read_text())
    data["run"]["run_id"] = run_id
    path.write_text(json.dumps(data))
    with pytest.raises(ArchiveError, match=r"run\.json is damaged: ValueError: run_id cannot be"):
        import_archive(folder, other)


def test_fields_that_are_something_else(folder: Path) -> None:
    data = json.loads((folder / "run.json").read_text())
    rows = [data["run"], data["workload"], data["series"][0], data["ledger"][0], data["gaps"][0]]
    for row in rows:
        for name, value in row.items():
            for wrong in ([], {}, 2**70, "half of a pair: \ud800"):
                row[name] = wrong
                if name == "estimated":
                    continue  # anything is true or false
                with pytest.raises(ArchiveError, match="it is damaged"):
                    Manifest.from_json(json.dumps(data), "it")
            row[name] = value
    Manifest.from_json(json.dumps(data), "it")


def test_a_manifest_that_is_very_deep(folder: Path) -> None:
    with pytest.raises(ArchiveError, match="it is damaged"):
        Manifest.from_json("[" * 100_000, "it")


def test_no_more_of_a_part_is_in_memory_than_was_meant(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group is as large as its writer liked: a thousand million zeros are some kilobytes."""
    monkeypatch.setattr(read, "_ROWS", 100)
    archive = Archive.open(folder)
    (part,) = [one for one in archive.manifest.parts if one.path == PART]
    blocks = list(archive.pieces(part, folder / PART))
    assert [sum(len(piece.samples) for piece in block) for block in blocks] == [100] * 10


@pytest.mark.parametrize(("column", "length"), [("name", 1 << 16), ("detail", 1 << 24)])
def test_texts_that_would_take_all_memory(
    tmp_path: Path, column: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that stands once in the file and in every row of it, and one that compresses well."""
    monkeypatch.setattr(markers, "_TEXT_BYTES", 1 << 23)
    path, count = tmp_path / MARKERS, 20_000 if length < 1 << 24 else 2
    one = MarkerRecord("a", 1, MarkerKind.EVENT, "name", 1, 1)
    texts = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["x" * length])
    table = marker_table([one] * count)
    place = table.schema.get_field_index(column)
    schema = table.schema.set(place, pa.field(column, texts.type))
    pq.write_table(
        table.set_column(place, schema.field(place), texts), path, compression="zstd",
        store_schema=False, dictionary_pagesize_limit=1 << 30,
    )  # fmt: skip
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match="longer than any that radt writes"):
        list(read_markers(path, "a"))


def test_a_column_of_another_type(tmp_path: Path) -> None:
    path = tmp_path / PART.replace("/", "-")
    table = pa.table({"series_no": ["0"], "time": ["1"], "value": ["2"], "step": ["3"]})
    pq.write_table(table, path)
    with pytest.raises(ValueError, match="its column series_no is not int"):
        list(read._blocks(path))


def test_a_part_with_more_than_its_manifest_says_is_not_read_to_its_end(folder: Path) -> None:
    archive = Archive.open(folder)
    (part,) = [one for one in archive.manifest.parts if one.path == PART]
    less = replace(part, stretches=tuple(replace(one, count=7) for one in part.stretches))
    with pytest.raises(ArchiveError, match="other points than the manifest says"):
        next(archive.pieces(less, folder / PART))


def test_a_newer_format_is_refused(folder: Path, other: StoreWriter) -> None:
    path = folder / "run.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"format": FORMAT + 1, "written_by": "radt 9.9", "run": 1}))
    with pytest.raises(ArchiveError, match=r"format 2, written by radt 9\.9.*up to format 1"):
        import_archive(folder, other)
    with pytest.raises(ArchiveError, match=r"format 2, written by radt 9\.9.*Upgrade radt"):
        load(folder)


def test_fields_of_other_versions(folder: Path, writer: StoreWriter, other: StoreWriter) -> None:
    """A newer radt says more, an older one said less."""
    path = folder / "run.json"
    data = json.loads(path.read_text())
    data["weather"] = "fine"
    data["run"]["mood"] = 7
    for series in data["series"]:
        del series["method"], series["wraps_at"]
    path.write_text(json.dumps(data))
    import_archive(folder, other)
    mine, theirs = kit.contents(other), kit.contents(writer)
    assert {one.method for one in mine.pop("series")} == {""}
    theirs.pop("series")
    assert mine == theirs


def test_the_manifest_of_an_archive_reads_as_it_was_written(folder: Path) -> None:
    text = (folder / "run.json").read_text()
    assert Manifest.from_json(text, "it").to_json() == text
    assert Archive.open(folder).manifest.to_json() == text


def test_no_room_for_temporary_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder / "nowhere"))
    with pytest.raises(ArchiveError, match="cannot create a temporary folder"):
        Archive.open(folder)


def test_keys_in_an_address_are_not_shown() -> None:
    with pytest.raises(ArchiveError, match="Expected s3:") as caught:
        load("s3://AKIA123:geheim@bucket/prefix")
    assert "geheim" not in caught.value.message


def test_what_is_there_already_is_not_read_again(folder: Path, other: StoreWriter) -> None:
    import_archive(folder, other)
    flip(folder / PART)
    assert import_archive(folder, other).points == 0
