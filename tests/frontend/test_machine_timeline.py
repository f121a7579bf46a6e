"""The Timeline page: who was where, when and beside whom, as the store and `radt.load` have it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import radt
from radt.frontend.charts.machine_timeline import CLOCK_PX, lane_px, machine_timeline, place_px
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.machine_timeline import (
    MachineTimeline,
    TimelineScope,
    read_days,
    read_timeline,
)
from radt.frontend.data.spec import AxisRange
from radt.frontend.data.workload.model import BarKind, LaneSpan, binned
from radt.frontend.theme import Scheme
from radt.frontend.view import View
from radt.model import RunStatus
from radt.parts import RunPart, to_tag
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import CLUSTER_NODE, CLUSTER_PARTS
from tests.frontend.conftest import bounds
from tests.frontend.workload_support import BEGAN_NS, SECOND_NS, Bench, Planted

MANY = 10_000


@pytest.fixture
def bench(store_path: Path) -> Iterator[Bench]:
    made = Bench(store_path)
    yield made
    made.close()


@dataclass(frozen=True)
class Study:
    """Two machines at once: ids of the workloads, and the time at which they began."""

    solo: str
    pair: str
    other: str
    began_s: float


def planted_study(bench: Bench, experiment: str = "planted") -> Study:
    """bench-2: two GPUs from 0 to 30 s; bench-10: a run on both GPUs for 10 s, then OOM at 50 s."""
    began_ns = bench.now_ns
    bench.host = "bench-10"
    solo = bench.workload("solo", [Planted("a", devices="0+1", end_s=10.0)], experiment=experiment)
    bench.now_ns = began_ns + 40 * SECOND_NS
    bad = Planted("a", devices="1", end_s=10.0, status=RunStatus.OOM, reason="at 38.9 of 39.6 GB")
    other = bench.workload("other", [bad], experiment=experiment)
    bench.host, bench.now_ns = "bench-2", began_ns
    runs = [
        Planted("a", devices="0", end_s=30.0),
        Planted("b", devices="0", start_s=3.0, end_s=20.0),
        Planted("c", devices="cpu", end_s=30.0),
    ]
    pair = bench.workload("pair", runs, experiment=experiment)
    bench.now_ns = began_ns + 60 * SECOND_NS
    return Study(solo, pair, other, began_ns / 1e9)


def timeline_of(source: CachedStore, experiment: str = "planted") -> MachineTimeline:
    return read_timeline(source, TimelineScope(experiment=experiment))


def test_each_run_is_on_its_device_beside_those_that_were_there(bench, source):
    study = planted_study(bench)
    found = timeline_of(source)
    places = {(place.host, place.device): place for place in found.places}
    assert list(places) == [
        ("bench-2", "GPU 0"),
        ("bench-2", "CPU"),
        ("bench-10", "GPU 0"),
        ("bench-10", "GPU 1"),
    ]
    (a,), (b,) = places["bench-2", "GPU 0"].lanes
    assert (a.start_s - study.began_s, a.end_s - study.began_s) == pytest.approx((0.0, 30.0))
    assert (b.start_s - study.began_s, b.end_s - study.began_s) == pytest.approx((3.0, 20.0))
    assert a.key == b.key == study.pair
    assert "beside pair b" in a.text
    assert "beside pair a" in b.text
    assert "finished · 17.0 s" in b.text
    assert "nothing beside it" in places["bench-2", "CPU"].lanes[0][0].text
    solo, other = places["bench-10", "GPU 1"].lanes[0]  # one after the other: one lane
    assert (solo.key, other.key) == (study.solo, study.other)
    (end,) = places["bench-10", "GPU 1"].ends[0]
    assert (end.text, end.start_s - study.began_s) == (
        "other: OOM: at 38.9 of 39.6 GB",
        pytest.approx(50.0),
    )
    assert (len(found.runs), found.most_at_once) == (5, 4)
    assert found.whole.start == pytest.approx(study.began_s)
    assert found.whole.end == pytest.approx(study.began_s + 50)
    whole = places["bench-10", "GPU 1"].busy(found.whole)
    first = AxisRange(study.began_s, study.began_s + 20)
    assert whole == pytest.approx(20 / 50)
    assert places["bench-10", "GPU 1"].busy(first) == pytest.approx(10 / 20)
    assert places["bench-2", "GPU 0"].busy(first) == pytest.approx(1.0)  # two runs count once


def test_a_node_of_a_cluster_is_a_machine_and_its_gpus_have_no_numbers(bench, source):
    """Devices are places in the job there: two jobs with GPU 0 are not on the same GPU."""
    for node in ("node1", "node2"):
        bench.now_ns = BEGAN_NS
        tags = {CLUSTER_NODE: node}
        bench.workload(node, [Planted("a", devices="0", tags=tags)])
    tags = {CLUSTER_NODE: "node2", CLUSTER_PARTS: to_tag([RunPart(1, "node3", "node3", 0, 0)])}
    bench.workload("wide", [Planted("a", devices="0", tags=tags)])  # on two nodes
    assert [
        (place.host, place.device, sum(map(len, place.lanes)))
        for place in timeline_of(source).places
    ] == [("node1", "GPUs", 1), ("node2", "GPUs", 2), ("node3", "GPUs", 1)]


def test_a_run_that_goes_on_is_there_until_its_newest_sample(bench, source):
    run = Planted("a", status=RunStatus.RUNNING, end_s=9.0)
    bench.workload("now", [run])
    ((bar,),) = timeline_of(source).places[0].lanes
    newest_s = radt.load(run.run_id, home=bench.store.parent).time.max().timestamp()
    assert bar.is_open
    assert bar.end_s == pytest.approx(newest_s, abs=1e-3)


def test_a_day_has_the_runs_of_all_experiments_that_reached_into_it(bench, source):
    began = datetime.fromtimestamp(BEGAN_NS / 1e9).astimezone()
    midnight = began.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    for experiment, before_s in (("early", 3600), ("across", 5)):
        bench.now_ns = round((midnight.timestamp() - before_s) * SECOND_NS)
        bench.workload("w", [Planted("a", end_s=20.0)], experiment=experiment)
    days = [began.date(), began.date() + timedelta(days=1)]
    assert read_days(source) == days[:1]  # on which runs started
    first, second = (read_timeline(source, TimelineScope(day=day)) for day in days)
    assert sorted(run.record.experiment for run in first.runs) == ["across", "early"]
    assert {bar.label for bar in first.places[0].lanes[0]} == {"across w", "early w"}
    assert first.whole.end == midnight.timestamp()
    assert [run.record.experiment for run in second.runs] == ["across"]
    assert second.whole == AxisRange(midnight.timestamp(), midnight.timestamp() + 15)


@pytest.mark.parametrize(
    "query",
    [
        "o.timeline.day=9999-12-31",
        "o.timeline.day=0001-01-01",
        "o.timeline.day=x",
        "t.wall=5,1e300",
    ],
)
def test_an_address_that_means_nothing_shows_the_experiment(bench, source, query):
    planted_study(bench)
    view = View.from_query(query)
    found = read_timeline(source, TimelineScope.of(source, view))
    assert len(found.runs) == 5
    assert found.zoomed(view) in (None, found.whole)
    figure = machine_timeline(found.places, found.zoomed(view) or found.whole, Scheme.DARK)
    assert figure["layout"]["meta"]["runs"] == 6  # one of them on two GPUs


def test_bars_that_become_one_keep_what_all_of_them_have():
    def bar(at_s: float, key: str) -> LaneSpan:
        return LaneSpan(BarKind.ALIVE, at_s, at_s + 0.1, "", key, key=key, hue=len(key))

    window = AxisRange(0.0, 100.0)
    (same,) = binned([bar(1, "w"), bar(1.2, "w")], window, 1.0)
    assert (same.key, same.hue, same.count) == ("w", 1, 2)
    (mixed,) = binned([bar(1, "w"), bar(1.2, "xx")], window, 1.0)
    assert (mixed.key, mixed.hue) == ("", None)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten thousand runs of 10 s each, on 25 machines of two GPUs, two side by side on each."""
    path = tmp_path_factory.mktemp("many") / "radt.db"
    with StoreWriter(path) as writer, writer.transaction():
        for number in range(MANY // 4):
            row, host = divmod(number, 25)
            start_ns = BEGAN_NS + row * 11 * SECOND_NS
            workload_id = uuid.uuid4().hex
            writer.put_workload(
                WorkloadRecord(*(workload_id, "many", str(number), start_ns), RunStatus.FINISHED)
            )
            for letter in "abcd":
                writer.put_run(
                    RunRecord(
                        *(uuid.uuid4().hex, workload_id, "many", str(number), letter, "net"),
                        start_ns,
                        RunStatus.FINISHED,
                        devices=str(ord(letter) % 2),
                        host=f"node-{host}",
                        started_ns=start_ns,
                        ended_ns=start_ns + 10 * SECOND_NS,
                    )
                )
    return path


def test_of_ten_thousand_runs_a_page_draws_what_can_be_seen(many):
    with closing(CachedStore(many)) as source:
        found = timeline_of(source, "many")
        assert len(found.places) == 50
        figure = machine_timeline(found.places, found.whole, Scheme.LIGHT)
        meta = figure["layout"]["meta"]
        assert meta["runs"] == MANY  # none is left out
        assert meta["bars"] == len(figure["data"][0]["y"]) <= 4000
        assert "×" in str(figure["data"][0]["customdata"][0][0])
        zoom = AxisRange(found.whole.start, found.whole.start + 60)
        near = machine_timeline(found.places, zoom, Scheme.LIGHT)
        assert near["layout"]["meta"]["bars"] == near["layout"]["meta"]["runs"] == 6 * 100
        workloads = {point[1] for point in near["data"][0]["customdata"]}
        assert len(workloads) == 6 * 25
        lane = lane_px(found.places)
        rows_px = sum(place_px(place, lane) for place in found.places)
        assert near["layout"]["height"] == CLOCK_PX + rows_px


# In a browser --------------------------------------------------------------------------------


def drawn(page: Page, bars: int) -> None:
    """Wait until so many bars are drawn."""
    page.wait_for_function(
        """(count) => document.querySelector("#timeline-graph")
          ?.data?.[0]?.y?.length === count""",
        arg=bars,
    )


def fact(page: Page, name: str):
    return page.locator(f"[data-fact='{name}'] dd")


def middle(page: Page, trace: int, number: int) -> tuple[float, float]:
    """Where a bar is on the screen."""
    return tuple(
        page.evaluate(
            """([trace, number]) => {
              const plot = document.querySelector("#timeline-graph");
              const box = plot.querySelectorAll(".barlayer .trace")[trace]
                .querySelectorAll(".point path")[number].getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }""",
            [trace, number],
        )
    )


def test_the_page_shows_an_experiment_and_leads_to_its_workloads(bench, serve, watched):
    study = planted_study(bench)
    page = watched.page
    page.goto(f"{serve()}/timeline?e=planted")
    expect(page.locator("h1")).to_have_text("planted")
    drawn(page, 6)  # one of the five runs is on two GPUs
    expect(fact(page, "machines")).to_have_text("2")
    expect(fact(page, "workloads")).to_have_text("3")
    expect(fact(page, "runs")).to_have_text("5: 4 finished, 1 OOM")
    expect(fact(page, "first-start-to-last-end")).to_have_text("50.0 s")
    expect(fact(page, "at-the-same-time")).to_have_text("at most 4 runs")
    expect(page.locator(".timeline-host")).to_have_text(["bench-2", "bench-10"])
    rows = page.locator("#timeline-labels .timeline-row")
    expect(rows).to_have_text(["GPU 0", "CPU", "GPU 0", "GPU 1"])
    shares = page.locator("#timeline-shares .timeline-row")
    expect(shares).to_have_text(["60 %2 runs", "60 %1 run", "20 %1 run", "40 %2 runs"])

    page.mouse.move(*middle(page, 0, 0))
    expect(page.locator(".tip")).to_contain_text("beside pair b")
    page.mouse.click(*middle(page, 0, 0))
    page.wait_for_url("**/workload?*")
    assert f"w={study.pair}" in page.url
    expect(page.locator(".workload-head h1")).to_have_text("pair")
    assert watched.errors == []


@pytest.mark.long
def test_bars_are_reached_by_the_keyboard(bench, serve, watched):
    study = planted_study(bench)
    page = watched.page
    page.goto(f"{serve()}/timeline?e=planted")
    drawn(page, 6)
    bar = page.locator("#timeline-bar")
    for _ in range(30):
        page.keyboard.press("Tab")
        if bar.evaluate("(bar) => bar === document.activeElement"):
            break
    expect(bar).to_be_focused()
    expect(bar).to_have_css("outline-style", "solid")
    expect(bar).to_have_attribute("aria-label", re.compile("^pair a .*finished"))
    page.keyboard.press("ArrowDown")
    expect(bar).to_have_attribute("aria-label", re.compile("^pair b .*finished"))
    expect(page.locator(".tip")).to_contain_text("beside pair a")
    x, y = middle(page, 0, 1)
    box = bounds(bar)
    assert box["x"] + box["width"] / 2 == pytest.approx(x, abs=1.5)
    assert box["y"] + box["height"] / 2 == pytest.approx(y, abs=1.5)
    page.keyboard.press("Enter")
    page.wait_for_url("**/workload?*")
    assert f"w={study.pair}" in page.url
    assert watched.errors == []


@pytest.mark.long
def test_a_zoom_is_in_the_address_and_another_choice_begins_without(bench, serve, watched):
    planted_study(bench)
    planted_study(bench, "second")
    page = watched.page
    began_s = BEGAN_NS // SECOND_NS
    page.goto(f"{serve()}/timeline?e=planted&t.wall={began_s},{began_s + 20}")
    drawn(page, 5)
    shares = page.locator("#timeline-shares .timeline-share")
    expect(shares).to_have_text(["100 %", "100 %", "50 %", "50 %"])
    expect(page.locator("#timeline-zoom-text")).to_contain_text("20.0 s")
    page.get_by_role("button", name="all").click()
    drawn(page, 6)
    expect(page).not_to_have_url(re.compile(r"t\.wall"))
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile(r"t\.wall"))

    pick = page.get_by_label("Experiment or day")
    pick.first.click()
    page.get_by_role("option", name="second").click()
    expect(page).to_have_url(re.compile(r"e=second"))
    expect(page).not_to_have_url(re.compile(r"t\.wall"))
    drawn(page, 6)
    day = datetime.fromtimestamp(BEGAN_NS / 1e9).astimezone().date()
    pick.first.click()
    page.get_by_role("option", name=f"{day:%a} {day.day} {day:%b %Y}").click()
    expect(page).to_have_url(re.compile(rf"o\.timeline\.day={day}"))
    expect(fact(page, "workloads")).to_have_text("6")
    drawn(page, 12)
    assert watched.errors == []


@pytest.mark.long
def test_ten_thousand_runs_in_a_browser(many, serve, watched):
    page = watched.page
    page.goto(f"{serve(store=many)}/timeline")
    expect(fact(page, "runs")).to_have_text("10,000: 10,000 finished")
    page.wait_for_function(
        """() => document.querySelectorAll("#timeline-graph .barlayer .point").length > 1000"""
    )
    assert page.locator("#timeline-graph .barlayer .point").count() <= 4000
    bar = page.locator("#timeline-bar")
    bar.focus()
    expect(bar).to_have_attribute("aria-label", re.compile("×"))
    first = bar.get_attribute("aria-label")
    page.keyboard.press("ArrowRight")
    expect(bar).not_to_have_attribute("aria-label", first)
    page.keyboard.press("Home")
    expect(bar).to_have_attribute("aria-label", first)
    page.keyboard.press("Enter")  # it stands for several
    expect(page).to_have_url(re.compile(r"t\.wall"))
    assert watched.errors == []
