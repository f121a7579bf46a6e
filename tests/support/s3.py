"""An S3 server on loopback: OpenStack Swift from PyPI, a real S3 server in one process."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.daemon import LOOPBACK, Answers, Daemon, free_port, is_there, listening
from tests.support.swift_server import BACKENDS, PORTS_FILE, PROXY, configuration

REGION = "us-east-1"


class S3Server(Answers):
    """One server. The keys are those of its only user."""

    _account, _user = "radt", "radt"
    access_key = f"{_account}:{_user}"

    def __init__(self, folder: Path, secret_key: str) -> None:
        self.folder = folder.absolute()
        self.secret_key = secret_key
        self._daemon = Daemon("swift", self.folder)

    @property
    def port(self) -> int:
        """The port it has or had last; 0 before its first start."""
        return self._ports().get(PROXY, 0)

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
        """Whether it lets us in with these keys."""
        if not listening(self.port):
            return False
        try:
            self.client().list_buckets()
        except (BotoCoreError, ClientError):
            return False
        return True

    def start(self) -> None:
        """Start it, and return when it answers; does nothing if it runs."""
        if is_there(self):
            return
        self._daemon.kill()
        (self.folder / "disks" / "disk").mkdir(mode=0o700, parents=True, exist_ok=True)
        ports = self._choose_ports()
        (self.folder / PORTS_FILE).write_text(json.dumps(ports), encoding="utf-8")
        constant = self.folder / "swift.conf"
        if not constant.exists():  # the places of objects depend on it: it may never change
            suffix = secrets.token_hex(16)
            constant.write_text(f"[swift-hash]\nswift_hash_path_suffix = {suffix}\n")
        files = configuration(self.folder, ports, self._account, self._user, self.secret_key)
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        command = [sys.executable, "-P", "-m", "tests.support.swift_server", str(self.folder)]
        root = str(Path(__file__).parents[2])
        self._daemon.start(command, {"PYTHONPATH": root}, self.folder)
        self._daemon.wait_answers(self)

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    def ensure_bucket(self, name: str) -> None:
        """Create the bucket if there is none of this name."""
        client = self.client()
        buckets = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
        if name not in buckets:
            client.create_bucket(Bucket=name)

    def _ports(self) -> dict[str, int]:
        try:
            ports: dict[str, int] = json.loads((self.folder / PORTS_FILE).read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return ports

    def _choose_ports(self) -> dict[str, int]:
        """The ports they had last as far as these are free."""
        last = self._ports()
        ports: dict[str, int] = {}
        for name in (PROXY, *BACKENDS):
            port = free_port(last.get(name, 0))
            while port in ports.values():
                port = free_port()
            ports[name] = port
        return ports
