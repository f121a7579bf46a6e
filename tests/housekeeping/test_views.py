"""SQL for people: the views say what the reader says, quickly, and the documentation's SQL runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from radt.store.backend import Dialect
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch
from radt.store.writer import StoreWriter
from tests.housekeeping.conftest import COUNTER, GAUGE, rows

PutRun = Callable[..., str]
DOCS = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
VIEWS = ("experiments", "workloads", "runs", "summaries", "overview", "markers")
ON_POSTGRES = pytest.mark.parametrize("dialect", [Dialect.POSTGRES], indirect=True, ids=str)


def dicts(reader: StoreReader, statement: str, **row: object) -> list[dict[str, Any]]:
    with reader.snapshot() as connection:
        return [dict(found) for found in connection.execute(text(statement), row).mappings()]


def seconds(value: str | datetime) -> float:
    """Of a time as either database gives it."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    assert value.tzinfo is not None
    return value.astimezone(UTC).timestamp()


def test_runs_workloads_and_experiments(reader: StoreReader, put_run: PutRun) -> None:
    run_id = put_run(points=100)
    put_run("b" * 32, points=10, ended_ns=None, status="RUNNING", workload_id=f"w-{run_id}")
    run = reader.run(run_id)
    shown, other = dicts(reader, "SELECT * FROM runs ORDER BY run_id")
    assert (shown["status"], shown["experiment"], shown["letter"]) == ("FINISHED", "digits", "a")
    assert shown["duration_s"] == 100.0
    assert run.started_ns is not None
    assert seconds(shown["started_at"]) == pytest.approx(run.started_ns / 1e9, abs=0.001)
    params = shown["params"]
    assert (json.loads(params) if isinstance(params, str) else params)["File"] == "train.py"
    assert (other["ended_at"], other["duration_s"], other["pruned_at"]) == (None, None, None)
    (workload,) = dicts(reader, "SELECT * FROM workloads")
    assert (workload["runs"], workload["label"]) == (2, "1")
    (experiment,) = dicts(reader, "SELECT * FROM experiments")
    assert (experiment["runs"], experiment["finished"]) == (2, 1)


def test_summaries_say_what_the_reader_says(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    run_id = put_run(points=4000)
    writer.append(run_id, [SeriesBatch(3, _samples(1e308, 1e308))])
    for _ in range(2):
        known = reader.summary([run_id])
        found = dicts(
            reader, "SELECT * FROM summaries WHERE run_id = :id ORDER BY series_no", id=run_id
        )
        assert len(found) == len(known) == 4
        for row, one in zip(found, known, strict=True):
            assert (row["metric"], row["unit"]) == (one.series.metric, one.series.unit)
            assert (row["count"], row["min"], row["max"]) == (one.count, one.minimum, one.maximum)
            assert (row["mean"], row["first"], row["last"]) == (one.mean, one.first, one.last)
            assert seconds(row["ended_at"]) == pytest.approx(one.last_ns / 1e9, abs=0.001)
        assert found[3]["mean"] is None  # the sum is too large
        left = [row["points_left"] for row in found]
        assert left == [reader.point_counts(run_id)[number] for number in range(4)]
        prune_run(reader, writer, run_id, Keep.SUMMARIES)
    assert left[0] < 400
    (run,) = dicts(reader, "SELECT * FROM runs")
    assert seconds(run["pruned_at"]) > 1.7e9


def _samples(*values: float) -> Samples:
    return Samples(np.full(len(values), 2**61), np.array(values))


def test_overview_and_markers(reader: StoreReader, put_run: PutRun) -> None:
    run_id = put_run(points=4000)
    of_gauge = "SELECT * FROM overview WHERE run_id = :id AND series_no = 0 ORDER BY chunk_no"
    found = dicts(reader, of_gauge, id=run_id)
    assert [row["count"] for row in found] == [3600, 400]
    (summary,) = (one for one in reader.summary([run_id]) if one.series.series_no == GAUGE)
    assert max(row["max"] for row in found) == summary.maximum
    assert seconds(found[0]["ended_at"]) < seconds(found[1]["started_at"])
    epochs = dicts(reader, "SELECT * FROM markers WHERE run_id = :id ORDER BY step", id=run_id)
    assert [row["duration_s"] for row in epochs] == [1333.0] * 3
    assert [row["step"] for row in epochs] == [0, 1, 2]


def test_a_condition_on_the_run_uses_an_index(
    dialect: Dialect, writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    put_run(points=5)
    with writer.rewriting("") as connection:
        for table in ("run", "series", "chunk", "marker", "param", "tag"):
            _multiply(connection, table, 300)
        connection.execute(text("ANALYZE"))
    for view in ("runs", "summaries", "overview", "markers", "series"):
        query = f"SELECT * FROM {view} WHERE run_id = 'x5'"
        with reader.snapshot() as connection:
            if dialect is Dialect.SQLITE:
                plan = rows(connection, f"EXPLAIN QUERY PLAN {query}")
                whole = [row for row in plan if re.match(r"SCAN (?!stored\b)", str(row[-1]))]
            else:
                connection.execute(text("SET LOCAL enable_seqscan = off"))
                plan = rows(connection, f"EXPLAIN {query}")
                whole = [*_unconditional(" ".join(str(row[0]) for row in plan))]
            assert whole == [], plan


def _unconditional(plan: str) -> Iterator[str]:
    """Scans of Postgres that read all of a table or index."""
    kinds = r"(?:Index Scan|Index Only Scan|Bitmap Index Scan|Seq Scan)\b"
    for scan in re.split(rf"(?={kinds})", plan):
        if re.match(kinds, scan) and "Index Cond" not in scan and " on pruned" not in scan:
            yield scan


def _multiply(connection: Any, table: str, times: int) -> None:
    """The rows of the one run again for many others."""
    columns = list(connection.execute(text(f"SELECT * FROM {table} LIMIT 1")).keys())
    others = ", ".join(name for name in columns if name != "run_id")
    connection.execute(
        text(
            f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {times}) "
            f"INSERT INTO {table} (run_id, {others}) SELECT 'x' || n.i, {others} "
            f"FROM {table} CROSS JOIN n"
        )
    )


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL)


@pytest.fixture
def filled(writer: StoreWriter, put_run: PutRun) -> None:
    """An experiment of a run alone and of two that shared a GPU and took twice as long."""
    put_run("a" * 32, points=30)
    for key, letter in (("b", "a"), ("c", "b")):
        run_id = put_run(key * 32, points=60, workload="2", letter=letter, days_ago=0.01)
        writer.put_tags(run_id, {"radt.workload": "2"})


@ON_POSTGRES
@pytest.mark.parametrize("number", range(len(blocks("sql"))))
def test_examples_of_the_documentation_run(number: int, filled: None, reader: StoreReader) -> None:
    found = dicts(reader, blocks("sql")[number])
    assert found
    if number == 0:
        assert [(row["workload"], row["slowdown"], row["throughput_gain"]) for row in found] == [
            ("1", 1.0, 1.0),
            ("2", 2.0, 1.0),
        ]


@ON_POSTGRES
def test_energy_of_a_shared_gpu_counts_once(filled: None, reader: StoreReader) -> None:
    (row,) = dicts(reader, blocks("sql")[1])
    known = {
        (one.series.run_id[0], one.series.series_no): one
        for one in reader.summary(["a" * 32, "b" * 32, "c" * 32])
    }
    joules = 0.0
    for run in "ab":
        one = known[run, COUNTER]
        assert one.last is not None
        assert one.minimum is not None
        joules += one.last - (one.first or 0.0)
    assert row["kwh"] == pytest.approx(joules / 3.6e6, rel=0.5)


@ON_POSTGRES
def test_grafanas_panels_run(filled: None, reader: StoreReader) -> None:
    (board,) = (json.loads(block) for block in blocks("json"))
    (variable,) = board["templating"]["list"]
    (experiment,) = dicts(reader, variable["query"])[0].values()
    for panel in board["panels"]:
        for target in panel["targets"]:
            statement = re.sub(
                r"\$__timeFilter\((\w+)\)",
                r"\1 BETWEEN '2020-01-01T00:00:00Z' AND '2099-01-01T00:00:00Z'",
                target["rawSql"].replace("$experiment", experiment),
            )
            found = dicts(reader, statement)
            assert found
            if target["format"] == "time_series":
                assert {"time", "metric", "mean"} <= found[0].keys()


def test_columns_are_those_of_the_documentation(reader: StoreReader) -> None:
    for view in (*VIEWS, "series"):
        with reader.snapshot() as connection:
            there = list(connection.execute(text(f"SELECT * FROM {view} LIMIT 0")).keys())
        row = re.search(rf"^\| `{view}`.*\|(.*)\|$", DOCS, re.MULTILINE)
        assert row is not None
        assert re.findall(r"`(\w+)`", row[1]) == there
