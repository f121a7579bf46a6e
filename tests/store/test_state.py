"""Whatever is written in whatever order: headers tell what the points are, readers lose none."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from radt.model import NO_STEP, Scope, SeriesKind
from radt.store import chunks
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesBatch, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter

RUN = "1" * 32
SERIES = 3
values = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308, 2.0**53 + 2]),
)
points = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**40),  # times: steps of the clock, both ways
        values,
        st.one_of(st.just(NO_STEP), st.integers(-5, 2**62)),
    ),
    min_size=1,
    max_size=12,
)


class Store(RuleBasedStateMachine):
    """A writer and a reader against lists."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="radt-store-")
        self.path = Path(self.folder.name, "radt.db")
        self.few, chunks.POINTS_PER_CHUNK = chunks.POINTS_PER_CHUNK, 40
        self.loose, chunks.MAX_LOOSE_CHUNKS = chunks.MAX_LOOSE_CHUNKS, 4
        self.open()
        self.writer.put_workload(WorkloadRecord("2" * 32, "e", "1", 0))
        self.writer.put_run(RunRecord(RUN, "2" * 32, "e", "1", "a", "n", 0))
        self.reader = StoreReader(self.path)
        self.model: dict[int, list[tuple[int, float, int]]] = {}
        self.read: dict[int, list[float]] = {}

    def open(self) -> None:
        self.writer = StoreWriter(self.path)

    def teardown(self) -> None:
        chunks.POINTS_PER_CHUNK, chunks.MAX_LOOSE_CHUNKS = self.few, self.loose
        self.reader.close()
        self.writer.close()
        self.folder.cleanup()

    def declare(self, number: int) -> None:
        """A series appears when its first points do, in the middle of the run."""
        if number not in self.model:
            self.model[number] = []
            self.writer.add_series(
                [SeriesRecord(RUN, number, "l", f"m{number}", "", Scope.RUN, SeriesKind.GAUGE)]
            )

    def batch(self, number: int, new: list[tuple[int, float, int]]) -> SeriesBatch:
        times, numbers, steps = zip(*new, strict=True)
        return SeriesBatch(
            number,
            Samples(
                np.array(times, np.int64), np.array(numbers, np.float64), np.array(steps, np.int64)
            ),
        )

    @rule(parts=st.dictionaries(st.integers(0, SERIES - 1), points, min_size=1))
    def append(self, parts: dict[int, list[tuple[int, float, int]]]) -> None:
        for number in parts:
            self.declare(number)
        self.writer.append(RUN, [self.batch(number, new) for number, new in parts.items()])
        for number, new in parts.items():
            self.model[number] += new

    @rule(number=st.integers(0, SERIES - 1), new=points, times=st.integers(2, 15))
    def append_much(self, number: int, new: list[tuple[int, float, int]], times: int) -> None:
        """More than a chunk at once."""
        self.declare(number)
        self.writer.append(RUN, [self.batch(number, new * times)])
        self.model[number] += new * times

    @rule(new=points)
    def append_and_undo(self, new: list[tuple[int, float, int]]) -> None:
        """A transaction that fails behind the merge leaves nothing of it."""
        self.declare(0)
        try:
            with self.writer.transaction():
                self.writer.append(RUN, [self.batch(0, new * 5)])
                self.writer.seal(RUN)
                raise KeyError  # noqa: TRY301 - as whoever writes may fail
        except KeyError:
            pass

    @rule()
    def seal(self) -> None:
        self.writer.seal(RUN)

    @rule()
    def reopen(self) -> None:
        """Another process goes on."""
        self.writer.close()
        self.open()

    @rule(limit=st.integers(1, 60))
    def read_on(self, limit: int) -> None:
        """As the deliverer does, by counting."""
        for number in self.model:
            got = self.read.setdefault(number, [])
            got += self.reader.points_after(RUN, number, len(got), limit).values.tolist()

    @invariant()
    def points_are_those_written(self) -> None:
        for number, expected in self.model.items():
            samples = self.reader.samples(RUN, number)
            order = sorted(range(len(expected)), key=lambda i: expected[i][0])
            assert samples.times_ns.tolist() == [expected[i][0] for i in order]
            wanted = np.array([expected[i][1] for i in order], np.float64)
            assert samples.values.tobytes() == wanted.tobytes(), "bit for bit"
            if expected:
                assert samples.steps is not None
                assert samples.steps.tolist() == [expected[i][2] for i in order]

    @invariant()
    def headers_tell_what_points_are(self) -> None:
        summaries = {one.series.series_no: one for one in self.reader.summary([RUN])}
        assert summaries.keys() == {number for number, some in self.model.items() if some}
        for number, summary in summaries.items():
            expected = self.model[number]
            finite = [value for _, value, _ in expected if math.isfinite(value)]
            times = [time for time, _, _ in expected]
            assert summary.count == len(expected)
            assert (summary.first_ns, summary.last_ns) == (min(times), max(times))
            assert summary.minimum == min(finite, default=None)
            assert summary.maximum == max(finite, default=None)
            if not finite:
                assert summary.mean is None
            elif summary.mean is not None:
                largest = max(map(abs, finite))
                assert math.isclose(
                    summary.mean,
                    math.fsum(value / len(finite) for value in finite),
                    rel_tol=1e-9,
                    abs_tol=max(1e-300, largest * 1e-9),
                )
            else:  # a chunk's sum of 1e300 and more counts as overflow
                assert sum(map(abs, finite)) >= 1e300

    @invariant()
    def a_reader_that_counts_misses_none(self) -> None:
        for number, got in self.read.items():
            wanted = [value for _, value, _ in self.model[number]][: len(got)]
            assert np.array(got).tobytes() == np.array(wanted, np.float64).tobytes()


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
