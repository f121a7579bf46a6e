"""Imports of CSV logs: each row that is whole is in the store, once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radt.cli import main
from radt.importers import csv_logs, run_import
from radt.importers.importing import Import
from radt.importers.status import ImportResult
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.importers.mlflow_support import contents, history, revisions


def import_csv(place: Path, store: Path) -> ImportResult:
    with StoreWriter(store) as writer:
        return Import(csv_logs.source(place), writer).run()


def test_lightning_keras_and_plain_logs(tmp_path: Path, store: Path) -> None:
    logs = tmp_path / "logs"
    lightning = logs / "version_0"
    lightning.mkdir(parents=True)
    (lightning / "metrics.csv").write_text(
        "epoch,step,train_loss,val_loss\n0,9,0.5,\n0,9,,0.7\n1,19,0.25,\n"
    )
    (lightning / "hparams.yaml").write_text("lr: 0.1\nopt: {name: adam}\n")
    (logs / "keras.csv").write_text("epoch,accuracy,loss\n0,0.5,1.0\n1,0.75,nan\n")
    (logs / "plain.csv").write_text("time,loss,note\n2026-01-01T00:00:00Z,1.5,first\n")
    assert import_csv(logs, store).imported == 3
    with StoreReader(store) as reader:
        runs = {run.name: run for run in reader.runs()}
        found = {name: history(reader, run.run_id) for name, run in runs.items()}
        params = reader.params(runs["version_0"].run_id)
    assert set(runs) == {"version_0", "keras", "plain"}
    assert {run.experiment for run in runs.values()} == {"logs"}
    assert {run.status for run in runs.values()} == {RunStatus.FINISHED}
    points = {key: [point[1:] for point in of] for key, of in found["version_0"].items()}
    assert points["train_loss"] == [("0.5", 9), ("0.25", 19)]
    assert points["val_loss"] == [("0.7", 9)]
    assert [point[1:] for point in found["keras"]["loss"]] == [("1.0", 0), ("nan", 1)]
    assert found["plain"] == {"loss": [(1_767_225_600_000, "1.5", 0)]}
    assert params == {"lr": "0.1", "opt.name": "adam"}

    before, there = revisions(store), contents(store)
    assert import_csv(logs, store).unchanged == 3
    assert (revisions(store), contents(store)) == (before, there)


def test_the_last_row_of_a_file_at_rest_needs_no_line_end(tmp_path: Path, store: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n0,1.5\n1,0.5")
    os.utime(path, (1.7e9, 1.7e9))
    assert import_csv(path, store).damaged == []
    with StoreReader(store) as reader:
        (run,) = reader.runs()
        loss = history(reader, run.run_id)["loss"]
    assert [point[1:] for point in loss] == [("1.5", 0), ("0.5", 1)]


def test_a_log_that_grew_and_a_row_half_written(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_import, "_POINTS_PER_TRANSACTION", 3)
    path = tmp_path / "run.csv"
    whole = "".join(f"{step},{step / 4}\n" for step in range(10))
    path.write_text(f"step,loss\n{whole}10,2.")
    result = import_csv(path, store)
    assert (result.imported, result.damaged) == (1, [])
    path.write_text(f"step,loss,new\n{whole.replace(chr(10), ',' + chr(10))}10,2.5,1\n")
    result = import_csv(path, store)
    assert (result.updated, result.damaged) == (1, [])
    with StoreReader(store) as reader:
        (run,) = reader.runs()
        found = history(reader, run.run_id)
    values = [(repr(step / 4), step) for step in range(11)]
    assert [point[1:] for point in found["loss"]] == values
    assert [point[1:] for point in found["new"]] == [("1.0", 10)]


def test_a_log_of_another_training_under_the_same_name(tmp_path: Path, store: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("epoch,loss\n0,1.0\n1,0.5\n")
    import_csv(path, store)
    there = contents(store)
    path.write_text("epoch,loss\n0,9.0\n1,8.0\n2,7.0\n")
    ((_, error),) = import_csv(path, store).failed
    assert "was rewritten" in error.message
    assert contents(store) == there


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n0,1.0\n1,0.5\n2\n")
    (tmp_path / "empty.csv").write_text("")
    home = str(tmp_path / "data")
    for place, code, text in (
        (path, 0, "imported 1 run"),
        (tmp_path / "empty.csv", 0, "1 empty"),
        (tmp_path / "none", 2, "does not exist"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["import", f"csv:{place}", "--home", home])
        printed = capsys.readouterr()
        assert caught.value.code == code
        assert text in printed.out + printed.err
