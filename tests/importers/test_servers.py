"""Imports from MLflow servers into SQLite and Postgres, of archives too, and by commands."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from mlflow.entities import Metric
from playwright.sync_api import expect

from radt.cli import main
from radt.delivery.archive.spool import ArchiveSpool
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.imports import MlflowImports
from radt.importers import mlflow
from radt.importers.mlflow_import import MlflowImport
from radt.masking import with_driver
from radt.model import RunStatus
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.frontend.conftest import Demo, Watched
from tests.frontend.conftest import browser as browser
from tests.frontend.conftest import front as front
from tests.frontend.conftest import serve as serve
from tests.frontend.conftest import store_path as store_path
from tests.frontend.conftest import tab as tab
from tests.frontend.conftest import watched as watched
from tests.importers.mlflow_support import (
    BEGAN_MS,
    Study,
    contents,
    history,
    import_all,
    mlflow_history,
    revisions,
)
from tests.support.mlflow_server import MlflowServer
from tests.support.waiting import wait_until

LIGHTNING = {"mlflow.source.name": "train.py", "mlflow.user": "me", "mlflow.note.content": "# note"}


def radt(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(one) for one in arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def on_server(mlflow_server: MlflowServer, tmp_path: Path) -> Study:
    """An experiment of the test's own on the server that all tests share."""
    return Study(mlflow_server.uri, f"study {tmp_path.parent.name} {tmp_path.name}")


def test_a_server_and_a_postgres_store(
    on_server: Study, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "POINTS_PER_PAGE", 700)
    sweep = on_server.run("sweep", "RUNNING")
    ids = [
        on_server.run(
            f"trial {n}",
            parent=sweep,
            start_ms=BEGAN_MS + n,
            tags=LIGHTNING,
            params={"lr": "0.1"},
            loss=[n + 0.1, float("nan"), n + 0.3],
            **{"system/gpu_0_utilization_percentage": [50.0, 60.0]},
        )
        for n in range(3)
    ]
    many = on_server.run("many")
    points = [Metric("loss", at / 7, BEGAN_MS + at, at) for at in range(1500)]
    for at in range(0, len(points), 1000):
        on_server.client.log_batch(many, metrics=points[at : at + 1000])
    assert import_all(on_server.uri, database, on_server.name).imported == 4
    with StoreReader(database) as reader:
        for run_id in (*ids, many):
            found = {key.split()[0]: one for key, one in history(reader, run_id).items()}
            logged = mlflow_history(on_server.client, run_id)
            assert list(found.values()) == [logged[key] for key in sorted(logged)]
        assert [reader.run(one).letter for one in ids] == ["a", "b", "c"]
        assert reader.params(ids[0]) == {"lr": "0.1"}
        assert reader.tags(ids[0]).items() >= LIGHTNING.items()
    before = revisions(database)
    assert import_all(on_server.uri, database, on_server.name).unchanged == 4
    assert revisions(database) == before
    on_server.log(ids[0], "loss", [9.0], BEGAN_MS + 60_000, 3)
    assert import_all(on_server.uri, database, on_server.name).updated == 1
    with StoreReader(database) as reader:
        assert history(reader, ids[0])["loss"] == mlflow_history(on_server.client, ids[0])["loss"]


@pytest.mark.long
def test_postgres_and_a_folder_as_mlflows_own_stores(
    database: str, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name, uri in (("a", with_driver(database)), ("b", str(tmp_path / "mlruns"))):
        study = Study(uri, name)
        run_id = study.run("run", "RUNNING", loss=[1.0, 2.0], acc=[0.5])
        assert import_all(uri, store, name).imported == 1
        study.log(run_id, "loss", [3.0], BEGAN_MS + 10_000, 2)
        assert import_all(uri, store, name).updated == 1
        with StoreReader(store) as reader:
            assert history(reader, run_id) == mlflow_history(study.client, run_id)
            assert "***" in reader.run(run_id).tracking_uri or name == "b"


def test_archives_come_in_full_resolution(on_server: Study, tmp_path: Path, store: Path) -> None:
    """Of what radt recorded MLflow has a part: the archive has all of it, also as it grows."""
    demo = Demo(tmp_path / "bench" / "radt.db", "gpu-01")
    demo.workload(on_server.name, "solo", [demo.run("a", "cnn", 2.0)])
    run_id = demo.run_ids["solo a"]
    tags = {"radt.run_id": run_id, "radt.workload_id": "w"}
    mlflow_id = on_server.run("solo a", "RUNNING", tags=tags, loss=[7.0])
    on_server.run("theirs", loss=[1.0])

    def archive(status: RunStatus) -> None:
        with StoreReader(demo.store) as reader:
            run = reader.run(run_id)
        ended_ns = run.created_ns + 2_000_000_000 if status.ended else None
        demo.writer.put_run(replace(run, status=status, ended_ns=ended_ns))
        spool = ArchiveSpool(tmp_path / "spool" / "radt")
        with StoreReader(demo.store) as reader:
            spool.write_bundle(reader, run_id)
        for file in spool.waiting(run_id):
            on_server.client.log_artifact(mlflow_id, str(file), "radt")
            file.unlink()

    result = import_all(on_server.uri, store, on_server.name)
    assert (result.imported, result.without_archive) == (1, 1)
    archive(RunStatus.RUNNING)
    result = import_all(on_server.uri, store, on_server.name)
    assert (result.imported, result.unchanged) == (1, 1)
    before = revisions(store)
    assert import_all(on_server.uri, store, on_server.name).unchanged == 2
    assert revisions(store) == before
    archive(RunStatus.FINISHED)
    on_server.client.set_terminated(mlflow_id)
    result = import_all(on_server.uri, store, on_server.name)
    assert (result.updated, result.unchanged, result.failed) == (1, 1, [])
    with StoreReader(store) as reader, StoreReader(demo.store) as recorded:
        assert history(reader, run_id) == history(recorded, run_id)
        assert reader.run(run_id).status is RunStatus.FINISHED
        assert not reader.run(run_id).is_from_mlflow
    before = revisions(store)
    assert import_all(on_server.uri, store, on_server.name).unchanged == 2
    assert revisions(store) == before
    demo.writer.close()


def test_an_archive_that_arrives_after_the_end_of_its_run(
    on_server: Study, tmp_path: Path, store: Path
) -> None:
    """The archive could not be uploaded at once; one process imports all the time."""
    demo = Demo(tmp_path / "bench" / "radt.db", "gpu-01")
    demo.workload(on_server.name, "solo", [demo.run("a", "cnn", 2.0)])
    run_id = demo.run_ids["solo a"]
    demo.writer.close()
    tags = {"radt.run_id": run_id, "radt.workload_id": "w"}
    mlflow_id = on_server.run("solo a", tags=tags, loss=[7.0])
    source = mlflow.MlflowSource(on_server.uri, [on_server.name])
    with StoreWriter(store) as writer:
        importing = MlflowImport(source, writer)
        source.connect()
        assert importing.run().without_archive == 1
        spool = ArchiveSpool(tmp_path / "spool" / "radt")
        with StoreReader(demo.store) as reader:
            spool.write_bundle(reader, run_id)
        for file in spool.waiting(run_id):
            on_server.client.log_artifact(mlflow_id, str(file), "radt")
        source.connect()
        result = importing.run()
    assert (result.imported, result.without_archive, result.failed) == (1, 0, [])


def test_the_command(
    mlflow_server_with_auth: MlflowServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server, home = mlflow_server_with_auth, tmp_path / "home"
    variables = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    user, password = (server.client_environ[name] for name in variables)
    for name, value in zip(variables, (user, password), strict=True):
        monkeypatch.setenv(name, value)
    study = Study(server.uri, f"study {tmp_path.parent.name} {tmp_path.name}")
    study.run("run", loss=[1.0, 2.0])
    for name in variables:
        monkeypatch.delenv(name)
    source = f"mlflow:http://{user}:{quote(password)}@127.0.0.1:{server.port}"
    where = f"http://***@127.0.0.1:{server.port}"
    capsys.readouterr()
    assert radt("import", source, "--experiment", study.name, "--home", home) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        f"{where} → {home / 'radt.db'}",
        "",
        "  imported 1 run, 0 updated, 0 unchanged",
    ]
    assert password not in output.err
    assert radt("import", source, "--experiment", study.name[:-1], "--home", home) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"radt: MLflow at {where} has no experiment '{study.name[:-1]}'",
        f"  Did you mean '{study.name}'?",
    ]
    assert radt("import", f"mlflow:{server.uri}", "--home", home) == 1
    refused = capsys.readouterr().err.splitlines()
    assert len(refused) == 2
    assert refused[0].startswith(f"radt: cannot read from MLflow at {server.uri}: ")
    assert radt("import", "--experiment", "x", tmp_path, "--home", home) == 2


#: Imports, and is killed where it writes its n-th run.
_IMPORT_AND_DIE = """
import os, signal, sys
from radt.cli import main
from radt.store.writer import StoreWriter

left, put_run = int(sys.argv[1]), StoreWriter.put_run

def put_some(writer, run):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    put_run(writer, run)

StoreWriter.put_run = put_some
main(["import", sys.argv[2]])
"""


def test_a_killed_import_goes_on(study: Study, tmp_path: Path, store: Path) -> None:
    """SIGKILL in the middle, again and again: in the end all of it is there, once."""
    for number in range(12):
        study.run("train", start_ms=BEGAN_MS + number, a=[1.0, 2.0], b=[3.0])
    whole = tmp_path / "whole.db"
    import_all(study.uri, whole)
    for wanted in (2, 6):
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT_AND_DIE, str(wanted), f"mlflow:{study.uri}"],
            env={**os.environ, "RADT_HOME": str(store.parent)},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
    with StoreReader(store) as reader:
        assert len(reader.runs()) == 1 + 5
    import_all(study.uri, store)
    assert contents(store) == contents(whole)


@pytest.mark.long
def test_a_thousand_runs(study: Study, store: Path) -> None:
    """All have one name; MLflow's client would take minutes to log them, so one is copied."""
    first = study.run("train", m=[1.0, 2.0])
    path = study.uri.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("runs", "tags", "metrics", "latest_metrics"):
            rows = connection.execute(f"SELECT * FROM {table} LIMIT 0")
            columns = [name for name, *_ in rows.description]
            values = ", ".join(f":{one}" if one == "run_uuid" else one for one in columns)
            connection.executemany(
                f"INSERT INTO {table} SELECT {values} FROM {table} WHERE run_uuid = :first",
                [{"run_uuid": f"{number:032x}", "first": first} for number in range(999)],
            )
    assert import_all(study.uri, store).imported == 1000
    with StoreReader(store) as reader:
        runs = reader.runs()
        assert len({run.workload for run in runs}) == 1000
        assert history(reader, f"{500:032x}") == history(reader, first)
    before = revisions(store)
    assert import_all(study.uri, store).unchanged == 1000
    assert revisions(store) == before


def test_the_dashboard_imports_and_compares(
    on_server: Study, serve: Callable[..., str], store_path: Path, watched: Watched
) -> None:
    """`radt dashboard --tracking-uri`: a run of MLflow alone is drawn, and a later one comes."""
    run_id = on_server.run("theirs", loss=[3.0, 2.0, 1.0])
    Demo(store_path).writer.close()
    imports = MlflowImports(on_server.uri, StoreAddress.of(store_path))
    source = CachedStore(store_path, imports)
    try:
        url = serve(source=source)
        page = watched.page
        chosen = f"{quote(on_server.name, safe='')}:r{run_id[:12]}"
        wait_until(lambda: imports.news().complete_ns, "the first import")
        page.goto(f"{url}/compare?s={chosen}")
        expect(page.locator(".card:not([hidden]) .main-svg").first).to_be_visible()
        expect(page.locator(".card:not([hidden])").first).to_contain_text("loss")
        page.goto(f"{url}/system")
        expect(page.locator("#system-imports")).to_contain_text(on_server.uri)
        expect(page.locator("#system-imports")).to_contain_text("imported")
        assert watched.errors == []
        process = imports.pid
        assert process is not None
    finally:
        source.close()
    wait_until(lambda: not Path(f"/proc/{process}").exists(), "its process has ended")


@pytest.mark.long
def test_a_server_that_is_away_is_on_the_system_page(
    serve: Callable[..., str], store_path: Path, watched: Watched
) -> None:
    Demo(store_path).writer.close()
    imports = MlflowImports("http://me:secret@127.0.0.1:1", StoreAddress.of(store_path))
    source = CachedStore(store_path, imports)
    try:
        page = watched.page
        page.goto(f"{serve(source=source)}/system")
        expect(page.locator("#system-imports")).to_contain_text("no connection")
        expect(page.locator("#outage")).to_contain_text("Check the address")
        assert "secret" not in page.content()
    finally:
        source.close()


def test_the_process_ends_with_the_dashboard(study: Study, store: Path) -> None:
    study.run("run", loss=[1.0])
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "radt.importers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps({"tracking_uri": study.uri, "store": str(store)}) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if summary := json.loads(line)["summary"]:
            assert summary == "imported 1 run, 0 updated, 0 unchanged"
            break
    assert process.poll() is None
    process.stdin.close()
    assert process.wait() == 0
    process.stdout.close()
