"""Archives in folders, S3, and the artifacts of MLflow runs, direct and through the server."""

from __future__ import annotations

import errno
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from mlflow.tracking import MlflowClient

from radt.delivery.archive.locations import FileMissingError, LocalFolder, is_address
from radt.delivery.archive.read import find_archive, find_archives, import_archive
from radt.delivery.archive.spool import ArchiveSpool, Written
from radt.delivery.s3 import S3Folder
from radt.errors import ArchiveError
from radt.load import load
from radt.store import bundle
from radt.store.copy import Position
from radt.store.export import ExportFormat, export_run
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.copy import kit
from tests.support.mlflow_server import Bucket, MlflowServer

FIRST, SECOND = (f"{kit.RUN_ID}.{number}.radt" for number in (1, 2))


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter(tmp_path / "re'cor%20ded #é" / "radt.db") as writer:
        yield writer


@pytest.fixture
def other(tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter(tmp_path / "imported" / "radt.db") as writer:
        yield writer


@pytest.fixture
def folder(writer: StoreWriter, tmp_path: Path) -> Path:
    """An archive of two bundles."""
    kit.make_run(writer, tmp_path / "spool")
    spool = ArchiveSpool(tmp_path / "archive #1 %20 é")
    with StoreReader(writer.address) as reader:
        kit.fill(writer, count=500)
        spool.write_bundle(reader, kit.RUN_ID)
        kit.add_rows(writer, closed=True)
        kit.end(writer)
        spool.write_bundle(reader, kit.RUN_ID)
    spool.written_file.unlink()
    return spool.path


def run_ids(where: Path | str) -> list[str]:
    return [archive.run_id for archive in find_archives(where)]


@pytest.fixture
def bucket_environ(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in bucket.environ.items():
        monkeypatch.setenv(name, value)
    return bucket


def client_of(bucket: Bucket) -> object:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=bucket.endpoint,
        aws_access_key_id=bucket.access_key,
        aws_secret_access_key=bucket.secret_key,
        region_name=bucket.region,
        config=Config(request_checksum_calculation="when_required"),
    )


def upload(bucket: Bucket, folder: Path, prefix: str) -> None:
    client = client_of(bucket)
    for file in sorted(folder.iterdir()):
        client.put_object(Bucket=bucket.name, Key=f"{prefix}/{file.name}", Body=file.read_bytes())  # type: ignore[attr-defined]


def test_a_folder_and_what_is_above_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "artifacts" / "x").mkdir(parents=True)
    folder.rename(tmp_path / "artifacts" / "x" / "radt")
    top = tmp_path / "artifacts"
    for where in (top / "x" / "radt", top / "x", (top / "x").as_uri(), top, str(top)):
        assert run_ids(where) == [kit.RUN_ID]
    assert find_archives(top / "x" / "radt" / FIRST)[0].files == (FIRST,)
    with pytest.raises(FileMissingError, match="does not contain an archive"):
        find_archives(tmp_path / "nothing")


def test_a_folder_that_may_not_be_read_is_named() -> None:
    """The rest is not imported as if it were all."""
    code = """
import os, sys
from pathlib import Path
from radt.delivery.archive.locations import LocalFolder
from radt.errors import ArchiveError
os.setuid(65534)
try:
    print(list(LocalFolder(Path(sys.argv[1])).paths()))
except ArchiveError as error:
    print(error.message)
"""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        Path(top, "hidden").mkdir(mode=0o700)
        command = [sys.executable, "-c", code, top]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{top} cannot be read or copied: Permission denied\n"


def test_a_file_that_cannot_be_copied_here(
    folder: Path, other: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, so that `radt import` goes on with the next archive."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFolder, "fetch", full)
    with pytest.raises(ArchiveError, match=re.escape(f"{folder}/{SECOND}")) as caught:
        import_archive(find_archive(folder), other)
    assert "No space left on device" in caught.value.message


@pytest.mark.parametrize("rows", ["points", "markers"])
def test_a_store_that_was_replaced(folder: Path, tmp_path: Path, rows: str) -> None:
    """It lacks something that the archive has: the next bundle has all of the run."""
    with StoreWriter(tmp_path / "replaced" / "radt.db") as writer:
        kit.make_run(writer, tmp_path / "spool")
        kit.fill(writer, count=500 if rows == "markers" else 499)
        if rows == "points":
            kit.add_rows(writer, closed=True)
        spool = ArchiveSpool(tmp_path / "archive")
        with bundle.open(folder / SECOND) as last:
            spool.note(Written(2, last.until))
        with StoreReader(writer.address) as reader:
            assert spool.write_bundle(reader, kit.RUN_ID).number == 3
    with bundle.open(spool.path / f"{kit.RUN_ID}.3.radt") as written:
        assert written.since == Position()


def test_files_with_numbers_in_their_names(
    folder: Path, writer: StoreWriter, other: StoreWriter
) -> None:
    """Exported files are not a sequence, whatever their names."""
    exports = folder.parent / "exports"
    exports.mkdir()
    with StoreReader(writer.address) as reader:
        for name in ("lr-0.1.radt", "lr-0.2.radt"):
            export_run(reader, reader.run(kit.RUN_ID), exports / name, ExportFormat.RADT)
    found = find_archives(exports)
    assert [archive.files for archive in found] == [("lr-0.1.radt",), ("lr-0.2.radt",)]
    for archive in found:
        import_archive(archive, other)
    assert kit.contents(other) == kit.contents(writer)


def test_s3(folder: Path, writer: StoreWriter, other: StoreWriter, bucket_environ: Bucket) -> None:
    uri = f"{bucket_environ.uri}/a b/0 é/artifacts"
    upload(bucket_environ, folder, "a b/0 é/artifacts/radt")
    import_archive(find_archive(uri), other)
    assert kit.contents(other) == kit.contents(writer)
    expected = load(kit.RUN_ID, home=writer.path.parent)
    pd.testing.assert_frame_equal(load(f"{uri}/radt"), expected)
    assert [str(each.location) for each in find_archives(bucket_environ.uri)] == [f"{uri}/radt"]
    pd.testing.assert_frame_equal(load(f"{uri}/radt/{FIRST}"), expected)


def test_s3_says_what_is_wrong(
    folder: Path, other: StoreWriter, bucket_environ: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{bucket_environ.uri}/x"
    upload(bucket_environ, folder, "x/radt")
    name = f"x/radt/{FIRST}"
    damaged = (folder / FIRST).read_bytes()[:-7] + b"1234567"
    client = client_of(bucket_environ)
    client.put_object(Bucket=bucket_environ.name, Key=name, Body=damaged)  # type: ignore[attr-defined]
    with pytest.raises(ArchiveError, match=f"{re.escape(uri)}/radt/{FIRST} is damaged"):
        import_archive(find_archive(uri), other)
    client.delete_object(Bucket=bucket_environ.name, Key=name)  # type: ignore[attr-defined]
    with pytest.raises(ArchiveError, match=f"incomplete: {re.escape(uri)}/radt/{FIRST} is missing"):
        import_archive(find_archive(uri), other)
    with pytest.raises(FileMissingError, match="does not contain an archive"):
        find_archive(f"{bucket_environ.uri}/nowhere")
    with pytest.raises(ArchiveError, match="Expected s3:"):
        load("s3:///x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ArchiveError, match="S3 refuses the secret key"):
        load(uri)


def test_an_mlflow_run_whose_artifacts_go_through_the_server(
    folder: Path,
    writer: StoreWriter,
    other: StoreWriter,
    mlflow_server: MlflowServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that is found by radt's own id."""
    client = MlflowClient(mlflow_server.uri)
    experiment = client.create_experiment("archives")
    mlflow_id = client.create_run(experiment, tags={"radt.run_id": kit.RUN_ID}).info.run_id
    client.log_artifact(mlflow_id, str(folder / SECOND), "radt")
    archive = find_archive(f"runs:/{mlflow_id}", mlflow_server.uri)
    with pytest.raises(ArchiveError, match=f"runs:/{mlflow_id}/radt/{FIRST} is missing"):
        import_archive(archive, other)
    client.log_artifact(mlflow_id, str(folder / FIRST), "radt")

    import_archive(find_archive(f"runs:/{kit.RUN_ID}", mlflow_server.uri), other)
    assert kit.contents(other) == kit.contents(writer)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    expected = load(kit.RUN_ID, home=writer.path.parent)
    pd.testing.assert_frame_equal(load(f"runs:/{mlflow_id}/radt"), expected)

    with pytest.raises(FileMissingError, match="does not have run"):
        load("runs:/" + "0" * 32)
    without = client.create_run(experiment).info.run_id
    with pytest.raises(FileMissingError, match="does not contain an archive"):
        load(f"runs:/{without}")


@pytest.fixture
def nobody_there() -> Iterator[str]:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://me:hunter2@127.0.0.1:{taken.getsockname()[1]}"


def test_a_server_that_is_away(nobody_there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", nobody_there)
    with pytest.raises(
        ArchiveError, match=r"MLflow failed on runs:/0+: .*RADT_TRACKING_URI"
    ) as caught:
        load("runs:/" + "0" * 32)
    assert "hunter2" not in str(caught.value)


def test_what_is_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "abcdef").mkdir()
    assert not is_address("abcdef"), "a folder without an archive may be named like a run"
    (tmp_path / "abcdef" / "mine.radt").write_text("")
    assert is_address("abcdef")
    assert is_address("./abcdef")
    assert is_address("mine.radt")
    with pytest.raises(
        ArchiveError, match=r"Expected a folder, s3://bucket/prefix or runs:/ID, got gs://x/y"
    ):
        load("gs://x/y")


def test_a_file_of_s3_that_is_missing_or_has_no_room_here(
    bucket_environ: Bucket, folder: Path, tmp_path: Path
) -> None:
    upload(bucket_environ, folder, "x/radt")
    place = S3Folder.of(f"{bucket_environ.uri}/x/radt")
    with pytest.raises(FileMissingError, match=re.escape(f"{place}/run.json does not exist")):
        place.fetch("run.json", tmp_path / "copy")
    with pytest.raises(ArchiveError, match=re.escape(f"{place}/{FIRST} cannot be copied")):
        place.fetch(FIRST, tmp_path / "no folder" / "copy")


def test_an_argument_of_uploads_that_boto3_does_not_know(
    bucket_environ: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("MLFLOW_S3_UPLOAD_EXTRA_ARGS", '{"Colour": "red"}')
    with pytest.raises(ArchiveError, match=r"MLFLOW_S3_UPLOAD_EXTRA_ARGS: .*Colour"):
        S3Folder.of(bucket_environ.uri).put("file", tmp_path / "file")


def test_a_connection_that_s3_closes_is_a_problem_of_s3(
    bucket_environ: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with suppress(OSError):  # the test is over
                while True:
                    server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", endpoint)

        with pytest.raises(ArchiveError, match="S3: Connection was closed"):
            load(f"s3://{bucket_environ.name}/prefix")
        server.shutdown(socket.SHUT_RDWR)
