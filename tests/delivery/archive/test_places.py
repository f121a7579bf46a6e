"""Archives in folders, S3, and the artifacts of MLflow runs, direct and through the server."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from mlflow.tracking import MlflowClient

from radt.delivery.archive.importing import import_archive
from radt.delivery.archive.locations import FileMissingError, is_address
from radt.delivery.archive.read import Archive, find_archives
from radt.errors import ArchiveError
from radt.load import load
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from tests.delivery.archive import kit
from tests.support.mlflow_server import Bucket, MlflowServer


@pytest.fixture
def folder(writer: StoreWriter, run: RunRecord) -> Path:
    kit.fill(writer, count=500)
    kit.add_rows(writer, closed=True)
    kit.end(writer)
    kit.archive(writer, run)
    return kit.archive_folder(run)


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
    for file in sorted(folder.rglob("*")):
        if file.name == "run.json" or file.suffix == ".parquet":
            key = f"{prefix}/{file.relative_to(folder)}"
            client.put_object(Bucket=bucket.name, Key=key, Body=file.read_bytes())  # type: ignore[attr-defined]


def test_a_folder_and_what_is_above_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "artifacts" / "x").mkdir(parents=True)
    folder.rename(tmp_path / "artifacts" / "x" / "radt")
    top = tmp_path / "artifacts"
    for where in (top / "x" / "radt", top / "x", top / "x" / "radt" / "run.json"):
        assert Archive.open(where).manifest.run.run_id == kit.RUN_ID
        assert Archive.open((top / "x").as_uri()).manifest.run.run_id == kit.RUN_ID
    assert [one.manifest.run.run_id for one in find_archives(top)] == [kit.RUN_ID]
    with pytest.raises(FileMissingError, match="does not contain an archive"):
        find_archives(tmp_path / "nothing")


def test_s3(folder: Path, writer: StoreWriter, other: StoreWriter, bucket_environ: Bucket) -> None:
    uri = f"{bucket_environ.uri}/a b/0 é/artifacts"
    upload(bucket_environ, folder, "a b/0 é/artifacts/radt")
    import_archive(uri, other)
    assert kit.contents(other) == kit.contents(writer)
    expected = load(kit.RUN_ID, home=writer.path.parent)
    pd.testing.assert_frame_equal(load(f"{uri}/radt"), expected)
    assert [str(one.location) for one in find_archives(bucket_environ.uri)] == [f"{uri}/radt"]


def test_s3_says_what_is_wrong(
    folder: Path, other: StoreWriter, bucket_environ: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{bucket_environ.uri}/x"
    upload(bucket_environ, folder, "x/radt")
    part = "samples/smi-00001.parquet"
    damaged = (folder / part).read_bytes()[:-7] + b"1234567"
    client_of(bucket_environ).put_object(  # type: ignore[attr-defined]
        Bucket=bucket_environ.name, Key=f"x/radt/{part}", Body=damaged
    )
    with pytest.raises(ArchiveError, match=f"{re.escape(uri)}/radt/{part} is damaged: its SHA-256"):
        import_archive(uri, other)
    client_of(bucket_environ).delete_object(  # type: ignore[attr-defined]
        Bucket=bucket_environ.name, Key=f"x/radt/{part}"
    )
    with pytest.raises(ArchiveError, match=f"incomplete: {re.escape(uri)}/radt/{part} is missing"):
        import_archive(uri, other)
    with pytest.raises(FileMissingError, match="does not contain an archive"):
        import_archive(f"{bucket_environ.uri}/nowhere", other)
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
    client.log_artifact(mlflow_id, str(folder / "run.json"), "radt")
    for part in (folder / "samples").iterdir():
        client.log_artifact(mlflow_id, str(part), "radt/samples")
    with pytest.raises(
        ArchiveError, match=f"runs:/{mlflow_id}/radt/markers-00001.parquet is missing"
    ):
        import_archive(f"runs:/{mlflow_id}", other, mlflow_server.uri)
    client.log_artifact(mlflow_id, str(folder / "markers-00001.parquet"), "radt")

    import_archive(f"runs:/{kit.RUN_ID}", other, mlflow_server.uri)
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
    with pytest.raises(ArchiveError, match=r"cannot be read.*RADT_TRACKING_URI") as caught:
        load("runs:/" + "0" * 32)
    assert "hunter2" not in str(caught.value)


def test_what_is_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "abcdef").mkdir()
    assert not is_address("abcdef"), "a folder without an archive may be named like a run"
    (tmp_path / "abcdef" / "run.json").write_text("")
    assert is_address("abcdef")
    assert is_address("./abcdef")
    with pytest.raises(
        ArchiveError, match=r"Expected a folder, s3://bucket/prefix or runs:/ID, got gs://x/y"
    ):
        load("gs://x/y")


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
