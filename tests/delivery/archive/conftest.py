"""A store that runs are recorded in, and an empty one to import into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from tests.delivery.archive import kit


@pytest.fixture(autouse=True)
def runs_are_archived(archives: None) -> None:
    """In all tests of this folder."""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter(tmp_path / "re'cor%20ded #é" / "radt.db") as writer:
        yield writer


@pytest.fixture
def other(tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter(tmp_path / "imported" / "radt.db") as writer:
        yield writer


@pytest.fixture
def run(writer: StoreWriter, tmp_path: Path) -> RunRecord:
    """A run that runs, without points."""
    return kit.make_run(writer, tmp_path / "spool #1 %20 é")
