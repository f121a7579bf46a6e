"""A store whose runs are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.store.writer import StoreWriter
from tests.trace.trace_kit import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    home = tmp_path / "radt-data"
    with StoreWriter(home / "radt.db") as writer:
        yield Store(home, writer)
