"""Each thing that can be wrong with a store is found, and nothing in one that is right."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from mlflow.tracking import MlflowClient

from radt.cli.db import command
from radt.home import Home
from radt.store.backend import Dialect
from radt.store.check import Trouble, check, check_deep, count
from radt.store.reader import StoreReader
from radt.store.records import SeriesBatch
from radt.store.writer import StoreWriter

PutRun = Callable[..., str]
Execute = Callable[..., None]
SQLITE_ONLY = pytest.mark.parametrize("dialect", [Dialect.SQLITE], indirect=True, ids=str)

WRONG = {
    Trouble.LEDGER: ["UPDATE ledger SET missed = missed + 1"],
    Trouble.POINTS: ["DELETE FROM gap; UPDATE ledger SET received = 400, expected = 402"],
    Trouble.GAP: ["UPDATE gap SET end_ns = start_ns - 1", "UPDATE gap SET series_no = 77"],
    Trouble.CHUNK: ["UPDATE chunk SET chunk_no = 5 WHERE series_no = 2 AND chunk_no = 0"],
    Trouble.TIMES: ["UPDATE chunk SET time_data = NULL WHERE series_no = 0 AND chunk_no = 0"],
    Trouble.ORPHAN: [
        "DELETE FROM workload",
        "DELETE FROM experiment",
        "DELETE FROM series WHERE series_no = 2",
        "DELETE FROM run",
        "INSERT INTO tag (run_id, key, value) VALUES ('zz', 'a', 'b')",
    ],
    Trouble.DAMAGED: ["UPDATE chunk SET checksum = checksum + 1", "UPDATE chunk SET codec = 9"],
    Trouble.HEADER: [
        "UPDATE chunk SET value_max = 1e6 WHERE series_no = 0",
        "UPDATE chunk SET value_sum = value_sum * 1.000001 WHERE series_no = 1",
        "UPDATE chunk SET last_ns = last_ns + 1 WHERE series_no = 2",
        "UPDATE chunk SET first_value = NULL WHERE series_no = 3",
    ],
    Trouble.SUMMARY: [
        "UPDATE series_summary SET maximum = maximum + 1 WHERE series_no = 0",
        "UPDATE series_summary SET total = total * 1.000001 WHERE series_no = 0",
        "DELETE FROM series_summary WHERE series_no = 1",
        "DELETE FROM chunk WHERE series_no = 2",
    ],
}
DEEP = {Trouble.DAMAGED, Trouble.HEADER}


def all_findings(reader: StoreReader) -> list[Trouble]:
    return [one.trouble for one in (*check(reader), *check_deep(reader))]


def test_nothing_is_wrong_with_a_good_store(reader: StoreReader, put_run: PutRun) -> None:
    assert all_findings(reader) == []
    assert count(reader).runs == 0
    put_run(points=300)
    put_run("b" * 32, points=300, ended_ns=None)
    assert all_findings(reader) == []
    counts = count(reader)
    assert (counts.runs, counts.experiments, counts.points) == (2, 1, 2 * 903)


@SQLITE_ONLY
@pytest.mark.parametrize(
    ("trouble", "statement"),
    [(trouble, one) for trouble, statements in WRONG.items() for one in statements],
)
def test_what_is_wrong_is_found(
    trouble: Trouble, statement: str, reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    run_id = put_run(points=300)
    for one in statement.split("; "):
        execute(one)
    deep = trouble in DEEP or "total" in statement
    found = list(check_deep(reader) if deep else check(reader))
    assert trouble in {one.trouble for one in found}
    assert {one.run_id for one in found} <= {run_id, "zz", ""}
    assert all(one.remedy and one.cause for one in found)


@pytest.mark.parametrize("dialect", [Dialect.POSTGRES], indirect=True, ids=str)
def test_all_of_it_is_found_in_postgres(
    reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    """One of each kind, in runs of their own."""
    for number, (trouble, statements) in enumerate(WRONG.items()):
        run_id = put_run(f"{number:032}", points=20)
        statement = statements[-1] if trouble is Trouble.ORPHAN else statements[0]
        for one in statement.split("; "):
            where = "AND" if " WHERE " in one else "WHERE"
            execute(one if one.startswith("INSERT") else f"{one} {where} run_id = '{run_id}'")
    assert {*all_findings(reader)} == set(WRONG)
    assert sorted({one.run_id for one in (*check(reader), *check_deep(reader))}) == [
        *(f"{number:032}" for number, trouble in enumerate(WRONG) if trouble != Trouble.ORPHAN),
        "zz",
    ]


@SQLITE_ONLY
@pytest.mark.parametrize("points", [300, 4000])
def test_points_that_are_there_twice_are_found(
    points: int, writer: StoreWriter, reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    run_id = put_run(points=points)
    again = [SeriesBatch(number, reader.samples(run_id, number)) for number in range(3)]
    writer.append(run_id, again)
    writer.seal(run_id)
    execute("DELETE FROM gap")
    assert [one.trouble for one in check(reader)] == [Trouble.POINTS]
    doubled = [one for one in check_deep(reader) if one.trouble is Trouble.DOUBLED]
    assert {one.subject.split(", ")[1] for one in doubled} == {"series 0", "series 1"}


@SQLITE_ONLY
def test_many_runs_are_read_some_at_a_time(
    reader: StoreReader, put_run: PutRun, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radt.store.check._RUNS_AT_A_TIME", 2)
    monkeypatch.setattr("radt.store.check._CHUNKS_AT_A_TIME", 3)
    for key in "abcde":
        put_run(key * 32, points=20)
    execute("UPDATE chunk SET chunk_no = 5 WHERE series_no = 2")
    execute("UPDATE chunk SET checksum = 1 WHERE series_no = 1")
    found = [(one.run_id[0], one.trouble) for one in (*check(reader), *check_deep(reader))]
    assert found == [
        *((key, Trouble.CHUNK) for key in "abcde"),
        *((key, Trouble.DAMAGED) for key in "abcde"),
    ]


def run_check(*arguments: str, code: int) -> str:
    done = CliRunner().invoke(command, ["check", *arguments], standalone_mode=False)
    assert done.exception is None, done.exception
    assert done.return_value == code, done.output
    return done.output


@SQLITE_ONLY
def test_the_command_says_what_is_wrong_and_exits_with_1(
    home: Home, put_run: PutRun, execute: Execute
) -> None:
    run_id = put_run(points=20)
    assert run_check("--deep", "--no-mlflow", code=0).endswith("no findings\n")
    execute("UPDATE ledger SET missed = missed + 1")
    (home.path / "runs" / "unknown").mkdir()
    text = run_check("--no-mlflow", code=1)
    assert f"run {run_id}, smi: 22 samples expected, but 20 received and 3 missed" in text
    assert "belongs to no run" in text
    (report,) = json.loads(run_check("--no-mlflow", "--json", code=1))["stores"]
    assert [one["trouble"] for one in report["findings"]] == ["ledger", "spool"]
    assert report["counts"]["points"] == 63


@SQLITE_ONLY
def test_a_folder_that_went_too_early_is_found(
    home: Home, put_run: PutRun, execute: Execute
) -> None:
    run_id = put_run(
        points=20, spool="/former/place", host=platform.node(), tracking_uri="sqlite:///x.db"
    )
    folder = home.run_dir(run_id).path
    assert "no findings" in run_check("--no-mlflow", code=0)
    execute("UPDATE run SET delivery_done_ns = NULL")
    assert f"its folder {folder} is gone" in run_check("--no-mlflow", code=1)
    folder.mkdir(parents=True)
    assert "no findings" in run_check("--no-mlflow", code=0)


@SQLITE_ONLY
def test_runs_that_only_mlflow_has_are_found_and_the_reverse(
    home: Home, put_run: PutRun, execute: Execute
) -> None:
    uri = home.default_tracking_uri
    assert not (home.path / "mlflow.db").exists()
    put_run("a" * 32, points=20)
    run_check(code=0)
    assert not (home.path / "mlflow.db").exists()  # asking makes none

    client = MlflowClient(uri)
    tags = [{"radt.run_id": key * 32} for key in "abc"] + [{}]
    runs = [client.create_run("0", tags=one).info.run_id for one in tags]
    put_run("d" * 32, points=20, mlflow_run_id="gone", tracking_uri=uri)
    execute("UPDATE run SET mlflow_run_id = :id WHERE run_id = :own", id=runs[0], own="a" * 32)
    execute(f"INSERT INTO pruned VALUES ('{'c' * 32}', 'nothing', 1, 1, 0)")
    text = run_check(code=1)
    assert f"run {'b' * 32}: is {runs[1]} in MLflow" in text
    assert f"run {'d' * 32}: MLflow no longer has its run gone" in text
    assert text.endswith("2 findings\n")


@SQLITE_ONLY
def test_an_mlflow_that_is_down_is_no_finding(home: Home, put_run: PutRun) -> None:
    put_run(points=20)
    text = run_check("--tracking-uri", "http://me:secret@127.0.0.1:9", code=0)
    assert "cannot be reached" in text
    assert "secret" not in text
