"""Merging while somebody reads, a kill in the middle of it, and very many markers."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from radt.model import MarkerKind, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import (
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter

#: Appends a few points at a time, so that they are merged over and over; counts in its values.
#: Now and then it waits for a line, so that a reader that is held up sees it under way.
WRITES = """\
import sys
import numpy as np
from radt.store import chunks
from radt.store.records import Samples, SeriesBatch
from radt.store.writer import StoreWriter
path, run_id, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
chunks.POINTS_PER_CHUNK, chunks.MAX_LOOSE_CHUNKS = 100, 5
with StoreWriter(path) as writer:
    first = 0
    while first < total:
        numbers = np.arange(first, first + 7)
        writer.append(run_id, [SeriesBatch(0, Samples(numbers * 10, numbers.astype(float)))])
        first += 7
        if first % 700 == 0:
            writer.seal(run_id)
        if first % 1400 == 0:
            sys.stdin.readline()
"""
#: Merges all there is, and waits to be killed before it commits.
MERGES = """\
import sys
import numpy as np
from radt.store.records import Samples, SeriesBatch
from radt.store.writer import StoreWriter
writer = StoreWriter(sys.argv[1])
with writer.transaction():
    numbers = np.arange(50, 20_000)
    writer.append(sys.argv[2], [SeriesBatch(0, Samples(numbers * 10, numbers.astype(float)))])
    writer.seal(sys.argv[2])
    print("merged", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def counting(tmp_path: Path, run_id: str) -> Path:
    """A store with a series to count in."""
    path = tmp_path / "counting.db"
    with StoreWriter(path) as writer:
        writer.put_workload(WorkloadRecord("2" * 32, "e", "1", 0))
        writer.put_run(RunRecord(run_id, "2" * 32, "e", "1", "a", "n", 0))
        writer.add_series([SeriesRecord(run_id, 0, "l", "m", "", Scope.RUN, SeriesKind.GAUGE)])
    return path


def test_a_reader_sees_every_point_once_while_chunks_are_merged(
    counting: Path, run_id: str
) -> None:
    total = 7000
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(counting), run_id, str(total)],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    seen, followed, looks = 0, [], 0
    with closing(StoreReader(counting)) as reader:
        while seen < total:
            assert process.poll() in (None, 0)
            values = reader.samples(run_id, 0).values
            assert np.array_equal(values, np.arange(len(values)))
            assert len(values) >= seen
            assert len(values) % 7 == 0, "a flush is there as a whole"
            for summary in reader.summary([run_id]):
                assert summary.count >= len(values)
                assert (summary.minimum, summary.maximum) == (0, summary.count - 1)
                assert summary.mean == pytest.approx((summary.count - 1) / 2)
            followed += reader.points_after(run_id, 0, len(followed), 333).values.tolist()
            looks += len(values) > seen
            if len(values) > seen and len(values) % 1400 == 0:
                process.stdin.write("\n")
                process.stdin.flush()
            seen = len(values)
        while len(followed) < total:
            followed += reader.points_after(run_id, 0, len(followed), 333).values.tolist()
    process.communicate(timeout=180)
    assert process.returncode == 0
    assert followed == list(range(total))
    assert looks > 3


def test_killed_between_merging_and_committing(counting: Path, run_id: str) -> None:
    numbers = np.arange(50)
    with StoreWriter(counting) as writer:
        for number in numbers:
            one = np.array([number])
            writer.append(run_id, [SeriesBatch(0, Samples(one * 10, one.astype(float)))])
    process = subprocess.Popen(
        [sys.executable, "-c", MERGES, str(counting), run_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "merged\n"
    with closing(StoreReader(counting)) as reader:
        assert np.array_equal(reader.samples(run_id, 0).values, numbers), "not before the commit"
        process.kill()
        process.communicate()
        assert np.array_equal(reader.samples(run_id, 0).values, numbers)
        with StoreWriter(counting) as writer:
            writer.seal(run_id)
        samples = reader.samples(run_id, 0)
        assert np.array_equal(samples.values, numbers)
        assert np.array_equal(samples.times_ns, numbers * 10)
        (summary,) = reader.summary([run_id])
        assert (summary.count, summary.minimum, summary.maximum) == (50, 0, 49)


def test_integers_beyond_53_bits_are_the_nearest_float(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    whole = [2**53 - 1, 2**53, 2**53 + 1, 2**60 + 2**8, 2**63, 2**64 - 1] * 5
    values = np.array([float(number) for number in whole])
    writer.append(run_id, [SeriesBatch(0, Samples(np.arange(len(whole)), values))])
    writer.seal(run_id)
    back = reader.samples(run_id, 0).values
    assert back.tobytes() == values.tobytes()
    assert [int(one) for one in back[:5]] == [2**53 - 1, 2**53, 2**53, 2**60 + 2**8, 2**63]
    (summary,) = reader.summary([run_id])
    assert (summary.minimum, summary.maximum) == (2.0**53 - 1, 2.0**64)


#: Writes a million markers as the collector does, some at a time; then lists those of its run and
#: of another; says how much memory that took.
MARKERS = """\
import json, sys
from pathlib import Path
from radt.model import MarkerKind
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord
from radt.store.writer import StoreWriter
path, run_id, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
def peak():  # ru_maxrss would begin with that of pytest
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
with StoreWriter(path) as writer:
    for first in range(0, total, 10_000):
        writer.put_markers([
            MarkerRecord(run_id, number, MarkerKind.SPAN, "forward", number * 10, number * 10 + 5)
            for number in range(first, first + 10_000)
        ])
written = peak()
reader = StoreReader(path)
few = len(reader.markers(["another"]))
found = reader.markers([run_id])
right = all(one.marker_no == n and one.end_ns == n * 10 + 5 for n, one in enumerate(found))
print(json.dumps([few, len(found), right, written, peak()]))
"""


@pytest.mark.long
def test_very_many_markers(counting: Path, run_id: str) -> None:
    total = 100_000  # with a million it takes a minute, and the same memory by the marker
    done = subprocess.run(
        [sys.executable, "-c", MARKERS, str(counting), run_id, str(total)],
        stdout=subprocess.PIPE,
        check=True,
    )
    few, found, right, written_bytes, read_bytes = json.loads(done.stdout)
    assert (few, found, right) == (0, total, True)
    assert written_bytes < 200 * 2**20, "writing takes as much as one transaction"
    assert read_bytes < written_bytes + 700 * total, "reading takes what the records take"
    with StoreWriter(counting) as writer:
        writer.put_markers([MarkerRecord(run_id, 3, MarkerKind.SPAN, "other", 30, 36)])
    with closing(StoreReader(counting)) as reader:
        assert len(reader.markers([run_id])) == total, "writing one again replaces it"
