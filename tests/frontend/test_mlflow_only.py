"""A dashboard that reaches an MLflow server only: real server, archives and browser."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from playwright.sync_api import expect

from radt.archive.spool import ArchiveSpool
from radt.archive.write import write_archive
from radt.errors import TrackingError
from radt.frontend import loading, server
from radt.frontend.load_archives import Task
from radt.frontend.loading import Load, Loading, LoadState
from radt.frontend.mlflow_api import MlflowApi
from radt.frontend.server_runs import RUN_ID_TAG, WORKLOAD_ID_TAG
from radt.model import RunStatus
from radt.store.address import StoreAddress
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tracking import registrar
from radt.tracking.names import run_name
from tests.frontend.conftest import BEGAN_NS, LOSS, SECOND_NS, Demo
from tests.support.http_links import SERVER_ERROR, WELCOME, HttpLink
from tests.support.links import Link
from tests.tracking.server import Server, free_port

CARD = ".card .main-svg"


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
        page.goto(f"{url}/?e={name}&r={ids['solo a'][:12]}")
        expect(page.locator("#facts")).to_have_text("3 workloads · 6 runs · 1 failed")
        expect(page.locator(CARD).first).to_be_visible()
        assert numbers(store_path, ids["solo a"]) == numbers(bench.demo.store, ids["solo a"])
        with StoreReader(store_path) as reader:
            assert [run.run_id for run in reader.runs()] == [ids["solo a"]]
        noted = page.locator(".picker-note", has_text="on server")
        expect(noted).to_have_count(7)  # five runs and their two workloads
        # A workload is opened: two browsers ask, each run is loaded once.
        other = watched.page.context.new_page()
        other.goto(f"{url}/?e={name}")
        page.goto(f"{url}/?e={name}")
        expect(page.locator(".card")).to_have_count(4)
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
    page.goto(f"{serve(store=database, server=tracking.uri)}/?e={name}")
    expect(page.locator("#facts")).to_have_text("2 workloads · 2 runs · 2 machines")
    expect(page.locator(".picker-row", has_text="gpu-01")).to_be_visible()
    expect(page.locator(".picker-note", has_text="on server")).to_have_count(0)
    assert numbers(database, run_id) == numbers(bench.demo.store, run_id)
    assert watched.errors == []


def test_a_run_without_an_archive_says_so_until_it_comes(bench, name, tracking, serve, watched):
    bench.demo.workload(name, "solo", [bench.demo.run("a", "cnn", 2.0)])
    run_id = bench.demo.run_ids["solo a"]
    mlflow_id = bench.bring(run_id, archive=False)
    watched.page.goto(f"{serve(server=tracking.uri)}/?e={name}")
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
    page.goto(f"{serve(server=tracking.uri)}/?e={name}")
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
    expect(page.locator(".picker-note", has_text="OOM")).to_be_visible()
    expect(page.locator("#live")).to_have_text("idle")


def test_a_damaged_archive_is_named(bench, name, tracking, serve, tmp_path, watched):
    bench.demo.workload(name, "solo", [bench.demo.run("a", "cnn", 2.0)])
    mlflow_id = bench.bring(bench.demo.run_ids["solo a"])
    broken = tmp_path / "markers-00001.parquet"
    broken.write_bytes(b"no parquet at all")
    bench.client.log_artifact(mlflow_id, str(broken), "radt")
    watched.page.goto(f"{serve(server=tracking.uri)}/?e={name}")
    said = watched.page.locator(".loads-trouble")
    expect(said).to_contain_text("markers-00001.parquet is damaged")


def test_a_server_that_fails_for_a_while(bench, name, tracking, serve, watched):
    bench.demo.workload(name, "solo", [bench.demo.run("a", "cnn", 2.0)])
    bench.bring(bench.demo.run_ids["solo a"])
    page = watched.page
    with HttpLink(tracking.port) as link:
        link.answer(SERVER_ERROR, times=None)
        page.goto(serve(server=link.uri))
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
        watched.page.goto(serve(server=link.uri))
        expect(watched.page.locator(".state h1")).to_contain_text("cannot be reached")
        expect(watched.page.locator(".state p").first).to_contain_text("it is tried again")
        expect(watched.page.locator(".state .detail")).to_have_text("Connection refused")


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
