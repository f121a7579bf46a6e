"""Several processes on one store, and processes that are killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text

from radt.model import Scope, SeriesKind
from radt.store.migrations import latest_version
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch, SeriesRecord
from radt.store.writer import StoreWriter

_PRELUDE = """
import sys
from pathlib import Path
import numpy as np
from radt.model import Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import JournalCursor, Samples, SeriesBatch, SeriesRecord
from radt.store.writer import StoreWriter
path = Path(sys.argv[1])

def series(run_id, number):
    return SeriesRecord(run_id, number, "run", f"m{number}", "1", Scope.RUN, SeriesKind.GAUGE)

print("ready", flush=True)
sys.stdin.readline()
"""


class Child:
    """A Python process that does ``code`` once `go` is called."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + textwrap.dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        _, errors = self.process.communicate(timeout=180)
        assert self.process.returncode == 0, errors


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Children to be killed at the end if a test fails before they are done."""
    running: list[Child] = []
    yield running
    for child in running:
        if child.process.poll() is None:
            child.process.kill()
        child.process.communicate()


def run_together(children: list[Child]) -> None:
    for child in children:
        child.go()
    for child in children:
        child.finish()


def test_eight_processes_open_a_new_store_at_once(tmp_path: Path, children: list[Child]) -> None:
    """Fifteen times, because turning WAL on collides in one of seven only."""
    code = """
    for number in range(15):
        with StoreWriter(path / str(number) / "radt.db") as writer:
            writer.put_tags(sys.argv[2], {"opened": "yes"})
        print("written", flush=True)
        sys.stdin.readline()
    """
    runs = [f"run{number}" for number in range(8)]
    children += [Child(code, tmp_path, run) for run in runs]
    for number in range(15):
        for child in children:
            child.go()
        for child in children:
            assert child.process.stdout is not None
            written = child.process.stdout.readline()
            assert written == "written\n", child.process.communicate()[1]
        path = tmp_path / str(number) / "radt.db"
        with StoreReader(path) as reader:
            assert reader.tags_of(runs) == {run: {"opened": "yes"} for run in runs}
            with reader.engine.connect() as connection:
                versions = connection.execute(text("SELECT version FROM schema_version")).scalars()
                assert list(versions) == list(range(1, latest_version() + 1))
    run_together(children)


def test_processes_write_at_once_and_nothing_is_lost(tmp_path: Path, children: list[Child]) -> None:
    """Each writes a run of its own and all of them one series together; a reader looks on."""
    code = """
    own = sys.argv[2]
    with StoreWriter(path) as writer:
        writer.add_series([series(own, 0)])
        for number in range(150):
            one = Samples(np.array([number]), np.array([float(own)]))
            with writer.transaction():
                writer.append(own, [SeriesBatch(0, one)])
                writer.append("shared", [SeriesBatch(0, one)])
        many = Samples(np.arange(4000), np.full(4000, float(own)))
        writer.append("shared", [SeriesBatch(0, many)])
    """
    path = tmp_path / "radt.db"
    with StoreWriter(path) as writer:
        writer.add_series(
            [SeriesRecord("shared", 0, "run", "m0", "1", Scope.RUN, SeriesKind.GAUGE)]
        )
    children += [Child(code, path, number) for number in range(4)]
    with StoreReader(path) as reader:
        for child in children:
            child.go()
        seen = 0
        while any(child.process.poll() is None for child in children):
            count = len(reader.samples("shared", 0))
            assert count >= seen, "a reader saw points vanish"
            seen = count
        for child in children:
            child.finish()
        shared = reader.samples("shared", 0)
        for number in range(4):
            assert reader.samples(str(number), 0).times_ns.tolist() == list(range(150))
            assert np.count_nonzero(shared.values == number) == 4150


def test_a_writer_killed_within_a_transaction_leaves_all_of_it_or_nothing(
    tmp_path: Path, children: list[Child]
) -> None:
    """The next one resumes at the cursor, so every point is there exactly once."""
    code = """
    with StoreWriter(path) as writer:
        if sys.argv[2] == "0":
            writer.add_series([series("r", 0), series("r", 1)])
        with StoreReader(path) as reader:
            cursor = reader.cursors("r").get("j")
        done = cursor.slot if cursor else 0
        while True:
            times = np.arange(done * 50, done * 50 + 50)
            with writer.transaction():
                writer.append("r", [SeriesBatch(0, Samples(times, times * 1.0, times))])
                writer.put_cursors("r", [JournalCursor("j", slot=done + 1)])
                print("half", flush=True)
                writer.append("r", [SeriesBatch(1, Samples(times, times * -1.0))])
            done += 1
            print(done, flush=True)
    """
    path = tmp_path / "radt.db"
    for attempt in range(3):
        child = Child(code, path, attempt)
        children.append(child)
        child.go()
        assert child.process.stdout is not None
        acknowledged = 0
        for _ in range(85):
            half = child.process.stdout.readline()
            assert half == "half\n"
            acknowledged = int(child.process.stdout.readline())
        # The last thing heard is a "half": dead before, within or after the rest of it.
        assert child.process.stdout.readline() == "half\n"
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.communicate()
        with StoreReader(path) as reader:
            done = reader.cursors("r")["j"].slot
            assert done >= acknowledged
            expected = list(range(done * 50))
            assert reader.samples("r", 0).times_ns.tolist() == expected
            assert reader.samples("r", 1).values.tolist() == [-float(time) for time in expected]


def test_threads_share_a_writer_and_a_reader(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    barrier = threading.Barrier(6)

    def write(thread: int) -> None:
        barrier.wait()
        for number in range(100):
            one = Samples(np.array([number]), np.array([float(thread)]))
            with writer.transaction():
                writer.append(run_id, [SeriesBatch(0, one)])
                writer.put_tags(run_id, {f"thread {thread}": str(number)})

    def read() -> None:
        barrier.wait()
        for _ in range(100):
            before = len(reader.samples(run_id, 0))
            assert len(reader.samples(run_id, 0)) >= before

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(write, number) for number in range(4)]
        futures += [pool.submit(read) for _ in range(2)]
        for future in futures:
            future.result()
    assert len(reader.samples(run_id, 0)) == 400
    assert reader.tags(run_id) == {f"thread {number}": "99" for number in range(4)}


def test_a_busy_store_makes_a_writer_wait_for_its_turn(
    store_path: Path, children: list[Child], writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    code = """
    with StoreWriter(path) as writer:
        print("open", flush=True)
        writer.put_tags(sys.argv[2], {"late": "yes"})
        print("written", flush=True)
    """
    child = Child(code, store_path, run_id)
    children.append(child)
    child.go()
    assert child.process.stdout is not None
    assert child.process.stdout.readline() == "open\n"
    with writer.transaction():
        writer.put_tags(run_id, {"early": "yes"})
    child.finish()
    assert reader.tags(run_id) == {"late": "yes", "early": "yes"}
