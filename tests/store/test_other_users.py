"""Stores of other users, read by nobody (user 65534), whom only root can become."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from radt.store.records import Samples, SeriesBatch
from radt.store.writer import StoreWriter

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")


def noise(count: int) -> Samples:
    values = np.random.default_rng(count).random(count)
    return Samples(np.arange(count, dtype=np.int64), values)


@pytest.fixture
def store_path() -> Iterator[Path]:
    """Outside of pytest's folders, which it closes to others again whenever it likes."""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        folder = Path(top, "da?ta #1 %20 é")
        folder.mkdir()
        yield folder / "radt.db"


def test_a_store_in_a_closed_folder_is_said(writer: StoreWriter) -> None:
    writer.path.parent.chmod(0o700)
    code = """
import os, sys, radt.store.sqlite
from radt.errors import StoreError
from radt.store.reader import StoreReader
os.setuid(65534)
try:
    StoreReader(sys.argv[1])
except StoreError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(writer.path)], capture_output=True, text=True, check=True
    )
    assert "may not open" in done.stdout


@pytest.mark.parametrize("closed", [True, False], ids=["at rest", "while written"])
def test_somebody_elses_store_can_be_read(writer: StoreWriter, run_id: str, closed: bool) -> None:
    """The store and its folder are readable, nothing is writable."""
    writer.append(run_id, [SeriesBatch(0, noise(10))])
    if closed:
        writer.close()
    writer.path.parent.chmod(0o755)
    for file in writer.path.parent.glob("radt.db*"):
        file.chmod(0o644)
    code = """
import os, sys, radt.store.sqlite
from radt.errors import StoreError
from radt.store.migrations import latest_version
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
latest_version()  # reads the migrations, which nobody need not be allowed to
os.setgid(65534)
os.setuid(65534)
with StoreReader(sys.argv[1]) as reader:
    before = reader.change_token()
    assert before == reader.change_token() < 2**53
    print(len(reader.samples(sys.argv[2], 0)), flush=True)
    sys.stdin.readline()
    assert before != reader.change_token()
    print(len(reader.samples(sys.argv[2], 0)), flush=True)
try:
    StoreWriter(sys.argv[1]).put_tags(sys.argv[2], {"a": "b"})
except StoreError as error:
    print(error)
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(writer.path), run_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    first = other.stdout.readline()
    with StoreWriter(writer.path) as again:
        again.append(run_id, [SeriesBatch(0, noise(5000))])
        rest, errors = other.communicate("go on\n", timeout=180)
    assert first == "10\n", errors
    assert rest.startswith("5010\n"), errors
    assert "Check the permissions" in rest
