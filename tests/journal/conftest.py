"""A journal with its writer in this process, and readers that say what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radt.journal.reader import JournalReader
from radt.journal.writer import JournalWriter
from tests.support.journal import Found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def writer(folder: Path, warnings: list[str]) -> Iterator[JournalWriter]:
    made = JournalWriter(folder, rank=None, warn=warnings.append)
    yield made
    made.close()


@pytest.fixture
def found(folder: Path) -> Found:
    return Found(JournalReader(folder, {}))


@pytest.fixture
def read_all(folder: Path) -> Callable[[], Found]:
    """Reads the whole journal anew."""

    def read() -> Found:
        new = Found(JournalReader(folder, {}))
        new.read(final=True)
        return new

    return read
