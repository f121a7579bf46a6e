"""What is drawn of a long series, against plain means of its samples, on every x axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from radt.frontend.data.chart_data import chart_data
from radt.frontend.data.spec import AxisRange, BoardSpec, ChartSpec, Level, Pick, XAxis
from radt.frontend.selection import read_selection
from radt.frontend.view import View
from radt.model import SOFTWARE, MarkerKind, RunStatus, Scope, SeriesKind
from radt.store.records import MarkerRecord, Samples, SeriesBatch, SeriesRecord

EXPERIMENT, COUNT = "lines", 60_000
LOSS, OTHER = 20, 21
TIMES = (XAxis.BARRIER, XAxis.START, XAxis.WALL)


def even(noise):
    return np.full(COUNT, 0.002)


def uneven(noise):
    """A burst of half of the samples, then pauses from microseconds to a minute."""
    return np.concatenate(
        [np.full(COUNT // 2, 1e-5), 1e-5 + noise.exponential(0.05, COUNT // 2) ** 2]
    )


def paused(noise):
    """Logging stops for a while whenever 8,192 values were logged, and once for long."""
    pauses = np.full(COUNT, 1e-4)
    pauses[::8192] = 1.5
    pauses[41_000] = 40.0
    return pauses


def written_at_once(demo, run_id, write, look):
    write(slice(None))
    demo.writer.seal(run_id)


def written_loosely(demo, run_id, write, look):
    """Small chunks, some of them merged."""
    write(slice(0, COUNT - 3000))
    for start in range(COUNT - 3000, COUNT, 37):
        write(slice(start, min(start + 37, COUNT)))


def looked_at_meanwhile(demo, run_id, write, look):
    """A page is open all the time, from before there are too many samples to draw each."""
    for start in range(0, COUNT, 7500):
        write(slice(start, start + 7500))
        look()


@dataclass
class Truth:
    """The samples as they were logged; ``other`` is another metric of the same instants."""

    demo: object
    run_id: str
    at_s: np.ndarray
    values: np.ndarray
    other: np.ndarray
    epochs_s: np.ndarray

    def x(self, axis):
        """Position of each sample on the axis; NaN outside of epochs."""
        match axis:
            case XAxis.STEP:
                return np.arange(COUNT, dtype=np.float64)
            case XAxis.EPOCH:
                numbers = np.arange(len(self.epochs_s), dtype=np.float64)
                return np.interp(self.at_s, self.epochs_s, numbers, left=math.nan, right=math.nan)
            case XAxis.METRIC:
                return self.other
        return self.at_s


def write_run(demo, source, pace, write_all):
    noise = np.random.default_rng(36)
    at_s = np.cumsum(pace(noise)).round(9)
    run = demo.run("a", "n", at_s[-1] + 1, status=RunStatus.RUNNING, epochs=0)
    demo.workload(EXPERIMENT, "w", [run])
    other = np.cumsum(0.1 + noise.exponential(1.0, COUNT))
    # One long epoch and many short ones, from the 11th sample to one of the last.
    begins = np.array([10, COUNT // 2, *range(COUNT // 2 + 100, COUNT - 50, 450)])
    epochs_s = (at_s[begins] + at_s[begins - 1]) / 2
    truth = Truth(
        demo, run.run_id, at_s, noise.normal(size=COUNT) + at_s / at_s[-1], other, epochs_s
    )
    demo.writer.add_series(
        [
            SeriesRecord(run.run_id, number, SOFTWARE, metric, "", Scope.RUN, SeriesKind.GAUGE)
            for number, metric in ((LOSS, "noise"), (OTHER, "progress"))
        ]
    )
    origin_ns = demo.origin_ns(run.run_id)
    steps, times_ns = np.arange(COUNT), origin_ns + (at_s * 1e9).round().astype(np.int64)

    edges_ns = (origin_ns + (epochs_s * 1e9).round().astype(np.int64)).tolist()

    def write(part):
        now_ns = int(times_ns[part][-1])
        demo.writer.put_markers(
            [
                MarkerRecord(
                    *(run.run_id, number, MarkerKind.EPOCH, "e", start_ns),
                    end_ns if end_ns <= now_ns else None,
                )
                for number, (start_ns, end_ns) in enumerate(pairwise(edges_ns))
                if start_ns <= now_ns
            ]
        )
        for number, values in ((LOSS, truth.values), (OTHER, other)):
            points = Samples(times_ns[part], values[part], steps[part])
            demo.writer.append(run.run_id, [SeriesBatch(number, points)])

    def look():
        source._hold_until = source._ask_at = 0.0
        source.revision()
        for axis in (XAxis.BARRIER, XAxis.STEP, XAxis.EPOCH):
            draw(source, axis)

    write_all(demo, run.run_id, write, look)
    source._hold_until = source._ask_at = 0.0
    source.revision()
    return truth


def draw(source, axis, window=None, level=Level.RUN, **spec):
    if axis is XAxis.METRIC:
        spec["over"] = "progress"
    selection = read_selection(source, View(picks=(Pick(EXPERIMENT),)))
    asked = ChartSpec("noise", level=level, x=None if "over" in spec else axis, **spec)
    data = chart_data(source, selection, asked, BoardSpec(), window)
    (line,) = data.lines
    return line


def cells_of(line, x):
    """First and last place in ``x`` of the samples of each drawn point.

    A point lies in the middle between its first and last sample, and each sample is in one point.
    """
    start, found = 0, []
    exact = 0.2 * np.diff(x).min()
    for middle in line.curve.x[np.isfinite(line.curve.values)]:
        end = 2 * middle - x[start]
        last = int(np.searchsorted(x, end))
        near = [place for place in (last - 1, last) if start <= place < len(x)]
        last = min(near, key=lambda place: abs(x[place] - end))
        assert x[last] == pytest.approx(end, rel=0, abs=exact), (middle, x[start])
        found.append((start, last))
        start = last + 1
    assert start == len(x)
    return found


PACES = [even, uneven, paused]
WAYS = [written_at_once, written_loosely, looked_at_meanwhile]


@pytest.mark.parametrize(
    ("pace", "write_all"), [(p, w) for p in PACES for w in WAYS if p is paused or w is WAYS[-1]]
)
def test_each_point_is_the_mean_of_the_samples_of_its_cell(demo, source, pace, write_all):
    truth = write_run(demo, source, pace, write_all)
    for axis in XAxis:
        line = draw(source, axis)
        x = truth.x(axis)
        known = np.isfinite(x)
        shift = 0.0
        if axis in TIMES:
            shift = round(line.curve.x[0] - draw(source, XAxis.BARRIER).curve.x[0], 6)
        x, values = x[known] + shift, truth.values[known]
        cells = cells_of(line, x)
        drawn = np.isfinite(line.curve.values)
        assert 10 < drawn.sum() <= 1000, axis
        parts = [values[first : last + 1] for first, last in cells]
        assert line.curve.values[drawn] == pytest.approx([part.mean() for part in parts]), axis
        assert line.low[drawn].tolist() == [part.min() for part in parts], axis
        assert line.high[drawn].tolist() == [part.max() for part in parts], axis
        # No cell is wider than the others.
        widths = np.array([x[last] - x[first] for first, last in cells])
        assert widths.max() <= (x[-1] - x[0]) / 400, axis
        if axis is XAxis.STEP:
            counts = [len(part) for part in parts]
            assert set(counts[:-1]) == {counts[0]}
            assert line.samples_each == pytest.approx(np.mean(counts))


@pytest.mark.parametrize("count", [1_700, 2_500, 31_000])
def test_cells_hold_equally_many_steps(demo, source, count):
    """Also of so few steps that a cell of the wanted width would hold one or two of them."""
    run = demo.run("a", "n", 60.0)
    demo.workload(EXPERIMENT, "w", [run])
    series = SeriesRecord(run.run_id, LOSS, SOFTWARE, "noise", "", Scope.RUN, SeriesKind.GAUGE)
    demo.writer.add_series([series])
    values, steps = np.random.default_rng(3).normal(size=count), np.arange(count)
    demo.append(run.run_id, demo.origin_ns(run.run_id), LOSS, steps**1.5 / 1e6, values, steps)
    source.revision()
    line = draw(source, XAxis.STEP)
    counts = [last + 1 - first for first, last in cells_of(line, steps.astype(np.float64))]
    assert set(counts[:-1]) == {counts[0]}
    assert counts[0] == math.ceil(count / len(counts)) > 1


@pytest.mark.parametrize("axis", [axis for axis in XAxis if axis not in TIMES[1:]])
def test_a_zoom_shows_every_sample_where_it_was_logged(demo, source, axis):
    truth = write_run(demo, source, paused, looked_at_meanwhile)
    x = truth.x(axis)
    near = slice(40_900, 41_100)  # the long pause is in the middle
    line = draw(source, axis, AxisRange(*x[near][[0, -1]]))
    inside = (line.curve.x >= x[near][0]) & (line.curve.x <= x[near][-1])
    assert line.curve.x[inside] == pytest.approx(x[near], rel=0, abs=1e-6)
    assert line.curve.values[inside].tolist() == truth.values[near].tolist()
    assert line.samples_each == 1


@pytest.mark.parametrize("kind", SeriesKind)
def test_what_two_runs_read_of_a_machine_counts_once_and_a_counter_by_its_growth(
    demo, source, kind
):
    """Readings are dense at first; one run ends before the other, which began later."""
    noise = np.random.default_rng(1)
    pauses = np.concatenate([np.full(COUNT // 2, 1e-3), 1e-3 + noise.exponential(0.01, COUNT // 2)])
    at_ns = (np.cumsum(pauses) * 1e9).round().astype(np.int64)
    amounts = noise.exponential(1.0, COUNT)
    values = np.cumsum(amounts) if kind is SeriesKind.COUNTER else amounts
    runs = [demo.run(letter, "n", at_ns[-1] / 1e9, epochs=1) for letter in "ab"]
    demo.workload(EXPERIMENT, "w", runs)
    for run, part in zip(runs, (slice(0, 48_000), slice(37_000, COUNT)), strict=True):
        series = SeriesRecord(run.run_id, LOSS, "io", "noise", "By", Scope.HOST, kind)
        demo.writer.add_series([series])
        samples = Samples(demo.origin_ns(run.run_id) + at_ns[part], values[part])
        demo.writer.append(run.run_id, [SeriesBatch(LOSS, samples)])
    source.revision()
    line = draw(source, XAxis.BARRIER)
    if kind is SeriesKind.COUNTER:  # the first reading has no rate
        weights, sums = np.diff(at_ns / 1e9), np.diff(values)
        x = at_ns[1:] / 1e9
    else:
        weights, sums, x = np.ones(COUNT), values, at_ns / 1e9
    parts = [slice(first, last + 1) for first, last in cells_of(line, x)]
    expected = [sums[part].sum() / weights[part].sum() for part in parts]
    assert line.curve.values == pytest.approx(expected)
    assert line.high == pytest.approx([(sums / weights)[part].max() for part in parts])


@pytest.mark.parametrize("with_steps", [True, False])
def test_a_counter_over_steps_is_drawn_where_its_readings_were(demo, source, with_steps):
    """The first reading has no rate; without steps there is nothing to draw."""
    run = demo.run("a", "n", 10.0, epochs=1, status=RunStatus.RUNNING)
    demo.workload(EXPERIMENT, "w", [run])
    demo.writer.add_series(
        [SeriesRecord(run.run_id, LOSS, "io", "noise", "By", Scope.RUN, SeriesKind.COUNTER)]
    )
    at_ns = demo.origin_ns(run.run_id) + np.arange(10) * 10**9
    for part in (slice(0, 6), slice(6, 10)):
        steps = 100 + np.arange(10)[part] if with_steps else None
        samples = Samples(at_ns[part], np.arange(10.0)[part] ** 2, steps)
        demo.writer.append(run.run_id, [SeriesBatch(LOSS, samples)])
        source._hold_until = source._ask_at = 0.0
        source.revision()
        selection = read_selection(source, View(picks=(Pick(EXPERIMENT),)))
        asked = ChartSpec("noise", level=Level.RUN, x=XAxis.STEP)
        data = chart_data(source, selection, asked, BoardSpec(), None)
    assert bool(data.lines) is with_steps
    for line in data.lines:
        assert line.curve.x.tolist() == list(range(101, 110))
        assert line.curve.values == pytest.approx(np.diff(np.arange(10.0) ** 2))
