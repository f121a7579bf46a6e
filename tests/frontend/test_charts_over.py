"""Charts over another metric, and logarithmic x axes, against what was recorded."""

from __future__ import annotations

import numpy as np
import pytest

import radt
from radt.frontend.charts.timeseries import Look, figure
from radt.frontend.data.shown import as_seen
from radt.frontend.data.spec import AxisRange, Band, BoardSpec, ChartSpec, Level, Pick, XAxis
from radt.frontend.view import View
from radt.model import Scope, SeriesKind
from radt.store.records import SeriesRecord
from tests.frontend.conftest import DemoRun
from tests.frontend.test_charts_axes import by_name, draw, selection_of

CPU = "process.cpu.utilization"
RSS = "process.memory.rss"
ENERGY = "cpu.energy"
ENERGY_NO = 90


@pytest.fixture
def loaded(demo):
    """Return the recorded points of a run's metric, as `radt.load` has them."""

    def load(name, metric):
        return radt.load(demo.run_ids[name], home=demo.store.parent, metrics=metric)

    return load


def metered(demo, name, watts):
    """Record the energy counter of a run's machine, which wraps at 1000 J."""
    run_id = demo.run_ids[name]
    at_s = np.arange(0.25, 60, 0.5)
    record = SeriesRecord(
        *(run_id, ENERGY_NO, "rapl", ENERGY, "J", Scope.HOST, SeriesKind.COUNTER),
        interval_s=0.5,
        wraps_at=1000.0,
    )
    demo.writer.add_series([record])
    demo.append(run_id, demo.origin_ns(run_id), ENERGY_NO, at_s, (900 + watts * at_s) % 1000)
    return at_s


def test_each_point_is_two_recorded_values_nearest_in_time(demo, source, loaded):
    demo.quickstart()
    drawn = by_name(draw(source, over="accuracy"))["three b"].curve
    losses, accuracies = loaded("three b", "loss"), loaded("three b", "accuracy")
    # One point for each of the five accuracies, whatever the loss between them was.
    expected = sorted(
        (accuracy, losses.value[(losses.time - time).abs().argmin()])
        for accuracy, time in zip(accuracies.value, accuracies.time, strict=True)
    )
    assert list(zip(drawn.x, drawn.values, strict=True)) == expected
    assert len(expected) == 5
    other = by_name(draw(source, "accuracy", over="loss"))["three b"].curve
    assert sorted(zip(other.values, other.x, strict=True)) == expected


def test_a_counter_on_the_x_axis_counts_by_its_growth(demo, source, loaded):
    demo.workload("quickstart", "solo", [DemoRun("a", "cnn-small", 4.2)])
    at_s = metered(demo, "solo a", watts=65.0)
    data = draw(source, over=ENERGY)
    drawn = data.lines[0].curve
    losses = loaded("solo a", "loss")
    seconds = (losses.time.astype("int64") - demo.origin_ns(demo.run_ids["solo a"])) / 1e9
    nearest = at_s[np.abs(at_s[:, None] - seconds.to_numpy()).argmin(axis=0)]
    assert drawn.x == pytest.approx(65.0 * (nearest - at_s[0]))
    assert drawn.values.tolist() == losses.value.tolist()
    assert (data.x, data.x_unit, data.x_growth, data.ticks) == (XAxis.METRIC, "J", True, ())
    axis = figure(data, Look())["layout"]["xaxis"]
    assert axis["title"]["text"] == "growth of cpu.energy (kJ)"
    assert axis["ticktext"][:2] == ["0.2", "0.4"]
    assert axis["tickvals"][:2] == pytest.approx([200.0, 400.0])


def test_no_pair_reaches_across_a_gap(demo, source, loaded):
    # Of five epochs the second ends at 29.8 s; memory has a gap from 24 to 33 s.
    demo.workload("quickstart", "solo", [DemoRun("a", "cnn-small", 14.0, has_gap=True)])
    drawn = draw(source, "accuracy", over=RSS).lines[0].curve
    first, _, *rest = loaded("solo a", "accuracy").value
    assert sorted(drawn.values) == sorted([first, *rest])
    assert set(drawn.x) < set(loaded("solo a", RSS).value)


def test_groups_bands_and_smoothing_are_those_of_any_axis(demo, source):
    demo.quickstart()
    board = BoardSpec(level=Level.GROUP, group_by="model", band=Band.RANGE)
    small, _ = draw(source, over="accuracy", board=board, level=None).lines
    assert len(small.members) == 5
    singles = draw(source, over="accuracy").lines
    middle = small.curve.x[len(small.curve.x) // 2]
    beside = [
        float(np.interp(middle, line.curve.x, line.curve.values))
        for line in singles
        if line.key in small.members
    ]
    at = int(np.argmin(np.abs(small.curve.x - middle)))
    assert small.curve.values[at] == pytest.approx(np.mean(beside), rel=0.02)
    assert small.low is not None
    assert small.low[at] <= small.curve.values[at] <= small.high[at]
    smooth = draw(source, over=RSS, board=BoardSpec(ema=0.9)).lines[0]
    plain = draw(source, over=RSS).lines[0].curve
    assert np.abs(np.diff(smooth.curve.values)).sum() < 0.5 * np.abs(np.diff(plain.values)).sum()


def test_what_cannot_be_paired_is_said(demo, source):
    demo.quickstart()
    metered(demo, "solo a", watts=65.0)
    data = draw(source, over=ENERGY)
    assert [line.short for line in data.lines] == ["solo"]
    assert "three b has no values for the x axis" in data.notes
    nowhere = draw(source, over="nobody's")
    assert nowhere.lines == ()
    (note,) = figure(nowhere, Look())["layout"]["annotations"]
    assert note["text"] == "no run has values of both metrics at the same time"


@pytest.mark.parametrize(
    ("x", "texts"),
    [
        (XAxis.STEP, ["1", "10", "100"]),
        (XAxis.BARRIER, ["0:02", "0:05", "0:10", "0:20", "0:50"]),
    ],
)
def test_a_logarithmic_x_axis_begins_at_the_first_value_above_0(demo, source, x, texts):
    demo.quickstart()
    window = None if x is XAxis.STEP else AxisRange(0.0, 60.0)
    layout = figure(draw(source, x=x, log_x=True, window=window), Look())["layout"]
    assert layout["xaxis"]["type"] == "log"
    assert layout["xaxis"]["ticktext"] == texts
    first = min(line.curve.x[0] for line in draw(source, x=x).lines)
    assert 10 ** layout["xaxis"]["range"][0] == pytest.approx(first)


def test_samples_are_spread_evenly_over_a_logarithmic_axis(demo, source):
    run = demo.run("a", "cnn-small", 4.2)
    demo.workload("quickstart", "solo", [run])
    steps = np.arange(121, 20_121)
    demo.append(run.run_id, demo.origin_ns(run.run_id), 0, steps / 100, steps * 1.0, steps)
    x = draw(source, x=XAxis.STEP, log_x=True).lines[0].curve.x
    assert x[:20].tolist() == list(range(1, 21))
    assert draw(source, x=XAxis.STEP).lines[0].curve.x[:20].tolist() != x[:20].tolist()
    assert len(x) < 2000
    narrow = draw(source, x=XAxis.STEP, log_x=True, window=AxisRange(1e4, 1.5e4)).lines[0].curve.x
    assert 500 < len(narrow) < 2000
    assert (narrow[0], narrow[-1]) == pytest.approx((1e4, 1.5e4), rel=1e-3)


def test_what_a_logarithmic_x_axis_cannot_show_is_said(demo, source):
    demo.quickstart()
    layout = figure(draw(source, x=XAxis.WALL, log_x=True), Look())["layout"]
    assert layout["xaxis"]["type"] == "linear"
    assert layout["meta"]["notes"] == ["the x axis is not logarithmic: times of day have no zero"]
    data = draw(source, RSS, over=CPU, log_x=True)
    zeros = sum(int((line.curve.x <= 0).sum()) for line in data.lines)
    drawn = figure(data, Look())
    assert drawn["layout"]["meta"]["notes"] == [f"{zeros} values at x of 0 or less left out"]
    assert zeros > 5


def test_a_second_metric_has_an_axis_of_its_own(demo, source):
    demo.quickstart()
    alone = draw(source, RSS)
    data = draw(source, x=XAxis.BARRIER, second=RSS, log=True, y_min=0.5)
    assert data.second is not None
    for line, other in zip(data.second.lines, alone.lines, strict=True):
        assert np.array_equal(line.curve.values, other.curve.values, equal_nan=True)
    drawn = figure(data, Look())
    layout = drawn["layout"]
    right = layout["yaxis3"]
    assert (right["overlaying"], right["side"], right["type"]) == ("y", "right", "log")
    assert (layout["yaxis"]["title"]["text"], right["title"]["text"]) == ("loss", f"{RSS} (MB)")
    # Each axis fits its own lines; the limits by hand are those of the first.
    assert 10 ** layout["yaxis"]["range"][0] == pytest.approx(0.5)
    assert 10 ** right["range"][0] < 60 < 245 < 10 ** right["range"][1]
    keys = [t["meta"]["key"] for t in drawn["data"] if t.get("yaxis") == "y3" and "meta" in t]
    assert keys == [line.key for line in alone.lines]
    assert {t["line"]["dash"] for t in drawn["data"] if t.get("yaxis") == "y3"} == {"2px,2px"}
    assert layout["meta"]["second"]["metric"] == RSS
    assert layout["annotations"] == []


def test_two_metrics_need_the_same_x_axis(demo, source):
    demo.quickstart()
    view = View(picks=(Pick("quickstart"),))
    selection = selection_of(source)
    shown = as_seen(source, view, selection, ChartSpec("loss", second=RSS))
    assert shown.x is XAxis.BARRIER  # over steps the loss would be alone
    assert as_seen(source, view, selection, ChartSpec("loss", second="accuracy")).x is XAxis.STEP
    data = draw(source, x=XAxis.STEP, second=RSS)
    assert data.second is None
    assert data.notes == (f"no selected run has {RSS} over this x axis",)
    both = draw(source, "accuracy", over=CPU, second=RSS)
    assert both.second is not None
    ends = [x for line in (*both.lines, *both.second.lines) for x in line.curve.x[[0, -1]]]
    assert both.window == AxisRange(min(ends), max(ends))
