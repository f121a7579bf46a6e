"""The ways that a run travels from one store to another, to be tested alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from sqlalchemy import Engine, event

from radt import __version__
from radt.cluster.attempt import AttemptStart
from radt.cluster.collecting import Collection
from radt.cluster.engine import Shape
from radt.cluster.shipping import Shipper
from radt.cluster.spool import Spool
from radt.cluster.submission import JobArray, JobKey, Submission
from radt.delivery.archive.read import find_archives, import_archive
from radt.delivery.mlflow.archives import ArchiveUploader
from radt.delivery.mlflow.target import MlflowTarget
from radt.delivery.mlflow.uploader import Uploader
from radt.errors import ArchiveError, RadtError
from radt.experiment.plan import WorkloadKey
from radt.home import Home
from radt.store.export import ExportFormat, export_run
from radt.store.records import MARKERS_OF_A_NODE, SERIES_OF_A_NODE, RunRecord
from radt.store.writer import StoreWriter
from radt.tags import CLUSTER_ATTEMPT, CLUSTER_JOB, CLUSTER_NODE, CLUSTER_SUBMISSION
from tests.copy import kit
from tests.delivery.mlflow.lab import Lab
from tests.support.mlflow_server import Bucket

JOB = JobKey(0, 0)


class Files:
    """What lies between two stores: the files of a folder by their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deleted: dict[str, Path] = {}

    def _paths(self) -> dict[str, Path]:
        return {path.name: path for path in self._folder.rglob("*.radt")}

    def all(self) -> dict[str, bytes]:
        return {name: path.read_bytes() for name, path in sorted(self._paths().items())}

    def put(self, name: str, content: bytes | None) -> None:
        """Replace the content of a file; None deletes it."""
        path = self._paths().get(name) or self._deleted[name]
        if content is None:
            self._deleted[name] = path
            path.unlink()
        else:
            path.write_bytes(content)


class Objects(Files):
    """The same in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._name = bucket.name
        self._deleted_keys: dict[str, str] = {}
        self._client = boto3.client(
            "s3",
            endpoint_url=bucket.endpoint,
            aws_access_key_id=bucket.access_key,
            aws_secret_access_key=bucket.secret_key,
            region_name=bucket.region,
            config=Config(request_checksum_calculation="when_required"),
        )

    def _keys(self) -> dict[str, str]:
        entries = self._client.list_objects_v2(Bucket=self._name).get("Contents", ())
        keys = (entry["Key"] for entry in entries if entry["Key"].endswith(".radt"))
        return {key.rpartition("/")[2]: key for key in keys}

    def all(self) -> dict[str, bytes]:
        return {
            name: self._client.get_object(Bucket=self._name, Key=key)["Body"].read()
            for name, key in sorted(self._keys().items())
        }

    def put(self, name: str, content: bytes | None) -> None:
        key = self._keys().get(name) or self._deleted_keys[name]
        if content is None:
            self._deleted_keys[name] = key
            self._client.delete_object(Bucket=self._name, Key=key)
        else:
            self._client.put_object(Bucket=self._name, Key=key, Body=content)


@dataclass
class Way:
    """From the store of a lab to another one; `send` and `take` raise RadtError."""

    lab: Lab
    home: Home
    files: Files
    #: What an archive of the run consists of is never changed or deleted.
    keeps_files = True
    #: A run there is one of that machine's, which delivers it as its own.
    adopts = False

    @property
    def there(self) -> Path:
        return self.home.store_path

    def new_run(self, run_id: str = kit.RUN_ID, **fields: Any) -> RunRecord:
        spool = self.lab.home.run_dir(run_id).create().path
        uri = {"tracking_uri": self.lab.tracking_uri, "mlflow_run_id": None}
        return kit.make_run(self.lab.writer, spool, run_id, **(uri | fields))

    def travel(self) -> None:
        self.send()
        self.take()

    def send(self) -> None:
        raise NotImplementedError

    def take(self) -> None:
        raise NotImplementedError

    def wanted(self) -> dict[str, Any]:
        """What has to be there, as `kit.contents` has it."""
        return kit.contents(self.lab.writer)

    def contents(self) -> dict[str, Any]:
        with StoreWriter(self.there) as writer:
            return kit.contents(writer)

    def assert_same(self) -> None:
        wanted, there = self.wanted(), self.contents()
        if self.adopts:
            wanted["runs"] = [
                replace(run, spool=str(self.home.run_dir(run.run_id).path), tracking_uri="")
                for run in wanted["runs"]
            ]
        for each in (wanted, there):
            each["runs"] = [replace(run, mlflow_run_id=None) for run in each["runs"]]
            each["workloads"] = [
                replace(workload, tracking_uri="", mlflow_experiment_id=None, mlflow_run_id=None)
                for workload in each["workloads"]
            ]
        assert there == wanted


class FileWay(Way):
    """A file that `radt export` writes and `radt import` reads."""

    keeps_files = False

    @property
    def folder(self) -> Path:
        return self.lab.home.path / "mailed"

    def send(self) -> None:
        self.folder.mkdir(exist_ok=True)
        for run in self.lab.reader.runs():
            path = self.folder / f"{run.run_id[:12]}.radt"
            export_run(self.lab.reader, run, path, ExportFormat.RADT)

    def take(self) -> None:
        _import(self.folder, self.there)


@dataclass
class FolderWay(Way):
    """The archive among the artifacts in MLflow, which are in a folder."""

    #: Ids of the runs in MLflow.
    ids: set[str] = field(default_factory=set)

    def send(self) -> None:
        lab = self.lab
        lab.creator(since_ns=2**62).register_pending()  # as a process that was started again
        archives = ArchiveUploader(lab.target, lab.reader, lab.writer, 0.0)
        uploader = Uploader(lab.target, lab.reader, lab.writer, archives)
        for run in lab.reader.runs_to_deliver(lab.tracking_uri):
            uploader.deliver(run)
            if not run.status.ended:
                archives.keep_up(run)

    def take(self) -> None:
        self.ids |= {run.mlflow_run_id for run in self.lab.reader.runs() if run.mlflow_run_id}
        for mlflow_id in sorted(self.ids):
            _import(f"runs:/{mlflow_id}", self.there, self.lab.tracking_uri)


@dataclass
class SharedFolderWay(Way):
    """The folder that a node of a cluster and the submit host share."""

    keeps_files = False
    adopts = True
    shippers: list[Shipper] = field(default_factory=list)

    def __post_init__(self) -> None:
        submission = Submission(
            *("20261125-120000-abcd", "slurm", "/f/study.csv", "login", "me", __version__, "p"),
            (JobArray(Shape(), ((WorkloadKey("digits", "1"),),)),),
        )
        shared = self.home.path.parent / "shared"
        shared.mkdir(parents=True)
        self.spool = Spool.create(shared, submission, b"")
        self.files = Files(shared)
        self.attempt = self.spool.claim(JOB)
        self.attempt.begin(AttemptStart("node1", "1_0", 1, __version__))
        self.attempt.put_statuses({})

    def new_run(self, run_id: str = kit.RUN_ID, **fields: Any) -> RunRecord:
        run = super().new_run(run_id, **fields)
        tags = {
            CLUSTER_SUBMISSION: self.spool.submission.submission_id,
            CLUSTER_JOB: str(JOB),
            CLUSTER_ATTEMPT: str(self.attempt.number),
        }
        self.lab.writer.put_tags(run_id, tags)
        return run

    def send(self) -> None:
        if not self.shippers:
            self.shippers.append(Shipper(self.lab.home, self.attempt, 3600.0))
        if problem := self.shippers[-1]._send_all():
            raise ArchiveError(problem)

    def take(self) -> None:
        with Collection(self.spool, self.home) as collection:
            if problems := collection.collect().problems:
                raise ArchiveError(next(iter(problems)))


class OtherNodeWay(SharedFolderWay):
    """A part of a run that another node than its first has recorded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        first, self.attempt = self.attempt, self.attempt.part(1)
        home = Home(self.home.path.parent / "first").create()
        self.attempt.begin(AttemptStart("node2", "1_0", 1, __version__))
        self.attempt.put_statuses({})
        with StoreWriter(home.store_path) as writer:
            kit.make_run(writer, home.path, tracking_uri="", mlflow_run_id=None)
        Shipper(home, first, 3600.0)._send_all()
        self.take()

    def new_run(self, run_id: str = kit.RUN_ID, **fields: Any) -> RunRecord:
        run = super().new_run(run_id, **fields)
        self.lab.writer.put_tags(run_id, {CLUSTER_NODE: "node2"})
        return run

    def assert_same(self) -> None:
        ours, theirs = self.wanted(), self.contents()
        for series in ours["series"]:
            shifted = series.series_no + SERIES_OF_A_NODE
            name = "/".join(filter(None, ("node2", series.entity)))
            assert replace(series, series_no=shifted, entity=name) in theirs["series"]
            points = ours[f"{series.run_id} {series.series_no}"]
            assert theirs[f"{series.run_id} {shifted}"] == points
        for marker in ours["markers"]:
            name = "/".join(filter(None, ("node2", marker.process)))
            number = marker.marker_no + MARKERS_OF_A_NODE
            assert replace(marker, marker_no=number, process=name) in theirs["markers"]
        assert len(ours["markers"]) == len(theirs["markers"])
        listeners = {f"node2/{ledger.listener}" for ledger in ours["ledger"]}
        assert listeners == {ledger.listener for ledger in theirs["ledger"]}


def _import(where: Path | str, there: Path, tracking_uri: str = "") -> None:
    try:
        archives = find_archives(where, tracking_uri)
    except ArchiveError:
        return  # nothing was sent yet
    with StoreWriter(there) as writer:
        for archive in archives:
            import_archive(archive, writer)


WAYS = ("file", "folder", "s3", "shared folder", "other node")


def way_of(kind: str, lab: Lab, home: Home, request: pytest.FixtureRequest) -> Way:
    """Return a way of a kind; servers are started only for those that need them."""
    between = Files(lab.home.path)
    if kind == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        for name, value in bucket.environ.items():
            patch.setenv(name, value)
        lab.target = MlflowTarget(lab.tracking_uri, bucket.uri)
        return FolderWay(lab, home, Objects(bucket))
    if kind == "folder":
        return FolderWay(lab, home, Files(lab.home.artifacts))
    kinds = {"file": FileWay, "shared folder": SharedFolderWay, "other node": OtherNodeWay}
    return kinds[kind](lab, home, between)


# -- kills ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@dataclass
class Fate:
    """Kills whoever comes to the n-th of the calls that change a disk; nothing works afterwards."""

    left: int
    is_dead: bool = False

    def step(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.is_dead = True
            raise Killed

    @contextmanager
    def decides(self) -> Iterator[None]:
        """Apply to what happens inside."""
        names = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "fsync", "link")

        def passing(name: str) -> Any:
            call = getattr(os, name)

            def passed(*arguments: Any, **named: Any) -> Any:
                self.step()
                return call(*arguments, **named)

            return passed

        def commits(_: object) -> None:
            self.step()

        with pytest.MonkeyPatch.context() as patch:
            for name in names:
                patch.setattr(os, name, passing(name))
            event.listen(Engine, "commit", commits)
            try:
                yield
            except (Killed, RadtError, OSError):
                if not self.is_dead:
                    raise
            finally:
                event.remove(Engine, "commit", commits)
