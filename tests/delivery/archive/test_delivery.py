"""Archives: written by the real process, uploaded, removed from the spool."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from radt.delivery.archive import __main__ as archiver
from radt.delivery.archive.importing import import_archive
from radt.delivery.archive.read import Archive
from radt.delivery.mlflow.archives import (
    Archiver,
    archive_interval_s,
    archive_spool,
)
from radt.delivery.mlflow.target import DeliveryError, ErrorKind, MlflowTarget
from radt.delivery.mlflow.uploader import Uploader
from radt.home import Home, RunDir
from radt.model import MarkerKind, RunStatus
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, RunRecord
from radt.store.writer import StoreWriter
from tests.delivery.archive import kit
from tests.delivery.mlflow.lab import START_NS, Lab, closing, finish, make_lab, wait_until
from tests.support.mlflow_server import Bucket, MlflowServer


def uploader(lab: Lab, interval_s: float = 3600.0) -> Uploader:
    archiver = Archiver(lab.home.store_path, interval_s)
    return Uploader(lab.target, lab.reader, lab.writer, archiver=archiver)


def started(lab: Lab) -> RunRecord:
    (run,) = lab.add_workload()
    lab.start(run)
    lab.log(run, "loss", [1.0, 2.0, 3.0], steps=[1, 2, 3])
    lab.log(run, "power", [100.0] * 50, series_no=1, listener="smi", entity="gpu0")
    lab.creator().register_pending()
    return lab.record(run)


def artifacts(lab: Lab, run: RunRecord) -> Path:
    uri = lab.mlflow_run(run).info.artifact_uri
    assert uri is not None
    return Path(uri.removeprefix("file://"))


def names(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


def assert_same_when_imported(lab: Lab, run: RunRecord, other: StoreWriter) -> None:
    import_archive(artifacts(lab, run), other)
    assert kit.contents(other)["runs"] == [lab.record(run)]
    mine, theirs = kit.contents(lab.writer), kit.contents(other)
    assert mine.pop("workloads")[0].workload_id == theirs.pop("workloads")[0].workload_id
    assert mine == theirs


class Uploads:
    """Counts what is delivered, and fails when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.fail_at = -1
        send = MlflowTarget.log_artifact

        def log_artifact(target: MlflowTarget, run_id: str, file: Path, folder: str | None) -> None:
            if len(self.done) == self.fail_at:
                self.fail_at = -1
                raise DeliveryError(ErrorKind.BUSY, "503 Slow Down")
            send(target, run_id, file, folder)
            self.done.append(f"{folder}/{file.name}")

        monkeypatch.setattr(MlflowTarget, "log_artifact", log_artifact)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> Uploads:
    return Uploads(monkeypatch)


@dataclass
class EndedProcess:
    """What a process leaves that has archived its runs."""

    output: str
    returncode: int = 0

    def poll(self) -> int:
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        return self.output, None


@pytest.fixture
def archived_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives are written by this process: another one would import for a second or two first."""

    def start(self: Archiver, run_ids: Sequence[str]) -> EndedProcess:
        with StoreReader(self._store) as reader:
            outcomes = [archiver._archive(reader, run_id) for run_id in run_ids]
        return EndedProcess("".join(json.dumps(one.to_json()) + "\n" for one in outcomes))

    monkeypatch.setattr(Archiver, "_start", start)


def test_an_ended_run_is_archived_and_its_spool_emptied(
    lab: Lab, other: StoreWriter, uploads: Uploads
) -> None:
    run = started(lab)
    spool = RunDir(Path(run.spool))
    spool.output_log.write_text("what it printed\n")
    for name in ("environment/packages.txt", "model.pt", "profiles/torch-1.json"):
        (spool.artifacts / name).parent.mkdir(exist_ok=True)
        (spool.artifacts / name).write_text(name)
    lab.end(run)
    one = uploader(lab)
    one.deliver(lab.record(run))

    assert names(artifacts(lab, run)) == [
        "environment/packages.txt",
        "model.pt",
        "output.log",
        "profiles/torch-1.json",
        "radt-summary.json",
        "radt/run.json",
        "radt/samples/run-00001.parquet",
        "radt/samples/smi-00001.parquet",
    ]
    assert uploads.done[-1] == "radt/run.json", "behind what it lists"
    assert names(spool.path) == ["artifacts/profiles/torch-1.json", "output.log"]
    assert (artifacts(lab, run) / "output.log").samefile(spool.output_log), "on the disk once"
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert_same_when_imported(lab, run, other)


def test_runs_that_end_together_are_archived_by_one_process(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = lab.add_workload(3)
    for run in runs:
        lab.start(run)
        lab.log(run, "loss", [1.0])
        lab.end(run)
    lab.creator().register_pending()
    processes: list[int] = []
    start = Archiver._start

    def counted(archiver: Archiver, run_ids: list[str]) -> object:
        processes.append(len(run_ids))
        return start(archiver, run_ids)

    monkeypatch.setattr(Archiver, "_start", counted)
    one = uploader(lab)
    for run in runs:
        one.deliver(lab.record(run))
    assert processes == [3]
    for run in runs:
        assert Archive.open(artifacts(lab, run)).manifest.complete


def test_a_long_run_is_archived_on_the_way(lab: Lab, other: StoreWriter, uploads: Uploads) -> None:
    run = started(lab)
    one = uploader(lab, interval_s=0.001)
    manifest = artifacts(lab, run) / "radt" / "run.json"

    def archived(points: int) -> bool:
        one.deliver(lab.record(run))
        return manifest.exists() and Archive.open(manifest).manifest.points == points

    wait_until(lambda: archived(53), "the first archive")
    assert not Archive.open(manifest).manifest.complete
    assert names(archive_spool(run).path / "samples") == [], "delivered, and gone"
    import_archive(manifest, other)

    lab.log(run, "loss", [4.0], first_ns=START_NS + 10)
    wait_until(lambda: archived(54), "what came since")
    assert names(manifest.parent) == [
        "run.json",
        "samples/run-00001.parquet",
        "samples/run-00002.parquet",
        "samples/smi-00001.parquet",
    ]
    lab.end(run)
    uploader(lab).deliver(lab.record(run))
    parts = [name for name in uploads.done if name.endswith(".parquet")]
    assert len(parts) == len(set(parts)) == 3, "each once"
    assert_same_when_imported(lab, run, other)


@pytest.mark.usefixtures("archived_here")
def test_a_wall_clock_that_is_set_back_keeps_nothing_from_being_brought(
    lab: Lab, other: StoreWriter
) -> None:
    run = started(lab)
    kit.archive(lab.writer, run)
    one = uploader(lab)
    one.deliver(lab.record(run))
    lab.log(run, "loss", [4.0], first_ns=START_NS + 10)
    lab.end(run)
    kit.archive(lab.writer, run)
    manifest = archive_spool(run).manifest_file
    earlier_ns = manifest.stat().st_mtime_ns - 3600 * 10**9
    os.utime(manifest, ns=(earlier_ns, earlier_ns))
    one.deliver(lab.record(run))
    assert_same_when_imported(lab, run, other)


@pytest.mark.usefixtures("archived_here")
def test_a_refused_file_stays_whoever_delivers_the_rest(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deliverer that was told so is killed before it could note it."""
    run = started(lab)
    folder = RunDir(Path(run.spool)).artifacts
    for name in ("model.pt", "huge.bin"):
        (folder / name).write_text(name)
    lab.end(run)
    send = MlflowTarget.log_artifact

    def refuse(target: MlflowTarget, run_id: str, file: Path, folder: str | None) -> None:
        if file.name == "huge.bin":
            raise DeliveryError(ErrorKind.REFUSED, "413 Request Entity Too Large")
        send(target, run_id, file, folder)

    def no_answer(*_: object) -> None:
        raise DeliveryError(ErrorKind.UNREACHABLE, "connection refused")

    monkeypatch.setattr(MlflowTarget, "log_artifact", refuse)
    with monkeypatch.context() as broken, pytest.raises(DeliveryError, match="connection"):
        broken.setattr(MlflowTarget, "terminate", no_answer)
        uploader(lab).deliver(lab.record(run))
    uploader(lab).deliver(lab.record(run))
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert names(folder) == ["huge.bin", "model.pt"], "nothing is removed then"


@pytest.mark.usefixtures("archived_here")
def test_points_that_came_after_the_archive_was_complete(
    lab: Lab, other: StoreWriter, uploads: Uploads
) -> None:
    """What a script wrote last was found in its journal while the artifact store was down."""
    run = started(lab)
    lab.end(run)
    one = uploader(lab)
    uploads.fail_at = 1
    with pytest.raises(DeliveryError, match="503"):
        one.deliver(lab.record(run))
    lab.log(run, "loss", [4.0], first_ns=START_NS + 10)
    lab.writer.put_markers([MarkerRecord(run.run_id, 0, MarkerKind.EVENT, "late", START_NS)])
    one.deliver(lab.record(run))
    assert_same_when_imported(lab, run, other)


@pytest.mark.usefixtures("archived_here")
def test_a_script_s_own_folder_of_that_name_is_not_written_over(
    lab: Lab, other: StoreWriter
) -> None:
    run = started(lab)
    own = RunDir(Path(run.spool)).artifacts / "radt" / "run.json"
    own.parent.mkdir()
    own.write_text("mine")
    lab.end(run)
    uploader(lab).deliver(lab.record(run))
    assert (artifacts(lab, run) / "radt_" / "run.json").read_text() == "mine"
    assert_same_when_imported(lab, run, other)


@pytest.mark.usefixtures("archived_here")
@pytest.mark.parametrize("lost", ["all of it", "the manifest"])
def test_a_lost_spool_is_gone_on_from_what_was_brought(
    lab: Lab, other: StoreWriter, uploads: Uploads, lost: str
) -> None:
    """At no time lies anything else under a name that the manifest in MLflow lists."""
    run = started(lab)
    kit.archive(lab.writer, run)
    lab.writer.put_markers([MarkerRecord(run.run_id, 0, MarkerKind.EVENT, "one", START_NS)])
    one = uploader(lab)
    one.deliver(lab.record(run))
    brought = list(uploads.done)
    if lost == "all of it":
        archive_spool(run).remove()
    else:  # with a part that was written since, and markers that are thought to be in one
        lab.writer.put_markers([MarkerRecord(run.run_id, 1, MarkerKind.EVENT, "two", START_NS)])
        kit.archive(lab.writer, run)
        archive_spool(run).manifest_file.unlink()
    lab.log(run, "loss", [4.0], first_ns=START_NS + 10)
    lab.end(run)
    one.deliver(lab.record(run))
    again = {name for name in uploads.done[len(brought) :] if name in brought}
    assert again == {"radt/run.json"}
    assert_same_when_imported(lab, run, other)


@pytest.mark.usefixtures("archived_here")
def test_what_comes_after_all_was_brought_is_added(
    lab: Lab, other: StoreWriter, uploads: Uploads
) -> None:
    run = started(lab)
    lab.end(run)
    uploader(lab).deliver(lab.record(run))
    brought = list(uploads.done)
    assert names(Path(run.spool)) == []
    lab.log(run, "loss", [4.0], first_ns=START_NS + 10)
    with lab.writer.rewriting(run.run_id) as connection:
        connection.exec_driver_sql("UPDATE run SET delivery_done_ns = NULL")
    uploader(lab).deliver(lab.record(run))
    assert uploads.done[len(brought) :] == ["radt/samples/run-00002.parquet", "radt/run.json"]
    assert_same_when_imported(lab, run, other)


@pytest.mark.usefixtures("archived_here")
def test_nothing_is_left_where_a_kill_came_before_the_mark(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, uploads: Uploads
) -> None:
    run = started(lab)
    lab.end(run)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(StoreWriter, "mark_run_delivered", killed)
        uploader(lab).deliver(lab.record(run))
    brought = list(uploads.done)
    uploader(lab).deliver(lab.record(run))
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert uploads.done == brought, "nothing twice"
    assert not archive_spool(run).path.exists()


@pytest.mark.usefixtures("archived_here")
def test_an_archiver_without_its_deliverer_writes_nothing_that_was_delivered(lab: Lab) -> None:
    run = started(lab)
    lab.end(run)
    uploader(lab).deliver(lab.record(run))
    assert not archiver._archive(lab.reader, run.run_id).problem
    assert not archive_spool(run).path.exists()


def test_an_archive_that_is_due_is_due_for_the_next_process_too(lab: Lab) -> None:
    run = started(lab)
    archiver = Archiver(lab.home.store_path, 3600.0)
    archiver.keep_up(run)
    assert archiver._process is not None, "it began long ago"
    archiver.close()
    again = Archiver(lab.home.store_path, 3600.0)
    with archive_spool(run).locked():
        archive_spool(run).manifest_file.write_text("{}")
    again.keep_up(run)
    assert again._process is None, "another one has just done it"


@pytest.mark.usefixtures("archived_here")
def test_a_failing_upload_is_gone_on_with(lab: Lab, other: StoreWriter, uploads: Uploads) -> None:
    run = started(lab)
    lab.end(run)
    one = uploader(lab)
    uploads.fail_at = 1
    with pytest.raises(DeliveryError, match="503"):
        one.deliver(lab.record(run))
    assert lab.mlflow_run(run).info.status == "FINISHED", "that waits for no archive"
    assert len(lab.reader.runs_to_deliver(lab.tracking_uri)) == 1
    one.deliver(lab.record(run))
    assert uploads.done == [
        "None/radt-summary.json",
        "radt/samples/run-00001.parquet",
        "radt/samples/smi-00001.parquet",
        "radt/run.json",
    ]
    assert_same_when_imported(lab, run, other)


def test_what_cannot_be_archived_now_is_tried_again(lab: Lab, other: StoreWriter) -> None:
    run = started(lab)
    lab.end(run)
    one = uploader(lab)
    archive_spool(run).path.write_text("in the way")
    with pytest.raises(DeliveryError, match=r"archive: .*Not a directory") as caught:
        one.deliver(lab.record(run))
    assert caught.value.kind is ErrorKind.BUSY
    assert lab.mlflow_run(run).info.status == "FINISHED"
    archive_spool(run).path.unlink()
    one.deliver(lab.record(run))
    assert_same_when_imported(lab, run, other)


def test_what_can_never_be_archived_is_a_note(lab: Lab) -> None:
    """A chunk is damaged, which nothing else that is delivered needs."""
    run = started(lab)
    (RunDir(Path(run.spool)).artifacts / "model.pt").write_text("weights")
    one = uploader(lab)
    one.deliver(lab.record(run))
    lab.end(run)
    lab.writer.seal(run.run_id)
    with lab.writer._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE chunk SET value_data = X'00' WHERE series_no = 0")
    one.deliver(lab.record(run))
    assert lab.mlflow_run(run).info.status == "FINISHED"
    with lab.writer._engine.begin() as connection:
        query = "SELECT delivery_done_ns, delivery_note FROM run"
        ((done_ns, note),) = connection.exec_driver_sql(query).all()
    assert done_ns is not None
    assert note.startswith("not archived: a chunk of samples is damaged")
    assert names(RunDir(Path(run.spool)).artifacts) == ["model.pt"], "nothing is removed then"


def test_killed_in_the_middle(
    lab: Lab, other: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real deliverer, and the archiver it leaves behind."""
    run = started(lab)
    for series_no in range(2, 40):
        values = [float(i) for i in range(2000)]
        lab.log(run, f"m{series_no}", values, series_no=series_no, listener=f"l{series_no}")
    lab.end(run)
    folder = archive_spool(run).path
    process = lab.start_deliverer()
    # Parts are there for less than a second: whoever looks too late sees that all is delivered.
    wait_until(
        lambda: list(folder.rglob("*.parquet")) or not lab.reader.runs_to_deliver(lab.tracking_uri),
        "archiver has begun",
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    finish(lab.start_deliverer())
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert not folder.exists()
    assert_same_when_imported(lab, run, other)


def test_no_archive_for_who_wants_none(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADT_ARCHIVE_S", "0")
    run = started(lab)
    lab.end(run, RunStatus.KILLED)
    finish(lab.start_deliverer())
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert names(artifacts(lab, run)) == ["radt-summary.json"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 900.0), ("60", 60.0), ("0", None), ("-1", 900.0), ("x", 900.0)],
)
def test_how_often(text: str, expected: float | None) -> None:
    assert archive_interval_s({"RADT_ARCHIVE_S": text}) == expected


def test_straight_to_s3(
    lab: Lab, other: StoreWriter, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environ.items():
        monkeypatch.setenv(name, value)
    lab.target = MlflowTarget(lab.tracking_uri, bucket.uri)
    run = started(lab)
    (RunDir(Path(run.spool)).artifacts / "large.bin").write_bytes(os.urandom(20 * 2**20))
    lab.end(run)
    uploader(lab).deliver(lab.record(run))
    imported = import_archive(f"runs:/{lab.mlflow_id(run)}", other, lab.tracking_uri)
    assert (imported.points, imported.complete) == (53, True)
    assert kit.contents(other)["runs"] == [lab.record(run)]
    assert names(Path(run.spool)) == []


def test_through_the_server(
    tmp_path: Path, other: StoreWriter, mlflow_server: MlflowServer
) -> None:
    """Nothing but the tracking server can be reached, from here and from where it is imported."""
    home = Home(tmp_path / "radt-data").create()
    with closing(make_lab(home, mlflow_server.uri)) as lab:
        run = started(lab)
        lab.end(run)
        uploader(lab).deliver(lab.record(run))
        imported = import_archive(f"runs:/{lab.mlflow_id(run)}", other, mlflow_server.uri)
        assert (imported.points, imported.complete) == (53, True)
        assert kit.contents(other)["runs"] == [lab.record(run)]
