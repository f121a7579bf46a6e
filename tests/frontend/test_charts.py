"""Lines, aggregates, axes and figures, from a real store."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from radt.analysis.lines import on_grid, with_gaps
from radt.frontend.charts import timeseries
from radt.frontend.charts.layout import elapsed_ticks, spread
from radt.frontend.charts.timeseries import Look
from radt.frontend.data.aggregate import Member, combine, edges_of
from radt.frontend.data.chart_data import chart_data
from radt.frontend.data.metrics import automatic_metrics, quantities, quantity_of
from radt.frontend.data.model import MetricInfo
from radt.frontend.data.spec import Aggregate, AxisRange, BoardSpec, ChartSpec, Level, Pick
from radt.frontend.selection import read_selection
from radt.frontend.theme import HUE_COUNT, INKS, Scheme, colour, contrast
from radt.frontend.view import View
from radt.model import SOFTWARE, RunStatus, Scope, SeriesKind
from radt.render.labels import shortened
from radt.store.cells import of_points
from radt.store.records import RunRecord, SeriesRecord, WorkloadRecord
from radt.technique_metrics import TECHNIQUE_METRICS
from radt.units import scale_of


def draw(
    source, metric, *, level=Level.RUN, aggregate=Aggregate.AUTO, window=None, only=None, **spec
):
    """A chart of the quickstart, or of some of its runs (by their short names)."""
    return chart_data(
        source,
        chosen_runs(source, only),
        ChartSpec(metric, level=level, aggregate=aggregate, **spec),
        BoardSpec(),
        window,
    )


def chosen_runs(source, only=None):
    every = read_selection(source, View(picks=(Pick("quickstart"),)))
    if only is None:
        return every
    ids = [run.run_id for run in every.runs.values() if run.short in only]
    return read_selection(
        source, View(picks=tuple(Pick.run("quickstart", run_id) for run_id in ids))
    )


def lines_of(drawn):
    """The traces of lines, without bands, marks and anchors."""
    return [
        trace
        for trace in drawn["data"]
        if trace["name"] not in ("epochs", "") and trace.get("fill") is None
    ]


def decoded(array):
    return np.frombuffer(base64.b64decode(array["bdata"]), dtype=array["dtype"])


def test_each_run_is_a_line_since_its_barrier(demo, source):
    demo.quickstart()
    data = draw(source, "loss")
    assert [line.short for line in data.lines] == [
        "solo",
        "three a",
        "three b",
        "three c",
        "mix a",
        "mix b",
    ]
    assert all(0 < line.curve.x[0] < 3 for line in data.lines)
    # The longest run: 1.8 s, five epochs of 12.3 s, 0.6 s.
    assert data.window == AxisRange(0.0, pytest.approx(63.9))


def test_a_metric_that_nobody_has_is_none(demo, source):
    demo.quickstart()
    assert draw(source, "no.such.metric") is None


def test_a_recorded_gap_breaks_its_own_line_only(demo, source):
    demo.quickstart()
    lines = {line.short: line.curve for line in draw(source, "process.cpu.utilization").lines}
    broken = np.flatnonzero(np.isnan(lines["three b"].values))
    assert len(broken) == 1
    assert 24 <= lines["three b"].x[broken[0]] <= 33
    assert not np.isnan(lines["three a"].values).any()


def test_a_value_of_the_machine_is_one_line_not_one_a_run(demo, source):
    demo.quickstart()
    lines = draw(source, "system.cpu.utilization").lines
    assert [line.short for line in lines] == ["solo", "three", "mix"]
    # Run b of workload three missed nine seconds; its neighbours saw the machine meanwhile.
    assert not np.isnan(lines[1].curve.values).any()
    assert np.all(np.diff(lines[1].curve.x) > 0.4)


def test_a_sum_is_missing_in_a_gap_rather_than_too_small(demo, source):
    demo.quickstart()
    data = draw(source, "process.memory.rss", level=Level.WORKLOAD, aggregate=Aggregate.SUM)
    three = next(line for line in data.lines if line.short == "three").curve
    within = (three.x > 25) & (three.x < 32)
    assert np.isnan(three.values[within]).all()
    settled = (three.x > 5) & (three.x < 60) & ~np.isnan(three.values)
    assert three.values[settled].min() > 5.5e8  # three times 205 MB, always


def test_a_mean_says_where_a_run_is_absent(demo, source):
    demo.quickstart()
    data = draw(source, "loss", level=Level.WORKLOAD)
    mix = next(line for line in data.lines if line.short == "mix")
    # Run a ends at 39.4 s, run b at 50.7 s.
    late = mix.curve.x > 40
    early = (mix.curve.x > 5) & (mix.curve.x < 38)
    assert mix.partial[late].all()
    assert not mix.partial[early].any()
    assert np.all(mix.low[early] <= mix.curve.values[early])
    assert np.all(mix.high[early] >= mix.curve.values[early])


def test_the_band_keeps_a_peak_of_one_point():
    at_s = np.arange(200_000) / 100
    values = np.zeros(len(at_s))
    values[123_457] = 1000.0
    members = [
        Member(of_points(at_s, values), 0.01),
        Member(of_points(at_s, np.ones(len(at_s))), 0.01),
    ]
    edges = edges_of(members, None)
    assert len(edges) < 900
    cells = [on_grid(member.cells, edges) for member in members]
    assert np.nanmax([cell.high for cell in cells]) == 1000.0
    assert np.nanmin([cell.low for cell in cells]) == 0.0


def test_a_mean_weighs_runs_not_points(demo, source):
    """One run logs ten times as often; it does not count ten times."""
    demo.quickstart()
    run = next(iter(chosen_runs(source).runs.values()))
    often = Member(of_points(np.arange(0, 10, 0.01), np.full(1000, 1.0)), None)
    seldom = Member(of_points(np.arange(0, 10, 0.1), np.full(100, 3.0)), None)
    members = [often, seldom]
    edges = edges_of(members, None)
    on_edges = [on_grid(member.cells, edges) for member in members]
    line = combine(members, on_edges, edges, Aggregate.MEAN, "", run)
    assert np.allclose(line.curve.values[~line.partial], 2.0)


def test_zoom_brings_back_every_point(demo, source):
    """A long series is thinned out as a whole and complete within a zoom."""
    demo.quickstart()
    run = chosen_runs(source).runs[demo.run_ids["solo a"]]
    at_s = np.arange(100_000) / 1000 + 100
    values = np.sin(at_s)
    values[54_321] = 50.0
    demo.append(run.run_id, run.origin_ns, 0, at_s, values, np.arange(100_000))
    source.revision()
    whole = draw(source, "loss", only=["solo"]).lines[0]
    assert len(whole.curve.values) < 5_000
    assert np.nanmax(whole.curve.values) < 3.0  # the mean, of what the band has the extremes
    assert np.nanmax(whole.high) == 50.0
    assert whole.samples_each * len(whole.curve.x) == pytest.approx(100_120)
    assert np.diff(whole.curve.x[-300:-1]) == pytest.approx(200 / 800)
    window = AxisRange(154.2, 154.4)
    part = draw(source, "loss", only=["solo"], window=window).lines[0].curve
    seen = (part.x >= window.start) & (part.x <= window.end)
    assert seen.sum() == 201
    assert part.x[0] < window.start
    assert part.x[-1] > window.end


def test_a_zoom_between_two_points_still_has_its_line(demo, source):
    demo.quickstart()
    lines = draw(source, "accuracy", window=AxisRange(8.0, 9.0)).lines
    solo = next(line for line in lines if line.short == "solo").curve
    assert solo.x[0] < 8.0
    assert solo.x[-1] > 9.0


def test_a_long_pause_is_a_gap():
    at_s, values = np.array([0.0, 1, 2, 7, 8]), np.arange(5.0)
    x, broken = with_gaps(of_points(at_s, values, longest_s=3.5), values)
    assert np.isnan(broken).tolist() == [False, False, False, True, False, False]
    assert x.tolist() == [0, 1, 2, 4.5, 7, 8]
    assert not np.isnan(with_gaps(of_points(at_s, values), values)[1]).any()


@pytest.mark.parametrize(
    ("start_s", "end_s", "texts"),
    [
        (0, 60, ["0:00", "0:10", "0:20", "0:30", "0:40", "0:50", "1:00"]),
        (0, 7200, ["0:00", "30:00", "1:00:00", "1:30:00", "2:00:00"]),
        (10.0, 10.4, ["0:10.0", "0:10.1", "0:10.2", "0:10.3", "0:10.4"]),
        (59.5, 60.5, ["0:59.6", "0:59.8", "1:00.0", "1:00.2", "1:00.4"]),
    ],
)
def test_ticks_are_round_and_read_like_a_stopwatch(start_s, end_s, texts):
    positions, labels = elapsed_ticks(start_s, end_s)
    assert labels == texts
    assert all(start_s - 1e-6 <= position <= end_s + 1e-6 for position in positions)


@pytest.mark.parametrize("span_s", [1e-5, 0.3, 1, 59, 3600, 86_400, 3e6, 9e7])
def test_there_are_a_few_ticks_at_any_zoom(span_s):
    positions, labels = elapsed_ticks(span_s / 3, span_s / 3 + span_s)
    assert 2 <= len(positions) <= 8
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("unit", "largest", "label", "shown"),
    [
        ("By", 212_300_000, "MB", 212.3),
        ("By", 4_000, "KB", 4.0),
        ("By/s", 3.2e9, "GB/s", 3.2),
        ("1", 0.92, "%", 92.0),
        ("W", 281, "W", 281.0),
        ("Hz", 1.98e9, "GHz", 1.98),
        ("Cel", 71, "°C", 71.0),
        ("cores", 1.98, "cores", 1.98),
        ("s", 0.0042, "ms", 4.2),
        ("{threads}", 12, "threads", 12),
        ("{packets}/s", 1200, "packets/s", 1200),
        ("", 0.41, "", 0.41),
    ],
)
def test_units_read_well(unit, largest, label, shown):
    scale = scale_of(unit, largest)
    assert scale.label == label
    assert largest * scale.factor == pytest.approx(shown)


@pytest.mark.parametrize(
    ("unit", "scope", "expected"),
    [
        ("By", Scope.PROCESS, Aggregate.SUM),
        ("cores", Scope.PROCESS, Aggregate.SUM),
        ("", Scope.RUN, Aggregate.MEAN),
        ("By", Scope.HOST, Aggregate.MEAN),  # the same bytes, seen by each run
        ("W", Scope.GPU, Aggregate.MEAN),
        ("1", Scope.PROCESS, Aggregate.MEAN),
        ("{threads}", Scope.PROCESS, Aggregate.SUM),
        ("{core}", Scope.PROCESS, Aggregate.MEAN),
    ],
)
def test_only_what_runs_share_out_adds_up(unit, scope, expected):
    quantity = MetricInfo("m", unit, scope, SeriesKind.GAUGE, "top")
    assert quantity.default_aggregate is expected


def test_a_figure_has_units_a_time_axis_and_the_gap(demo, source):
    demo.quickstart()
    figure = timeseries.figure(draw(source, "process.memory.rss"), Look())
    layout = figure["layout"]
    assert layout["meta"]["unit"] == "MB"
    assert layout["xaxis"]["ticktext"][0] == "0:00"
    assert layout["yaxis"]["range"][0] == 0
    lines = lines_of(figure)
    assert len(lines) == 6
    assert np.isnan(decoded(lines[2]["y"])).sum() == 1
    assert 180 < np.nanmax(decoded(lines[0]["y"])) < 260
    epochs = [trace for trace in figure["data"] if trace["name"] == "epochs"]
    assert [len(trace["x"]) for trace in epochs] == [5, 5, 5, 5, 5, 3]
    assert epochs[0]["text"][1] == "solo · epoch 2 · 4.20 s"


@pytest.mark.parametrize(("values", "step"), [([1, 2, 2, 3], 1), ([1, 2, 2.5, 3], None)])
def test_whole_numbers_have_an_axis_of_whole_numbers(demo, source, values, step):
    demo.quickstart()
    times_s = np.arange(0.0, len(values))
    gauge = {"kind": SeriesKind.GAUGE, "entity": ""}
    add(demo, "solo a", 9, "threads", "{threads}", Scope.PROCESS, times_s, values, **gauge)
    axis = timeseries.figure(draw(source, "threads"), Look())["layout"]["yaxis"]
    assert axis.get("dtick") == step


def test_names_are_not_read_as_markup(demo, source):
    demo.workload("quickstart", "<b>&x</b>", [demo.run("a", "n", 4.0)])
    figure = timeseries.figure(draw(source, "loss"), Look(Scheme.DARK))
    assert figure["layout"]["annotations"][0]["text"] == "&lt;b&gt;&amp;x&lt;/b&gt;"


def test_shortened_names_keep_both_ends():
    names = ["timm_train lr=0.05 #1", "timm_train lr=0.005 #2"]
    assert [shortened(name, 14) for name in names] == ["timm_…=0.05 #1", "timm_…0.005 #2"]
    assert shortened("exactly enough", 14) == "exactly enough"


@pytest.mark.parametrize(("width_px", "characters"), [(0, 14), (400, 14), (840, 30), (1700, 40)])
def test_names_at_lines_use_a_quarter_of_a_wide_chart(demo, source, width_px, characters):
    name = "timm_train optimizer=adamw lr=0.005 seed=1"[:40]
    demo.workload("quickstart", name, [demo.run("a", "n", 4.0)])
    layout = timeseries.figure(draw(source, "loss"), Look(width_px=width_px))["layout"]
    assert layout["annotations"][0]["text"] == shortened(name, characters)
    assert layout["margin"]["r"] >= 7 * characters


def test_labels_keep_their_distance_and_stay_inside():
    heights = spread([1.0, 2.0, 3.0, 100.0, 199.0, 200.0], 14, 200)
    assert np.all(np.diff(heights) >= 14 - 1e-9)
    assert min(heights) >= 0
    assert max(heights) <= 200
    assert spread([10.0, 100.0], 14, 200) == [10.0, 100.0]


@pytest.mark.parametrize("scheme", Scheme)
def test_colours_are_told_apart_from_each_other_and_from_the_paper(scheme):
    colours = [colour(place, scheme) for place in range(HUE_COUNT)]
    assert len(set(colours)) == HUE_COUNT
    for one in colours:
        assert contrast(one, INKS[scheme].paper) >= 3, one  # WCAG 2.2, 1.4.11


def test_the_colour_of_a_run_does_not_depend_on_what_else_is_selected(demo, source):
    demo.quickstart()
    everything = {line.short: line.ordinal for line in draw(source, "loss").lines}
    assert draw(source, "loss", only=["mix b"]).lines[0].ordinal == everything["mix b"] == 5


def test_automatic_metrics_are_a_loss_and_what_the_hardware_says(demo, source):
    demo.quickstart()
    found = quantities(source, tuple(chosen_runs(source).runs))
    assert automatic_metrics(found) == (
        "loss",
        "accuracy",
        "process.cpu.utilization",
        "process.memory.rss",
    )


@pytest.mark.parametrize(
    ("logged", "hardware", "expected"),
    [
        (
            ["data_wait", "samples_per_s", "step.time", "val_loss"],
            ["gpu.power", "gpu.utilization", "gpu.sm.active", "process.cpu.utilization"],
            ["val_loss", "step.time", "gpu.sm.active", "process.cpu.utilization"],
        ),
        (
            ["test_loss", "train_loss", "val_loss"],
            ["gpu.utilization"],
            ["train_loss", "val_loss", "gpu.utilization", "test_loss"],
        ),
        (
            ["f1", "samples_per_s", "step.time", "top1"],
            ["gpu.mig.sm.active", "gpu.mig.memory.used", "gpu.power"],
            ["f1", "top1", "gpu.mig.sm.active", "gpu.mig.memory.used"],
        ),
        (
            ["samples_per_s", "step.time"],
            ["gpu.memory.used", "torch.memory.allocated", "gpu.utilization"],
            ["step.time", "samples_per_s", "gpu.utilization", "torch.memory.allocated"],
        ),
        # What tells much the same comes after what tells something else, and before the unknown.
        (
            [],
            ["a.plugin", "gpu.sm.active", "gpu.utilization", "gpu.power"],
            ["gpu.sm.active", "gpu.power", "gpu.utilization", "a.plugin"],
        ),
    ],
)
def test_automatic_metrics_tell_different_things(logged, hardware, expected):
    listeners = {"step.time": "steps"}
    found = [
        MetricInfo(name, "1", Scope.RUN, SeriesKind.GAUGE, listeners.get(name, SOFTWARE))
        for name in logged
    ]
    found += [MetricInfo(name, "1", Scope.GPU, SeriesKind.GAUGE, "smi") for name in hardware]
    assert automatic_metrics(found) == tuple(expected)


@pytest.mark.parametrize("known", TECHNIQUE_METRICS, ids=lambda known: known.name)
def test_metrics_of_techniques_have_units_and_meanings(known):
    kinds = (Scope.RUN, SeriesKind.GAUGE)
    found = quantity_of([SeriesRecord("a", 0, SOFTWARE, known.name, "", *kinds)])
    as_given = quantity_of([SeriesRecord("a", 0, SOFTWARE, "other", known.unit, *kinds)])
    assert found.drawn_unit == as_given.drawn_unit != ""
    assert found.explanation.lower() == f"{known.meaning}.".lower()
    own = quantity_of([SeriesRecord("a", 0, SOFTWARE, "image_size", "", *kinds)])
    assert (own.drawn_unit, own.explanation) == ("", "")


def test_a_scheduled_run_without_samples_draws_nothing(demo, source):
    demo.writer.put_workload(WorkloadRecord("w" * 32, "quickstart", "later", 5))
    demo.writer.put_run(
        RunRecord("r" * 32, "w" * 32, "quickstart", "later", "a", "n", 5, RunStatus.SCHEDULED)
    )
    demo.add_series("r" * 32)
    data = draw(source, "loss")
    assert not data.lines
    note = timeseries.figure(data, Look())["layout"]["annotations"][0]["text"]
    assert note == "no values yet in the selected runs"


def add(demo, run_name, number, metric, unit, scope, at_s, values, **fields):
    """A series of one of the demo's runs, besides what it has."""
    run_id = demo.run_ids[run_name]
    fields = {"kind": SeriesKind.COUNTER, "entity": "gpu0", "interval_s": 1.0} | fields
    listener = fields.pop("listener", "smi")
    record = SeriesRecord(run_id, number, listener, metric, unit, scope, **fields)
    demo.writer.add_series([record])
    demo.append(run_id, demo.origin_ns(run_id), number, at_s, values)


def test_a_counter_is_drawn_as_its_rate(demo, source):
    """250 W until 10 s, then the driver is loaded anew: the counter starts from 0."""
    demo.quickstart()
    at_s = np.arange(21.0)
    values = np.concatenate((1e6 + 250 * at_s[:11], 250 * at_s[1:11]))
    for letter in "abc":
        add(demo, f"three {letter}", 5, "gpu.energy", "J", Scope.GPU, at_s, values)
    data = draw(source, "gpu.energy")
    (line,) = data.lines
    assert line.short == "three gpu0"
    assert line.curve.x.tolist() == at_s[1:].tolist()
    assert line.curve.values == pytest.approx(250.0)
    drawn = timeseries.figure(data, Look())
    assert drawn["layout"]["meta"]["unit"] == "W"
    assert data.quantity.subtitle == "rate · whole GPU"


def test_a_counter_that_wraps_keeps_its_pace(demo, source):
    demo.quickstart()
    at_s = np.arange(30.0)
    add(
        demo,
        *("solo a", 5, "gpu.pcie.rx", "By", Scope.GPU, at_s, (5000.0 * at_s + 30_000) % 2**16),
        wraps_at=2.0**16,
    )
    data = draw(source, "gpu.pcie.rx")
    assert data.lines[0].curve.values == pytest.approx(5000.0)
    assert timeseries.figure(data, Look())["layout"]["meta"]["unit"] == "KB/s"


def test_thinning_out_a_counter_keeps_the_peak_of_its_rate(demo, source):
    """One second of a hundred thousand at a thousand times the pace."""
    demo.quickstart()
    grown = np.full(100_000, 10.0)
    grown[54_321] = 10_000.0
    at_s = np.arange(100_001) / 1000
    values = np.concatenate(([0.0], np.cumsum(grown)))
    add(demo, "solo a", 5, "gpu.pcie.rx", "By", Scope.GPU, at_s, values, interval_s=0.001)
    whole = draw(source, "gpu.pcie.rx").lines[0]
    assert len(whole.curve.values) < 5_000
    assert np.nanmax(whole.high) == pytest.approx(1e7)
    assert np.nanmin(whole.low) == pytest.approx(1e4)
    part = draw(source, "gpu.pcie.rx", window=AxisRange(54.3, 54.4)).lines[0].curve
    assert np.nanmax(part.values) == pytest.approx(1e7)
    assert np.isfinite(part.values).all()
    assert part.x[0] < 54.3


def test_rates_of_processes_add_up_to_their_workload(demo, source):
    demo.quickstart()
    at_s = np.arange(30.0)
    for letter in "abc":
        add(
            demo,
            *(f"three {letter}", 5, "process.disk.read", "By", Scope.PROCESS, at_s, 1e6 * at_s),
            entity="",
        )
    data = draw(source, "process.disk.read", level=Level.WORKLOAD, aggregate=Aggregate.SUM)
    assert data.lines[0].curve.values == pytest.approx(3e6)
    assert data.quantity.default_aggregate is Aggregate.SUM
    assert data.quantity.from_zero


@pytest.mark.parametrize("level", [Level.RUN, Level.WORKLOAD])
def test_what_is_estimated_is_dashed_and_says_so(demo, source, level):
    demo.quickstart()
    at_s = np.arange(30.0)
    method = "share of the card's energy above idle by SM time"
    fields = {"estimated": True, "method": method}
    add(demo, "mix a", 5, "process.gpu.energy", "J", Scope.PROCESS, at_s, 90 * at_s, **fields)
    data = draw(source, "process.gpu.energy", level=level)
    drawn = timeseries.figure(data, Look(Scheme.DARK))
    (trace,) = lines_of(drawn)
    assert trace["line"]["dash"] == "6px,3px"
    assert drawn["layout"]["meta"]["unit"] == "W"
    assert drawn["layout"]["meta"]["lines"][0]["facts"][-1] == "estimated"
    assert data.quantity.subtitle == "estimated rate · process tree"
    assert data.quantity.explanation.startswith("Share of the card's energy above idle by SM time.")
    measured = timeseries.figure(draw(source, "process.memory.rss", level=level), Look(Scheme.DARK))
    assert not any("6px" in str(one.get("line")) for one in measured["data"])


def test_what_a_name_says_is_not_explained(demo, source):
    demo.quickstart()
    found = {q.metric: q for q in quantities(source, tuple(demo.run_ids.values()))}
    assert found["process.memory.rss"].explanation == ""
    assert found["process.memory.rss"].subtitle == "process tree"
    assert found["loss"].subtitle == "logged by the script"


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("s", "%"), ("1", "/s"), ("{operations}", "operations/s"), ("By", "B/s"), ("g", "g/h")],
)
def test_units_of_drawn_counters(unit, expected):
    quantity = MetricInfo("m", unit, Scope.HOST, SeriesKind.COUNTER, "iostat")
    assert scale_of(quantity.drawn_unit, 5.0).label == expected
    assert quantity.from_zero


def test_what_two_listeners_read_of_one_card_are_two_lines(demo, source):
    """One counts bytes, the other says bytes per second; they are never mixed into one line."""
    demo.quickstart()
    at_s = np.arange(30.0)
    add(demo, "solo a", 5, "gpu.pcie.rx", "By", Scope.GPU, at_s, 1e6 * at_s, method="field 198")
    fields = {"kind": SeriesKind.GAUGE, "listener": "gpm", "method": "GPM metric 21"}
    rates = np.full(30, 2e6)
    add(demo, "solo a", 6, "gpu.pcie.rx", "By/s", Scope.GPU, at_s + 0.3, rates, **fields)
    data = draw(source, "gpu.pcie.rx")
    found = {line.short: line.curve.values for line in data.lines}
    assert found["solo gpu0 smi"] == pytest.approx(1e6)
    assert found["solo gpu0 gpm"] == pytest.approx(2e6)
    assert data.quantity.drawn_unit == "By/s"
    assert "Field 198 (smi). GPM metric 21 (gpm)." in data.quantity.explanation
    together = draw(source, "gpu.pcie.rx", level=Level.WORKLOAD, aggregate=Aggregate.SUM)
    assert {line.short: line.curve.values.max() for line in together.lines} == {
        "solo smi": pytest.approx(1e6),
        "solo gpm": pytest.approx(2e6),
    }


def test_a_first_process_is_no_total_of_the_others(demo, source):
    demo.quickstart()
    at_s = np.arange(30.0)
    fields = {"kind": SeriesKind.GAUGE, "listener": SOFTWARE}
    for number, entity, value in ((5, "", 1.0), (6, "rank 1", 3.0)):
        values = np.full(30, value)
        add(demo, "solo a", number, "lag", "s", Scope.RUN, at_s, values, entity=entity, **fields)
    assert [line.short for line in draw(source, "lag").lines] == ["solo", "solo rank 1"]
    (line,) = draw(source, "lag", level=Level.WORKLOAD).lines
    assert line.curve.values == pytest.approx(2.0)


@pytest.mark.parametrize("aggregate", [Aggregate.MEAN, Aggregate.SUM])
def test_a_total_is_told_from_its_parts_and_not_added_to_them(demo, source, aggregate):
    demo.quickstart()
    at_s = np.arange(30.0)
    fields = {"kind": SeriesKind.GAUGE, "listener": "iostat"}
    for number, entity, value in ((5, "", 30.0), (6, "sda", 10.0), (7, "sdb", 20.0)):
        values = np.full(30, value)
        add(
            demo,
            *("solo a", number, "system.disk.queue", "{requests}", Scope.HOST, at_s, values),
            **fields,
            entity=entity,
        )
    found = {line.short: line.curve.values for line in draw(source, "system.disk.queue").lines}
    assert found == {
        "solo total": pytest.approx(np.full(30, 30.0)),
        "solo sda": pytest.approx(np.full(30, 10.0)),
        "solo sdb": pytest.approx(np.full(30, 20.0)),
    }
    (line,) = draw(source, "system.disk.queue", level=Level.WORKLOAD, aggregate=aggregate).lines
    assert line.curve.values == pytest.approx(30.0)
    assert line.label == "solo"


def test_a_sum_of_what_is_read_now_and_then_ends_where_one_of_its_runs_is_not_known(demo, source):
    """Both runs go on; only one was read after 20 s."""
    demo.quickstart()
    fields = {"kind": SeriesKind.GAUGE, "listener": "top", "entity": "", "interval_s": None}
    for letter, at_s in (("a", (1.0, 10.0, 20.0)), ("b", (1.0, 10.0, 20.0, 30.0))):
        values = np.full(len(at_s), 1e8)
        add(
            demo, f"three {letter}", 5, "pss", "By", Scope.PROCESS, np.array(at_s), values, **fields
        )
    (line,) = draw(source, "pss", level=Level.WORKLOAD, aggregate=Aggregate.SUM).lines
    assert line.curve.values == pytest.approx(2e8)
    assert line.curve.x[-1] == pytest.approx(20.0, abs=0.1)
    (line,) = draw(source, "pss", level=Level.WORKLOAD, aggregate=Aggregate.MEAN).lines
    assert line.curve.x[-1] == pytest.approx(30.0, abs=0.1)
