"""Data that is written during the last upload of a run or workload is uploaded, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from radt.delivery.mlflow.target import DeliveryError, ErrorKind, MlflowTarget
from radt.home import RunDir
from radt.model import RunStatus
from radt.store.notes import Edit, edit_notes
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from tests.delivery.mlflow.lab import SECOND_NS, START_NS, Lab, Threads

EDIT = Edit("renamed", "worth reading", {"reviewed": "yes"}, starred=True)
EDITED = {
    "mlflow.runName": "renamed",
    "mlflow.note.content": "worth reading",
    "reviewed": "yes",
    "radt.starred": "yes",
}


@pytest.fixture
def run(lab: Lab) -> RunRecord:
    """An ended run that exists in MLflow."""
    (run,) = lab.add_workload()
    lab.start(run)
    lab.log(run, "power", [100.0] * 20, series_no=1, listener="smi")
    lab.end(run)
    lab.creator().register_pending()
    return lab.record(run)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str, Callable[[], None]], None]:
    """Have something happen before the first call of a method."""

    def once(owner: type, name: str, happen: Callable[[], None]) -> None:
        method, done = getattr(owner, name), list[None]()

        def replaced(*arguments: object) -> object:
            if not done:
                done.append(None)
                happen()
            return method(*arguments)

        monkeypatch.setattr(owner, name, replaced)

    return once


Once = Callable[[type, str, Callable[[], None]], None]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(MlflowTarget, "terminate"), (StoreWriter, "mark_run_delivered")],
    ids=["last request", "mark"],
)
def test_an_edit_of_notes(lab: Lab, run: RunRecord, once: Once, owner: type, name: str) -> None:
    once(owner, name, lambda: edit_notes(lab.writer, [run.run_id], EDIT))
    model = RunDir(Path(run.spool)).artifacts / "model.pt"
    model.write_text("weights")
    uploader = lab.uploader()
    with pytest.raises(DeliveryError, match="written during its upload") as caught:
        uploader.deliver(run)
    assert model.exists() or name == "mark_run_delivered", "the spool is emptied at the end"
    assert caught.value.kind is ErrorKind.BUSY
    assert [due.run_id for due in lab.reader.runs_to_deliver(lab.tracking_uri)] == [run.run_id]
    uploader.deliver(run)
    assert lab.mlflow_run(run).data.tags.items() >= EDITED.items()
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []


def test_a_change_before_the_upload_begins(lab: Lab, run: RunRecord) -> None:
    lab.writer.update_run(run.run_id, status=RunStatus.KILLED)
    lab.uploader().deliver(run)
    assert lab.mlflow_run(run).info.status == "KILLED"
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []


def test_an_edit_while_the_uploader_finishes(lab: Lab, run: RunRecord, once: Once) -> None:
    once(MlflowTarget, "terminate", lambda: edit_notes(lab.writer, [run.run_id], EDIT))
    Threads(lab).finish()
    assert lab.mlflow_run(run).data.tags.items() >= EDITED.items()
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert lab.reader.workloads_to_deliver(lab.tracking_uri) == []


def test_the_collectors_last_values(lab: Lab, run: RunRecord, once: Once) -> None:
    """The runner has ended the run before, in the store."""

    def collect() -> None:
        last = {"series_no": 1, "listener": "smi", "first_ns": START_NS + 20 * SECOND_NS}
        lab.log(run, "power", [300.0] * 20, **last)  # type: ignore[arg-type]
        lab.writer.deliver_again(run.run_id)

    once(MlflowTarget, "terminate", collect)
    uploader = lab.uploader()
    with pytest.raises(DeliveryError, match="written during its upload"):
        uploader.deliver(run)
    assert [value for _, value, _ in lab.history(run, "system/power")] == [100.0, 100.0]
    assert lab.mlflow_run(run).data.metrics["summary/power/mean"] == 100.0
    uploader.deliver(run)
    assert [value for _, value, _ in lab.history(run, "system/power")] == [100.0] * 2 + [300.0] * 2
    assert lab.mlflow_run(run).data.metrics["summary/power/mean"] == 200.0
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []


def test_a_status_of_a_workload_that_is_closed(lab: Lab, run: RunRecord, once: Once) -> None:
    uploader = lab.uploader()
    uploader.deliver(run)

    def supersede() -> None:
        lab.writer.update_run(run.run_id, status=RunStatus.KILLED)
        lab.writer.deliver_again(run.run_id)

    once(MlflowTarget, "terminate", supersede)
    with pytest.raises(DeliveryError, match="written during its upload"):
        uploader.close_workload(run.workload_id)
    (workload,) = lab.reader.workloads_to_deliver(lab.tracking_uri)
    assert workload.mlflow_run_id is not None
    lab.deliver_all()
    assert lab.client.get_run(workload.mlflow_run_id).info.status == "KILLED"
    assert lab.mlflow_run(run).info.status == "KILLED"
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert lab.reader.workloads_to_deliver(lab.tracking_uri) == []
