"""MLflow databases with runs that radt never saw: made by MLflow's client, read, and shown."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect
from plotly.utils import PlotlyJSONEncoder
from sqlalchemy import event

from radt.errors import RunNotFoundError, StoreError, UsageError
from radt.frontend.app import _where
from radt.frontend.catalog import read_catalog, read_experiments
from radt.frontend.charts.chartdata import chart_data
from radt.frontend.charts.spec import BoardSpec, ChartSpec, Level
from radt.frontend.chosen import choose
from radt.frontend.foreign import points
from radt.frontend.foreign.connection import MlflowConnection
from radt.frontend.foreign.joint import JointReader
from radt.frontend.foreign.places import beside_of
from radt.frontend.keepers import NothingRecordedError
from radt.frontend.pages.workload_cards import devices_section
from radt.frontend.pages.workload_log import log_panel
from radt.frontend.pages.workload_parts import facts_bar
from radt.frontend.pages.workload_tables import files_section
from radt.frontend.picks import Pick
from radt.frontend.source import Source, Stretch
from radt.frontend.view import View
from radt.frontend.workload.cards import devices_of
from radt.frontend.workload.ledger import ledger_of
from radt.frontend.workload.life import BarKind
from radt.frontend.workload.subject import find_subject
from radt.frontend.workload.whole import read_all
from radt.model import SOFTWARE, RunStatus, Scope
from radt.store.address import StoreAddress
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesRecord, SummaryRecord
from radt.store.writer import StoreWriter
from radt.uris import with_driver
from tests.frontend.compare_support import open_page
from tests.frontend.mlflow_support import (
    BEGAN_MS,
    HOSTILE,
    Study,
    add_points,
    mlflow_file,
    mlflow_template,
    opened,
    refreshed,
    study,
)
from tests.support.links import Link

__all__ = ["mlflow_file", "mlflow_template", "opened", "study"]

MS = 1_000_000


def series(source: Source, run_id: str) -> dict[str, SeriesRecord]:
    return {one.metric: one for one in source.reader.series([run_id])}


def samples(source: Source, run_id: str, metric: str = "loss") -> Samples:
    """All points, as a chart of a run that goes on reads them."""
    return source.samples(Stretch(series(source, run_id)[metric]), ended=False)


def summary(source: Source, run_id: str, metric: str = "loss") -> SummaryRecord:
    return {one.series.metric: one for one in source.reader.summary([run_id])}[metric]


# -- what is listed --------------------------------------------------------------------------------


def test_runs_become_workloads(study, opened):
    alone = study.run("alone", loss=[1.0], params={"lr": "0.1"}, tags={"team": "vision"})
    sweep = study.run("sweep", start_ms=BEGAN_MS + 100_000, took_ms=300_000)
    trials = [
        study.run(f"trial {n}", parent=sweep, start_ms=BEGAN_MS + 110_000 + n * 1000, loss=[1.0])
        for n in range(3)
    ]
    bad = study.run("bad", "FAILED", start_ms=BEGAN_MS + 500_000)
    going_on = study.run("now", "RUNNING", start_ms=BEGAN_MS + 600_000, loss=[1.0])
    source = opened(study.uri)
    source.revision()
    (one,) = read_experiments(source)
    assert (one.name, one.workload_count, one.run_count) == ("study", 4, 6)
    catalog = read_catalog(source, "study")
    assert [
        (w.record.label, w.status, [(r.run_id, r.short) for r in w.runs]) for w in catalog.workloads
    ] == [
        ("alone", RunStatus.FINISHED, [(alone, "alone")]),
        (
            "sweep",
            RunStatus.FINISHED,
            [(run_id, f"sweep {at}") for run_id, at in zip(trials, "abc", strict=True)],
        ),
        ("bad", RunStatus.FAILED, [(bad, "bad")]),
        ("now", RunStatus.RUNNING, [(going_on, "now")]),
    ]
    run = catalog.runs[alone].record
    assert (run.started_ns, run.ended_ns) == (BEGAN_MS * MS, (BEGAN_MS + 60_000) * MS)
    assert (run.name, run.mlflow_run_id, run.command) == ("train.py", alone, "/home/me/train.py")
    assert catalog.runs[trials[1]].record.name == "trial 1"
    assert catalog.runs[going_on].record.ended_ns is None
    assert source.reader.params(alone) == {"lr": "0.1"}
    tags = source.reader.tags(alone)
    assert (tags["team"], tags["mlflow.user"]) == ("vision", "me")
    assert not {"mlflow.runName", "mlflow.parentRunId"} & tags.keys()
    assert source.reader.find_run(alone[:8]).run_id == alone
    assert source.reader.runs(status=RunStatus.RUNNING) == [catalog.runs[going_on].record]


def test_a_parent_with_metrics_is_a_run_of_its_workload(study, opened):
    parent = study.run("search", best=[0.5])
    inner = study.run("inner", parent=parent, start_ms=BEGAN_MS + 1000)
    leaf = study.run("leaf", parent=inner, start_ms=BEGAN_MS + 2000, loss=[1.0])
    child = study.run("child", parent=parent, start_ms=BEGAN_MS + 3000, loss=[1.0])
    workloads = read_catalog(opened(study.uri), "study").workloads
    assert [(w.record.label, [r.run_id for r in w.runs]) for w in workloads] == [
        ("search", [parent, child]),
        ("inner", [leaf]),
    ]


def test_what_was_deleted_is_not_shown(study, opened):
    gone = study.run("gone", loss=[1.0])
    orphan = study.run("orphan", parent=gone, loss=[1.0])
    study.client.delete_run(gone)
    other = Study(study.uri, "other")
    other.run("lost", loss=[1.0])
    other.client.delete_experiment(other.experiment_id)
    source = opened(study.uri)
    assert [one.name for one in read_experiments(source)] == ["study"]
    assert list(read_catalog(source, "study").runs) == [orphan]
    study.client.restore_run(gone)
    refreshed(source)
    assert [r.short for r in read_catalog(source, "study").runs.values()] == ["gone a", "gone b"]


def test_equal_names_are_told_apart(study, opened):
    ids = [study.run("train", start_ms=BEGAN_MS + n * 1000, loss=[1.0]) for n in range(3)]
    runs = read_catalog(opened(study.uri), "study").runs
    assert [runs[one].short for one in ids] == ["train", "train (2)", "train (3)"]


def test_runs_of_radt_are_shown_once_and_from_the_store(study, opened, demo, store_path):
    demo.workload("study", "ours", [demo.run("a", "cnn", 2.0)])
    stored = demo.run_ids["ours a"]
    with StoreReader(store_path) as reader:
        workload_id = reader.run(stored).workload_id
    of_radt = {"radt.workload_id": workload_id, "radt.workload": "ours"}
    parent = study.run("ours", tags=of_radt)
    study.run("ours a", parent=parent, tags={**of_radt, "radt.run_id": stored}, loss=[7.0])
    # Another machine's, of which there is nothing but what MLflow has.
    elsewhere = {"radt.run_id": "e" * 32, "radt.workload_id": "f" * 32, "radt.workload": "far"}
    study.run("far a", tags={**elsewhere, "radt.letter": "a", "radt.host": "gpu-9"}, loss=[3.0])
    foreign = study.run("theirs", loss=[5.0])
    source = opened(study.uri, store_path)
    runs = read_catalog(source, "study").runs
    assert set(runs) == {stored, "e" * 32, foreign}
    assert runs["e" * 32].record.host == "gpu-9"
    (one,) = read_experiments(source)
    assert (one.workload_count, one.run_count) == (3, 3)
    assert len(samples(source, stored)) > 1
    assert samples(source, "e" * 32).values.tolist() == [3.0]
    assert {one.run_id for one in source.reader.series(list(runs))} == set(runs)
    assert len(source.reader.markers(list(runs))) == 5
    both = choose(source, View(picks=(Pick("study"),)))
    data = chart_data(source, both, ChartSpec("loss"), BoardSpec(), None)
    assert data is not None
    assert len(data.lines) == 3
    # A store that comes later: until then the run is MLflow's.
    demo.workload("study", "later", [demo.run("a", "cnn", 2.0)])
    later = demo.run_ids["later a"]
    study.run("x", tags={**of_radt, "radt.run_id": later, "radt.workload_id": "d" * 32}, loss=[1.0])
    refreshed(source)
    assert len(read_catalog(source, "study").runs) == 4
    assert len(samples(source, later)) > 1


def test_the_joint_reader_reads_all_that_a_store_does():
    """What it does not say itself would be asked of a database that it does not have."""
    mediated = {"__enter__", "__exit__", "find_run", "params", "tags"}
    public = {
        name
        for name, what in inspect.getmembers(StoreReader, inspect.isfunction)
        if not name.startswith("_") and name not in mediated
    }
    assert public - set(vars(JointReader)) == set()


def test_nothing_of_mlflow_is_nothing_recorded(tmp_path, opened, mlflow_template, demo, store_path):
    source = opened("sqlite:///" + str(tmp_path / "no.db"))
    with pytest.raises(NothingRecordedError):
        _ = source.reader
    assert source.revision().startswith("!")
    # MLflow's tables without a run; no store.
    source = opened(f"sqlite:///{mlflow_template}")
    with pytest.raises(NothingRecordedError):
        choose(source, View())
    # A store without MLflow's file beside it is a store alone.
    demo.quickstart()
    source = Source(store_path, None, beside_of(StoreAddress.of(store_path)))
    assert [one.name for one in read_experiments(source)] == ["quickstart"]
    assert sorted(path.name for path in store_path.parent.glob("mlflow*")) == []
    source.close()


def test_the_database_of_the_data_folder_is_found(study, mlflow_file, opened):
    study.run("theirs", loss=[1.0])
    source = opened("", mlflow_file.with_name("radt.db"))
    assert [one.name for one in read_experiments(source)] == ["study"]


@pytest.mark.parametrize("uri", ["mysql://me:secret@db/x", "sqlite:/x.db", "./mlruns", "http://m"])
def test_what_cannot_be_shown_is_said(uri):
    with pytest.raises(UsageError, match="is no MLflow database") as caught:
        MlflowConnection.of(uri)
    assert "secret" not in str(caught.value)


# -- points ----------------------------------------------------------------------------------------


def test_points_are_those_that_were_logged(study, opened):
    values = [0.5, math.nan, -2.0, math.inf, 3.5]
    run_id = study.run("one")
    study.log(run_id, "loss", values, first_step=10)
    study.log(run_id, "flat", [1.0, 2.0], step_ms=0)  # two steps at one time
    source = opened(study.uri)
    found = samples(source, run_id)
    assert found.times_ns.tolist() == [(BEGAN_MS + at * 1000) * MS for at in range(5)]
    assert found.values.tolist() == pytest.approx(values, nan_ok=True)
    assert found.steps is not None
    assert found.steps.tolist() == [10, 11, 12, 13, 14]
    flat = samples(source, run_id, "flat")
    assert flat.values.tolist() == [1.0, 2.0]
    assert flat.steps is not None
    known = summary(source, run_id)
    assert (known.count, known.minimum, known.maximum) == (5, -2.0, 3.5)
    assert (known.mean, known.first, known.last) == (pytest.approx(2 / 3), 0.5, 3.5)
    assert (known.first_ns, known.last_ns) == (found.times_ns[0], found.times_ns[-1])
    window = Stretch(series(source, run_id)["loss"], (BEGAN_MS + 1000) * MS, (BEGAN_MS + 2999) * MS)
    assert source.samples(window, ended=True).times_ns.tolist() == found.times_ns[1:3].tolist()
    assert source.reader.point_counts(run_id) == {0: 2, 1: 5}
    assert source.reader.mean(run_id, 1) == pytest.approx(2 / 3)
    assert source.reader.points_after(run_id, 1, 3, 5).values.tolist() == [math.inf, 3.5]


def test_without_steps_there_are_none(study, opened):
    run_id = study.run("one")
    for at in range(3):
        study.log(run_id, "loss", [float(at)], BEGAN_MS + at * 1000)
    assert samples(opened(study.uri), run_id).steps is None


def test_a_spike_among_fifty_thousand_points_is_drawn(study, mlflow_file, opened):
    run_id = study.run("long")
    values = np.sin(np.arange(50_000) / 500)
    values[31_234] = 40.0
    add_points(mlflow_file, run_id, "loss", values.tolist())
    source = opened(study.uri)
    data = chart_data(source, choose(source, View()), ChartSpec("loss"), BoardSpec(), None)
    assert data is not None
    assert np.nanmax(data.lines[0].curve.values) == 40.0
    assert len(data.lines[0].curve.values) < 10_000
    few = source.reader.envelope(run_id, 0, max_points=500)
    assert (len(few) <= 500, few.values.max()) == (True, 40.0)
    assert summary(source, run_id).count == 50_000


def test_memory_is_bounded_and_a_window_is_whole(study, mlflow_file, opened, monkeypatch):
    monkeypatch.setattr(points, "MAX_POINTS", 4000)
    monkeypatch.setattr(points, "BLOCK_ROWS", 1000)
    monkeypatch.setattr(points, "_LEFT", 100)
    monkeypatch.setattr("radt.frontend.foreign.connection.BLOCK_ROWS", 1000)
    run_id = study.run("long")
    values = np.sin(np.arange(20_000) / 500)
    values[[5_000, 12_345]] = 40.0, -40.0
    add_points(mlflow_file, run_id, "loss", values.tolist())
    source = opened(study.uri)
    found = samples(source, run_id)
    assert len(found) <= 4000 + 1000
    assert (found.values.max(), found.values.min()) == (40.0, -40.0)
    assert (np.diff(found.times_ns) > 0).all()
    start_ns, end_ns = (BEGAN_MS + 12_000) * MS, (BEGAN_MS + 12_999) * MS
    window = source.samples(Stretch(series(source, run_id)["loss"], start_ns, end_ns), ended=True)
    assert window.values.tolist() == values[12_000:13_000].tolist()


def test_system_metrics_say_what_they_are(study, opened):
    run_id = study.run("one", loss=[1.0])
    for key in (
        "system/cpu_utilization_percentage",
        "system/gpu_0_utilization_percentage",
        "system/gpu_1_utilization_percentage",
        "system/node-7/gpu_0_power_usage_watts",
        "system/network_receive_megabytes",
        "system/of_my_own",
        "gpu_0_utilization_percentage",
    ):
        study.log(run_id, key, [1.0, 2.0])
    found = {
        (one.metric, one.entity): (one.listener, one.scope, one.unit)
        for one in opened(study.uri).reader.series([run_id])
    }
    mine = (SOFTWARE, Scope.RUN, "")
    assert found == {
        ("loss", ""): mine,
        ("system/cpu_utilization_percentage", ""): ("mlflow", Scope.HOST, "%"),
        ("system/gpu_utilization_percentage", "gpu0"): ("mlflow", Scope.GPU, "%"),
        ("system/gpu_utilization_percentage", "gpu1"): ("mlflow", Scope.GPU, "%"),
        ("system/gpu_power_usage_watts", "node-7 gpu0"): ("mlflow", Scope.GPU, "W"),
        ("system/network_receive_megabytes", ""): ("mlflow", Scope.HOST, "MB"),
        ("system/of_my_own", ""): mine,
        ("gpu_0_utilization_percentage", ""): mine,
    }


def test_machines_of_nested_runs_are_not_taken_for_one(study, opened):
    """MLflow does not say where a run ran: two of them may have had two machines."""
    parent = study.run("sweep")
    key = "system/cpu_utilization_percentage"
    for at in range(2):
        start_ms = BEGAN_MS + at * 100_000
        study.run(f"trial {at}", parent=parent, start_ms=start_ms, **{key: [10.0, 20.0]})
    source = opened(study.uri)
    data = chart_data(source, choose(source, View()), ChartSpec(key), BoardSpec(), None)
    assert data is not None
    assert len(data.lines) == 2


def test_a_series_keeps_its_number(study, opened):
    run_id = study.run("one", "RUNNING", loss=[1.0])
    source = opened(study.uri)
    before = series(source, run_id)["loss"].series_no
    study.log(run_id, "accuracy", [0.5])
    refreshed(source)
    assert series(source, run_id)["loss"].series_no == before
    assert samples(source, run_id, "accuracy").values.tolist() == [0.5]


# -- growth ----------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The statements that are sent to databases from now on."""
    from sqlalchemy import Engine

    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


def test_of_a_run_that_goes_on_only_what_is_new_is_read(study, opened, asked):
    run_id = study.run("one", "RUNNING", loss=[float(at) for at in range(100)])
    source = opened(study.uri)
    revision = source.revision()
    assert len(samples(source, run_id)) == summary(source, run_id).count == 100
    assert refreshed(source) == revision
    study.log(run_id, "loss", [7.0, -9.0], BEGAN_MS + 100_000, 100)
    asked.clear()
    assert refreshed(source) != revision
    found = samples(source, run_id)
    assert found.values.tolist() == [*map(float, range(100)), 7.0, -9.0]
    known = summary(source, run_id)
    assert (known.count, known.minimum, known.first) == (102, -9.0, 0.0)
    assert known.mean == pytest.approx(found.values.mean())
    reading = [one for one in asked if "FROM metrics" in one]
    assert reading
    assert all("timestamp" in one.partition("WHERE")[2] for one in reading)


def test_what_came_late_is_found_at_the_end(study, opened):
    run_id = study.run("one", "RUNNING", loss=[float(at) for at in range(100)])
    source = opened(study.uri)
    samples(source, run_id)
    study.log(run_id, "loss", [99.5], BEGAN_MS + 5500, 1000)
    study.client.set_terminated(run_id, "FINISHED", BEGAN_MS + 200_000)
    refreshed(source)
    ended = source.samples(Stretch(series(source, run_id)["loss"]), ended=True)
    assert len(ended) == 101
    assert (np.diff(ended.times_ns) > 0).all()


def test_sums_of_a_long_run_stay_right(study, opened, monkeypatch):
    monkeypatch.setattr("radt.frontend.foreign.histories._RECOUNTED", 20)
    run_id = study.run("one", "RUNNING", loss=[1.0])
    source = opened(study.uri)
    summary(source, run_id)
    everything = [1.0]
    for round_no in range(1, 6):
        fresh = [float(round_no * 100 + at) for at in range(40)]
        study.log(run_id, "loss", fresh, BEGAN_MS + round_no * 40_000, round_no * 40)
        everything += fresh
        refreshed(source)
        known = summary(source, run_id)
        assert known.count == len(everything)
        assert known.mean == pytest.approx(np.mean(everything))
        assert (known.maximum, known.last) == (max(everything), everything[-1])


# -- nothing is changed ----------------------------------------------------------------------------


def state(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_nothing_is_written_and_no_file_made(mode, study, mlflow_file, opened):
    run_id = study.run("one", loss=[1.0])
    with closing(sqlite3.connect(mlflow_file)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
    before = state(mlflow_file.parent)
    assert list(before) == ["mlflow.db"]
    source = opened(study.uri)
    source.revision()
    assert len(samples(source, run_id)) == 1
    assert state(mlflow_file.parent) == before
    with pytest.raises(StoreError), source.reader._beside._database.snapshot() as connection:
        connection.exec_driver_sql("DELETE FROM runs")
    source.close()
    assert state(mlflow_file.parent) == before


def test_what_another_program_has_open_is_read_as_it_is_now(study, mlflow_file, opened):
    run_id = study.run("one", "RUNNING", loss=[1.0])
    with closing(sqlite3.connect(mlflow_file, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        source = opened(study.uri)
        revision = source.revision()
        assert len(samples(source, run_id)) == 1
        for at in range(1, 4):
            writer.execute("BEGIN")
            writer.execute(
                "INSERT INTO metrics VALUES ('loss', ?, ?, ?, ?, 0)",
                (2.0, BEGAN_MS + at, run_id, at),
            )
            writer.execute("UPDATE latest_metrics SET step = ?, timestamp = ?", (at, BEGAN_MS + at))
            writer.execute("COMMIT")
            before, revision = revision, refreshed(source)
            assert revision != before
            assert len(samples(source, run_id)) == at + 1


def test_a_file_that_is_no_database_leaves_the_store_shown(tmp_path, opened, demo, store_path):
    demo.quickstart()
    wrong = tmp_path / "wrong.db"
    wrong.write_bytes(b"nothing of the kind" * 100)
    source = opened(f"sqlite:///{wrong}", store_path)
    source.revision()
    assert [one.name for one in read_experiments(source)] == ["quickstart"]
    assert source.outage is not None
    assert "wrong.db" in source.outage.message
    alone = opened(f"sqlite:///{wrong}")
    assert alone.revision().startswith("!")


# -- Postgres --------------------------------------------------------------------------------------


def test_postgres_with_and_without_a_store_in_it(postgres, database, opened):
    study = Study(with_driver(database))
    run_id = study.run("one", "RUNNING", loss=[1.0, math.nan, math.inf, 4.0])
    sweep = study.run("sweep")
    trial = study.run("trial", parent=sweep, loss=[2.0], params={"lr": "1"})
    with Link(postgres.port) as link:
        through = database.replace(f":{postgres.port}/", f":{link.port}/")
        source = opened(through, through)
        revision = source.revision()
        assert set(read_catalog(source, "study").runs) == {run_id, trial}
        assert source.reader.params(trial) == {"lr": "1"}
        found = samples(source, run_id)
        assert found.values.tolist() == pytest.approx([1.0, math.nan, math.inf, 4.0], nan_ok=True)
        known = summary(source, run_id)
        assert (known.count, known.mean, known.first) == (4, 2.5, 1.0)
        # News is seen, and only asked for.
        study.log(run_id, "loss", [5.0], BEGAN_MS + 4000, 4)
        assert refreshed(source) != revision
        assert samples(source, run_id).values[-1] == 5.0
        assert summary(source, run_id).count == 5
        with pytest.raises(StoreError), source.reader._beside._database.snapshot() as connection:
            connection.exec_driver_sql("DELETE FROM runs")
        # A store in the same database.
        StoreWriter(database).close()
        source._keeper._store._retry_at = 0.0
        refreshed(source)
        assert source.reader.store is not None
        assert set(read_catalog(source, "study").runs) == {run_id, trial}
        # Away for a while: what was read stays, and comes back by itself.
        revision = refreshed(source)
        link.refuse()
        assert refreshed(source) == revision
        assert source.outage is not None
        assert set(read_catalog(source, "study").runs) == {run_id, trial}
        link.pass_through()
        source._keeper._store._retry_at = source.reader._beside._database._retry_at = 0.0
        refreshed(source)
        assert source.outage is None


# -- the pages -------------------------------------------------------------------------------------


def test_pages_of_somebody_without_radt(study, opened, serve, watched, wait_until):
    """Names are text, charts are drawn, and a run that goes on grows on the page."""
    parent = study.run(HOSTILE, params={"text": HOSTILE})
    for at in range(3):
        study.run(
            f"{at} {HOSTILE}",
            parent=parent,
            start_ms=BEGAN_MS + at * 1000,
            loss=np.linspace(1, 0.1, 50).tolist(),
            params={"text": HOSTILE},
        )
    live = study.run("live", "RUNNING", start_ms=BEGAN_MS + 50_000, loss=[3.0, 2.0])
    url = serve(source=opened(study.uri))
    page = watched.page
    page.goto(url)
    expect(page.locator("#select-workloads .select-row", has_text=HOSTILE)).to_be_visible()
    open_page(watched, url, cards=1)
    expect(page.locator("#live")).to_have_text("1 run live")
    expect(page.locator(".pick", has_text=f"0 {HOSTILE}")).to_be_visible()

    def last_of_live() -> float:
        return float(
            page.locator('.card[data-metric="loss"] .js-plotly-plot').evaluate(
                "g => { const t = g._fullData.find(t => t.name.startsWith('live'));"
                " return t ? t.y[t.y.length - 1] : -1; }"
            )
        )

    wait_until(lambda: last_of_live() == 2.0, "the run is drawn")
    study.log(live, "loss", [1.25], BEGAN_MS + 52_000, 2)
    wait_until(lambda: last_of_live() == 1.25, "the new point is drawn")
    study.client.set_terminated(live, "FINISHED", BEGAN_MS + 60_000)
    expect(page.locator("#live")).to_have_text("idle")
    assert page.title() == "radt"
    assert page.locator("img").count() == 0
    assert watched.errors == []


def test_a_workload_that_radt_never_saw(study, opened):
    """It is found by its id, has a bar a run, and nothing is promised that nobody recorded."""
    parent = study.run("sweep")
    ids = [
        study.run(
            f"run {at}",
            parent=parent,
            start_ms=BEGAN_MS + at * 1000,
            loss=[1.0, 0.5],
            **{"system/gpu_0_utilization_percentage": [50.0, 60.0]},
        )
        for at in range(2)
    ]
    source = opened(study.uri)
    subject = find_subject(source, View(workload=parent[:12]))
    assert (subject.workload_id, subject.run_ids) == (parent, tuple(ids))
    reading = read_all(source, subject)
    bars = [[(bar.kind, bar.start_s, bar.end_s) for bar in life.bars] for life in reading.lives]
    assert bars == [[(BarKind.ALIVE, 0, 60)], [(BarKind.ALIVE, 1, 61)]]
    assert [strip.title for strip in reading.strips] == ["GPU busy gpu0"]
    facts, devices, log, files = (
        json.dumps(part, cls=PlotlyJSONEncoder)
        for part in (
            facts_bar(subject, reading.lives, ledger_of(source, subject), {}),
            devices_section(devices_of(subject, {}, {}, ())),
            log_panel(source, subject, View()),
            files_section(subject, {}, has_samples=set()),
        )
    )
    assert "Devices" not in facts
    assert "Start skew" not in facts
    assert "not known" in devices
    assert "any core" not in devices
    assert "output.log" not in log + files
    with pytest.raises(RunNotFoundError):
        find_subject(source, View(workload="0" * 12))


def test_a_report_says_that_mlflow_has_no_epochs(study, opened, serve, watched):
    study.run("one", loss=[1.0, 0.5])
    study.run("live", "RUNNING", loss=[1.0, 0.5])
    page = watched.page
    page.goto(f"{serve(source=opened(study.uri))}/report")
    expect(page.locator(".report-nothing h2")).to_have_text(
        "MLflow's runs have no epochs: nothing to compare"
    )
    expect(page.locator("#report-facts")).to_contain_text("2 runs of MLflow left out")
    assert watched.errors == []


def test_the_header_names_what_is_there(study, opened, demo, store_path):
    """Who uses MLflow alone sees no store that does not exist; else both are named."""

    def where(source: Source) -> tuple[str, str]:
        found = json.loads(json.dumps(_where(source), cls=PlotlyJSONEncoder))["props"]
        return found["children"], found["title"]

    path = study.uri.removeprefix("sqlite:///")
    assert where(opened(study.uri)) == ("of mlflow/mlflow.db", f"Shows MLflow's database {path}")
    demo.quickstart("ours")
    assert where(opened(study.uri, store_path)) == (
        "home/radt.db and of mlflow/mlflow.db",
        f"Shows {store_path}, and MLflow's database {path}",
    )


def test_compare_leads_to_the_workload(study, opened, serve, watched):
    parent = study.run("sweep")
    for at in range(2):
        study.run(f"run {at}", parent=parent, loss=[1.0, 0.5])
    open_page(watched, serve(source=opened(study.uri)), cards=1)
    watched.page.locator(".pick-label a", has_text="sweep").click()
    expect(watched.page.locator(".workload-head h1")).to_have_text("sweep")
    assert f"w={parent[:12]}" in watched.page.url
    assert watched.errors == []


def test_what_each_run_measured_of_its_machine_has_the_colour_of_the_run(study, opened):
    parent = study.run("sweep")
    cpu = {"system/cpu_utilization_percentage": [50.0, 60.0]}
    for at in range(2):
        study.run(f"run {at}", parent=parent, start_ms=BEGAN_MS + at, loss=[1.0, 0.5], **cpu)
    source = opened(study.uri)
    chosen = choose(source, View(picks=(Pick("study"),)))

    def colours(metric: str) -> list[int]:
        spec = ChartSpec(metric, level=Level.RUN)
        data = chart_data(source, chosen, spec, BoardSpec(), None)
        assert data is not None
        return [line.ordinal for line in data.lines]

    assert colours("system/cpu_utilization_percentage") == colours("loss")
    assert len(set(colours("loss"))) == 2
