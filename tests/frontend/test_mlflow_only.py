"""A dashboard that reaches an MLflow server only: real server, archives and browser."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from playwright.sync_api import expect

from radt.archive.spool import ArchiveSpool
from radt.archive.write import write_archive
from radt.errors import TrackingError
from radt.frontend import loading, mlflow_api, server
from radt.frontend.foreign import fetching
from radt.frontend.foreign.remote import ServerBeside
from radt.frontend.load_archives import Task
from radt.frontend.loading import Load, Loading, LoadState
from radt.frontend.mlflow_api import MlflowApi
from radt.frontend.server_runs import RUN_ID_TAG, WORKLOAD_ID_TAG, read_run
from radt.model import RunStatus
from radt.store.address import StoreAddress
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tracking import registrar
from radt.tracking.names import run_name
from tests.frontend.conftest import BEGAN_NS, LOSS, SECOND_NS, Demo
from tests.frontend.mlflow_support import BEGAN_MS, HOSTILE, Study
from tests.support.http_links import SERVER_ERROR, WELCOME, HttpLink
from tests.support.links import Link
from tests.tracking.server import Server, free_port

CARD = ".card:not([hidden]) .main-svg"
STATUS = "#select-runs .select-row"


@dataclass
class Bench:
    """The machine that trains: its store, and what it brought to the server."""

    demo: Demo
    client: MlflowClient
    folder: Path

    def bring(self, run_id: str, *, archive: bool = True) -> str:
        """A run as the deliverer brings it there; MLflow's id."""
        with StoreReader(self.demo.store) as reader:
            run = reader.run(run_id)
        found = self.client.get_experiment_by_name(run.experiment)
        experiment_id = (
            found.experiment_id if found else self.client.create_experiment(run.experiment)
        )
        tags = {
            RUN_ID_TAG: run.run_id,
            WORKLOAD_ID_TAG: run.workload_id,
            "radt.workload": run.workload,
            "radt.letter": run.letter,
            "radt.host": run.host,
            "radt.devices": run.devices,
        }
        made = self.client.create_run(
            experiment_id,
            run.created_ns // 1_000_000,
            tags,
            run_name(run.workload, run.letter, run.name),
        )
        mlflow_id = str(made.info.run_id)
        if archive:
            self.archive(run_id, mlflow_id)
        if run.status.ended:
            self.end(run_id, mlflow_id)
        return mlflow_id

    def archive(self, run_id: str, mlflow_id: str) -> None:
        """What the store has of it, as its archive."""
        folder = self.folder / run_id
        spool = ArchiveSpool(folder / "radt")
        with StoreReader(self.demo.store) as reader, spool.locked():
            write_archive(reader, run_id, spool)
            for waiting in spool.waiting():
                self.client.log_artifact(
                    mlflow_id, str(waiting.file), str(Path(waiting.path).parent)
                )

    def end(self, run_id: str, mlflow_id: str) -> None:
        with StoreReader(self.demo.store) as reader:
            run = reader.run(run_id)
        self.client.set_tag(mlflow_id, "radt.status", run.status.value)
        assert run.ended_ns is not None
        self.client.set_terminated(mlflow_id, run.status.mlflow, run.ended_ns // 1_000_000)


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tracking server for all tests here; artifacts go through it."""
    made = Server(tmp_path_factory.mktemp("mlflow"), free_port())
    try:
        made.up()
        yield made
    finally:
        made.kill()


@pytest.fixture
def bench(tracking: Server, tmp_path: Path) -> Iterator[Bench]:
    """A machine with an experiment of its own name on the server."""
    demo = Demo(tmp_path / "bench" / "radt.db", "gpu-01")
    client = MlflowClient(tracking.uri)
    yield Bench(demo, client, tmp_path / "archives")
    demo.writer.close()
    for experiment in client.search_experiments():
        if experiment.name != "Default":
            client.delete_experiment(experiment.experiment_id)


@pytest.fixture
def name(tmp_path: Path) -> str:
    """Of an experiment; MLflow keeps the names of deleted ones."""
    return f"study {tmp_path.parent.name} {tmp_path.name}"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REFRESH_S", 0.3)
    monkeypatch.setattr(loading, "RETRY_S", 0.5)
    monkeypatch.setattr(loading, "REFRESH_S", 0.5)


def numbers(store: Path | str, run_id: str) -> list[tuple[object, ...]]:
    """All values of a run, bit by bit."""
    with StoreReader(store) as reader:
        return [
            (
                series.metric,
                samples.times_ns.tolist(),
                samples.values.view(np.int64).tolist(),
                None if samples.steps is None else samples.steps.tolist(),
            )
            for series in reader.series([run_id])
            for samples in [reader.samples(run_id, series.series_no)]
        ]


def test_tags_are_those_that_the_deliverer_sets():
    assert (RUN_ID_TAG, WORKLOAD_ID_TAG) == (registrar.RUN_ID_TAG, registrar.WORKLOAD_ID_TAG)


def address(url: str, name: str, page: str = "/compare", **ids: str) -> str:
    """Of a page that shows these runs of an experiment; without any, all of it."""
    runs = ",".join(f"r{one[:12]}" for one in ids.values())
    return f"{url}{page}?s={quote(name, safe='')}{':' + runs if runs else ''}"


def test_runs_are_listed_and_loaded_when_they_are_opened(
    bench, name, tracking, serve, store_path, watched, wait_until
):
    bench.demo.quickstart(name)
    ids = bench.demo.run_ids
    for run_id in ids.values():
        bench.bring(run_id)
    with HttpLink(tracking.port) as link:
        page = watched.page
        url = serve(server=link.uri)
        # Only what is opened is loaded.
        page.goto(address(url, name, solo=ids["solo a"]))
        expect(page.locator(CARD).first).to_be_visible()
        assert numbers(store_path, ids["solo a"]) == numbers(bench.demo.store, ids["solo a"])
        with StoreReader(store_path) as reader:
            assert [run.run_id for run in reader.runs()] == [ids["solo a"]]
        listed = watched.page.context.new_page()
        listed.goto(address(url, name, "/", solo=ids["solo a"]))
        noted = listed.locator(STATUS, has_text="on server")
        expect(noted).to_have_count(5)
        # An experiment is opened: two browsers ask, each run is loaded once.
        other = watched.page.context.new_page()
        other.goto(address(url, name))
        page.goto(address(url, name))
        expect(page.locator(".card:not([hidden])")).to_have_count(4)
        expect(noted).to_have_count(0)
        wait_until(lambda: page.locator("#loads").is_hidden(), "all loaded")
        asked = [one.path for one in link.requests("get-artifact")]
        assert len(asked) == len(set(asked)) >= 6 * 2
        for run_id in ids.values():
            assert numbers(store_path, run_id) == numbers(bench.demo.store, run_id)
        expect(page.locator(".where")).to_have_text(f"home/radt.db and {link.address}")
    assert watched.errors == []


def test_a_team_store_takes_what_came_to_mlflow_only(
    bench, name, tracking, serve, database, watched
):
    """The dashboard beside both: machines that reach the MLflow server only are in it, too."""
    team = Demo(database, "gpu-02")
    team.workload(name, "near", [team.run("a", "cnn", 2.0)])
    team.writer.close()
    bench.demo.workload(name, "far", [bench.demo.run("a", "cnn", 2.0)])
    run_id = bench.demo.run_ids["far a"]
    bench.bring(run_id)
    page = watched.page
    url = serve(store=database, server=tracking.uri)
    page.goto(address(url, name, "/"))
    rows = page.locator(STATUS)
    expect(rows.filter(has_text="gpu-01")).to_be_visible()
    expect(rows.filter(has_text="gpu-02")).to_be_visible()
    expect(rows.filter(has_text="on server")).to_have_count(0)
    assert numbers(database, run_id) == numbers(bench.demo.store, run_id)
    assert watched.errors == []


def test_a_run_without_an_archive_says_so_until_it_comes(bench, name, tracking, serve, watched):
    bench.demo.workload(name, "solo", [bench.demo.run("a", "cnn", 2.0)])
    run_id = bench.demo.run_ids["solo a"]
    mlflow_id = bench.bring(run_id, archive=False)
    watched.page.goto(address(serve(server=tracking.uri), name))
    said = watched.page.locator(".loads-trouble")
    expect(said).to_contain_text("solo: the server has no archive of this run.")
    expect(said).to_contain_text("15 minutes")
    bench.archive(run_id, mlflow_id)
    expect(watched.page.locator(CARD).first).to_be_visible()
    expect(said).to_have_count(0)


def test_a_running_run_is_loaded_again_as_its_archive_grows(
    bench, name, tracking, serve, store_path, watched, wait_until
):
    run = bench.demo.run("a", "cnn", 4.0, status=RunStatus.RUNNING)
    bench.demo.workload(name, "live", [run])
    mlflow_id = bench.bring(run.run_id)
    page = watched.page
    page.goto(address(serve(server=tracking.uri), name))
    expect(page.locator(CARD).first).to_be_visible()
    expect(page.locator("#live")).to_have_text("1 run live")
    bench.demo.append(run.run_id, BEGAN_NS, LOSS, np.arange(50.0, 60.0), np.ones(10), np.arange(10))
    bench.archive(run.run_id, mlflow_id)
    wait_until(
        lambda: numbers(store_path, run.run_id) == numbers(bench.demo.store, run.run_id),
        "the new values",
    )
    bench.demo.writer.end_run(run.run_id, RunStatus.OOM, BEGAN_NS + 61 * SECOND_NS, 1, "no memory")
    bench.archive(run.run_id, mlflow_id)
    bench.end(run.run_id, mlflow_id)
    expect(page.locator(".pick-note", has_text="OOM")).to_be_visible()
    expect(page.locator("#live")).to_have_text("idle")


def test_a_damaged_archive_is_named(bench, name, tracking, serve, tmp_path, watched):
    bench.demo.workload(name, "solo", [bench.demo.run("a", "cnn", 2.0)])
    mlflow_id = bench.bring(bench.demo.run_ids["solo a"])
    broken = tmp_path / "markers-00001.parquet"
    broken.write_bytes(b"no parquet at all")
    bench.client.log_artifact(mlflow_id, str(broken), "radt")
    watched.page.goto(address(serve(server=tracking.uri), name))
    said = watched.page.locator(".loads-trouble")
    expect(said).to_contain_text("markers-00001.parquet is damaged")


def test_a_server_that_fails_for_a_while(bench, name, tracking, serve, watched):
    bench.demo.workload(name, "solo", [bench.demo.run("a", "cnn", 2.0)])
    bench.bring(bench.demo.run_ids["solo a"])
    page = watched.page
    with HttpLink(tracking.port) as link:
        link.answer(SERVER_ERROR, times=None)
        page.goto(f"{serve(server=link.uri)}/compare")
        expect(page.locator(".state h1")).to_contain_text("answers 500: it fell over")
        link.pass_through()
        expect(page.locator("h1", has_text=name)).to_be_visible()
        expect(page.locator(CARD).first).to_be_visible()
        # What is here stays while it fails again, in another way.
        link.answer(WELCOME, times=None)
        outage = page.locator("#outage")
        expect(outage).to_contain_text("is no MLflow server")
        expect(page.locator(CARD).first).to_be_visible()
        link.pass_through()
        expect(outage).to_be_hidden()


def test_a_server_that_is_not_there_is_said(serve, watched):
    with Link(1, refusing=True) as link:
        watched.page.goto(f"{serve(server=link.uri)}/compare")
        expect(watched.page.locator(".state h1")).to_contain_text("cannot be reached")
        expect(watched.page.locator(".state p").first).to_contain_text("it is tried again")
        expect(watched.page.locator(".state .detail")).to_have_text("Connection refused")


# -- runs that radt never saw -----------------------------------------------------------------


@pytest.fixture
def study(tracking: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Study]:
    """An experiment of somebody who uses MLflow alone; pages of histories are short."""
    monkeypatch.setattr(mlflow_api, "POINTS_A_PAGE", 100)
    monkeypatch.setattr(fetching, "REFRESH_S", 0.3)
    made = Study(tracking.uri, name)
    yield made
    made.client.delete_experiment(made.experiment_id)


def fetched(beside: ServerBeside, run_id: str) -> Callable[[], bool]:
    """Whether a run is here."""
    return lambda: beside.fetches([run_id])[run_id].state is LoadState.LOADED


def test_metrics_are_read_when_runs_are_opened(
    study, name, tracking, serve, store_path, watched, wait_until
):
    """Others' runs beside those of radt; a run that goes on grows on the page."""
    parent = study.run("sweep")
    for at in range(2):
        values = np.linspace(1, 0.1, 20).tolist()
        study.run(HOSTILE, parent=parent, start_ms=BEGAN_MS + at, loss=values, params={"lr": "1"})
    live = study.run("live", "RUNNING", start_ms=BEGAN_MS + 10, loss=[3.0, math.nan, 2.0])
    with HttpLink(tracking.port) as link:
        url = serve(server=link.uri)
        page = watched.page
        page.goto(address(url, name, live=live))
        expect(page.locator(CARD).first).to_be_visible()
        asked = {one.path.partition("run_id=")[2][:32] for one in link.requests("get-history")}
        assert asked == {live}
        chart = page.locator('.card[data-metric="loss"] .js-plotly-plot')

        def last() -> float:
            return float(
                chart.evaluate(
                    "g => { const t = g._fullData.find(t => t.name.startsWith('live'));"
                    " return t ? t.y[t.y.length - 1] : -1; }"
                )
            )

        wait_until(lambda: last() == 2.0, "the run is drawn")
        study.log(live, "loss", [1.25], BEGAN_MS + 10_000, 3)
        wait_until(lambda: last() == 1.25, "the new point is drawn")
        page.goto(address(url, name))
        expect(page.locator(".pick", has_text=HOSTILE)).to_have_count(2)
        wait_until(lambda: page.locator("#loads").is_hidden(), "all are read")
        study.client.set_terminated(live, "FINISHED")
        expect(page.locator("#live")).to_have_text("idle")
    with StoreReader(store_path) as reader:
        assert reader.runs() == []
    assert page.locator("img").count() == 0
    assert watched.errors == []


def test_of_what_grows_the_last_page_is_asked_again(study, tracking, wait_until):
    values = np.sin(np.arange(250.0))
    values[123] = 50.0
    run_id = study.run("one", "RUNNING", loss=values.tolist())
    with HttpLink(tracking.port) as link:
        beside = ServerBeside(link.uri)
        api = MlflowApi(link.uri)
        experiments = {study.experiment_id: study.name}

        def take() -> None:
            pages = api.runs([study.experiment_id], "")
            listed = [
                read_run(one, experiments[study.experiment_id], "") for p in pages for one in p
            ]
            beside.take({one.run.mlflow_id: one for one in listed})

        take()
        beside.open([run_id])
        wait_until(fetched(beside, run_id), "all of it is read")
        assert len(link.requests("get-history")) == 3
        assert beside.samples(run_id, 0).values.tolist() == values.tolist()
        token = beside.change_token()
        study.log(run_id, "loss", [7.0, math.inf], BEGAN_MS + 250_000, 250)
        wait_until(
            lambda: beside.open([run_id]) or len(beside.samples(run_id, 0)) == 252, "the new ones"
        )
        assert beside.change_token() != token
        assert len(link.requests("get-history")) == 4
        assert beside.samples(run_id, 0).values[-1] == math.inf
        (known,) = beside.summary([run_id])
        assert (known.count, known.maximum, known.last) == (252, 50.0, None)
        # What came late is found at the end, when all is read once more.
        study.log(run_id, "loss", [-3.0], BEGAN_MS + 500, 1000)
        study.client.set_terminated(run_id)
        wait_until(
            lambda: beside.open([run_id]) or len(beside.samples(run_id, 0)) == 253, "the late one"
        )
        wait_until(lambda: beside.fetches([run_id])[run_id].ended, "nothing is asked any longer")
        before = len(link.seen)
        beside.open([run_id])
        beside.fetching.look()
        assert not beside.fetching.is_busy
        assert len(link.seen) == before
        beside.close()
        api.close()


def test_metrics_that_cannot_be_read_are_named(study, name, tracking, serve, watched, monkeypatch):
    monkeypatch.setattr(fetching, "RETRY_S", 0.5)
    study.run("one", loss=[1.0, 2.0])
    with HttpLink(tracking.port) as link:
        link.answer(SERVER_ERROR, times=None, path="get-history")
        watched.page.goto(address(serve(server=link.uri), name))
        said = watched.page.locator(".loads-trouble")
        expect(said).to_contain_text("one: MLflow at")
        expect(said).to_contain_text("answers 500: it fell over")
        link.pass_through()
        expect(watched.page.locator(CARD).first).to_be_visible()
        expect(said).to_have_count(0)


def test_memory_for_metrics_is_bounded(study, tracking, wait_until, monkeypatch):
    monkeypatch.setattr(fetching, "_MAX_POINTS", 500)
    monkeypatch.setattr(fetching, "_LEFT", 200)
    monkeypatch.setattr(fetching, "_CACHED_POINTS", 700)
    monkeypatch.setattr(fetching, "_FEWEST", 50)
    values = np.sin(np.arange(1000.0))
    values[777] = 50.0
    ids = [study.run(f"run {at}", loss=values.tolist()) for at in range(2)]
    reading = fetching.Fetching(tracking.uri)
    for run_id in ids:
        reading.want([run_id])
        wait_until(lambda one=run_id: reading.of([one])[one].state is LoadState.LOADED, "read")
    sizes = [len(reading.histories(one)["loss"]) for one in ids]
    assert sum(sizes) <= 900
    for one in ids:
        assert reading.histories(one)["loss"].samples.values.max() == 50.0
    reading.close()


def test_user_and_password_are_those_of_mlflow(mlflow_server_with_auth):
    there = mlflow_server_with_auth
    assert MlflowApi(there.uri, there.client_environ).experiments()
    for environ in ({}, {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": "wröng"}):
        with pytest.raises(TrackingError, match="refuses user and password") as caught:
            MlflowApi(there.uri, environ).experiments()
        assert "MLFLOW_TRACKING_USERNAME" in (caught.value.remedy or "")
    user = there.client_environ["MLFLOW_TRACKING_USERNAME"]
    secret = there.client_environ["MLFLOW_TRACKING_PASSWORD"].replace(" ", "%20")
    with_both = there.uri.replace("://", f"://{user}:{secret}@")
    assert MlflowApi(with_both, {}).experiments()
    assert secret not in MlflowApi(with_both, {}).where


def test_loading_outlives_its_process(bench, name, tracking, store_path, wait_until):
    """Killed while the link stands still; the next one goes on."""
    bench.demo.workload(name, "solo", [bench.demo.run("a", "cnn", 2.0)])
    run_id = bench.demo.run_ids["solo a"]
    task = Task(run_id, bench.bring(run_id))
    store_path.parent.mkdir(parents=True)
    StoreWriter(store_path).close()

    def state() -> Load:
        return loads.of([run_id])[run_id]

    with Link(tracking.port) as link:
        loads = Loading(link.uri, StoreAddress.of(store_path))
        link.stall()
        askers = [threading.Thread(target=loads.want, args=([task],)) for _ in range(8)]
        for asker in askers:
            asker.start()
        wait_until(lambda: link.open_connections > 0, "the process asks")
        pid = loads.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: state().state is LoadState.FAILED, "its end is noticed")
        assert "signal 9" in state().message
        link.pass_through()
        wait_until(lambda: loads.want([task]) or state().state is LoadState.LOADED, "the next one")
        assert state().complete
        assert numbers(store_path, run_id) == numbers(bench.demo.store, run_id)
        loads.close()


def test_the_dashboard_needs_neither_mlflow_nor_arrow():
    program = (
        "import sys; import radt.frontend.app, radt.frontend.serve, radt.frontend.server; "
        "print(*{'mlflow', 'pyarrow', 'pandas', 'boto3'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
