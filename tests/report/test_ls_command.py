"""`radt ls`: which runs it lists, in what order, and by which ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from radt.cli.ls import command
from radt.errors import UsageError
from radt.model import SOFTWARE, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from tests.support.stores import START_NS, WrittenRun


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Thirty runs of ``big``, the last of which failed, and one older script."""
    with StoreWriter(tmp_path / "radt.db") as writer:
        _add(writer, "f" * 32, "train", "train lr=0.5 #1", lr="0.5", at=0, loss=[3.0, 2.5])
        for number in range(1, 31):
            status = RunStatus.FAILED if number == 30 else RunStatus.FINISHED
            _add(
                writer,
                _id(number),
                "big",
                "net",
                lr=str(number / 10),
                at=number,
                loss=[1.0 / number],
                status=status,
            )
    return tmp_path


def _id(number: int) -> str:
    return f"{number:02x}" * 16


def _add(
    writer: StoreWriter,
    run_id: str,
    experiment: str,
    name: str,
    *,
    lr: str,
    at: int,
    loss: list[float],
    status: RunStatus = RunStatus.FINISHED,
) -> None:
    at_ns = START_NS + at * 1_000_000_000
    label = "" if experiment == "train" else str(at)
    writer.put_workload(WorkloadRecord(f"w{run_id}", experiment, label, at_ns, barrier_ns=at_ns))
    writer.put_run(
        RunRecord(
            *(run_id, f"w{run_id}", experiment, label, "a", name, at_ns),
            status=status,
            started_ns=at_ns,
            ended_ns=at_ns + 2_500_000_000,
        )
    )
    series = SeriesRecord(run_id, 0, SOFTWARE, "loss", "1", Scope.RUN, SeriesKind.GAUGE)
    writer.add_series([series])
    writer.put_params(run_id, {"File": "train.py", "lr": lr, "same": "1"})
    WrittenRun(writer, run_id, 0).log(loss)


def call(home: Path, *arguments: str, code: int = 0) -> Result:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(command, [*arguments, "--home", str(home)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def shown(home: Path, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    document = json.loads(call(home, *arguments, "--json", code=code).output)
    assert (document["format"], document["version"]) == ("radt-ls", 1)
    runs: list[dict[str, Any]] = document["runs"]
    return runs


def listed(home: Path, *arguments: str) -> list[str]:
    return [run["run_id"] for run in shown(home, *arguments)]


def test_newest_first_with_what_tells_them_apart(home: Path) -> None:
    lines = call(home, "big", "-n", "2").output.splitlines()
    head, first, second = (line.split() for line in lines[1:4])
    assert head == ["id", "name", "state", "when", "took", "lr", "loss"]
    assert (first[1:4], first[-3:]) == (["30", "net", "FAILED"], ["s", "3.0", "0.0333"])
    assert second[2] == "net"
    assert any("2 of 30 runs" in line for line in lines)
    assert "same" not in "".join(lines)


def test_an_experiment_and_the_terms_of_the_dashboards_search(home: Path) -> None:
    assert len(listed(home)) == 25
    assert len(listed(home, "--all")) == 31
    assert listed(home, "train") == ["f" * 32]
    assert listed(home, "big", "lr<0.25") == [_id(2), _id(1)]
    assert listed(home, "big lr>2.85", "-status:failed") == [_id(29)]
    assert listed(home, "lr=0.5") == [_id(5), "f" * 32]
    assert "No run matches." in call(home, "no-such-word", code=1).output


@pytest.mark.parametrize(
    ("key", "first"),
    [
        *(("loss.min", 30), ("-loss.min", 1), ("param.lr", 1), ("-param.lr", 30), ("age", 30)),
        *(("-age", 1), ("status", 30)),
    ],
)
def test_runs_are_sorted_by_any_column_of_the_dashboard(home: Path, key: str, first: int) -> None:
    assert listed(home, "big", "--all", "--sort", key)[0] == _id(first)


def test_the_table_has_the_column_that_it_is_sorted_by(home: Path) -> None:
    lines = call(home, "big", "-n", "2", "--sort", "-loss.min").output.splitlines()
    head, first, second = (line.split() for line in lines[1:4])
    assert head == ["id", "name", "state", "when", "took", "loss", "min", "lr", "loss"]
    assert (first[1], second[1]) == ("1", "2")
    assert first[-3] == "1.000"


@pytest.mark.parametrize(
    ("key", "hint"),
    [("los.min", "Did you mean 'loss.min'?"), ("param.l", "param.lr"), ("?", "param.NAME")],
)
def test_an_unknown_column_is_named_with_similar_ones(home: Path, key: str, hint: str) -> None:
    error = call(home, "big", "--sort", key, code=1).exception
    assert isinstance(error, UsageError)
    assert f"There is no column {key!r}" in str(error) and hint in str(error.remedy)


def test_json_has_both_ids_all_params_and_the_last_values(home: Path) -> None:
    (run,) = shown(home, "train")
    assert run["run_id"] == "f" * 32 and run["id"] == "f" * 8
    assert run["mlflow_run_id"] is None
    assert run["metrics"] == {"loss": 2.5}
    assert run["params"] == {"File": "train.py", "lr": "0.5", "same": "1"}
    assert run["duration_s"] == 2.5


def test_what_cannot_be_searched_is_an_error(home: Path) -> None:
    assert "is not a number" in str(call(home, "lr<x", code=1).exception)
    assert "no run has a parameter, tag or metric" in str(
        call(home, "colour:red", code=1).exception
    )


def test_no_chunk_is_decoded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radt.store.codec.decode", lambda *_: pytest.fail("decoded"))
    monkeypatch.setattr("radt.store.chunks.decode", lambda *_: pytest.fail("decoded"))
    assert len(listed(home, "--all")) == 31


def test_every_shown_id_names_its_run(home: Path) -> None:
    with StoreWriter(home / "radt.db") as writer, StoreReader(home / "radt.db") as reader:
        run = reader.run("f" * 32)
        writer.put_run(replace(run, run_id="f" * 31 + "0"))
        runs = shown(home, "--all")
        for run_shown in runs:
            assert reader.find_run(run_shown["id"]).run_id == run_shown["run_id"]
        assert len(runs[0]["id"]) == 32, "as long as the two that begin alike need"


def test_an_experiment_that_does_not_exist_is_an_error(home: Path) -> None:
    output = call(home, "bigg", code=1).output
    assert output.splitlines()[1:3] == ["  No run matches.", "    Experiments there: big, train"]
    assert shown(home, "bigg", code=1) == []
    assert call(home, "lr>99").output.strip() == "No run matches.", "a term is no experiment"
    assert call(home, "net", "status:running").output.strip() == "No run matches."
    assert shown(home, "nett", "status:running", code=1) == []


def test_an_empty_store_has_no_experiment(tmp_path: Path) -> None:
    StoreWriter(tmp_path / "radt.db").close()
    assert f"No runs in {tmp_path / 'radt.db'}" in call(tmp_path, "big", code=1).output
    assert shown(tmp_path) == []


def test_an_experiment_says_how_many_of_its_runs_count(home: Path) -> None:
    assert "30 runs, 29 count: 1 failed." in call(home, "big").output
    assert "count" not in call(home, "train").output
