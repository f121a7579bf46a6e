"""A store whose runs are made up, and a folder for real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.store.writer import StoreWriter
from tests.support.bench import Bench, stop_collectors
from tests.trace.trace_kit import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    home = tmp_path / "radt-data"
    with StoreWriter(home / "radt.db") as writer:
        yield Store(home, writer)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "user's folder"
    folder.mkdir()
    env = dict(os.environ, NO_COLOR="1", COLUMNS="100", RADT_COLLECTOR_IDLE_S="2")
    env.pop("RADT_HOME", None)
    yield Bench(folder, env)
    stop_collectors(Path(env["RADT_RUNTIME_DIR"]))
