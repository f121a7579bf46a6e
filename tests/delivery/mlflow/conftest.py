"""A tracking server for all tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery.mlflow.server import Server, free_port


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Iterator[Server]:
    """A tracking server, which takes long to start: one for all tests, who leave it running."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(mlflow_template, folder / "server.db")
    made = Server(folder, free_port())
    try:
        made.up()
        yield made
    finally:
        made.kill()
