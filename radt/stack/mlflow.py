"""MLflow's tracking server on loopback: runs in Postgres, artifacts in S3.

What it is told, it is told in its environment: command lines can be read by all users of a
machine. The database is named as libpq has it (``PGHOST``, ``PGPASSWORD``, …), so that no URI
with a password in it is written anywhere.
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from radt.errors import StackError
from radt.stack.daemon import LOOPBACK, Daemon, chosen_port, write_private

#: libpq finds host, user, password and database in the environment.
BACKEND_URI = "postgresql+psycopg2://"
AUTH_CONFIG = Path(__file__).with_name("files") / "mlflow_auth.ini"
ADMIN = "admin"
#: Of the server's Python and its first look into a database, with migrations.
_START_S = 180.0


class ArtifactAccess(StrEnum):
    """How clients get at artifacts."""

    #: From S3 itself, which they must reach and have keys of. Six times as fast with large files.
    DIRECT = "direct"
    #: Through the tracking server: its address, and its password if it has one, is all they need.
    PROXIED = "proxied"


@dataclass(frozen=True, slots=True)
class Database:
    """Where MLflow keeps runs."""

    host: str
    port: int
    name: str
    user: str
    password: str

    @property
    def environ(self) -> dict[str, str]:
        """For libpq."""
        return {
            "PGHOST": self.host,
            "PGPORT": str(self.port),
            "PGDATABASE": self.name,
            "PGUSER": self.user,
            "PGPASSWORD": self.password,
        }


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where MLflow keeps artifacts."""

    endpoint: str
    name: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def environ(self) -> dict[str, str]:
        """For boto3 and MLflow, here and at clients."""
        return {
            "MLFLOW_S3_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
        }


@dataclass(frozen=True, slots=True)
class Auth:
    """Basic auth: the administrator, and the key that the server's forms are signed with."""

    password: str
    form_key: str
    user: str = ADMIN

    @property
    def environ(self) -> dict[str, str]:
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(AUTH_CONFIG),
            "MLFLOW_AUTH_ADMIN_USERNAME": self.user,
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": self.form_key,
        }


def command(*, host: str, port: int, workers: int, allowed_hosts: str, auth: bool) -> list[str]:
    """The arguments of the ``mlflow`` command; there is nothing secret in them."""
    return [
        "server",
        f"--host={host}",
        f"--port={port}",
        f"--workers={workers}",
        f"--allowed-hosts={allowed_hosts}",
        *(["--app-name=basic-auth"] if auth else []),
    ]


def environment(
    database: Database, bucket: Bucket, access: ArtifactAccess, auth: Auth | None
) -> dict[str, str]:
    """What the server is told beside its command."""
    proxied = access is ArtifactAccess.PROXIED
    return {
        **database.environ,
        **bucket.environ,
        "MLFLOW_BACKEND_STORE_URI": BACKEND_URI,
        "MLFLOW_ARTIFACTS_DESTINATION": bucket.uri,
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": "mlflow-artifacts:/" if proxied else bucket.uri,
        # botocore's own checksums end up inside files of some versions of SeaweedFS (its #6548).
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        # For language models' traces; several processes that do nothing here.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        **(auth.environ if auth else {}),
    }


class MlflowServer:
    """One server on loopback.

    Args:
        folder: Of its log and its port.
        database: There, and its user may make tables.
        bucket: There.
        access: How clients get at artifacts.
        auth: None lets everybody in who reaches it, as all of this machine's users do.
        workers: Processes that serve.
        port: 0 for a free one, which is kept.
    """

    name = "MLflow"

    def __init__(
        self,
        folder: Path,
        database: Database,
        bucket: Bucket,
        *,
        access: ArtifactAccess = ArtifactAccess.DIRECT,
        auth: Auth | None = None,
        workers: int = 1,
        port: int = 0,
    ) -> None:
        self.folder = folder.absolute()
        self.database = database
        self.bucket = bucket
        self.access = access
        self.auth = auth
        self.workers = workers
        self._asked_for = port
        self._daemon = Daemon("mlflow", self.folder)

    @property
    def port(self) -> int:
        """The port it has, had last, or shall have; 0 if that is still open."""
        try:
            return int((self.folder / "mlflow.port").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return self._asked_for

    @property
    def uri(self) -> str:
        """The tracking URI; user and password are for variables of their own."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        return self._daemon.log

    @property
    def pid(self) -> int | None:
        return self._daemon.pid

    @property
    def client_environ(self) -> dict[str, str]:
        """Variables with which MLflow's clients reach it."""
        found = {"MLFLOW_TRACKING_URI": self.uri}
        if self.auth is not None:
            found["MLFLOW_TRACKING_USERNAME"] = self.auth.user
            found["MLFLOW_TRACKING_PASSWORD"] = self.auth.password
        if self.access is ArtifactAccess.DIRECT:
            found |= self.bucket.environ
        return found

    @property
    def answers(self) -> bool:
        """Whether it lists experiments, for which it asks its database."""
        return self._listed() is not None

    @property
    def runs(self) -> bool:
        """Whether it runs, answers, and was told what it would be told now."""
        if self.pid is None or self._asked_for not in (0, self.port):
            return False
        if not self._daemon.was_told(self._told) or not self.answers:
            return False
        return self.pid is not None  # the workers of a head that was just killed may answer

    def start(self) -> None:
        """Start it, and return when it answers; harmless if it runs.

        Raises:
            StackError: It cannot be started.
        """
        if self.runs:
            return
        if self.auth is not None and importlib.util.find_spec("flask_wtf") is None:
            raise StackError(
                "MLflow's basic auth needs Flask-WTF, which is not installed",
                "pip install 'radt[stack]'",
            )
        self._daemon.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        port = chosen_port(self._asked_for, self.port)
        write_private(self.folder / "mlflow.port", f"{port}\n")
        arguments = command(
            host=LOOPBACK,
            port=port,
            workers=self.workers,
            allowed_hosts=f"{LOOPBACK}:{port},localhost:{port}",
            auth=self.auth is not None,
        )
        whole_command = [sys.executable, "-P", "-m", "mlflow", *arguments]
        self._daemon.start(whole_command, self._told, self.folder)
        self._daemon.wait_until(lambda: self.answers, _START_S)

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    @property
    def _told(self) -> dict[str, str]:
        return environment(self.database, self.bucket, self.access, self.auth)

    def _listed(self) -> object:
        headers = {"Content-Type": "application/json"}
        if self.auth is not None:
            pair = f"{self.auth.user}:{self.auth.password}".encode()
            headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=30)
        try:
            connection.request(
                "POST", "/api/2.0/mlflow/experiments/search", '{"max_results": 1}', headers
            )
            answer = connection.getresponse()
            text = answer.read()
            return json.loads(text) if answer.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
