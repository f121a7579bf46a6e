"""Imports of CSV logs: each row that is whole is in the store, once."""

from __future__ import annotations

import itertools
import os
import tracemalloc
from pathlib import Path

import pytest

from radt.cli import main
from radt.experiment.table import TableStream
from radt.importers import csv_logs, run_import
from radt.importers.importing import Import, ImportResult
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.importers.mlflow_support import contents, history, revisions


def import_csv(place: Path, store: Path) -> ImportResult:
    with StoreWriter(store) as writer:
        return Import(csv_logs.source(place), writer).run()


def points_of(store: Path) -> dict[str, dict[str, list[tuple[object, ...]]]]:
    """Values and steps by run and metric."""
    with StoreReader(store) as reader:
        return {
            run.name: {
                metric: [point[1:] for point in points]
                for metric, points in history(reader, run.run_id).items()
            }
            for run in reader.runs()
        }


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


def test_times_that_are_not_times_of_day_are_named(tmp_path: Path, store: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("epoch,time,loss\n1,9.5,0.5\n2,19.0,0.25\n")
    result = import_csv(path, store)
    expected = f"{path}: numbers in column 'time' that are not seconds since 1970"
    assert (result.damaged, result.left_out) == ([], [expected])


def test_a_log_that_grew_and_a_row_half_written(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_import, "_BATCH_POINTS", 3)
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


#: Rows of every dialect: the same header, and what separates cells.
DIALECTS: dict[str, bytes] = {
    "comma": b"step,loss,acc\n0,1.5,0.25\n1,0.5,0.75\n",
    "byte order mark": b"\xef\xbb\xbfstep,loss,acc\r\n0,1.5,0.25\r\n1,0.5,0.75\r\n",
    "semicolons": b"step;loss;acc\n0;1.5;0.25\n1;0.5;0.75\n",
    "decimal commas": b"step;loss;acc\n0;1,5;0,25\n1;0,5;0,75\n",
    "quoted decimal commas": b'"step";"loss";"acc"\n"0";"1,5";"0,25"\n"1";"0,5";"0,75"\n',
    "tabs": b"step\tloss\tacc\n0\t1.5\t0.25\n1\t0.5\t0.75\n",
    "utf-16 with tabs": "step\tloss\tacc\r\n0\t1,5\t0,25\r\n1\t0,5\t0,75\r\n".encode("utf-16"),
    "utf-16, big end first": b"\xfe\xff"
    + "step,loss,acc\n0,1.5,0.25\n1,0.5,0.75\n".encode("utf-16-be"),
    "separator said": b"sep=;\nstep;loss;acc\n0;1,5;0,25\n1;0,5;0,75\n",
    "comments": b'# a, "b\n\nstep,loss,acc\n# c\n0,1.5,0.25\n"# d, e",,\n1,0.5,0.75\n',
    "blanks and carriage returns": b"step , loss,acc\r 0, 1.5,0.25\r\r1 ,0.5, 0.75\r",
    "index of pandas": b",step,loss,acc\n0,0,1.5,0.25\n1,1,0.5,0.75\n",
}


@pytest.mark.parametrize("content", DIALECTS.values(), ids=DIALECTS)
def test_dialects(content: bytes, tmp_path: Path, store: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_bytes(content)
    result = import_csv(path, store)
    assert (result.imported, result.damaged, result.left_out) == (1, [], [])
    assert points_of(store)["run"] == {
        "loss": [("1.5", 0), ("0.5", 1)],
        "acc": [("0.25", 0), ("0.75", 1)],
    }


def test_files_that_other_programs_wrote(tmp_path: Path, store: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "ppo").mkdir(parents=True)
    # stable-baselines3 2.9 with `info_keywords`, twice into one file.
    (logs / "ppo" / "monitor.csv").write_bytes(
        b'#{"t_start": 1795873694.5, "env_id": "CartPole-v1"}\n'
        b'r,l,t,won,note\r\n1.0,2,0.25,True,"a, b"\r\n1.5,3,0.5,False,"a, b"\r\n'
        b'2.0,4,0.75,True,"a, b"\r\n'
    )
    # TensorBoard 2.21, two downloads of one run.
    for tag, values in (("loss_train", (0.5, 0.25)), ("acc", (0.75, 1.0))):
        rows = [f"{1.8e9 + step},{step},{value}\r\n" for step, value in enumerate(values)]
        path = logs / f"run-resnet-tag-{tag}.csv"
        path.write_text("".join(["Wall time,Step,Value\r\n", *rows]), newline="")
    # Keras 3.15 with `separator=";"`: the validation came every second epoch.
    (logs / "keras.csv").write_bytes(b"epoch;loss;val_loss\r\n0;0.72;NA\r\n1;0.63;0.5\r\n")
    result = import_csv(logs, store)
    assert (result.imported, result.damaged) == (3, [])
    assert result.left_out == [f"{logs}/ppo/monitor.csv: column 'note' is text"]
    assert points_of(store) == {
        "ppo": {
            "r": [("1.0", 2), ("1.5", 5), ("2.0", 9)],
            "l": [("2.0", 2), ("3.0", 5), ("4.0", 9)],
            "won": [("1.0", 2), ("0.0", 5), ("1.0", 9)],
        },
        "resnet": {
            "loss_train": [("0.5", 0), ("0.25", 1)],
            "acc": [("0.75", 0), ("1.0", 1)],
        },
        "keras": {"loss": [("0.72", 0), ("0.63", 1)], "val_loss": [("0.5", 1)]},
    }
    with StoreReader(store) as reader:
        runs = {run.name: run for run in reader.runs()}
        assert runs["ppo"].started_ns == pytest.approx(1_795_873_694_750_000_000, abs=1000)
        assert reader.params(runs["ppo"].run_id) == {"env_id": "CartPole-v1"}
        assert runs["resnet"].started_ns == 1_800_000_000_000_000_000


@pytest.mark.parametrize(
    ("content", "problem", "loss"),
    [
        (
            "step,loss\n0,1\n1,x\n2,3\n3,y\n",
            "lines 3, 5: expected a number in column 'loss', got 'x'",
            [1, 3],
        ),
        ("step,loss\n0,1\n1\n2,3,4\n", "line 3: expected 2 cells, got 1", [1]),
        ("step,loss\n0,1\n2,3,4\n", "line 3: '4' has no header", [1]),
        (
            'step,loss\n0,1\n1,"2\n2,3\n',
            "line 3: the quote that opens here is never closed",
            [1, 3],
        ),
        (
            "step;loss\n0;1,5\n1;2.5\n2;3,5\n",
            "line 3: expected a number in column 'loss', got '2.5'",
            [1.5, 3.5],
        ),
        (
            'step,loss\n0,1.5\n1,"1,234"\n',
            "line 3: expected a number in column 'loss', got '1,234'",
            [1.5],
        ),
        (
            "step;loss\n0;1.234,5\n1;2,5\n",
            "line 2: expected a number in column 'loss', got '1.234,5'",
            [2.5],
        ),
        (
            "step,loss\n0,1\n1,2\0\n",
            "line 3: expected a number in column 'loss', got '2\\x00'",
            [1],
        ),
        ("step,loss,loss\n0,1,2\n", "line 1: the metric 'loss' appears twice", [1]),
        ("step,loss\n0,1\nx,2\n", "line 3: expected a number in column 'step', got 'x'", [1, 2]),
        ("time,loss\nnever,1\n", "line 2: expected a number in column 'time', got 'never'", [1]),
    ],
)
def test_what_cannot_be_read_is_named_with_its_lines(
    content: str, problem: str, loss: list[float], tmp_path: Path, store: Path
) -> None:
    path = tmp_path / "run.csv"
    path.write_text(content)
    os.utime(path, (1.7e9, 1.7e9))
    result = import_csv(path, store)
    assert any(f"{path}, {problem}" in found for found in result.damaged), result.damaged
    assert [float(value) for value, _ in points_of(store)["run"]["loss"]] == loss


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"0,0.5\n1,0.25\n", ", line 1: expected the names of columns, got numbers"),
        (b"<html>\n<p>no log\n", ": expected columns of numbers, got none"),
        (b"PK\x03\x04\xff\n\0\0\n", ": expected columns of numbers, got none"),
    ],
)
def test_files_that_are_not_logs(content: bytes, problem: str, tmp_path: Path, store: Path) -> None:
    (tmp_path / "other.csv").write_bytes(content)
    (tmp_path / "run.csv").write_text("step,loss\n0,1\n")
    result = import_csv(tmp_path, store)
    assert result.imported == 1
    ((where, error),) = result.failed
    assert where == str(tmp_path / "other.csv")
    assert f"{where}{problem}" in error.message


def test_a_long_log_is_read_row_by_row(tmp_path: Path, store: Path) -> None:
    """Also after a line with an odd number of quotes, and a cell that goes over lines."""
    path = tmp_path / "run.csv"
    with path.open("w") as file:
        file.write('step,loss,note\n0,1,5" disk\n1,2,"two\nlines"\n')
        file.writelines(f"{step},{step},\n" for step in range(2, 2000))
    with path.open("rb") as stream:
        table = TableStream(stream)
        lines = [row.line for row in table.rows()]
        assert table.defects == []
    assert lines == [2, 3, *range(5, 2003)]
    result = import_csv(path, store)
    assert (result.damaged, len(points_of(store)["run"]["loss"])) == ([], 2000)


@pytest.mark.parametrize(
    ("start", "repeated"), [("", "\0"), ("step,loss\n0,1\n", "\0"), ('step,loss\n0,1\n1,"', "x\n")]
)
def test_a_file_that_is_one_long_line_or_cell_takes_little_memory(
    start: str, repeated: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.csv"
    path.write_text(start + repeated * (2**24 // len(repeated)))
    with path.open("rb") as stream:
        tracemalloc.start()
        table = TableStream(stream)
        rows = len(list(itertools.islice(table.rows(), 2)))
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert table.defects
    assert rows >= bool(start)
    assert 0 < peak_bytes < path.stat().st_size


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n0,1.0\n1,0.5\n2\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "note.csv").write_text("step,loss,note\n0,1.0,x\n")
    home = str(tmp_path / "data")
    for place, code, texts in (
        (path, 1, ["imported 1 run", f"{path}, line 4: expected 2 cells, got 1; left out"]),
        (tmp_path / "note.csv", 0, ["imported 1 run", "not imported: "]),
        (tmp_path / "empty.csv", 0, ["1 empty"]),
        (tmp_path / "none", 2, ["does not exist"]),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["import", f"csv:{place}", "--home", home])
        printed = capsys.readouterr()
        assert caught.value.code == code
        assert all(text in printed.out + printed.err for text in texts)
