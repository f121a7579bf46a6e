"""Real runs with children and spans: the Workload page's lanes, `radt trace`, reports."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from radt.frontend.charts.timeline import AXIS_PX, LANE_PX, life_px, timeline
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import read_catalog
from radt.frontend.data.spec import AxisRange
from radt.frontend.data.workload.lanes import lanes_of
from radt.frontend.data.workload.model import BarKind, LaneSpan, Life, binned
from radt.frontend.data.workload.strips import read_all
from radt.frontend.data.workload.subject import find_subject
from radt.frontend.theme import Scheme
from radt.frontend.view import View
from radt.model import RunStatus
from radt.store.reader import StoreReader
from tests.frontend.conftest import Watched
from tests.frontend.screenshots import served
from tests.support.bench import Bench, bench_in
from tests.trace.trace_kit import Trace

SCRIPT = """\
import radt, sys, threading
SPANS = 10_000
with radt.Run() as run:
    children = [run.child(name, {"lr": 0.1}) for name in ("resnet", "lenet")]
    for epoch in range(3):
        for child in children:
            with run.span(f"job {child.name}"), child.epoch(epoch, 3):
                for step in range(20): child.log_metric("loss", 1 / (step + 1), step)
                child.step(8, time_s=0.25)
        with run.span("validate"):
            with run.span("average"): pass
    children[1].finish(RuntimeError("loss is NaN"))
    if "many" in sys.argv:
        for _ in range(SPANS):
            with run.span("load segment"): pass
        for number in range(9):
            with run.span(f"preempted {number}"): pass
"""
ROWS = """\
Experiment,Workload,Name,Devices,Listeners,File,Params
jobs,two,trainer,cpu,top@100ms,many.py,
jobs,two,offload,cpu,top@100ms,many.py,many
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="radt-", ignore_cleanup_errors=True) as runtime:
        folder = tmp_path_factory.mktemp("lanes")
        with bench_in(folder, columns=120, with_mlflow=False, RADT_RUNTIME_DIR=runtime) as bench:
            bench.script("many.py", SCRIPT)
            bench.experiment(ROWS)
            bench.radt("experiment.csv")
            yield bench


@pytest.fixture
def source(recorded: Bench) -> Iterator[CachedStore]:
    opened = CachedStore(recorded.home / "radt.db")
    yield opened
    opened.close()


def lives_of(source: CachedStore) -> tuple[Life, ...]:
    return read_all(source, find_subject(source, View())).lives


def test_children_follow_their_parent_and_share_its_devices(source: CachedStore) -> None:
    (workload,) = read_catalog(source, "jobs").workloads
    assert [run.record.letter for run in workload.runs] == [
        *("a", "a.resnet", "a.lenet", "b", "b.resnet", "b.lenet")
    ]
    assert [run.record.letter for run in workload.trained] == ["a", "b"]
    assert workload.status is RunStatus.FINISHED
    reading = read_all(source, find_subject(source, View()))
    for strip in reading.strips:
        # On a busy machine such a short run may have no share.
        runs = [share.run for share in strip.shares] + list(strip.without)
        assert {run.record.letter for run in runs} == {"a", "b"}


def test_spans_have_a_lane_each_and_epochs_of_children_a_row(source: CachedStore) -> None:
    lives = lives_of(source)
    trainer, offload = (lanes_of(lives)[row] for row in (0, 3))
    names = ["job resnet", "job lenet", "validate", "average"]
    assert [lane.name for lane in trainer] == names
    assert [len(lane.bars) for lane in trainer] == [3, 3, 3, 3]
    hues = {lane.name: lane.hue for lane in trainer}
    assert hues["job resnet"] in {life.run.ordinal for life in lives if life.run.parent}
    assert hues["validate"] not in {life.run.ordinal for life in lives}
    assert len(set(hues.values())) == 4
    assert len(offload) == 6
    assert [lane.hue for lane in offload if lane.name == "validate"] == [hues["validate"]]
    assert offload[-1].hue is None
    assert sum(len(lane.bars) for lane in offload) == 12 + 10_000 + 9
    children = [life for life in lives if life.run.parent is not None]
    for life in children:
        epochs = [bar.label for bar in life.bars if bar.kind is BarKind.EPOCH]
        assert epochs == ["0", "1", "2"]
    assert children[1].reason == "RuntimeError: loss is NaN"


def test_ten_thousand_spans_stay_a_small_figure(source: CachedStore) -> None:
    lives = lives_of(source)
    whole = AxisRange(0.0, max(life.end_s for life in lives))
    figure = timeline(lives, whole, Scheme.LIGHT)
    assert figure["layout"]["meta"]["bars"] < 1_000
    assert len(json.dumps(figure)) < 200_000
    lanes = next(trace for trace in figure["data"] if trace["name"] == "lanes")
    assert any("× load segment" in text for text in lanes["customdata"])
    assert len(lanes["x"]) == len(lanes["marker"]["color"])
    height = sum(len(of_run) for of_run in lanes_of(lives)) * LANE_PX
    rows_px = sum(life_px(len(lives), lanes) for lanes in lanes_of(lives))
    assert rows_px > height
    assert figure["layout"]["height"] == AXIS_PX + rows_px


def test_many_runs_leave_room_for_fewer_lanes_or_none(source: CachedStore) -> None:
    lives = lives_of(source)
    assert {len(lanes) for lanes in lanes_of(lives * 4)} == {0, 2}
    many = lives * 10
    assert {len(lanes) for lanes in lanes_of(many)} == {0}
    figure = timeline(many, AxisRange(0.0, 10.0), Scheme.DARK)
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert traces["inside"]["x"]
    assert not traces["lanes"]["x"]


def test_reports_have_children_below_their_parent_and_no_neighbours(recorded: Bench) -> None:
    with StoreReader(recorded.home / "radt.db") as reader:
        (workload,) = read_report(reader, "jobs").workloads
    assert workload.run_count == 2
    assert {run.run.letter for group in workload.groups for run in group.runs} == {"a", "b"}
    assert Quantity.MAKESPAN in workload.values
    for group in workload.groups:
        assert [(child.name, child.status) for child in group.children] == [
            ("resnet", RunStatus.FINISHED),
            ("lenet", RunStatus.FAILED),
        ]
        assert group.children[0].values[Quantity.TIME_PER_EPOCH].mean > 0
        assert Quantity.SLOWDOWN not in group.children[0].values
        assert Quantity.CPU not in group.children[0].values
    text = recorded.shown("report", "jobs")
    assert "↳ resnet" in text
    whole = json.loads(recorded.shown("report", "jobs", "--format", "json"))
    groups = whole["workloads"][0]["groups"]
    assert [child["name"] for child in groups[0]["children"]] == ["resnet", "lenet"]
    listed = recorded.shown("ls", "jobs")
    rows = [line for line in listed.splitlines() if "two" in line]
    parents = [number for number, line in enumerate(rows[:6]) if "↳" not in line]
    assert parents == [0, 3]


def test_a_trace_has_a_runs_children_with_it_also_alone(recorded: Bench, tmp_path: Path) -> None:
    runs = {run.letter: run.run_id for run in recorded.reader.runs()}
    recorded.shown("trace", runs["a"], "--alone", "--output", str(tmp_path / "a.json"))
    trace = Trace(tmp_path / "a.json")
    titles = [title.partition(" [")[0] for title in trace.processes.values()]
    assert titles[0] == "twoa trainer"
    assert {"twoa ↳ resnet", "twoa ↳ lenet"} <= set(titles)
    assert not any("twob" in title for title in titles)
    pid = trace.pid("twoa ↳ resnet")
    names = [name for name, _, _ in trace.slices(pid, "main process")]
    assert names == ["epoch 0", "epoch 1", "epoch 2"]
    spans = [name for name, _, _ in trace.slices(trace.pid("twoa trainer"), "main process")]
    assert spans.count("validate") == spans.count("average") == spans.count("job lenet") == 3


def test_a_merged_bar_says_how_much_of_it_is_busy() -> None:
    bars = [LaneSpan(BarKind.INSIDE, i, i + 0.25, "load · 250 ms", "load") for i in range(8)]
    (merged,) = binned(bars, AxisRange(0.0, 8.0), 10.0)
    assert merged.count == 8
    assert merged.busy == pytest.approx(8 * 0.25 / 7.25)
    assert merged.text == "8 × load · mean 250 ms, 2.00 s in all"


def test_the_pages_show_lanes_and_children(recorded: Bench, watched: Watched) -> None:
    page = watched.page
    with served(recorded.home / "radt.db") as address:
        page.goto(f"{address}/workload")
        expect(page.locator("#workload-rows .workload-lane")).to_have_count(4 + 6)
        expect(page.locator("#workload-rows .workload-lane").first).to_have_text("job resnet")
        expect(page.locator("#workload-rows .workload-child")).to_have_count(4)
        expect(page.locator("[data-fact=status] dd")).to_have_text("2 finished")
        expect(page.locator("#workload-outcomes .workload-row")).to_have_count(6)
        # At one moment: charts that are drawn later move all of it.
        page.wait_for_function(
            """() => {
              const tops = (place) => [...document.querySelectorAll(`${place} .workload-row`)]
                .map((row) => row.getBoundingClientRect().top).slice(0, 6).join();
              return tops("#workload-rows") === tops("#workload-outcomes");
            }"""
        )
        page.goto(f"{address}/report")
        expect(page.locator("#report-table td").filter(has_text="↳")).to_have_count(4)
