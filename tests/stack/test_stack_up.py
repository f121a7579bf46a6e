"""`radt stack up` as people run it: a second one, killed servers, down; what works with it."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg2
import pytest
import requests

from radt.stack.secrets_file import Secrets, read_values
from radt.store.address import StoreAddress
from radt.store.reader import StoreReader
from tests.support.bench import RADT, alive, wait_until
from tests.support.servers import clean_environ, end_servers, server_folder


class Team:
    """A stack in a folder that Postgres' user may pass."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "stack"

    def radt(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [RADT, "stack", *arguments, "--dir", str(self.folder)],
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @property
    def client(self) -> dict[str, str]:
        return read_values((self.folder / "client.env").read_text("utf-8"))

    @property
    def pids(self) -> dict[str, int]:
        found = re.findall(r"^(\w+) .*process (\d+)", self.radt("status"), re.MULTILINE)
        return {name: int(pid) for name, pid in found}

    def running(self, name: str) -> int | None:
        """The process of a server, if it runs."""
        done = subprocess.run(
            [RADT, "stack", "status", "--dir", str(self.folder)],
            env=clean_environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        found = re.search(rf"^{name} .*process (\d+)", done.stdout, re.MULTILINE)
        return int(found[1]) if found else None

    def secrets(self) -> Secrets:
        return Secrets.of(read_values((self.folder / "stack.env").read_text("utf-8")))


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """A stack that is up, MLflow with a password."""
    with server_folder() as folder:
        team = Team(folder)
        team.radt("up", "--auth")
        yield team


def query(uri: str, statement: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(uri)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()


_LOGS = """
import json, mlflow
mlflow.set_experiment("team")
with mlflow.start_run() as run:
    mlflow.log_metric("loss", 0.5)
    mlflow.log_text("hello", "notes/a.txt")
print(json.dumps([run.info.artifact_uri,
    mlflow.artifacts.load_text(run.info.artifact_uri + "/notes/a.txt"),
    mlflow.get_run(run.info.run_id).data.metrics]))
"""


def test_a_client_logs_a_run_and_its_artifact_lies_in_s3(team: Team) -> None:
    env = {**clean_environ(), **team.client, "MLFLOW_ENABLE_ASYNC_LOGGING": "false"}
    done = subprocess.run(
        [sys.executable, "-c", _LOGS], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    place, text, metrics = json.loads(done.stdout.splitlines()[-1])
    assert place.startswith("s3://radt/")
    assert (text, metrics) == ("hello", {"loss": 0.5})
    url = team.client["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/experiments/search"
    refused = requests.post(url, json={"max_results": 1}, auth=("admin", "wrong"), timeout=60)
    assert refused.status_code == 401


def test_each_role_may_do_what_it_is_for(team: Team) -> None:
    writer = team.client["RADT_STORE_URI"]
    secrets = team.secrets()
    reader = writer.replace("radt_writer", "radt_reader").replace(
        secrets.stack_writer_password, secrets.stack_reader_password
    )
    with StoreReader(StoreAddress.of(reader)) as store:
        assert store.runs() == []
    insert = "INSERT INTO radt.tag (run_id, key, value) VALUES ('r', 'k', 'v')"
    assert query(writer, "SELECT count(*) FROM radt.run") == [(0,)]
    for uri, statement in (
        (reader, insert),
        (reader, "CREATE TABLE public.t (n int)"),
        (reader, "CREATE TABLE radt.t (n int)"),
        (writer, "DROP TABLE radt.run CASCADE"),
        (writer, "DELETE FROM public.runs"),
    ):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            query(uri, statement)
    # Views may join MLflow's tables.
    assert query(reader, "SELECT count(*) >= 0 FROM public.runs") == [(True,)]


def test_radt_records_into_it_and_reads_from_it(team: Team, tmp_path: Path) -> None:
    from radt.store.writer import StoreWriter

    # The role of machines that record need not be the owner.
    StoreWriter(StoreAddress.of(team.client["RADT_STORE_URI"])).close()


def test_passwords_are_in_private_files_only(team: Team) -> None:
    secrets = [getattr(team.secrets(), name.lower()).encode() for name in Secrets.names()]
    for path in team.folder.rglob("*"):
        if not path.is_file() or "data" in path.parts or "disks" in path.parts:
            continue
        if any(secret in path.read_bytes() for secret in secrets):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    said = team.radt("up") + team.radt("status")
    assert not any(secret.decode() in said for secret in secrets)
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        assert not any(secret.decode() in line for secret in secrets)
    shell = team.radt("env")
    told = subprocess.run(
        ["sh", "-c", f'{shell}\nprintf %s "$RADT_STORE_URI"'], capture_output=True, text=True
    )
    assert told.stdout == team.client["RADT_STORE_URI"]


def test_a_second_up_changes_nothing_and_one_after_kills_mends(team: Team) -> None:
    before, client = team.pids, team.client
    assert len(before) == 3
    team.radt("up")
    assert team.pids == before

    s3 = next(name for name in before if name in ("swift", "seaweedfs"))
    for name in ("Postgres", s3):
        os.kill(before[name], signal.SIGKILL)
    wait_until(lambda: not any(alive(before[name]) for name in ("Postgres", s3)), "their end")
    assert "does not run" in team.radt("status", code=1)
    said = team.radt("up")
    assert "Postgres is being started" in said
    after = team.pids
    assert after["Postgres"] != before["Postgres"] and after[s3] != before[s3]
    assert team.client == client  # ports and passwords, too
    assert query(client["RADT_STORE_URI"], "SELECT count(*) FROM radt.run") == [(0,)]


def test_down_ends_what_up_has_started_and_nothing_else(team: Team) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pids = team.pids
    os.kill(pids["MLflow"], signal.SIGKILL)  # only the head: what it has started lives on
    wait_until(lambda: not alive(pids["MLflow"]), "its end")
    assert "Postgres" in team.radt("down")
    assert not any(alive(pid) for pid in pids.values())
    in_folder = [
        process.pid
        for process in psutil.process_iter(["cwd"])
        if (process.info["cwd"] or "").startswith(str(team.folder))
    ]
    assert in_folder == []
    assert alive(bystander.pid)
    bystander.kill()
    bystander.wait()
    assert "nothing" in team.radt("down")


def test_in_the_foreground_it_mends_itself_and_ends_with_its_command(team: Team) -> None:
    client = team.client
    process = subprocess.Popen(
        [RADT, "stack", "up", "--foreground", "--dashboard", "--dir", str(team.folder)],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert any(line.startswith("Ctrl-C") for line in process.stdout)
        assert team.client == client
        before = team.pids
        port = re.search(r"^dashboard +port (\d+)", team.radt("status"), re.MULTILINE)
        assert port is not None
        url = f"http://127.0.0.1:{port[1]}/"
        assert requests.get(url, timeout=60).status_code == 403
        token = {"token": team.secrets().radt_dashboard_token}
        assert requests.get(url, params=token, timeout=60).status_code == 200
        killed = before["Postgres"]
        os.kill(killed, signal.SIGKILL)
        assert any("Postgres ended" in line for line in process.stdout)
        wait_until(lambda: team.running("Postgres") not in (None, killed), "another one")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=100)
        assert process.returncode == 0
        assert not any(alive(pid) for pid in before.values())
    finally:
        process.kill()


def test_what_is_not_installed_is_said_with_how_to_install_it() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = (
            "import sys, radt.stack.postgres as p; p._PLACES = ();"
            "from radt.cli import main; main(['stack', 'up', '--dir', sys.argv[1]])"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, f"{folder}/stack"],
            env={**clean_environ(), "PATH": "/nowhere"},
            capture_output=True,
            text=True,
            check=False,
        )
        end_servers(Path(folder) / "stack")
    assert done.returncode == 1
    assert "Postgres is not installed" in done.stderr
    assert "apt install postgresql" in done.stderr
