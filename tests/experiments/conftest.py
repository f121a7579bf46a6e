"""A folder as a user has it, with the ``radt`` command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench, stop_collectors


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "user's folder"
    folder.mkdir()
    env = dict(os.environ, NO_COLOR="1", COLUMNS="80")
    env.pop("RADT_HOME", None)
    made = Bench(folder, env)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    stop_collectors(Path(env["RADT_RUNTIME_DIR"]))
