"""`radt ls`: which runs it lists, in what order, and by which ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from radt.cli.ls import _short_ids, command
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


def listed(home: Path, *arguments: str) -> list[str]:
    return [run["run_id"] for run in json.loads(call(home, *arguments, "--json").output)]


def test_newest_first_with_what_tells_them_apart(home: Path) -> None:
    lines = call(home, "big", "-n", "2").output.splitlines()
    head, first, second = (line.split() for line in lines[1:4])
    assert head == ["id", "name", "state", "when", "took", "lr", "loss"]
    assert (first[1:4], first[-3:]) == (["30", "net", "FAILED"], ["s", "3.0", "0.0333"])
    assert second[2] == "net"
    assert "2 of 30 runs" in lines[-2]
    assert "same" not in "".join(lines)


def test_an_experiment_and_the_terms_of_the_dashboards_search(home: Path) -> None:
    assert len(listed(home)) == 25
    assert len(listed(home, "--all")) == 31
    assert listed(home, "train") == ["f" * 32]
    assert listed(home, "big", "lr<0.25") == [_id(2), _id(1)]
    assert listed(home, "big lr>2.85", "-status:failed") == [_id(29)]
    assert listed(home, "lr=0.5") == [_id(5), "f" * 32]
    assert call(home, "no-such-word").output.strip() == "No run matches."


def test_json_has_both_ids_all_params_and_the_last_values(home: Path) -> None:
    (run,) = json.loads(call(home, "train", "--json").output)
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


def test_short_ids_grow_where_others_begin_alike() -> None:
    ids = ["a" * 32, "a" * 9 + "b" * 23, "c" * 32]
    shorts = _short_ids(ids, ids)
    assert shorts == {ids[0]: "a" * 10, ids[1]: "a" * 9 + "b", ids[2]: "c" * 8}


def test_every_shown_id_names_its_run(home: Path) -> None:
    with StoreWriter(home / "radt.db") as writer, StoreReader(home / "radt.db") as reader:
        run = reader.run("f" * 32)
        writer.put_run(replace(run, run_id="f" * 31 + "0"))
        for shown in json.loads(call(home, "--all", "--json").output):
            if shown["run_id"].startswith("f"):
                assert reader.find_run(shown["id"]).run_id == shown["run_id"]
