"""What runs to the right, baselines, smoothing, logarithms, marks, print."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from radt.analysis.lines import moving_mean
from radt.frontend.charts.layout import axis_ticks
from radt.frontend.charts.timeseries import Look, figure
from radt.frontend.data.catalog import read_catalog, tint
from radt.frontend.data.chart_data import axes_of, chart_data, natural_x
from radt.frontend.data.spec import (
    Aggregate,
    AxisRange,
    Band,
    BoardSpec,
    ChartSpec,
    Level,
    Pick,
    Relative,
    XAxis,
)
from radt.frontend.selection import read_selection
from radt.frontend.theme import HUE_COUNT
from radt.frontend.view import View
from radt.model import NO_STEP, SOFTWARE, MarkerKind, RunStatus, Scope, SeriesKind
from radt.render.labels import apart
from radt.store.cells import of_points
from radt.store.records import MarkerRecord, SeriesRecord

EXPERIMENT = "quickstart"


def selection_of(source, *picks):
    return read_selection(source, View(picks=picks or (Pick(EXPERIMENT),)))


def draw(
    source, metric="loss", *, selection=None, board=None, window=None, level=Level.RUN, **spec
):
    selection = selection or selection_of(source)
    spec = ChartSpec(metric, level=level, **spec)
    return chart_data(source, selection, spec, board or BoardSpec(), window)


def run_pick(demo, name):
    return Pick.run(EXPERIMENT, demo.run_ids[name])


def workload_pick(source, name):
    workloads = read_catalog(source, EXPERIMENT).workloads
    (found,) = [one for one in workloads if one.record.label == name]
    return Pick.workload(EXPERIMENT, found.record.workload_id)


def by_name(data):
    return {line.short: line for line in data.lines}


def gauge(demo, run_name, metric, at_s, values, **fields):
    """A gauge of one of the demo's runs."""
    run_id = demo.run_ids[run_name]
    fields = {"interval_s": 1.0, "entity": ""} | fields
    number = fields.pop("number", 9)
    record = SeriesRecord(
        *(run_id, number, "top", metric, "By", Scope.PROCESS, SeriesKind.GAUGE), **fields
    )
    demo.writer.add_series([record])
    demo.append(run_id, demo.origin_ns(run_id), number, np.asarray(at_s), np.asarray(values))


# -- x axes ------------------------------------------------------------------------------------


def test_axes_are_those_that_make_sense(demo, source):
    demo.quickstart()
    selection = selection_of(source)
    times = (XAxis.BARRIER, XAxis.START, XAxis.WALL)
    assert axes_of(source, selection, "loss") == (*times, XAxis.STEP, XAxis.EPOCH)
    assert axes_of(source, selection, "process.memory.rss") == (*times, XAxis.EPOCH)
    # A script that gives no steps.
    run_id = demo.run_ids["solo a"]
    record = SeriesRecord(run_id, 9, SOFTWARE, "checksum", "", Scope.RUN, SeriesKind.GAUGE)
    demo.writer.add_series([record])
    demo.append(run_id, demo.origin_ns(run_id), 9, [1.0], [3.0], [NO_STEP])
    selection = selection_of(source)
    assert axes_of(source, selection, "checksum") == (*times, XAxis.EPOCH)
    assert natural_x(source, selection, "checksum") is XAxis.BARRIER
    assert natural_x(source, selection, "loss") is XAxis.STEP


def test_each_axis_has_its_own_zero_and_whole(demo, source):
    demo.quickstart()
    run = selection_of(source).runs[demo.run_ids["solo a"]]
    found = {x: draw(source, x=x) for x in XAxis if x is not XAxis.METRIC}
    lines = {x: by_name(data)["solo"].curve for x, data in found.items()}
    since_barrier = lines[XAxis.BARRIER].x
    late_s = (run.record.started_ns - run.origin_ns) / 1e9
    assert lines[XAxis.START].x == pytest.approx(since_barrier - late_s)
    assert lines[XAxis.WALL].x == pytest.approx(since_barrier + run.origin_ns / 1e9)
    assert lines[XAxis.STEP].x.tolist() == list(range(1, 121))
    # 24 readings an epoch, the last of them at its end.
    assert lines[XAxis.EPOCH].x == pytest.approx(np.arange(1, 121) / 24)
    for x, data in found.items():
        assert data.x is x
        assert np.array_equal(lines[x].values, lines[XAxis.BARRIER].values)
    assert found[XAxis.STEP].window == AxisRange(1, 120)
    assert found[XAxis.EPOCH].window == AxisRange(0, 5)
    assert found[XAxis.WALL].window.start == pytest.approx(run.origin_ns / 1e9)


def test_runs_of_different_speed_meet_over_epochs(demo, source):
    """Every epoch has its dip, whoever takes longer."""
    demo.quickstart()
    data = draw(source, "process.cpu.utilization", x=XAxis.EPOCH)
    slow, fast = by_name(data)["three c"].curve, by_name(data)["solo"].curve
    assert slow.x[-1] == pytest.approx(5, abs=0.1)
    assert fast.x[-1] == pytest.approx(5, abs=0.2)
    assert data.window.end == 5


def test_an_epoch_that_goes_on_is_not_over_before_its_time(demo, source):
    demo.quickstart()
    run_id = demo.run_ids["solo a"]
    origin_ns = demo.origin_ns(run_id)
    demo.writer.put_run(replace(source.reader.run(run_id), status=RunStatus.RUNNING, ended_ns=None))
    # The last epoch has begun at 18.6 s, as long ones take 4.2 s, and now it is 23.4 s.
    demo.writer.put_markers(
        [MarkerRecord(run_id, 4, MarkerKind.EPOCH, "epoch 5", origin_ns + 18_600_000_000, step=5)]
    )
    source.revision()
    line = by_name(draw(source, "process.cpu.utilization", x=XAxis.EPOCH))["solo"]
    assert 4.9 < line.curve.x[-1] <= 5.0


@pytest.mark.parametrize("level", [Level.RUN, Level.WORKLOAD])
def test_what_has_no_steps_or_epochs_says_so(demo, source, level):
    demo.workload(EXPERIMENT, "short", [demo.run("a", "n", 4.0, epochs=0)])
    for x, text in (
        (XAxis.STEP, "this metric has no steps"),
        (XAxis.EPOCH, "the selected runs have no values within epochs"),
    ):
        drawn = figure(draw(source, "process.memory.rss", x=x, level=level), Look())
        assert drawn["layout"]["annotations"][0]["text"] == text
        low, high = drawn["layout"]["xaxis"]["range"]
        assert low < high


def test_zoom_is_in_units_of_the_axis(demo, source):
    demo.quickstart()
    barrier_s = selection_of(source).runs[demo.run_ids["solo a"]].origin_ns / 1e9
    windows = {
        XAxis.BARRIER: AxisRange(5.0, 8.0),
        XAxis.START: AxisRange(5.0, 8.0),
        XAxis.WALL: AxisRange(barrier_s + 5, barrier_s + 8),
        XAxis.STEP: AxisRange(50, 60),
        XAxis.EPOCH: AxisRange(1.0, 1.5),
    }
    for x, window in windows.items():
        for level in (Level.RUN, Level.WORKLOAD):
            data = draw(source, x=x, window=window, level=level)
            assert data.window == window
            seen = by_name(data)["solo"].curve.x
            inside = (seen >= window.start) & (seen <= window.end)
            assert inside.sum() >= 10, (x, level)
            assert len(seen) <= inside.sum() + 2


@pytest.mark.parametrize("x", [XAxis.BARRIER, XAxis.WALL, XAxis.STEP])
def test_a_zoom_to_where_a_workload_was_not_shows_none_of_it(demo, source, x):
    demo.quickstart()
    whole = draw(source, x=x, level=Level.WORKLOAD).window
    late = AxisRange(whole.end - (whole.end - whole.start) / 100, whole.end)
    data = draw(source, x=x, level=Level.WORKLOAD, window=late)
    assert len(by_name(data)) == 3
    assert figure(data, Look())["layout"]["xaxis"]["range"] == [late.start, late.end]
    beyond = AxisRange(whole.end + 10, whole.end + 20)
    data = draw(source, x=x, level=Level.WORKLOAD, window=beyond)
    is_drawn = any(np.isfinite(line.curve.values).any() for line in data.lines)
    # A zoom of other steps is of a metric that counts something else: this one is left alone.
    assert is_drawn is (x is XAxis.STEP)
    assert data.window == (whole if x is XAxis.STEP else beyond)


def test_steps_that_begin_again_stay_in_order(demo, source):
    """A run that was resumed from a checkpoint logs some steps twice."""
    demo.quickstart()
    run_id = demo.run_ids["solo a"]
    at_s = 23 + np.arange(40) / 100
    demo.append(run_id, demo.origin_ns(run_id), 0, at_s, np.full(40, 9.0), np.arange(100, 140))
    source.revision()
    curve = by_name(draw(source, x=XAxis.STEP))["solo"].curve
    assert np.all(np.diff(curve.x[np.isfinite(curve.values)]) >= 0)
    assert curve.x[-1] == 139


@pytest.mark.parametrize(
    ("kind", "window", "texts"),
    [
        (XAxis.STEP, AxisRange(0, 4000), ["0", "500", "1,000", "1,500", "2,000", "2,500", "3,000"]),
        (XAxis.STEP, AxisRange(3, 5), ["3", "4", "5"]),
        (XAxis.EPOCH, AxisRange(0, 1), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (XAxis.BARRIER, AxisRange(0, 60), ["0:00", "0:10", "0:20", "0:30", "0:40", "0:50", "1:00"]),
    ],
)
def test_ticks_read_well(kind, window, texts):
    assert axis_ticks(kind, window)[1][: len(texts)] == texts


def test_ticks_of_the_time_of_day_are_round_and_name_the_day_once():
    start_s = datetime(2026, 3, 4, 23, 40).astimezone().timestamp()
    positions, texts = axis_ticks(XAxis.WALL, AxisRange(start_s, start_s + 3600))
    assert texts[0] == "23:40<br>4 Mar"
    assert "23:50" in texts
    assert "00:00<br>5 Mar" in texts
    assert sum("<br>" in text for text in texts) == 2
    assert len(positions) == len(texts)
    _, seconds = axis_ticks(XAxis.WALL, AxisRange(start_s, start_s + 0.4))
    assert seconds[1] in ("23:40:00.05", "23:40:00.1")


# -- baselines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relative", "expected", "own", "unit"),
    [(Relative.RATIO, 1.5, 1.0, "×"), (Relative.DIFFERENCE, 1e8, 0.0, "MB")],
)
def test_lines_against_a_run(demo, source, relative, expected, own, unit):
    demo.quickstart()
    at_s = np.arange(30.0)
    gauge(demo, "three a", "mem", at_s, np.full(30, 2e8))
    gauge(demo, "three c", "mem", at_s + 0.4, np.full(30, 3e8))
    baseline = run_pick(demo, "three a")
    data = draw(source, "mem", relative=relative, baseline=baseline)
    lines = by_name(data)
    assert lines["three a"].curve.values == pytest.approx(own)
    inside = lines["three c"].curve.x <= 29
    assert lines["three c"].curve.values[inside] == pytest.approx(expected)
    # Beyond the baseline's end there is nothing to compare with.
    assert np.isnan(lines["three c"].curve.values[~inside]).all()
    drawn = figure(data, Look())
    assert drawn["layout"]["meta"]["unit"] == unit
    assert drawn["layout"]["meta"]["relative"] == relative
    assert drawn["layout"]["meta"]["signed"] is (relative is Relative.DIFFERENCE)


def test_a_baseline_is_not_bridged_across_its_gaps(demo, source):
    demo.quickstart()
    gauge(demo, "three a", "mem", [0, 1, 2, 20, 21, 22], np.full(6, 2e8))
    gauge(demo, "three b", "mem", np.arange(23.0), np.full(23, 3e8))
    ratio = {"relative": Relative.RATIO, "baseline": run_pick(demo, "three a")}
    curve = by_name(draw(source, "mem", **ratio))["three b"].curve
    known = curve.x[np.isfinite(curve.values)]
    assert set(known.tolist()) == {0, 1, 2, 20, 21, 22}


def test_lines_against_a_workload(demo, source):
    """Of what adds up the sum, drawn as a workload or not."""
    demo.quickstart()
    at_s = np.arange(30.0)
    for letter in "abc":
        gauge(demo, f"three {letter}", "mem", at_s, np.full(30, 1e8))
    gauge(demo, "solo a", "mem", at_s, np.full(30, 6e8))
    board = BoardSpec(relative=Relative.RATIO, baseline=workload_pick(source, "three"))
    assert by_name(draw(source, "mem", board=board))["solo"].curve.values == pytest.approx(2.0)
    lines = by_name(draw(source, "mem", board=board, level=Level.WORKLOAD))
    assert lines["solo"].curve.values == pytest.approx(2.0)
    assert lines["three"].curve.values == pytest.approx(1.0)
    own = draw(source, "mem", board=board, relative=Relative.OFF)
    assert by_name(own)["solo"].curve.values == pytest.approx(6e8)


def test_what_cannot_be_compared_is_said(demo, source):
    demo.quickstart()
    gauge(demo, "three a", "mem", np.arange(5.0), np.full(5, 1e8))
    gauge(demo, "three b", "mem", 50 + np.arange(5.0), np.full(5, 1e8))
    gauge(demo, "mix a", "zero", np.arange(5.0), [0, 0, 1e6, 1e6, 1e6])
    gauge(demo, "mix b", "zero", np.arange(5.0), np.full(5, 1e6))
    ratio = {"relative": Relative.RATIO}
    data = draw(source, "mem", baseline=run_pick(demo, "three a"), **ratio)
    assert data.notes == ("three b: no value where three a has one",)
    data = draw(source, "zero", baseline=run_pick(demo, "mix a"), **ratio)
    assert data.notes == ("left out where mix a is 0",)
    data = draw(source, "mem", baseline=run_pick(demo, "solo a"), **ratio)
    assert data.notes == ("solo has no mem",)
    assert data.relative is Relative.OFF
    some = selection_of(source, run_pick(demo, "three a"))
    data = draw(source, "mem", selection=some, baseline=run_pick(demo, "three b"), **ratio)
    assert data.notes == ("the baseline is not in the selection",)
    assert figure(data, Look())["layout"]["meta"]["notes"] == list(data.notes)


def test_a_hidden_baseline_still_is_one(demo, source):
    demo.quickstart()
    gauge(demo, "three a", "mem", np.arange(5.0), np.full(5, 1e8))
    gauge(demo, "three b", "mem", np.arange(5.0), np.full(5, 2e8))
    key = f"r{demo.run_ids['three a'][:12]}"
    baseline = run_pick(demo, "three a")
    data = draw(source, "mem", relative=Relative.RATIO, baseline=baseline, hidden=(key,))
    assert by_name(data)["three b"].curve.values == pytest.approx(2.0)
    assert by_name(data)["three a"].hidden


def test_outliers_may_be_left_outside(demo, source):
    demo.quickstart()
    run = next(iter(read_catalog(source, EXPERIMENT).runs.values()))
    demo.append(run.run_id, run.origin_ns, 0, np.array([23.0]), [1e6], [121])
    source.revision()
    tops = []
    for robust in (False, True):
        data = draw(source, board=BoardSpec(robust=robust))
        tops.append(figure(data, Look())["layout"]["yaxis"]["range"][1])
    assert tops[0] > 1e6
    assert 1 < tops[1] < 3


def test_an_exponential_mean_is_tensorboards(source, demo):
    """Debiased: its first value is the first sample (`resmoothDataset` in TensorBoard)."""
    demo.quickstart()
    raw = by_name(draw(source))["solo"].curve.values
    last, expected = 0.0, []
    for number, value in enumerate(raw, start=1):
        last = last * 0.9 + (1 - 0.9) * value
        expected.append(last / (1 - 0.9**number))
    for window in (None, AxisRange(10.0, 15.0)):
        line = by_name(draw(source, board=BoardSpec(ema=0.9), window=window))["solo"]
        at_s = by_name(draw(source))["solo"].curve.x
        assert line.curve.values == pytest.approx(np.interp(line.curve.x, at_s, expected))
        assert line.high == pytest.approx(np.interp(line.curve.x, at_s, raw))


def test_groups_are_means_with_the_interval_of_their_runs(demo, source):
    """Repeats differ by their seed only; the interval is Student's."""
    at_s = np.arange(40.0)
    runs = []
    for number, lr in enumerate(("0.1", "0.1", "0.1", "0.3")):
        demo.workload(EXPERIMENT, f"w{number}", [demo.run("a", "n", 8.0)])
        run_id = demo.run_ids[f"w{number} a"]
        demo.writer.put_params(run_id, {"lr": lr, "seed": str(number)})
        gauge(demo, f"w{number} a", "score", at_s, number + at_s)
        runs.append(run_id)
    source.revision()
    repeats = by_name(draw(source, "score", level=Level.GROUP))
    assert list(repeats) == ["lr 0.1", "lr 0.3"]
    line = repeats["lr 0.1"]
    assert line.members == tuple(f"r{run_id[:12]}" for run_id in runs[:3])
    at = line.curve.x
    mean = 1 + at
    inside = at <= 39
    assert line.curve.values[inside] == pytest.approx(mean[inside])
    # Of 0, 1, 2 the deviation is 1, and Student's quantile of two degrees is 4.303.
    assert (line.high - line.low)[inside] == pytest.approx(2 * 4.30265 / np.sqrt(3), rel=1e-4)
    deviation = by_name(
        draw(source, "score", level=Level.GROUP, board=BoardSpec(band=Band.DEVIATION))
    )["lr 0.1"]
    assert (deviation.high - deviation.low)[inside] == pytest.approx(2.0)
    by_seed = draw(source, "score", level=Level.GROUP, board=BoardSpec(group_by="seed"))
    assert [one.short for one in by_seed.lines] == [f"seed {number}" for number in range(4)]


@pytest.mark.parametrize("band", [Band.CONFIDENCE, Band.DEVIATION])
def test_the_band_of_a_sum_of_groups_is_its_range(demo, source, band):
    for number in range(3):
        demo.workload(EXPERIMENT, f"w{number}", [demo.run("a", "n", 8.0)])
        gauge(demo, f"w{number} a", "score", np.arange(40.0), np.full(40, 10.0))
    board = BoardSpec(band=band)
    data = draw(source, "score", level=Level.GROUP, board=board, aggregate=Aggregate.SUM)
    (line,) = data.lines
    for values in (line.curve.values, line.low, line.high):
        assert values == pytest.approx(np.full(len(values), 30.0))
    assert figure(data, Look())["layout"]["meta"]["band"] == "band min–max"


# -- smoothing ---------------------------------------------------------------------------------


def test_a_moving_mean_counts_time_not_points():
    # A second with a hundred readings of 1, then nine seconds of a reading a second of 0.
    at_s = np.concatenate([np.arange(100) / 100, np.arange(1.0, 11.0)])
    values = np.concatenate([np.ones(100), np.zeros(10)])
    mean = moving_mean(of_points(at_s, values), np.array([5.0]), 10.0)
    assert mean[0] == pytest.approx(0.1, abs=0.01)


def test_a_moving_mean_ends_at_gaps():
    at_s = np.concatenate([np.arange(5.0), 20 + np.arange(5.0)])
    values = np.concatenate([np.ones(5), np.full(5, 9.0)])
    mean = moving_mean(of_points(at_s, values, longest_s=3.5), at_s, 60.0)
    assert mean.tolist() == values.tolist()


@pytest.mark.parametrize("level", [Level.RUN, Level.WORKLOAD])
def test_a_smoothed_line_lies_in_the_band_of_what_was_measured(demo, source, level):
    demo.quickstart()
    raw = by_name(draw(source, level=level))["solo"]
    data = draw(source, level=level, board=BoardSpec(smoothing_pct=10))
    smooth = by_name(data)["solo"]
    assert data.smoothing_width == pytest.approx(0.1 * data.window.end)
    noise = np.abs(np.diff(smooth.curve.values, 2)).mean()
    assert noise < np.abs(np.diff(raw.curve.values[np.isfinite(raw.curve.values)], 2)).mean() / 3
    assert np.nanmax(smooth.high) == np.nanmax(raw.curve.values)
    drawn = figure(data, Look())
    assert sum(trace.get("fill") == "toself" for trace in drawn["data"]) == len(data.lines)
    # What the board smooths, a chart may leave as it is.
    plain = draw(source, level=level, board=BoardSpec(smoothing_pct=10), smoothing_pct=0.0)
    assert by_name(plain)["solo"].curve.values.tolist() == raw.curve.values.tolist()


# -- y axis ------------------------------------------------------------------------------------


def test_a_logarithmic_axis_says_what_it_leaves_out(demo, source):
    demo.quickstart()
    gauge(demo, "solo a", "mem", np.arange(6.0), [0, -1e6, 1e6, 1e7, 1e8, 1e9])
    gauge(demo, "solo a", "one", np.arange(2.0), [0.3, 0.1 + 0.2], number=10)  # by rounding only
    data = draw(source, "mem", log=True)
    drawn = figure(data, Look())
    assert drawn["layout"]["yaxis"]["type"] == "log"
    low, high = drawn["layout"]["yaxis"]["range"]
    assert drawn["layout"]["meta"]["notes"] == ["2 values of 0 or less left out"]
    assert drawn["layout"]["meta"]["unit"] == "GB"
    assert -3.5 < low < -3 < 0 < high < 0.5
    low, high = figure(draw(source, "one", log=True), Look())["layout"]["yaxis"]["range"]
    assert high - low > 0.5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"y_min": 1e8, "y_max": 3e8}, [100, 300]),
        ({"y_max": 3e8}, [0, 300]),
        ({"y_min": 9e8}, [900, 1800]),
        ({"y_max": -1e8}, [-200, -100]),
    ],
)
def test_an_axis_by_hand(demo, source, given, expected):
    demo.quickstart()
    gauge(demo, "solo a", "mem", np.arange(6.0), np.full(6, 2e8))
    drawn = figure(draw(source, "mem", **given), Look())
    assert drawn["layout"]["yaxis"]["range"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"y_min": 1e8, "y_max": 3e8}, [100, 300]),
        ({"y_min": 9e8}, [900, 9000]),
        ({"y_max": 1e7}, [1, 10]),
        ({"y_min": 3e8, "y_max": 1e8}, [300, 3000]),
        ({"y_min": 0, "y_max": 400e6}, [100, 400]),
    ],
)
def test_a_logarithmic_axis_by_hand(demo, source, given, expected):
    demo.quickstart()
    gauge(demo, "solo a", "mem", np.arange(6.0), np.full(6, 2e8))
    drawn = figure(draw(source, "mem", log=True, **given), Look())
    assert drawn["layout"]["yaxis"]["range"] == pytest.approx(np.log10(expected))


# -- levels, marks, looks ----------------------------------------------------------------------


def test_workloads_and_runs_in_one_chart(demo, source):
    demo.quickstart()
    picks = (workload_pick(source, "three"), run_pick(demo, "mix b"), run_pick(demo, "solo a"))
    data = draw(source, selection=selection_of(source, *picks), level=Level.AUTO)
    assert [line.short for line in data.lines] == ["solo", "three", "mix b"]
    assert [line.is_workload for line in data.lines] == [False, True, False]
    assert data.level is Level.AUTO
    assert data.aggregate is Aggregate.MEAN
    assert len({line.ordinal for line in data.lines}) == 3
    alone = draw(source, selection=selection_of(source, picks[0]), level=Level.AUTO)
    assert [line.short for line in alone.lines] == ["three a", "three b", "three c"]
    assert alone.aggregate is None


def test_every_trace_and_every_hidden_line_has_its_key(demo, source):
    demo.quickstart()
    keys = [line.key for line in draw(source).lines]
    assert len(set(keys)) == 6
    drawn = figure(draw(source, hidden=(keys[1], "rnobody")), Look())
    listed = drawn["layout"]["meta"]["lines"]
    assert [one["key"] for one in listed] == keys
    assert [one["hidden"] for one in listed] == [False, True, False, False, False, False]
    strokes = [t for t in drawn["data"] if t["name"] and t.get("yaxis") != "y2"]
    assert [t["meta"]["key"] for t in strokes] == [keys[0], *keys[2:]]
    every = figure(draw(source, hidden=tuple(keys)), Look())
    assert every["layout"]["annotations"][0]["text"] == "all lines are hidden"


def test_phases_spans_and_events_are_marked(demo, source):
    demo.quickstart()
    run_id = demo.run_ids["solo a"]
    origin_ns = demo.origin_ns(run_id)

    def mark(number, kind, name, start_s, end_s=None, **more):
        end_ns = None if end_s is None else origin_ns + round(end_s * 1e9)
        start_ns = origin_ns + round(start_s * 1e9)
        return MarkerRecord(run_id, number, kind, name, start_ns, end_ns, **more)

    demo.writer.put_markers(
        [
            mark(50, MarkerKind.PHASE, "<b>warm-up</b>", 0.5, 1.5),
            mark(51, MarkerKind.SPAN, "checkpoint", 7.0, 7.25),
            mark(52, MarkerKind.EVENT, "late", 9.0, detail="top: 3 readings"),
            mark(53, MarkerKind.EPOCH, "epoch 1", 2.0, 3.0, step=1, process="rank 1"),
        ]
    )
    source.revision()
    selection = selection_of(source, run_pick(demo, "solo a"))
    drawn = figure(draw(source, selection=selection), Look())
    texts = {t["name"]: t["text"] for t in drawn["data"] if t.get("yaxis") == "y2" and "text" in t}
    assert texts["spans"] == [
        "solo · <b>warm-up</b> · 1.00 s",
        "solo · checkpoint · 250 ms",
    ]
    assert texts["events"] == ["solo · late · top: 3 readings"]
    assert len(texts["epochs"]) == 5  # other processes count the same epochs
    assert len(drawn["layout"]["shapes"]) == 6
    zoomed = figure(draw(source, selection=selection, window=AxisRange(7.1, 7.2)), Look())
    texts = {t["name"]: t["text"] for t in zoomed["data"] if t.get("yaxis") == "y2" and "text" in t}
    assert texts["spans"] == ["solo · checkpoint · 250 ms"]


def test_thousands_of_spans_do_not_bloat_a_chart(demo, source):
    demo.quickstart()
    run_id = demo.run_ids["solo a"]
    origin_ns = demo.origin_ns(run_id)
    demo.writer.put_markers(
        [
            MarkerRecord(run_id, 100 + n, MarkerKind.SPAN, "s", origin_ns + n * 1_000_000)
            for n in range(5000)
        ]
    )
    source.revision()
    data = draw(source)
    assert sum(tick.kind is MarkerKind.SPAN for tick in data.ticks) <= 400
    assert sum(tick.kind is MarkerKind.EPOCH for tick in data.ticks) == 28


def test_print_needs_no_colour(demo, source):
    demo.quickstart()
    drawn = figure(draw(source), Look(monochrome=True, paper=True))
    strokes = [t["line"] for t in drawn["data"] if t["name"] not in ("", "epochs")]
    assert len({(one["color"], one.get("dash")) for one in strokes}) == 6
    for one in strokes:
        red, green, blue = (one["color"][i : i + 2] for i in (1, 3, 5))
        assert red == green == blue
    assert drawn["layout"]["xaxis"]["title"]["text"] == "time since the barrier   ❘ epochs"


def test_a_second_experiment_is_dashed(demo, source):
    demo.quickstart()
    demo.quickstart("other")
    data = draw(source, selection=selection_of(source, Pick(EXPERIMENT), Pick("other")))
    drawn = figure(data, Look())
    dashes = {one["short"]: one["stroke"] for one in drawn["layout"]["meta"]["lines"]}
    assert dashes["quickstart solo"] == "solid"
    assert dashes["other solo"] != "solid"
    tints = {line.short: line.ordinal for line in data.lines}
    assert tints["quickstart mix b"] == tints["other mix b"] == 5


def test_a_chart_of_more_rows_is_higher(demo, source):
    demo.quickstart()
    data = draw(source)
    heights = [figure(data, Look(rows=rows))["layout"]["height"] for rows in (1, 2, 3)]
    assert heights[1] >= 2 * heights[0]
    assert heights[2] >= 3 * heights[0]


def test_tooltips_say_what_sets_a_line_apart(demo, source):
    demo.quickstart()
    for number, (name, run_id) in enumerate(demo.run_ids.items()):
        demo.writer.put_params(run_id, {"lr": f"0.{number}", "<i>": name})
    source.revision()
    lines = by_name(draw(source))
    assert lines["mix b"].facts[:2] == ("cnn-large", "cpu")
    assert lines["mix a"].facts[:4] == ("cnn-small", "<i> mix a", "lr 0.4", "cpu")
    assert "logged by the script" in lines["mix b"].facts
    assert apart(["eight small, lr 0.1 a", "eight small, lr 0.03 a"]) == ["lr 0.1", "lr 0.03"]
    assert apart(["three a", "three b", "three"]) == ["three a", "three b", "three"]
    (three,) = [one for one in draw(source, level=Level.WORKLOAD).lines if one.short == "three"]
    assert three.facts[:2] == ("3 runs", "cnn-small")


# -- colours -----------------------------------------------------------------------------------


def test_any_eight_lines_have_eight_hues_and_more_differ_by_dashes(demo, source):
    for number in range(10):
        demo.workload(EXPERIMENT, f"w{number}", [demo.run(letter, "n", 1.0) for letter in "abc"])
    catalog = read_catalog(source, EXPERIMENT)
    runs = list(catalog.runs.values())

    def drawn(level, *which):
        picks = tuple(Pick.run(EXPERIMENT, run.run_id) for run in which)
        selection = read_selection(source, View(picks=picks))
        data = chart_data(source, selection, ChartSpec("loss", level=level), BoardSpec(), None)
        return [(line.ordinal % HUE_COUNT, line.dash) for line in data.lines]

    # Of the first, fourth and ninth workload: some have the same colour in other charts.
    few = drawn(Level.RUN, *runs[:2], *runs[9:12], *runs[24:27])
    assert sorted(few) == [(hue, 0) for hue in range(HUE_COUNT)]
    assert few[0] == (0, 0)
    assert len(set(drawn(Level.RUN, *runs))) == 30
    assert len({hue for hue, _ in drawn(Level.WORKLOAD, *runs[:24])}) == 8
    # The rows of a workload differ on its own page and on all others.
    assert len({tint(catalog, run.run_id) for run in runs[:3]}) == 3


def test_more_than_eight_groups_look_different(demo, source):
    for number in range(10):
        demo.workload(EXPERIMENT, f"w{number}", [demo.run("a", f"n{number}", 1.0)])
    drawn = figure(draw(source, level=Level.GROUP), Look())
    lines = drawn["layout"]["meta"]["lines"]
    assert len({(line["colour"], line["stroke"]) for line in lines}) == len(lines) == 10


def test_devices_of_one_workload_are_told_apart(demo, source):
    demo.quickstart()
    for number, name in enumerate(("gpu0", "gpu1", "gpu2")):
        record = SeriesRecord(
            *(demo.run_ids["solo a"], 20 + number, "smi", "gpu.power", "W", Scope.GPU),
            *(SeriesKind.GAUGE, name, 1.0),
        )
        demo.writer.add_series([record])
        origin_ns = demo.origin_ns(record.run_id)
        demo.append(record.run_id, origin_ns, 20 + number, np.arange(5.0), np.full(5, 100.0))
    lines = draw(source, "gpu.power").lines
    assert len({line.ordinal for line in lines}) == 3
    assert len({line.key for line in lines}) == 3
