"""Real servers for tests: Postgres, S3, MLflow, Slurm, Docker, in folders that are removed after.

Most tests want the fixtures of ``tests/conftest.py``: one server of each kind for the whole test
run, which all workers share, and a database or a bucket of the test's own. Tests that kill or stop
a server start one themselves::

    with postgres_cluster() as postgres, s3_store() as s3:
        with mlflow_server(postgres, s3) as mlflow:
            mlflow.kill()
            mlflow.start()      # same port, same data

A missing program fails the test and says how to install it (``tests/system_packages.sh``).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from psycopg2 import sql
from psycopg2.errors import DuplicateDatabase

from tests.support.daemon import Daemon
from tests.support.docker import DockerEngine, expect_made
from tests.support.docker_images import IMAGES
from tests.support.mlflow_server import ArtifactAccess, Auth, Bucket, Database, MlflowServer
from tests.support.postgres import SUPERUSER, THROWAWAY, Postgres
from tests.support.s3 import S3Server
from tests.support.slurm import Slurm, kill_cluster
from tests.support.slurm_isolated import IsolatedSlurm

#: With characters that must be quoted in a URI.
PASSWORD = "p@ss/wörd:1"
S3_SECRET = "s3-secret-of-a-test"
ROOT = Path(__file__).parents[2]
#: Names the folder of the shared servers to the workers of a test run.
SHARED_VARIABLE = "RADT_TEST_SERVERS"


# Shared by the whole test run --------------------------------------------------------------------


def share_servers() -> subprocess.Popen[bytes]:
    """Name a folder for the shared servers; they end when this process does, however it ends."""
    folder = Path(tempfile.mkdtemp(prefix="radt-servers-"))
    folder.chmod(0o711)  # Postgres runs as another user than root
    os.environ[SHARED_VARIABLE] = str(folder)
    return _reaper(folder)


@contextmanager
def _starting() -> Iterator[Path]:
    """The folder of the shared servers, for one worker at a time."""
    folder = Path(os.environ[SHARED_VARIABLE])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def shared_postgres() -> Postgres:
    """The cluster that no test stops."""
    with _starting() as folder:
        postgres = Postgres(folder / "postgres", PASSWORD, THROWAWAY)
        postgres.start()
    return postgres


def shared_s3() -> S3Server:
    """The S3 server that no test stops."""
    with _starting() as folder:
        (folder / "s3").mkdir(exist_ok=True)
        server = S3Server(folder / "s3", S3_SECRET)
        server.start()
    return server


def shared_mlflow(postgres: Postgres, s3: S3Server, *, auth: bool = False) -> MlflowServer:
    """A tracking server that no test stops; artifacts go through it."""
    name = "mlflow-auth" if auth else "mlflow"
    with _starting() as folder:
        try:
            run_sql(postgres, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        except DuplicateDatabase:
            pass  # another worker was here first
        server = MlflowServer(
            folder / name,
            Database(postgres.port, name, SUPERUSER, PASSWORD),
            bucket_of(s3, name),
            access=ArtifactAccess.PROXIED,
            auth=Auth("a password of 12", "key-of-all-workers") if auth else None,
        )
        server.start()
    return server


def shared_docker() -> DockerEngine:
    """The engine that no test stops."""
    with _starting() as folder:
        engine = DockerEngine(folder / "docker")
        engine.start()
        expect_made(image for image in IMAGES if image.is_usual)
    return engine


# A test's own ------------------------------------------------------------------------------------


@contextmanager
def server_folder() -> Iterator[Path]:
    """A folder that other users may pass, removed with the servers in it, also after SIGKILL."""
    folder = Path(tempfile.mkdtemp(prefix="radt-servers-"))
    folder.chmod(0o711)  # Postgres runs as another user than root
    reaper = _reaper(folder)
    try:
        yield folder
    finally:
        assert reaper.stdin is not None
        reaper.stdin.close()
        reaper.wait()


def _reaper(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.reaper", str(folder)],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )


@contextmanager
def postgres_cluster(settings: dict[str, str] | None = None) -> Iterator[Postgres]:
    """A cluster that runs, without fsync.

    Args:
        settings: Lines for ``postgresql.conf``.
    """
    with server_folder() as folder:
        postgres = Postgres(folder / "postgres", PASSWORD, {**THROWAWAY, **(settings or {})})
        postgres.start()
        yield postgres


@contextmanager
def database_of(postgres: Postgres, options: str = "") -> Iterator[str]:
    """A new database; its URI, as superuser, with the password.

    Args:
        postgres: The cluster.
        options: More of ``CREATE DATABASE``.
    """
    name = f"test_{secrets.token_hex(6)}"
    create = sql.SQL("CREATE DATABASE {} ").format(sql.Identifier(name)) + sql.SQL(options)
    run_sql(postgres, create)
    yield postgres.uri(name)
    if postgres.answers:  # a test may have killed it
        run_sql(
            postgres,
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)),
        )


def run_sql(postgres: Postgres, statement: sql.Composable | str) -> None:
    """One statement as superuser."""
    connection = postgres.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()


@contextmanager
def s3_store() -> Iterator[S3Server]:
    """An S3 server that runs."""
    with server_folder() as folder:
        (folder / "s3").mkdir()
        server = S3Server(folder / "s3", S3_SECRET)
        server.start()
        yield server


def bucket_of(server: S3Server, name: str = "") -> Bucket:
    """A bucket, new unless a name is given; ``.environ`` has boto3's and MLflow's variables."""
    name = name or f"test-{secrets.token_hex(6)}"
    server.ensure_bucket(name)
    return Bucket(server.endpoint, name, server.access_key, server.secret_key)


@contextmanager
def mlflow_server(
    postgres: Postgres,
    s3: S3Server,
    *,
    auth: bool = False,
    access: ArtifactAccess = ArtifactAccess.PROXIED,
) -> Iterator[MlflowServer]:
    """A tracking server that runs; ``.client_environ`` has what its clients need.

    Args:
        postgres: Where it has a database of its own.
        s3: Where it has a bucket of its own.
        auth: Basic auth.
        access: How clients get at artifacts.
    """
    with server_folder() as folder, database_of(postgres) as uri:
        name = uri.rsplit("/", 1)[1]
        server = MlflowServer(
            folder / "mlflow",
            Database(postgres.port, name, SUPERUSER, PASSWORD),
            bucket_of(s3),
            access=access,
            auth=Auth("a password of 12", secrets.token_hex(16)) if auth else None,
        )
        server.start()
        yield server
        server.kill()  # before its database goes


@contextmanager
def slurm_cluster(
    nodes: int = 3,
    gpus: int | Mapping[str, int] = 2,
    *,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Slurm]:
    """A Slurm cluster of nodes on this machine, all of them idle; ``.environ`` names it.

    Args:
        nodes: How many.
        gpus: Of each node, without a driver: how many, or how many of each type.
        settings: Lines of ``slurm.conf`` that are to be otherwise.
    """
    with (
        server_folder() as folder,
        _running(Slurm(folder, nodes, gpus, settings=settings)) as slurm,
    ):
        yield slurm


@contextmanager
def isolated_slurm_cluster(
    nodes: int = 3, gpus: int = 2, *, settings: Mapping[str, str] | None = None
) -> Iterator[IsolatedSlurm]:
    """A Slurm cluster whose nodes are machines of their own (root only); see `IsolatedSlurm`."""
    with (
        server_folder() as folder,
        _running(IsolatedSlurm(folder, nodes, gpus, settings=settings)) as slurm,
    ):
        yield slurm


_SlurmT = TypeVar("_SlurmT", bound=Slurm)


@contextmanager
def _running(slurm: _SlurmT) -> Iterator[_SlurmT]:
    """A cluster from its start to its end; a failure says what its daemons said last."""
    try:
        slurm.start()
        yield slurm
    except Exception as error:
        error.add_note(slurm.last_words())
        raise
    finally:
        slurm.stop()


def end_servers(folder: Path) -> None:
    """End whatever was started in a folder, and remove it."""
    for conf in folder.rglob("slurm.conf"):
        kill_cluster(conf.parent)
    if (folder / "docker").exists():
        DockerEngine(folder / "docker").stop()
    for note in folder.rglob("*.process"):
        Daemon(note.stem, note.parent).kill()
    for note in folder.rglob("postmaster.pid"):
        Postgres(note.parent.parent, "").kill()
    shutil.rmtree(folder, ignore_errors=True)
