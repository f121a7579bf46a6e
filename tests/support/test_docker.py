"""The engine of the tests itself: nothing of it stays, and a run without one says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.docker import DockerEngine
from tests.support.docker_images import PYTHON
from tests.support.servers import ROOT, server_folder

LINKS = Path("/sys/class/net")
BRIDGE_NAME = '--format={{index .Options "com.docker.network.bridge.name"}}'
WITHOUT = """
import sys, pytest
from tests.support import docker
docker._PROGRAMS = ("engine-of-nobody",)
sys.exit(pytest.main(["-q", "tests/environments/test_real_docker.py"]))
"""


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(("how", "code"), [("", 0), ("required", 1)])
def test_without_an_engine_its_tests_are_skipped_unless_they_are_required(
    how: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADT_TEST_DOCKER", how)
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    said = "Docker: tests not run: " if code == 0 else "ServerError: "
    assert f"{said}engine-of-nobody not installed" in done.stdout


@pytest.mark.long
def test_where_no_engine_can_be_installed_the_rest_is(tmp_path: Path) -> None:
    failing = tmp_path / "apt-get"
    failing.write_text("#!/bin/sh\nexit 100\n")
    failing.chmod(0o755)
    faked = f'PATH="{tmp_path}:$PATH"; command() {{ [ "$2" != dockerd ]; }}; id() {{ echo 0; }}'
    done = subprocess.run(
        ["sh", "-c", f"{faked}; . tests/system_packages.sh"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = "No Docker engine: docker.io cannot be installed.\n"
    assert (done.returncode, done.stdout) == (0, said), done


@pytest.fixture
def docker0() -> Iterator[Path]:
    """The bridge of the machine's own engine, or a stand-in where there is none."""
    bridge = LINKS / "docker0"
    is_stand_in = not bridge.exists()
    if is_stand_in:
        subprocess.run(["ip", "link", "add", bridge.name, "type", "bridge"], check=True)
    yield bridge
    if is_stand_in and bridge.exists():
        subprocess.run(["ip", "link", "delete", bridge.name], check=True)


@pytest.mark.long
@pytest.mark.docker
def test_an_engine_that_is_killed_leaves_nothing_and_takes_nothing(
    docker: DockerEngine, docker0: Path
) -> None:
    same = (docker0 / "ifindex").read_text()
    with server_folder() as folder:
        engine = DockerEngine(folder / "docker")
        engine.start()
        container = engine.run("run", "--detach", engine.have(PYTHON), "sleep", "infinity")
        inside = psutil.Process(int(engine.run("inspect", "--format={{.State.Pid}}", container)))
        bridges = [LINKS / engine.run("network", "inspect", "bridge", BRIDGE_NAME)]
        bridges.append(LINKS / f"br-{engine.run('network', 'create', 'any')[:12]}")
        assert all(bridge.exists() for bridge in bridges)
        assert engine.pid is not None
        psutil.Process(engine.pid).kill()
        assert inside.is_running()
    assert not inside.is_running()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert not folder.exists()
    assert not any(bridge.exists() for bridge in bridges)
    assert (docker0 / "ifindex").read_text() == same
    rules = subprocess.run(["iptables", "--list-rules"], capture_output=True, text=True)
    assert folder.name not in rules.stdout
    assert docker.answers
