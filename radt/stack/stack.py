"""Postgres, an S3 server and MLflow on loopback, of what is installed: ``radt stack up``.

::

    FOLDER/                 radt-data/stack unless --dir says otherwise
    ├── stack.env           passwords, made up once (mode 600)
    ├── stack.json          what it is made of
    ├── client.env          what clients are told (mode 600)
    ├── postgres/ s3/ mlflow/ dashboard/      data, logs, ports
    └── stack.lock          one command at a time

The servers are daemons of their own: they outlive the command, and are found again by it. What
was killed is started by the next ``up``; what runs is left alone.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from radt.errors import StackError
from radt.stack.daemon import LOOPBACK, write_private
from radt.stack.dashboard import DashboardServer
from radt.stack.mlflow import ArtifactAccess, MlflowServer
from radt.stack.postgres import SUPERUSER, Postgres
from radt.stack.prepare import prepare_bucket, prepare_database
from radt.stack.s3 import S3Server, s3_server
from radt.stack.secrets_file import Secrets, keep_secrets
from radt.stack.services import (
    Place,
    Role,
    auth,
    bucket,
    dashboard_environment,
    database,
    mlflow_client_environment,
    role_passwords,
    store_uri,
)

SECRETS_FILE = "stack.env"
CLIENT_FILE = "client.env"
_OPTIONS_FILE = "stack.json"
#: Passed by the user that Postgres runs as if root starts it; what is in it is private each.
_FOLDER_MODE = 0o711


class Server(Protocol):
    """What all servers have in common."""

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def port(self) -> int: ...
    @property
    def log(self) -> Path: ...
    @property
    def answers(self) -> bool: ...
    @property
    def runs(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """What a stack is made of; kept, so that a later ``up`` does the same."""

    #: MLflow asks for a password. Without, all users of this machine may use it.
    auth: bool = False
    dashboard: bool = False
    #: Ports that were asked for by server, ``mlflow`` or ``dashboard``.
    ports: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """How one server is."""

    name: str
    pid: int | None
    port: int
    answers: bool
    log: Path


class Stack:
    """The stack of one folder.

    Args:
        folder: Made by `up`.
        tell: Called with what is being done, in a line.

    Raises:
        StackError: The folder holds something else.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None] = lambda _: None) -> None:
        self.folder = folder.absolute()
        self._tell = tell

    @property
    def exists(self) -> bool:
        """Whether a stack was ever made there."""
        return (self.folder / SECRETS_FILE).exists()

    @property
    def options(self) -> Options:
        """As chosen by the last `up`."""
        try:
            return Options(**json.loads((self.folder / _OPTIONS_FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Options()
        except (ValueError, TypeError) as error:
            raise StackError(
                f"{self.folder / _OPTIONS_FILE} cannot be read: {error}", "Remove it, and try again"
            ) from error

    def up(self, options: Options | None = None) -> dict[str, str]:
        """Start what does not run, and return when all of it answers.

        Args:
            options: None for those of the last time.

        Returns:
            The variables with which clients use it; they hold passwords.

        Raises:
            StackError: Something is not installed, or does not start.
        """
        with self._alone():
            options = options or self.options
            secrets = keep_secrets(self.folder / SECRETS_FILE)
            write_private(self.folder / _OPTIONS_FILE, json.dumps(asdict(options)))
            postgres, s3 = self._postgres(secrets), self._s3(secrets)
            self._start(postgres)
            self._start(s3)
            place = _place(postgres, s3)
            prepare_database(
                place, SUPERUSER, secrets.stack_postgres_password, role_passwords(secrets)
            )
            prepare_bucket(bucket(place, secrets))
            mlflow = self._mlflow(place, secrets, options)
            self._start(mlflow)
            place = replace(place, mlflow_uri=mlflow.uri)
            dashboard = self._dashboard(place, secrets, options)
            if options.dashboard:
                self._start(dashboard)
            else:
                dashboard.stop()
            environ = client_environment(place, secrets, options)
            lines = "".join(f"{name}='{value}'\n" for name, value in environ.items())
            write_private(self.folder / CLIENT_FILE, lines)
            return environ

    def down(self) -> list[str]:
        """End what runs of it, the last started first.

        Returns:
            The servers that were ended.

        Raises:
            StackError: One does not end; the others have been.
        """
        if not self.exists:
            return []
        with self._alone():
            ended, troubles = [], []
            for server in reversed(self._servers()):
                if server.pid is None:
                    server.kill()  # workers whose head was killed
                    continue
                self._tell(f"{server.name} is being stopped")
                try:
                    server.stop()
                    ended.append(server.name)
                except StackError as error:
                    troubles.append(error)
            if troubles:
                raise troubles[0]
            return ended

    def states(self) -> list[State]:
        """How each server is; none if there is no stack."""
        if not self.exists:
            return []
        return [
            State(one.name, pid, one.port, pid is not None and one.answers, one.log)
            for one in self._servers()
            for pid in [one.pid]
        ]

    def dashboard_url(self, *, with_token: bool) -> str:
        """Where the dashboard is opened, which asks for a token unless that is in the address.

        Empty if there is none.
        """
        servers = self._servers() if self.exists else []
        for server in servers:
            if isinstance(server, DashboardServer):
                return server.url if with_token else server.url.partition("?")[0]
        return ""

    def dead(self) -> list[str]:
        """Servers that should run and do not."""
        return [server.name for server in self._servers() if server.pid is None]

    # Its servers -----------------------------------------------------------------------------

    def _servers(self) -> list[Server]:
        """In the order in which they are started."""
        secrets, options = keep_secrets(self.folder / SECRETS_FILE), self.options
        postgres, s3 = self._postgres(secrets), self._s3(secrets)
        place = _place(postgres, s3)
        servers: list[Server] = [postgres, s3, self._mlflow(place, secrets, options)]
        if options.dashboard:
            servers.append(self._dashboard(place, secrets, options))
        return servers

    def _postgres(self, secrets: Secrets) -> Postgres:
        return Postgres(self.folder / "postgres", secrets.stack_postgres_password)

    def _s3(self, secrets: Secrets) -> S3Server:
        return s3_server(self.folder / "s3", secrets.stack_s3_secret_key)

    def _mlflow(self, place: Place, secrets: Secrets, options: Options) -> MlflowServer:
        return MlflowServer(
            self.folder / "mlflow",
            database(place, Role.MLFLOW, secrets.stack_mlflow_password),
            bucket(place, secrets),
            access=ArtifactAccess.DIRECT,
            auth=auth(secrets) if options.auth else None,
            port=options.ports.get("mlflow", 0),
        )

    def _dashboard(self, place: Place, secrets: Secrets, options: Options) -> DashboardServer:
        environ = dashboard_environment(place, secrets, with_auth=options.auth)
        return DashboardServer(
            self.folder / "dashboard", environ, port=options.ports.get("dashboard", 0)
        )

    def _start(self, server: Server) -> None:
        if server.runs:
            self._tell(f"{server.name} runs on port {server.port}")
            return
        before = server.port
        self._tell(f"{server.name} is being started")
        server.start()
        if before and server.port != before:
            self._tell(f"{server.name} has port {server.port} now, not {before}: tell its clients")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While another command works on the same folder, wait."""
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
                self.folder.chmod(_FOLDER_MODE)
                # Passwords are no part of anybody's repository.
                (self.folder / ".gitignore").write_text("*\n", encoding="utf-8")
            file = (self.folder / "stack.lock").open("a")
        except OSError as error:
            raise StackError(
                f"the folder {self.folder} cannot be used: {error.strerror}",
                "Choose another with --dir",
            ) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def client_environment(place: Place, secrets: Secrets, options: Options) -> dict[str, str]:
    """With which scripts and radt on this machine use the stack."""
    writer = store_uri(place, Role.WRITER, role_passwords(secrets)[Role.WRITER])
    return {
        "RADT_STORE_URI": writer,
        **mlflow_client_environment(place, secrets, with_auth=options.auth),
        **bucket(place, secrets).environ,
    }


def _place(postgres: Postgres, s3: S3Server) -> Place:
    return Place(LOOPBACK, postgres.port, s3.endpoint, s3.access_key, "")
