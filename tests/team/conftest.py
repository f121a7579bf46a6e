"""A team's servers, and machines that use them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.bench import stop_collectors
from tests.support.links import Link
from tests.support.mlflow_server import MlflowServer
from tests.support.postgres import Postgres
from tests.support.s3 import S3Server
from tests.team.kit import Machine, Team

#: What Python runs first: the name of a machine is the kernel's, and one for all of a test.
OTHER_NAME = """\
import os, socket
from types import SimpleNamespace
name, real = os.environ["HOST_NAME_OF_TEST"], os.uname()
fields = (real.sysname, name, real.release, real.version, real.machine)
os.uname = lambda: os.uname_result(fields)
socket.gethostname = lambda: name
"""


@pytest.fixture
def servers_of_team(
    postgres: Postgres, s3: S3Server, mlflow_server: MlflowServer
) -> Iterator[Team]:
    """Those of all tests, and a link; artifacts go through MLflow's server."""
    with Link(postgres.port) as link:
        yield Team(postgres, s3, mlflow_server, link)


@pytest.fixture
def team(servers_of_team: Team, monkeypatch: pytest.MonkeyPatch) -> Team:
    """The servers, and this process told how to reach S3."""
    for name, value in servers_of_team.mlflow.bucket.environ.items():
        monkeypatch.setenv(name, value)
    return servers_of_team


@pytest.fixture
def team_database(team: Team) -> Iterator[str]:
    """URI of a new database, not by the link."""
    with servers.database_of(team.postgres) as uri:
        yield uri


@pytest.fixture
def machine(tmp_path: Path, team: Team, team_database: str) -> Iterator[Callable[[str], Machine]]:
    """Makes machines, by host name."""
    with ExitStack() as stack:

        def make(name: str = "here") -> Machine:
            folder = tmp_path / f"Zoë's {name}"
            folder.mkdir()
            (folder / "site").mkdir()
            (folder / "site" / "sitecustomize.py").write_text(OTHER_NAME)
            runtime = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="radt-", ignore_cleanup_errors=True)
            )
            env = dict(os.environ, NO_COLOR="1", COLUMNS="80", RADT_COLLECTOR_IDLE_S="2")
            del env["RADT_HOME"]
            env |= team.mlflow.client_environ
            env |= {"RADT_RUNTIME_DIR": runtime, "RADT_STORE_URI": team.by_link(team_database)}
            env |= {"RADT_REPLICATION_S": "0.3", "RADT_ARCHIVE_S": "2"}
            paths = [str(folder / "site"), *filter(None, [env.get("PYTHONPATH")])]
            env |= {"PYTHONPATH": os.pathsep.join(paths), "HOST_NAME_OF_TEST": name}
            made = Machine(folder, env)
            stack.callback(stop_collectors, Path(runtime))
            stack.callback(end, made)
            return made

        yield make


def end(machine: Machine) -> None:
    """End what a failed test left running."""
    for process in machine.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
