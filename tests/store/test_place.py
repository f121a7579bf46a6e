"""A data folder that was moved or copied: which paths in its databases follow it."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from radt.home import Home
from radt.model import RunStatus
from radt.store import place
from radt.store.place import COPIED, NOTE_FILE
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from tests.support.bench import mlflow_database

SERVER = "http://mlflow.example.org"
#: Where users keep artifacts: these stay.
ELSEWHERE = ("s3://bucket/artifacts", "file:///shared/artifacts", "/shared/radt-data/artifacts")


def record(
    home: Home, run_id: str, uri: str, *, spool: Path | None = None, ended_ns: int | None = 2
) -> None:
    folder = home.run_dir(run_id).path if spool is None else spool
    with StoreWriter(home.store_path) as writer:
        workload = f"w{run_id}"
        writer.put_workload(WorkloadRecord(workload, "e", "1", 1, tracking_uri=uri))
        run = RunRecord(run_id, workload, "e", "1", "a", "n", 1, RunStatus.FINISHED)
        writer.put_run(replace(run, spool=str(folder), tracking_uri=uri, ended_ns=ended_ns))
        if ended_ns:
            writer.update_workload(workload, ended_ns=ended_ns)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A folder with a run of its own, one of a server, an imported one, and one that is on."""
    home = Home(tmp_path / "a b#" / "radt-data").create()
    shutil.copy(mlflow_database(), home.mlflow_database)
    client = MlflowClient(home.default_tracking_uri)
    for number, location in enumerate((home.artifacts.as_uri(), str(home.artifacts), *ELSEWHERE)):
        experiment = client.create_experiment(str(number), location)
        client.create_run(experiment)
    with closing(sqlite3.connect(home.mlflow_database)) as database, database:
        for key in ("mlflow.artifactLocation", "note"):
            database.execute(
                "INSERT INTO trace_tags (key, value, request_id) VALUES (?, ?, 't')",
                (key, f"{home.artifacts}/t"),
            )
    for run_id, uri in (("own", home.default_tracking_uri), ("server", SERVER)):
        home.run_dir(run_id).create()
        record(home, run_id, uri)
    imported = Home(tmp_path / "imported" / "radt-data")
    record(home, "imported", imported.default_tracking_uri, spool=imported.run_dir("imported").path)
    for run_id, uri in (("own-on", home.default_tracking_uri), ("server-on", SERVER)):
        record(home, run_id, uri, ended_ns=None)
    return home


def locations(home: Home) -> list[str]:
    with closing(sqlite3.connect(home.mlflow_database)) as database:
        return [
            text
            for column, table in (
                ("artifact_location", "experiments WHERE name <> 'Default'"),
                ("artifact_uri", "runs"),
                ("value", "trace_tags WHERE key <> 'note'"),
            )
            for (text,) in database.execute(f"SELECT {column} FROM {table}")
        ]


def runs(home: Home) -> dict[str, RunRecord]:
    with StoreReader(home.store_path) as reader:
        return {run.run_id: run for run in reader.runs()}


def own_places(home: Home) -> list[str]:
    """What names the folder itself."""
    names = (str(home.path), home.path.as_uri())
    texts = [*locations(home), *(run.spool for run in runs(home).values())]
    return [text for text in texts if text.startswith(tuple(f"{name}/" for name in names))]


def moved(home: Home, *, is_noted: bool = True, is_copy: bool = False) -> Home:
    here = Home(home.path.parent.with_name("100% é") / "radt-data")
    here.path.parent.mkdir()
    if is_copy:
        shutil.copytree(home.path, here.path)
    else:
        home.path.rename(here.path)
    if not is_noted:
        (here.path / NOTE_FILE).unlink()
    return here


@pytest.mark.parametrize("is_copy", [False, True])
@pytest.mark.parametrize("is_noted", [False, True])
def test_paths_into_the_folder_follow_it(home: Home, *, is_noted: bool, is_copy: bool) -> None:
    count, before = len(own_places(home)), runs(home)
    elsewhere = [text for text in locations(home) if text.startswith(ELSEWHERE)]
    here = moved(home, is_noted=is_noted, is_copy=is_copy)
    StoreWriter(here.store_path).close()
    assert len(own_places(here)) == count
    assert [text for text in locations(here) if text.startswith(ELSEWHERE)] == elsewhere
    after = runs(here)
    assert after["own"].tracking_uri == here.default_tracking_uri
    assert after["server"].tracking_uri == SERVER
    assert after["imported"] == before["imported"], "it is of another data folder"
    assert Path((here.path / NOTE_FILE).read_text()) == here.path
    if is_copy:
        assert len(own_places(home)) == count
        assert runs(home) == before
        assert after["own-on"].end_reason == after["server-on"].end_reason == COPIED
        assert after["own-on"].tracking_uri == here.default_tracking_uri
        assert after["server-on"].tracking_uri == "", "the original says there how it ends"
    else:
        assert after["server-on"].tracking_uri == SERVER
        assert not after["own-on"].end_reason


def test_a_folder_within_its_former_place_is_repaired_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(own_places(home))
    between = home.path.rename(home.path.with_name("between"))
    home.path.mkdir()
    here = Home(between.rename(home.path / "radt-data"))
    with monkeypatch.context() as broken:
        broken.setattr(place, "_repair_runs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # as if it were killed
            StoreWriter(here.store_path)
    for _ in range(2):
        StoreWriter(here.store_path).close()
        assert len(own_places(here)) == count
        assert not [text for text in locations(here) if "radt-data/radt-data/radt-data" in text]


def test_another_name_of_the_folder_changes_nothing(home: Home, tmp_path: Path) -> None:
    before = locations(home), runs(home)
    link = tmp_path / "link"
    link.symlink_to(home.path)
    StoreWriter(link / "radt.db").close()
    assert (locations(home), runs(home)) == before
    here = moved(home)
    link.unlink()
    link.symlink_to(here.path)
    StoreWriter(link / "radt.db").close()
    assert runs(here)["own"].spool == str(link / "runs" / "own")


def test_readers_change_nothing(home: Home) -> None:
    before = locations(home), runs(home)
    here = moved(home)
    assert (locations(here), runs(here)) == before


def test_a_database_of_mlflow_that_cannot_be_read_keeps_no_value_from_the_store(
    home: Home,
) -> None:
    here = moved(home)
    content = here.mlflow_database.read_bytes()
    here.mlflow_database.write_bytes(b"no database" * 1000)
    record(here, "new", here.default_tracking_uri)
    here.mlflow_database.write_bytes(content)
    StoreWriter(here.store_path).close()
    assert not [text for text in locations(here) if str(home.path) in text]
    assert runs(here)["own"].spool == str(here.run_dir("own").path)
