"""``radt import`` as people see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.cli import main
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from tests.delivery.archive import kit


def radt(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(one) for one in arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_all_archives_below_a_folder(
    writer: StoreWriter, run: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit.fill(writer, count=500)
    kit.end(writer)
    kit.archive(writer, run)
    going_on = kit.make_run(writer, tmp_path / "b", "b" * 32, workload_id="w2", letter="b")
    kit.fill(writer, going_on.run_id, count=10)
    kit.archive(writer, going_on)
    for number, one in enumerate((run, going_on)):
        target = tmp_path / "artifacts" / str(number) / "artifacts" / "radt"
        target.parent.mkdir(parents=True)
        kit.archive_folder(one).rename(target)
    home = tmp_path / "new home"

    assert radt("import", tmp_path / "artifacts", "--home", home) == 0

    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith("2 archives, ")
    assert output[0].endswith(f"→ {home / 'radt.db'}")
    assert output[2].split("  ", 3)[1:] == [
        "0123456789ab",
        "digits 1 a cnn",
        " " * 16 + "  1,015 values",
    ]
    assert output[3].endswith("35 values; the run continued, import again for the rest")
    assert "radt dashboard" in output[-1]
    with StoreWriter(home / "radt.db") as imported:
        mine, theirs = kit.contents(imported), kit.contents(writer)
    assert mine == theirs

    assert radt("import", tmp_path / "artifacts" / "0", "--home", home) == 0
    assert "already imported" in capsys.readouterr().out


def test_what_is_damaged_keeps_no_other_out(
    writer: StoreWriter, run: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit.fill(writer, count=10)
    kit.archive(writer, run)
    good = kit.make_run(writer, tmp_path / "b", "b" * 32, workload_id="w2", letter="b")
    kit.fill(writer, good.run_id, count=10)
    kit.archive(writer, good)
    (kit.archive_folder(run) / "samples" / "smi-00001.parquet").write_text("no")
    places = [kit.archive_folder(run), kit.archive_folder(good)]
    assert radt("import", *places, "--home", tmp_path / "h") == 1
    said = capsys.readouterr()
    assert "✘ not imported" in said.out
    assert "35 values" in said.out
    assert "smi-00001.parquet is damaged" in said.err
    assert "1 of 2 archives not imported" in said.err


def test_no_archive_is_one_paragraph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert radt("import", tmp_path, "--home", tmp_path / "h") == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"radt: {tmp_path} does not contain an archive\n  Give ")
    assert len(said.err.splitlines()) == 2
    assert not (tmp_path / "h").exists()


def test_into_postgres(
    writer: StoreWriter, run: RunRecord, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kit.fill(writer, count=5000)
    kit.add_rows(writer, closed=True)
    kit.end(writer)
    kit.archive(writer, run)
    assert radt("import", kit.archive_folder(run), "--to", database) == 0
    assert radt("import", kit.archive_folder(run), "--to", database) == 0
    output = capsys.readouterr().out
    assert "wörd" not in output
    assert "already imported" in output
    with StoreWriter(database) as imported:
        assert kit.contents(imported) == kit.contents(writer)
