"""Archives among the artifacts in MLflow: written, exported by the real process, delivered."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partialmethod
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from radt.delivery.archive.locations import MlflowLocation
from radt.delivery.archive.read import find_archive, import_archive
from radt.delivery.backlog import mlflow_backlogs
from radt.delivery.mlflow import archives as archiving
from radt.delivery.mlflow.archives import ArchiveUploader, archive_spool
from radt.delivery.mlflow.target import DeliveryError, ErrorKind, MlflowTarget
from radt.delivery.mlflow.uploader import Uploader
from radt.delivery.mlflow.variables import DESTINATION
from radt.delivery.problems import MLFLOW, ProblemLog, archive_of, read_problems
from radt.delivery.process import setting_or_default
from radt.errors import ArchiveError, CodecError, UsageError
from radt.home import Home, RunDir
from radt.model import MarkerKind, RunStatus
from radt.runner.delivering import PendingUploads
from radt.settings import ARCHIVE_S
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, RunRecord
from radt.store.writer import StoreWriter
from tests.copy import kit
from tests.delivery.mlflow.lab import START_NS, Lab, Threads, closing, finish, make_lab, wait_until
from tests.support.http_links import HttpLink
from tests.support.mlflow_server import Bucket, MlflowServer
from tests.support.waiting import TIMEOUT_S


def uploader(lab: Lab) -> Uploader:
    return Uploader(lab.target, lab.reader, lab.writer, archives_of(lab))


def archives_of(lab: Lab) -> ArchiveUploader:
    return ArchiveUploader(lab.target, lab.reader, lab.writer, 3600.0)


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
    import_archive(find_archive(artifacts(lab, run)), other)
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


@pytest.fixture(autouse=True)
def runs_are_archived(archives: None) -> None:
    """In all tests of this file."""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter(tmp_path / "imported" / "radt.db") as writer:
        yield writer


def bundles(folder: Path) -> list[str]:
    return [name for name in names(folder) if name.endswith(".radt")]


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
        f"radt/{run.run_id}.1.radt",
        "radt/run.json",
        "radt/samples.parquet",
    ]
    assert names(spool.path) == ["artifacts/profiles/torch-1.json", "output.log"]
    assert (artifacts(lab, run) / "output.log").samefile(spool.output_log), "on the disk once"
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert_same_when_imported(lab, run, other)


def test_a_run_has_its_archive_before_it_ends_in_mlflow(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(lab)
    lab.end(run)
    terminate, present = MlflowTarget.terminate, list[str]()

    def noted(target: MlflowTarget, run_id: str, status: RunStatus, ended_ms: int) -> None:
        present.extend(names(artifacts(lab, run) / "radt"))
        terminate(target, run_id, status, ended_ms)

    monkeypatch.setattr(MlflowTarget, "terminate", noted)
    uploader(lab).deliver(lab.record(run))
    assert present == [f"{run.run_id}.1.radt", "run.json", "samples.parquet"]


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


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("lost", ["spool", "spool and bundle", "spool, bundle damaged"])
def test_a_lost_spool_is_gone_on_from_what_was_delivered(
    lab: Lab, other: StoreWriter, uploads: Uploads, lost: str
) -> None:
    """Without a last bundle that can be read, the next one has all of the run."""
    run = started(lab)
    lab.writer.put_markers([MarkerRecord(run.run_id, 0, MarkerKind.EVENT, "one", START_NS)])
    uploader(lab).deliver(lab.record(run))
    archives_of(lab).keep_up(lab.record(run))
    first = artifacts(lab, run) / "radt" / f"{run.run_id}.1.radt"
    before = first.read_bytes()
    archive_spool(run).remove()
    if lost == "spool and bundle":
        first.unlink()
    if lost == "spool, bundle damaged":
        before = before[:-100]
        first.write_bytes(before)
    lab.log(run, "loss", [4.0], first_ns=START_NS + 10)
    lab.end(run)
    uploader(lab).deliver(lab.record(run))
    assert names(first.parent)[-3:] == [f"{run.run_id}.2.radt", "run.json", "samples.parquet"]
    assert not first.exists() or first.read_bytes() == before
    assert_same_when_imported(lab, run, other)


def test_a_run_that_is_written_during_its_export_is_exported_again(
    lab: Lab, uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(lab)
    lab.end(run)
    describe = archiving.describe_run

    def written(reader: StoreReader, record: RunRecord, path: Path) -> None:
        describe(reader, record, path)
        lab.log(run, "loss", [4.0], first_ns=START_NS + 10)

    with monkeypatch.context() as patch, pytest.raises(DeliveryError, match="written") as caught:
        patch.setattr(archiving, "describe_run", written)
        uploader(lab).deliver(lab.record(run))
    assert caught.value.kind is ErrorKind.BUSY
    uploader(lab).deliver(lab.record(run))
    assert uploads.done[-2:] == ["radt/samples.parquet", "radt/run.json"]


def test_running_runs_do_not_wait_for_an_export(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    running, ended = started(lab), started(lab)
    lab.end(ended)
    one = uploader(lab)
    assert one.archives is not None
    other = threading.Thread(target=one.archives.keep_up, args=[running], daemon=True)

    def export(*_: object) -> None:
        other.start()
        other.join(TIMEOUT_S)
        assert bundles(artifacts(lab, running)) == [f"radt/{running.run_id}.1.radt"]
        raise ArchiveError("that is all")

    monkeypatch.setattr(archiving, "export_run", export)
    with pytest.raises(DeliveryError, match="that is all"):
        one.deliver(lab.record(ended))


@pytest.mark.long
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


def test_running_runs_are_archived_at_intervals(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is a problem that does not delay anything else."""
    monkeypatch.setattr(Lab, "uploader", uploader)
    run, new = started(lab), started(lab)
    lab.writer.update_run(new.run_id, started_ns=time.time_ns())
    archive_spool(run).path.write_text("in the way")
    threads = Threads(lab)
    store = lab.home.store_path
    name = f"{run.run_id} archive"
    wait_until(lambda: name in read_problems(store, MLFLOW, lab.tracking_uri), "a problem")
    wait_until(lambda: len(lab.history(run, "loss")) == 3, "the points are there")
    archive_spool(run).path.unlink()
    wait_until(lambda: bundles(artifacts(lab, run)), "the bundle is there")
    wait_until(lambda: not read_problems(store, MLFLOW, lab.tracking_uri), "the problem is solved")
    threads.finish()
    assert bundles(artifacts(lab, run)) == [f"radt/{run.run_id}.1.radt"]
    assert not bundles(artifacts(lab, new)), "not due yet"

    lab.log(run, "loss", [4.0], first_ns=START_NS + 10)
    again = Threads(lab)
    wait_until(lambda: len(lab.history(run, "loss")) == 4, "the new points are there")
    again.finish()
    assert bundles(artifacts(lab, run)) == [f"radt/{run.run_id}.1.radt"], "not due after a restart"


def test_nobody_waits_for_the_archive_of_a_running_run(lab: Lab) -> None:
    run = started(lab)
    problems = ProblemLog(lab.home.store_path, MLFLOW, lab.tracking_uri)
    problems.note(archive_of(run.run_id), "archive: File exists")
    (backlog,) = mlflow_backlogs(lab.reader)
    assert backlog.complete
    assert f"run {run.run_id}: archive: File exists" in backlog.sentence()
    upload = PendingUploads(lab.home.store_path, [lab.tracking_uri], "").uploads[0]
    upload.update(backlog)
    assert (upload.complete, upload.problem) == (True, "")

    problems.failed(run.run_id, UsageError("no connection", "Start it"))
    (backlog,) = mlflow_backlogs(lab.reader)
    assert not backlog.complete
    assert backlog.problem == f"run {run.run_id}: no connection. Start it"


def test_an_export_that_is_killed_again_and_again_is_a_note(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(lab)
    lab.end(run)

    def kill(*_: object) -> None:
        os._exit(9)

    for _ in range(5):
        if (child := os.fork()) == 0:
            monkeypatch.setattr(archiving, "export_run", kill)
            archives_of(lab)._export(run, archive_spool(run).export_folder(1))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    note = archives_of(lab).complete(run, lab.mlflow_id(run))
    assert note.startswith("not exported: the uploader was killed 5 times")
    archive_spool(run).kills_file.write_text("4")
    assert archives_of(lab).complete(run, lab.mlflow_id(run)) == ""
    assert archive_spool(run).export_kills == 0


def test_no_bundle_is_added_while_one_waits(lab: Lab, uploads: Uploads) -> None:
    """A server that is down for long does not turn an archive into many small files."""
    run = started(lab)
    for fail_at in (0, 0, -1):
        uploads.fail_at = fail_at
        lab.log(run, "loss", [4.0])
        with suppress(DeliveryError):
            archives_of(lab).keep_up(lab.record(run))
    assert uploads.done == [f"radt/{run.run_id}.1.radt"]


def test_what_cannot_be_archived_now_is_tried_again(lab: Lab, other: StoreWriter) -> None:
    run = started(lab)
    lab.end(run)
    one = uploader(lab)
    archive_spool(run).path.write_text("in the way")
    with pytest.raises(DeliveryError, match=r"archive: File exists") as caught:
        one.deliver(lab.record(run))
    assert caught.value.kind is ErrorKind.BUSY
    assert lab.mlflow_run(run).info.status == "FINISHED"
    archive_spool(run).path.unlink()
    one.deliver(lab.record(run))
    assert_same_when_imported(lab, run, other)


def test_the_end_of_a_run_reports_that_it_cannot_be_archived(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(lab)

    def damaged(*_: object) -> None:
        raise CodecError("a chunk of samples is damaged")

    monkeypatch.setattr(archiving.ArchiveSpool, "write_bundle", damaged)
    archives_of(lab).keep_up(run)
    lab.end(run)
    note = archives_of(lab).complete(lab.record(run), lab.mlflow_id(run))
    assert note == "not archived: a chunk of samples is damaged"


def test_what_can_never_be_archived_is_a_note(lab: Lab) -> None:
    """A chunk is damaged, which nothing else that is delivered needs."""
    run = started(lab)
    (RunDir(Path(run.spool)).artifacts / "model.pt").write_text("weights")
    one = uploader(lab)
    one.deliver(lab.record(run))
    archives_of(lab).keep_up(lab.record(run))
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
    assert note.startswith("not exported: a chunk of samples is damaged")
    assert names(RunDir(Path(run.spool)).artifacts) == ["model.pt"], "nothing is removed then"


def test_killed_in_the_middle(
    lab: Lab, other: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real deliverer."""
    run = started(lab)
    for series_no in range(2, 40):
        values = [float(i) for i in range(2000)]
        lab.log(run, f"m{series_no}", values, series_no=series_no, listener=f"l{series_no}")
    lab.end(run)
    folder = archive_spool(run).path
    process = lab.start_deliverer()
    # They are there for less than a second: whoever looks too late sees that all is delivered.
    wait_until(
        lambda: folder.exists() or not lab.reader.runs_to_deliver(lab.tracking_uri),
        "the archive has begun",
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
    [("", 900.0), ("60", 60.0), ("0", 0.0), ("-1", 900.0), ("x", 900.0)],
)
def test_how_often(text: str, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADT_ARCHIVE_S", text)
    assert setting_or_default(ARCHIVE_S) == expected


@pytest.fixture
def http_link(mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpLink]:
    """A link to the server, which nothing on this machine has configured MLflow's client for."""
    for name in tuple(os.environ):
        if name.startswith("MLFLOW_ENABLE_"):
            monkeypatch.delenv(name)
    with HttpLink(mlflow_server.port) as link:
        yield link


_THROUGH_SERVER = "mlflow-artifacts/artifacts"


def test_through_the_server(
    tmp_path: Path, other: StoreWriter, http_link: HttpLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the tracking server can be reached, from here and from where it is imported."""
    home = Home(tmp_path / "radt-data").create()
    with closing(make_lab(home, http_link.uri)) as lab:
        run = started(lab)
        lab.end(run)
        uploader(lab).deliver(lab.record(run))
        imported = import_archive(find_archive(f"runs:/{lab.mlflow_id(run)}", http_link.uri), other)
        assert (imported.points, imported.is_complete) == (53, True)
        assert kit.contents(other)["runs"] == [lab.record(run)]
        location = MlflowLocation(http_link.uri, lab.mlflow_id(run), "")
        location.fetch("radt-summary.json", tmp_path / "summary")
        # By radt's id, the experiments are searched: the server may have more than fit a page.
        lab.target.client.create_experiment(f"later than {run.run_id}")
        one_a_page = partialmethod(MlflowClient.search_experiments, max_results=1)
        monkeypatch.setattr(MlflowClient, "search_experiments", one_a_page)
        found = find_archive(f"runs:/{run.run_id}", http_link.uri)
        assert found.run_id == run.run_id
        location.set_tags({f"tag {number}": str(number) for number in range(150)})
        tags = lab.mlflow_run(run).data.tags
        assert [tags[f"tag {number}"] for number in range(150)] == [str(n) for n in range(150)]
    assert http_link.requests(_THROUGH_SERVER, "PUT")
    # MLflow's server offers S3's addresses, which only the server can reach.
    assert not http_link.requests("presigned|mpu/")


def test_beside_the_server(
    tmp_path: Path,
    other: StoreWriter,
    http_link: HttpLink,
    mlflow_server: MlflowServer,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files go straight to S3 and come from there; experiments suit those who reach MLflow only."""
    for name, value in mlflow_server.bucket.environ.items():
        monkeypatch.setenv(name, value)
    home = Home(tmp_path / "radt-data").create()
    with closing(make_lab(home, http_link.uri)) as lab:
        run = started(lab)
        (RunDir(Path(run.spool)).artifacts / "large.bin").write_bytes(os.urandom(20 * 2**20))
        lab.end(run)
        monkeypatch.setenv(DESTINATION, bucket.uri)
        with pytest.raises(DeliveryError, match=f"does not find files .*{DESTINATION}"):
            lab.target.log_artifact(lab.mlflow_id(run), Path(__file__), None)

        monkeypatch.setenv(DESTINATION, mlflow_server.bucket.uri)
        uploader(lab).deliver(lab.record(run))
        imported = import_archive(find_archive(f"runs:/{lab.mlflow_id(run)}", http_link.uri), other)
        assert (imported.points, imported.is_complete) == (53, True)
        assert not http_link.requests(f"{_THROUGH_SERVER}/|presigned|mpu/")

        monkeypatch.delenv(DESTINATION)
        location = MlflowLocation(http_link.uri, lab.mlflow_id(run), "")
        assert location.files(100)["large.bin"] == 20 * 2**20
        experiment = lab.client.get_experiment(lab.mlflow_run(run).info.experiment_id)
        assert experiment.artifact_location.startswith("mlflow-artifacts:")
