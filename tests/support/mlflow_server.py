"""MLflow's tracking server on loopback: runs in Postgres, artifacts in S3.

It is configured by its environment alone, as in ``compose.yaml``: command lines can be read by all
users of a machine.
"""

from __future__ import annotations

import base64
import http.client
import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from radt.compose.init import FILES
from tests.support.daemon import LOOPBACK, Answers, Daemon, is_there, kept_port, read_port

ADMIN = "admin"


class ArtifactAccess(StrEnum):
    """How clients read and write artifacts."""

    DIRECT = "direct"  # from S3, which they must reach and have keys of
    PROXIED = "proxied"  # through the tracking server


@dataclass(frozen=True, slots=True)
class Database:
    """Where MLflow keeps runs."""

    port: int
    name: str
    user: str
    password: str


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
    """Basic auth: the administrator's password, and the key that signs the server's forms."""

    password: str
    form_key: str
    user: str = ADMIN


class MlflowServer(Answers):
    """One server on loopback.

    Args:
        folder: Of its log and its port.
        database: Exists, and its user may create tables.
        bucket: Exists.
        access: How clients read and write artifacts.
        auth: None lets in everybody who reaches it.
    """

    def __init__(
        self,
        folder: Path,
        database: Database,
        bucket: Bucket,
        *,
        access: ArtifactAccess = ArtifactAccess.DIRECT,
        auth: Auth | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.database = database
        self.bucket = bucket
        self.access = access
        self.auth = auth
        self._port_file = self.folder / "mlflow.port"
        self._daemon = Daemon("mlflow", self.folder)

    @property
    def port(self) -> int:
        """The port it has or had last; 0 before its first start."""
        return read_port(self._port_file)

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
        environ = {"MLFLOW_TRACKING_URI": self.uri}
        if self.auth is not None:
            environ["MLFLOW_TRACKING_USERNAME"] = self.auth.user
            environ["MLFLOW_TRACKING_PASSWORD"] = self.auth.password
        if self.access is ArtifactAccess.DIRECT:
            environ |= self.bucket.environ
        return environ

    @property
    def answers(self) -> bool:
        """Whether it lists experiments, for which it asks its database."""
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
            json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return answer.status == http.HTTPStatus.OK

    def start(self) -> None:
        """Start it, and return when it answers; does nothing if it runs."""
        if is_there(self):
            return
        self._daemon.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        port = kept_port(self._port_file)
        arguments = [
            *("server", f"--host={LOOPBACK}", f"--port={port}", "--workers=1"),
            f"--allowed-hosts={LOOPBACK}:*",  # links of tests stand before it, on other ports
            *(["--app-name=basic-auth"] if self.auth is not None else []),
        ]
        command = [sys.executable, "-P", "-m", "mlflow", *arguments]
        self._daemon.start(command, self._environ(), self.folder)
        self._daemon.wait_answers(self)

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    def _environ(self) -> dict[str, str]:
        proxied = self.access is ArtifactAccess.PROXIED
        environ = {
            **self.bucket.environ,
            "PGHOST": LOOPBACK,
            "PGPORT": str(self.database.port),
            "PGDATABASE": self.database.name,
            "PGUSER": self.database.user,
            "PGPASSWORD": self.database.password,
            "MLFLOW_BACKEND_STORE_URI": "postgresql+psycopg2://",
            "MLFLOW_ARTIFACTS_DESTINATION": self.bucket.uri,
            "MLFLOW_DEFAULT_ARTIFACT_ROOT": "mlflow-artifacts:/" if proxied else self.bucket.uri,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        if self.auth is not None:
            environ |= {
                "MLFLOW_AUTH_CONFIG_PATH": str(FILES / "mlflow_auth.ini"),
                "MLFLOW_AUTH_ADMIN_USERNAME": self.auth.user,
                "MLFLOW_AUTH_ADMIN_PASSWORD": self.auth.password,
                "MLFLOW_FLASK_SERVER_SECRET_KEY": self.auth.form_key,
            }
        return environ
