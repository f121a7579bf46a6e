"""The image of the stack, built by a real engine, starts a dashboard."""

from __future__ import annotations

import secrets

import pytest
import requests

from radt import __version__
from tests.compose.compose import ROOT
from tests.support.daemon import LOOPBACK, free_port
from tests.support.docker import DockerEngine
from tests.support.docker_images import DASHBOARD_BASE
from tests.support.waiting import wait_until

pytestmark = pytest.mark.docker


def test_the_image_s_dashboard_answers_visitors_with_its_token(docker: DockerEngine) -> None:
    docker.have(DASHBOARD_BASE)
    image, port, token = f"radt:{__version__}", free_port(), secrets.token_urlsafe()
    docker.run(
        *("build", "--network", "none", "--build-arg", f"RADT_VERSION={__version__}"),
        *("--file", "radt/compose/files/Dockerfile", "--tag", image, str(ROOT)),
    )
    name = docker.run(
        *("run", "--detach", "--network", "host", "--env", "RADT_DASHBOARD_TOKEN", image),
        *("radt", "dashboard", f"--port={port}", "--no-browser"),
        RADT_DASHBOARD_TOKEN=token,
    )
    try:
        address = f"http://{LOOPBACK}:{port}/"

        def answer(query: str) -> int:
            try:
                return requests.get(address + query, timeout=60).status_code
            except requests.ConnectionError:
                return 0

        wait_until(lambda: answer(""), docker.run("logs", name))
        assert answer("") == 403
        assert answer(f"?token={token}") == 200
        assert docker.run("exec", name, "id", "--user") != "0"
    finally:
        docker.run("rm", "--force", "--volumes", name)
