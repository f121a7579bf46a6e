"""``radt export`` and ``radt import`` as people see them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from radt.cli import main
from radt.errors import ArchiveError
from radt.load import load, totals
from radt.store.export import describe_run
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.copy import kit


def radt(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(one) for one in arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter(tmp_path / "recorded" / "radt.db") as writer:
        kit.make_run(writer, tmp_path)
        kit.fill(writer, count=500)
        kit.add_rows(writer, closed=True)
        kit.end(writer)
        yield writer


def exported(writer: StoreWriter, file: Path, *options: object, run_id: str = kit.RUN_ID) -> Path:
    assert radt("export", run_id, "-o", file, "--home", writer.path.parent, *options) == 0
    return file


def test_a_run_as_a_file(
    writer: StoreWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(writer, tmp_path / "mine.radt")
    assert "mine.radt  1,015 values" in capsys.readouterr().out
    assert radt("import", file, "--home", tmp_path / "new") == 0
    assert radt("import", file, "--home", tmp_path / "new") == 0
    assert "already imported" in capsys.readouterr().out
    with StoreWriter(tmp_path / "new" / "radt.db") as imported:
        assert kit.contents(imported) == kit.contents(writer)
    expected = load(kit.RUN_ID, home=writer.path.parent)
    pd.testing.assert_frame_equal(load(file), expected)
    pd.testing.assert_frame_equal(
        load(str(file), rates=True), load(kit.RUN_ID, home=writer.path.parent, rates=True)
    )
    assert totals(file) == totals(kit.RUN_ID, home=writer.path.parent)
    home = ("--home", writer.path.parent)
    assert radt("export", kit.RUN_ID, "--format", "radt", "-m", "loss", *home) == 2
    assert "Leave out --metric" in capsys.readouterr().err


def test_several_files_and_a_damaged_one(
    writer: StoreWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It keeps no other out."""
    kit.make_run(writer, tmp_path, "b" * 32, workload_id="w2", letter="b")
    kit.fill(writer, "b" * 32, count=10)
    folder = tmp_path / "mails"
    folder.mkdir()
    bad = exported(writer, folder / "a.radt")
    exported(writer, folder / "b.radt", run_id="b" * 32)
    bad.write_bytes(bad.read_bytes()[:-1])
    capsys.readouterr()
    assert radt("import", folder, "--home", tmp_path / "h") == 1
    output = capsys.readouterr()
    assert output.out.startswith("2 archives, ")
    assert f"{bad}  ✘ not imported" in output.out
    assert "35 values; the archive is not complete yet, import it again" in output.out
    assert "a.radt is damaged" in output.err
    assert "1 of 2 archives not imported" in output.err
    with pytest.raises(ArchiveError, match="expected one archive"):
        load(folder)


def test_a_folder_with_the_name_of_a_tracker_is_a_folder(
    writer: StoreWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "wandb"
    folder.mkdir()
    exported(writer, folder / "mine.radt")
    monkeypatch.chdir(tmp_path)
    assert radt("import", "wandb", "--home", tmp_path / "h") == 0
    assert radt("import", "wandb:", "--home", tmp_path / "h") == 2
    assert "wandb: names no folder\n  Give wandb:FOLDER" in capsys.readouterr().err


def test_no_archive_is_one_paragraph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert radt("import", tmp_path, "--home", tmp_path / "h") == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"radt: {tmp_path} does not contain an archive\n  Give ")
    assert len(said.err.splitlines()) == 2
    assert not (tmp_path / "h").exists()


def test_into_postgres(
    writer: StoreWriter, tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(writer, tmp_path / "mine.radt")
    assert radt("import", file, "--to", database) == 0
    assert radt("import", file, "--to", database) == 0
    output = capsys.readouterr().out
    assert "wörd" not in output
    assert "already imported" in output
    with StoreWriter(database) as imported:
        assert kit.contents(imported) == kit.contents(writer)


def test_pandas_alone_reads_the_files_for_people_without_radt(
    writer: StoreWriter, tmp_path: Path
) -> None:
    """In a Python that does not have radt."""
    samples, description = tmp_path / "samples.parquet", tmp_path / "run.json"
    exported(writer, samples)
    with StoreReader(writer.address) as reader:
        describe_run(reader, reader.run(kit.RUN_ID), description)
    program = (
        "import pandas as pd, sys, json; samples = pd.read_parquet(sys.argv[1]); "
        "run = json.load(open(sys.argv[2])); assert 'radt' not in sys.modules; "
        "power = samples[samples.metric == 'gpu.power']; loss = samples[samples.metric == 'loss']; "
        "print(json.dumps([len(samples), [[n, str(t)] for n, t in samples.dtypes.items()], "
        "power.value.iloc[:3].tolist(), power.elapsed_s.iloc[:2].tolist(), "
        "[None if pd.isna(s) else int(s) for s in loss.step], run]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(samples), str(description)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    count, dtypes, power, elapsed, steps, run = json.loads(done.stdout)
    assert count == 1015
    expected = load(kit.RUN_ID, home=writer.path.parent).dtypes
    assert dict(map(tuple, dtypes)) == {name: str(dtype) for name, dtype in expected.items()}
    assert power == [math.sin(0), math.sin(1), math.sin(2)]
    assert elapsed == [0.0, 77_000_001 / 1e9]
    assert sorted(filter(None, steps)) == [-5, 1, 1, 1, 5, 2**62]
    assert (run["run"]["run_id"], run["run"]["status"]) == (kit.RUN_ID, "FAILED")
    assert [len(run[name]) for name in ("series", "markers", "gaps", "ledger")] == [4, 3, 2, 1]
    assert run["params"][kit.HOSTILE] == kit.HOSTILE
    assert run["series"][3]["wraps_at"] == 262_143.3
