"""A store whose runs are made up, and a folder for real ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.store.writer import StoreWriter
from tests.support.bench import Bench, bench_in
from tests.trace.trace_kit import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    home = tmp_path / "radt-data"
    with StoreWriter(home / "radt.db") as writer:
        yield Store(home, writer)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path, columns=100, with_mlflow=False, RADT_COLLECTOR_IDLE_S="2") as made:
        yield made
