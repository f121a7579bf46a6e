"""Notes of a Postgres store are sent to MLflow; an edit during the request is sent next time."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from mlflow import MlflowClient

from radt.delivery.archive.locations import MlflowLocation
from radt.delivery.notes import send_notes
from radt.store.backend import StoreAddress
from radt.store.notes import Edit, edit_notes
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from tests.support.bench import mlflow_database

RUN_ID = "a" * 32


def test_an_edit_during_the_request_is_sent_next_time(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(mlflow_database(), tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("RADT_TRACKING_URI", uri)
    client, store = MlflowClient(uri), StoreAddress.of(database)
    mlflow_id = client.create_run("0").info.run_id
    send, sent = MlflowLocation.set_tags, list[Mapping[str, str]]()

    with StoreWriter(store) as writer:
        writer.put_workload(WorkloadRecord("w", "e", "1", 1))
        writer.put_run(
            RunRecord(RUN_ID, "w", "e", "1", "a", "n", 1, tracking_uri=uri, mlflow_run_id=mlflow_id)
        )
        edit_notes(writer, [RUN_ID], Edit(text="first", tags={"lab": "a"}))

        def edited_meanwhile(location: MlflowLocation, tags: Mapping[str, str]) -> None:
            sent.append(tags)
            send(location, tags)
            if len(sent) == 1:
                edit_notes(writer, [RUN_ID], Edit(text="second"))

        monkeypatch.setattr(MlflowLocation, "set_tags", edited_meanwhile)
        for _ in range(3):
            send_notes(store, [RUN_ID])
    assert sent == [
        {"mlflow.note.content": "first", "lab": "a"},
        {"mlflow.note.content": "second"},
    ]
    tags = client.get_run(mlflow_id).data.tags
    assert (tags["mlflow.note.content"], tags["lab"]) == ("second", "a")
