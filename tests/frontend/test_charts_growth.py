"""Long and growing series: nothing is lost on the way to the chart, and nothing is read twice."""

from __future__ import annotations

import numpy as np
import pytest

from radt.frontend.charts.timeseries import Look, figure
from radt.frontend.data import series_cache as tracks
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.chart_data import chart_data
from radt.frontend.data.series_cache import DIGEST_CELLS, RAW_POINTS, Ask, Track
from radt.frontend.data.spec import Aggregate, AxisRange, BoardSpec, ChartSpec, Level, Pick, XAxis
from radt.frontend.selection import read_selection
from radt.frontend.view import View
from radt.model import RunStatus, Scope, SeriesKind
from radt.store import points
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader
from radt.store.records import SeriesRecord

EXPERIMENT = "long"


@pytest.fixture
def decoded_points(monkeypatch):
    """How many points were decoded, as a list that grows."""
    counts = []
    real = points.decode

    def counting(encoded):
        counts.extend(part.point_count for part in encoded)
        return real(encoded)

    monkeypatch.setattr(points, "decode", counting)
    return counts


def workload(demo, letters="a", status=RunStatus.FINISHED, span_s=200.0):
    """Runs with a gauge each, without points; the ids of the runs, which take ``span_s``."""
    runs = [demo.run(letter, "n", span_s - 2.4, status=status, epochs=1) for letter in letters]
    demo.workload(EXPERIMENT, "w", runs)
    for run in runs:
        record = SeriesRecord(
            *(run.run_id, 9, "top", "process.load", "cores", Scope.PROCESS, SeriesKind.GAUGE),
            interval_s=0.001,
        )
        demo.writer.add_series([record])
    return [run.run_id for run in runs]


def fill(demo, run_id, values, first=0, step_s=0.001, steps=None):
    at_s = (first + np.arange(len(values))) * step_s
    demo.append(run_id, demo.origin_ns(run_id), 9, at_s, values, steps)


def draw(source, level=Level.RUN, window=None, **spec):
    selection = read_selection(source, View(picks=(Pick(EXPERIMENT),)))
    spec = ChartSpec("process.load", level=level, **spec)
    return chart_data(source, selection, spec, BoardSpec(), window)


def news(source):
    """Let the source look at the store again at once."""
    source._hold_until = source._ask_at = 0.0
    return source.revision()


def highest(data):
    arrays = [array for line in data.lines for array in (line.curve.values, line.high)]
    return max(float(np.nanmax(array)) for array in arrays if array is not None)


@pytest.fixture(scope="module")
def ten_million(tmp_path_factory):
    """A store with a series of ten million points, one of which is a spike; and when that is."""
    from tests.frontend.conftest import Demo

    demo = Demo(tmp_path_factory.mktemp("ten") / "radt.db")
    (run_id,) = workload(demo, span_s=10_000.0)
    count, spike = 10_000_000, 7_654_321
    wave = np.sin(np.arange(1_000_000) / 5e4)
    for start in range(0, count, len(wave)):
        values = wave.copy()
        if start <= spike < start + len(wave):
            values[spike - start] = 1000.0
        fill(demo, run_id, values, start)
    demo.writer.seal(run_id)
    yield demo.store, spike / 1000
    demo.writer.close()


@pytest.mark.parametrize("level", [Level.RUN, Level.WORKLOAD])
@pytest.mark.parametrize("smoothing_pct", [0.0, 5.0])
def test_a_spike_in_ten_million_points_is_seen_at_every_zoom(ten_million, level, smoothing_pct):
    path, spike_s = ten_million
    source = CachedStore(path)
    span_s = 10_000.0
    data = draw(source, level, smoothing_pct=smoothing_pct)
    assert highest(data) == 1000.0
    while span_s > 0.01:
        span_s /= 4
        window = AxisRange(spike_s - span_s / 3, spike_s + 2 * span_s / 3)
        data = draw(source, level, window, smoothing_pct=smoothing_pct)
        assert highest(data) == 1000.0, span_s
        (line,) = data.lines
        assert len(line.curve.values) <= 2500
        where = line.curve.values if line.high is None else line.high
        # Within a pixel or two of where it is.
        assert abs(line.curve.x[np.nanargmax(where)] - spike_s) <= span_s / 300 + 0.0011
        drawn = figure(data, Look())
        assert drawn["layout"]["yaxis"]["range"][1] > 1000.0
    source.close()


def test_ten_million_points_are_not_decoded_to_be_seen(ten_million, decoded_points):
    source = CachedStore(ten_million[0])
    data = draw(source)
    assert len(data.lines[0].curve.values) > 500
    assert sum(decoded_points) < 10_000
    draw(source, window=AxisRange(5000.0, 5100.0))
    assert sum(decoded_points) < 150_000
    source.close()


def test_a_window_of_a_long_series_has_every_point(ten_million):
    source = CachedStore(ten_million[0])
    (line,) = draw(source, window=AxisRange(4321.0, 4321.5)).lines
    inside = (line.curve.x >= 4321.0) & (line.curve.x <= 4321.5)
    assert inside.sum() == 501
    assert line.curve.x[0] < 4321.0
    assert line.curve.x[-1] > 4321.5
    source.close()


@pytest.mark.parametrize("level", [Level.RUN, Level.WORKLOAD])
def test_a_series_that_grows_costs_what_is_new(demo, source, decoded_points, level):
    """However long it is already; and what is drawn is what a new dashboard would draw."""
    (run_id,) = workload(demo, status=RunStatus.RUNNING, span_s=10.0)
    rng, history = np.random.default_rng(1), 400_000
    fill(demo, run_id, rng.random(history))
    news(source)
    draw(source, level)
    seen = history
    for _ in range(70):  # loose chunks are merged meanwhile
        fill(demo, run_id, rng.random(7), seen)
        seen += 7
        news(source)
        decoded_points.clear()
        grown = draw(source, level)
        assert sum(decoded_points) <= 3600 + 7
    fresh = CachedStore(source.address)
    anew = draw(fresh, level)
    fresh.close()
    assert grown.lines[0].curve.x == pytest.approx(anew.lines[0].curve.x)
    assert grown.lines[0].curve.values == pytest.approx(anew.lines[0].curve.values)
    assert grown.window == anew.window
    assert grown.window.end == pytest.approx((seen - 1) / 1000)


def test_nothing_is_decoded_where_nothing_is_new(demo, source, decoded_points):
    (run_id,) = workload(demo, status=RunStatus.RUNNING)
    fill(demo, run_id, np.ones(50_000))
    news(source)
    draw(source)
    decoded_points.clear()
    demo.quickstart("another")
    news(source)
    draw(source)
    draw(source, Level.WORKLOAD)
    assert not decoded_points


def test_memory_of_a_series_is_bounded_however_long_it_grows():
    record = SeriesRecord("r", 0, "top", "m", "", Scope.PROCESS, SeriesKind.GAUGE, interval_s=1.0)
    track = Track(Ask(record, 0))
    from radt.store.records import Samples

    for page in range(60):
        times = (page * 20_000 + np.arange(20_000)) * 1_000_000_000
        track._append(Samples(times, np.full(20_000, float(page))))
        assert len(track.cells) <= max(RAW_POINTS, DIGEST_CELLS + 1)
    cells = track.cells
    assert cells.count.sum() == 1_200_000
    assert cells.total.sum() == pytest.approx(sum(20_000.0 * page for page in range(60)))
    assert not cells.gap.any()


def test_of_all_series_no_more_is_kept_than_there_is_room_for(
    demo, source, decoded_points, monkeypatch
):
    """The least used are forgotten, however they have grown, and read again when asked for."""
    runs = workload(demo, "abcd", status=RunStatus.RUNNING)
    for run_id in runs:
        fill(demo, run_id, np.arange(400.0))
    news(source)
    draw(source)
    assert len(source._tracks._slots) == 4
    assert sum(decoded_points) == 4 * 400
    for run_id in runs:
        fill(demo, run_id, np.arange(400.0), first=400)
    room = max(slot.track.weight for slot in source._tracks._slots.values()) * 6
    monkeypatch.setattr(tracks, "MAX_WEIGHT", room)
    news(source)
    draw(source)
    kept = source._tracks._slots.values()
    assert 0 < len(kept) < 4
    assert sum(slot.track.weight for slot in kept) == source._tracks._weight <= room
    seen = sum(decoded_points)
    draw(source)
    assert sum(decoded_points) > seen


@pytest.mark.parametrize("every", [None, 1, 3])
def test_an_aggregate_of_long_series_is_exact(demo, source, every):
    """Mean, lowest and highest of each cell are those of the points in it, by time or by steps."""
    steps = None if every is None else every * np.arange(100_000)
    x = np.arange(100_000) / 1000 if steps is None else steps
    axis = XAxis.BARRIER if steps is None else XAxis.STEP
    run_ids = workload(demo, "ab")
    rng = np.random.default_rng(2)
    both = [rng.normal(size=100_000) for _ in run_ids]
    for run_id, values in zip(run_ids, both, strict=True):
        fill(demo, run_id, values, steps=steps)
        demo.writer.seal(run_id)
    (line,) = draw(source, Level.WORKLOAD, aggregate=Aggregate.MEAN, x=axis).lines
    width = line.curve.x[1] - line.curve.x[0]
    number = np.floor(x / width).astype(int)
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    counts = np.diff(np.append(starts, len(number)))
    means = np.mean([np.add.reduceat(v, starts) / counts for v in both], axis=0)
    lows = np.min([np.minimum.reduceat(v, starts) for v in both], axis=0)
    highs = np.max([np.maximum.reduceat(v, starts) for v in both], axis=0)
    assert line.curve.values == pytest.approx(means)
    assert line.low.tolist() == lows.tolist()
    assert line.high.tolist() == highs.tolist()


@pytest.mark.parametrize("level", [Level.RUN, Level.WORKLOAD])
def test_a_moving_mean_is_the_same_at_every_zoom(demo, source, level):
    (run_id,) = workload(demo)
    rng = np.random.default_rng(3)
    values = np.sin(np.arange(200_000) / 2e4) + rng.normal(size=200_000)
    fill(demo, run_id, values)
    demo.writer.seal(run_id)
    whole = draw(source, level, smoothing_pct=4).lines[0].curve
    for window in (AxisRange(50, 150), AxisRange(99, 101), AxisRange(100.0, 100.05)):
        part = draw(source, level, window, smoothing_pct=4).lines[0].curve
        inside = (part.x >= window.start) & (part.x <= window.end)
        expected = np.interp(part.x[inside], whole.x, whole.values)
        assert part.values[inside] == pytest.approx(expected, abs=0.02)
    # 200 s are the whole; 8 s around 100 s are 8000 points.
    truth = values[96_000:104_000].mean()
    assert np.interp(100.0, whole.x, whole.values) == pytest.approx(truth, abs=0.02)


def test_a_spike_is_seen_over_steps_too(demo, source):
    (run_id,) = workload(demo)
    values = np.zeros(120_000)
    values[77_777] = 50.0
    fill(demo, run_id, values, steps=10 * np.arange(120_000))
    demo.writer.seal(run_id)
    data = draw(source, x=XAxis.STEP)
    assert data.window == AxisRange(0, 1_199_990)
    for window in (None, AxisRange(700_000, 900_000), AxisRange(777_700, 777_900)):
        data = draw(source, x=XAxis.STEP, window=window)
        curve, high = data.lines[0].curve, data.lines[0].high
        where = curve.x[np.nanargmax(curve.values if high is None else high)]
        assert where == pytest.approx(777_770, abs=np.diff(curve.x).max())
    assert ((curve.x >= 777_700) & (curve.x <= 777_900)).sum() == 21


def test_what_was_pruned_is_read_anew(demo):
    (run_id,) = workload(demo)
    fill(demo, run_id, np.arange(50_000.0))
    demo.writer.seal(run_id)
    with StoreReader(demo.store) as reader:

        def grown(mark):
            with reader.snapshot() as connection:
                return points.grown(connection, run_id, 9, mark)

        found = grown(points.Mark())
        assert len(found.decode()) == 50_000
        assert not len(grown(found.mark).decode())
        prune_run(reader, demo.writer, run_id, Keep.SUMMARIES)
        again = grown(found.mark)
        assert again.anew
        assert 0 < len(again.decode()) < 1000
        assert not grown(again.mark).anew


def test_pages_of_a_long_series_come_to_all_of_it(demo):
    (run_id,) = workload(demo)
    fill(demo, run_id, np.arange(30_000.0))
    fill(demo, run_id, np.arange(100.0), 30_000)
    parts, mark, more = [], points.Mark(), True
    with StoreReader(demo.store) as reader:
        while more:
            with reader.snapshot() as connection:
                found = points.grown(connection, run_id, 9, mark, page_points=8000)
            parts.append(found.decode().values)
            mark, more = found.mark, found.more
    assert len(parts) > 3
    assert np.concatenate(parts).tolist() == [*range(30_000), *range(100)]


def test_points_out_of_order_are_put_into_it(demo, source):
    """Clocks that were set back, or two writers: time counts, not the order of writing."""
    (run_id,) = workload(demo, status=RunStatus.RUNNING)
    fill(demo, run_id, np.full(100, 1.0), 100)
    fill(demo, run_id, np.full(100, 2.0), 0)
    news(source)
    curve = draw(source).lines[0].curve
    assert np.all(np.diff(curve.x) > 0)
    assert curve.values.tolist() == [2.0] * 100 + [1.0] * 100
    fill(demo, run_id, np.full(10, 3.0), 200)
    news(source)
    assert draw(source).lines[0].curve.values.tolist()[-10:] == [3.0] * 10


def test_a_counter_that_grows_is_drawn_as_its_rate(demo, source):
    """Also across what was read at different times, and beyond the points that are kept."""
    (run_id,) = workload(demo, status=RunStatus.RUNNING)
    record = SeriesRecord(
        *(run_id, 9, "io", "disk.read", "By", Scope.HOST, SeriesKind.COUNTER), interval_s=0.001
    )
    demo.writer.add_series([SeriesRecord(*(run_id, 10), *record_tail(record))])
    origin = demo.origin_ns(run_id)

    def drawn_with(number):
        demo.append(run_id, origin, 10, number / 1000, 2.0 * number)
        news(source)
        selection = read_selection(source, View(picks=(Pick(EXPERIMENT),)))
        (line,) = chart_data(source, selection, ChartSpec("disk.read"), BoardSpec(), None).lines
        return line

    for page in range(3):
        line = drawn_with(page * 100 + np.arange(100))
        # One less than there are readings: none is lost where pages meet.
        assert len(line.curve.values) == page * 100 + 99
    for page in range(12):
        line = drawn_with(300 + page * 5000 + np.arange(5000))
    assert line.curve.values == pytest.approx(2000.0)
    assert not np.isnan(line.curve.values).any()
    assert len(line.curve.values) >= 700
    assert line.curve.x[-1] == pytest.approx(60.299, abs=0.1)


def record_tail(record):
    """All of a record but the run and its number."""
    names = [name for name in record.__slots__ if name not in ("run_id", "series_no")]
    return [getattr(record, name) for name in names]
