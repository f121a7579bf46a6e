"""Servers in folders: they begin, end, and come back with their data after a SIGKILL."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg2
import pytest

from radt.procfs import process_stat
from tests.support.bench import alive, wait_until
from tests.support.daemon import Daemon, free_port
from tests.support.mlflow_server import Bucket
from tests.support.postgres import Postgres
from tests.support.servers import (
    PASSWORD,
    database_of,
    postgres_cluster,
    run_sql,
    s3_store,
)


def rows(uri: str) -> list[tuple[int]]:
    connection = psycopg2.connect(uri)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT n FROM t ORDER BY n")
            found: list[tuple[int]] = cursor.fetchall()
            return found
    finally:
        connection.close()


def test_servers_that_do_not_listen_yet_have_ports_of_their_own() -> None:
    assert len({free_port() for _ in range(100)}) == 100


def test_postgres_comes_back_after_sigkill_on_the_same_port_with_its_data() -> None:
    with postgres_cluster() as postgres:
        run_sql(postgres, "CREATE TABLE t (n int)")
        run_sql(postgres, "INSERT INTO t VALUES (1), (2)")
        port, head = postgres.port, postgres.pid
        postgres.kill()
        assert postgres.pid is None and not postgres.answers
        postgres.start()
        assert (postgres.port, rows(postgres.uri())) == (port, [(1,), (2,)])
        assert postgres.pid != head

        head = postgres.pid
        assert head is not None
        os.kill(head, 9)  # its children find out by themselves
        postgres.start()
        assert (postgres.port, rows(postgres.uri())) == (port, [(1,), (2,)])

        again = postgres.pid
        postgres.start()
        assert postgres.pid == again
        # Another process that knows the folder only.
        same = Postgres(postgres.folder, PASSWORD)
        assert same.answers
        same.stop()
        assert postgres.pid is None
        postgres.stop()


def test_postgres_wants_the_password_and_listens_on_loopback_only(postgres: Postgres) -> None:
    with pytest.raises(psycopg2.OperationalError, match="password"):
        psycopg2.connect(postgres.uri(password="wrong"))
    listening = [
        connection.laddr
        for connection in psutil.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == postgres.port
    ]
    assert listening == [("127.0.0.1", postgres.port)]


def test_each_test_has_a_database_of_its_own(postgres: Postgres, database: str) -> None:
    with database_of(postgres) as other:
        assert other != database
        connection = psycopg2.connect(database)
        with connection.cursor() as cursor:
            cursor.execute("SHOW fsync")
            assert cursor.fetchone() == ("off",)
        connection.close()
    with pytest.raises(psycopg2.OperationalError, match="does not exist"):
        psycopg2.connect(other)


def test_s3_comes_back_after_sigkill_on_the_same_port_with_its_data() -> None:
    with s3_store() as s3:
        s3.ensure_bucket("bucket")
        s3.client().put_object(Bucket="bucket", Key="some/kéy", Body=b"0123456789")
        endpoint = s3.endpoint
        s3.kill()
        assert s3.pid is None and not s3.answers
        s3.start()
        assert s3.endpoint == endpoint
        s3.ensure_bucket("bucket")
        got = s3.client().get_object(Bucket="bucket", Key="some/kéy", Range="bytes=2-4")
        assert got["Body"].read() == b"234"


def test_s3_takes_multipart_and_wants_the_key(bucket: Bucket, tmp_path: Path) -> None:
    import boto3
    from botocore.exceptions import ClientError

    data = os.urandom(17_000_000)
    (tmp_path / "large").write_bytes(data)

    def client(secret: str):  # type: ignore[no-untyped-def]
        return boto3.client(
            "s3",
            endpoint_url=bucket.endpoint,
            aws_access_key_id=bucket.access_key,
            aws_secret_access_key=secret,
            region_name=bucket.region,
        )

    client(bucket.secret_key).upload_file(str(tmp_path / "large"), bucket.name, "large")
    got = client(bucket.secret_key).get_object(Bucket=bucket.name, Key="large")
    assert got["Body"].read() == data
    with pytest.raises(ClientError):
        client("wrong").get_object(Bucket=bucket.name, Key="large")


def test_a_port_that_another_program_took_meanwhile_is_left_to_it() -> None:
    with s3_store() as s3:
        port = s3.port
        s3.ensure_bucket("bucket")
        s3.stop()
        with socket.create_server(("127.0.0.1", port)):
            s3.start()
            assert s3.port != port
            assert [one["Name"] for one in s3.client().list_buckets()["Buckets"]] == ["bucket"]


def test_a_number_that_belongs_to_another_process_now_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stat = process_stat(other.pid)
        assert stat is not None
        (tmp_path / "thing.process").write_text(f"{other.pid} {stat.started_ticks - 100}")
        daemon = Daemon("thing", tmp_path)
        assert daemon.pid is None
        daemon.stop()
        assert alive(other.pid)
    finally:
        other.kill()
        other.wait()


@pytest.mark.long
def test_servers_end_with_the_tests_however_these_end() -> None:
    program = (
        "from tests.support.servers import s3_store\n"
        "with s3_store() as s3:\n    print(s3.pid, s3.folder, flush=True); input()"
    )
    tests = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert tests.stdout is not None
    pid, folder = tests.stdout.readline().split()
    assert alive(int(pid))
    tests.kill()
    tests.communicate()
    wait_until(lambda: not alive(int(pid)) and not Path(folder).exists(), "all gone")
