"""compose.yaml on a real engine: services killed, an upgrade, backup and restore, HTTPS."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from urllib3 import HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.response import HTTPResponse
from urllib3.util import make_headers

from radt import __version__
from radt.compose.init import SECRET_NAMES, init_stack, read_env
from radt.delivery.mlflow.variables import DESTINATION
from tests.compose.compose import COMPOSE, ROOT
from tests.support.bench import stop_collectors, wait_until
from tests.support.daemon import LOOPBACK, free_port
from tests.support.docker import DockerEngine
from tests.support.docker_images import IMAGES, PYTHON
from tests.team.kit import Machine, Team, disagreements, points_at

pytestmark = [pytest.mark.docker, pytest.mark.long]
# What is built is built without a network; other programs may have Caddy's ports.
OFFLINE = """services:
  prepare: {build: {network: none}}
  mlflow: {build: {network: none}}
  dashboard: {build: {network: none}}
  caddy: {ports: !override ["127.0.0.1::443", "127.0.0.1::8443"]}
"""
HOST = "gpu1.example.org"
SERVICES = ("postgres", "s3", "mlflow", "dashboard")


@dataclass
class Stack:
    """The services, with Postgres and S3 published, too."""

    docker: DockerEngine
    folder: Path
    name: str

    @property
    def values(self) -> dict[str, str]:
        """What `.env` says."""
        return read_env((self.folder / ".env").read_text("utf-8"))

    def words(self, *words: str) -> list[str]:
        """Of docker's command line."""
        direct = ROOT / "radt" / "compose" / "files" / "direct.yaml"
        files = (COMPOSE, direct, self.folder / "offline.yaml")
        return [
            *("compose", "--project-directory", str(ROOT), "--project-name", self.name),
            *("--env-file", str(self.folder / ".env")),
            *(word for file in files for word in ("--file", str(file))),
            *words,
        ]

    def compose(self, *words: str) -> str:
        return self.docker.run(*self.words(*words))

    def up(self) -> None:
        """All of it runs and is healthy, with an image of this radt."""
        self.compose("up", "--detach", "--build", "--wait", "--wait-timeout", "600")

    def kill(self, service: str) -> None:
        """SIGKILL to a service's first process, as the kernel may; and it comes back healthy."""
        container = self.compose("ps", "--quiet", service)

        def state(field: str) -> str:
            return self.docker.run("inspect", "--format", f"{{{{.{field}}}}}", container)

        before = int(state("RestartCount"))
        os.kill(int(state("State.Pid")), signal.SIGKILL)
        wait_until(lambda: int(state("RestartCount")) > before, f"{service} is started again")
        wait_until(lambda: state("State.Health.Status") == "healthy", f"{service} is well", 600)

    def port(self, service: str) -> str:
        return self.values[f"STACK_{service}_PORT"]

    @property
    def client_environ(self) -> dict[str, str]:
        """As docs/storage.md has it for machines that reach all of them."""
        values = self.values
        return {
            "RADT_STORE_URI": self.database("writer"),
            "MLFLOW_TRACKING_URI": f"http://{LOOPBACK}:{self.port('MLFLOW')}",
            "MLFLOW_TRACKING_USERNAME": "admin",
            "MLFLOW_TRACKING_PASSWORD": values["STACK_MLFLOW_ADMIN_PASSWORD"],
            "MLFLOW_S3_ENDPOINT_URL": f"http://{LOOPBACK}:{self.port('S3')}",
            "AWS_ACCESS_KEY_ID": "radt",
            "AWS_SECRET_ACCESS_KEY": values["STACK_S3_SECRET_KEY"],
            DESTINATION: "s3://radt",
            # For MLflow's own client, which would wait for addresses that only its server reaches.
            "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
        }

    def database(self, role: str) -> str:
        password = self.values[f"STACK_{role.upper()}_PASSWORD"]
        return f"postgresql://radt_{role}:{password}@{LOOPBACK}:{self.port('POSTGRES')}/radt"

    def dashboard(self, path: str = "") -> requests.Response:
        token = self.values["RADT_DASHBOARD_TOKEN"]
        address = f"http://{LOOPBACK}:{self.port('DASHBOARD')}/{path}"
        return requests.get(address, {"token": token}, timeout=60)


@pytest.fixture
def stack(tmp_path: Path, docker: DockerEngine) -> Iterator[Stack]:
    """One that an earlier radt has set up, not started."""
    for image in IMAGES:
        docker.have(image)
    init_stack(tmp_path)
    env = tmp_path / ".env"
    text = env.read_text("utf-8").replace(f"_VERSION={__version__}", "_VERSION=0.0")
    for service in ("MLFLOW", "DASHBOARD", "POSTGRES", "S3"):
        text += f"STACK_{service}_PORT={free_port()}\n"
    text += "STACK_PROXY_PREFIX=10.213.250\n"  # among the addresses of the engine
    env.write_text(text, "utf-8")
    (tmp_path / "offline.yaml").write_text(OFFLINE)
    made = Stack(docker, tmp_path, f"radt-{secrets.token_hex(4)}")
    yield made
    made.compose("down", "--volumes", "--timeout", "0")


@pytest.fixture
def machine(tmp_path: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    for name, value in stack.client_environ.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "machine"
    folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="radt-", ignore_cleanup_errors=True) as runtime:
        env = dict(os.environ, NO_COLOR="1", COLUMNS="80", RADT_RUNTIME_DIR=runtime)
        del env["RADT_HOME"]
        made = Machine(folder, env | {"RADT_REPLICATION_S": "0.3", "RADT_ARCHIVE_S": "2"})
        yield made
        for process in made.started:
            process.kill()
            process.communicate()
        stop_collectors(Path(runtime))


def test_nothing_is_lost_by_kills_an_upgrade_and_a_restore(
    stack: Stack, machine: Machine, tmp_path: Path
) -> None:
    stack.up()
    machine.prepare("e", steps=200)
    radt = machine.start("experiment.csv", "--quiet")
    wait_until(lambda: points_at(stack.database("reader")) > 0, "samples arrive during the run")
    for gate, service in zip(("first", "second", "third", ""), SERVICES, strict=True):
        stack.kill(service)
        machine.open(*filter(None, [gate]))
    out, _ = radt.communicate(timeout=600)
    assert radt.returncode == 0, out
    assert machine.statuses() == {"FINISHED"}
    machine.radt("sync")
    expect_all_there(stack, machine, tmp_path / "after kills")

    assert init_stack(stack.folder).outdated == "0.0"
    init_stack(stack.folder, upgrade=True)
    stack.up()
    images = stack.compose("images", "--format", "json")
    assert f'"{__version__}"' in images
    assert '"0.0"' not in images
    expect_all_there(stack, machine, tmp_path / "after the upgrade")

    backup = tmp_path / "backup"
    backup.mkdir()
    dump = backup / "radt.dump"
    in_postgres(stack, "pg_dump -U postgres --format=custom radt", stdout=dump.open("wb"))
    tar(stack, backup, "tar -czf /backup/s3.tar.gz .")
    stack.compose("down", "--volumes")
    stack.up()
    in_postgres(stack, "pg_restore -U postgres --clean --if-exists -d radt", stdin=dump.open("rb"))
    tar(stack, backup, "find . -mindepth 1 -delete; tar -xzf /backup/s3.tar.gz")
    stack.up()
    expect_all_there(stack, machine, tmp_path / "after the restore")


def test_https_by_caddy(stack: Stack) -> None:
    env = stack.folder / ".env"
    env.write_text(env.read_text("utf-8") + f"COMPOSE_PROFILES=tls\nSTACK_HOST={HOST}\n")
    stack.up()
    token, password = (
        stack.values[name] for name in ("RADT_DASHBOARD_TOKEN", "STACK_MLFLOW_ADMIN_PASSWORD")
    )
    logs = stack.compose("logs", "--no-color")
    assert f"http://{HOST}:{stack.port('DASHBOARD')}/\n" in logs
    assert not any(stack.values[name] in logs for name in SECRET_NAMES)

    certificate = stack.folder / "root.crt"
    made = "caddy:/data/caddy/pki/authorities/local/root.crt"

    def request(inside: int, path: str, body: str, origin: str, **headers: str) -> HTTPResponse:
        port = int(stack.compose("port", "caddy", str(inside)).rpartition(":")[2])
        pool = HTTPSConnectionPool(
            LOOPBACK, port, ca_certs=str(certificate), server_hostname=HOST, assert_hostname=HOST
        )
        headers |= {"Host": HOST if inside == 443 else f"{HOST}:{inside}", "Origin": origin}
        return pool.request("POST", path, body=body, headers=headers, redirect=False, retries=False)

    def is_ready() -> bool:
        if stack.docker.ask(*stack.words("cp", made, str(certificate))).returncode != 0:
            return False
        try:
            request(8443, "/", "", "")
            request(443, "/", "", "")
        except HTTPError:
            return False
        return True

    wait_until(is_ready, "Caddy has its certificates")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    entered = request(8443, "/_login", f"token={token}", f"https://{HOST}:8443", **form)
    assert entered.status == 303
    assert "; Secure;" in entered.headers["Set-Cookie"]
    # A visitor is not believed.
    address = f"http://{LOOPBACK}:{stack.port('DASHBOARD')}/_login"
    plain = requests.post(
        address, {"token": token}, headers={"X-Forwarded-Proto": "https"}, allow_redirects=False
    )
    assert "Set-Cookie" in plain.headers and "Secure" not in plain.headers["Set-Cookie"]

    search = "/ajax-api/2.0/mlflow/experiments/search"
    login = make_headers(basic_auth=f"admin:{password}") | {"Content-Type": "application/json"}
    for origin, status in ((f"https://{HOST}", 200), ("https://elsewhere.example.org", 403)):
        assert request(443, search, '{"max_results": 1}', origin, **login).status == status

    stack.compose("down")
    label = f"label=com.docker.compose.project={stack.name}"
    assert not stack.docker.run("ps", "--all", "--quiet", "--filter", label)


def expect_all_there(stack: Stack, machine: Machine, imported: Path) -> None:
    """MLflow, Postgres, archives and the dashboard have all that the machine has recorded."""
    mlflow: Any = SimpleNamespace(
        uri=stack.client_environ["MLFLOW_TRACKING_URI"], bucket=SimpleNamespace(uri="s3://radt")
    )
    unused: Any = None
    team = Team(unused, unused, mlflow, unused)
    assert not disagreements(machine, team, stack.database("reader"), imported)
    assert stack.dashboard().status_code == 200


def in_postgres(stack: Stack, command: str, **files: Any) -> None:
    """A command of the documentation's, with a file as its input or output."""
    name = stack.compose("ps", "--quiet", "postgres")
    client = [stack.docker.folder / "bin" / "docker", "exec", "--interactive", name]
    subprocess.run([*client, *command.split()], check=True, **files)


def tar(stack: Stack, backup: Path, command: str) -> None:
    """Pack or unpack the files of S3, which does not run meanwhile."""
    stack.compose("stop", "s3")
    stack.docker.run(
        *("run", "--rm", "--volume", f"{stack.name}_s3:/data", "--volume", f"{backup}:/backup"),
        *("--workdir", "/data", PYTHON.tag, "sh", "-ec", command),
    )
    stack.compose("start", "s3")
