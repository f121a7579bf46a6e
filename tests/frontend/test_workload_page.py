"""The Workload page in a browser: what it shows, zoom, other workloads, logs, while runs go on."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, Response, expect

import radt
from radt.model import RunStatus, Scope
from radt.store.reader import StoreReader
from tests.frontend.conftest import bounds
from tests.frontend.test_accessibility import findings
from tests.frontend.workload_support import EVIL, SECOND_NS, Planted, planted_three
from tests.support.bench import Bench as UsersFolder
from tests.support.bench import stop_collectors


def drawn(page: Page, resource: str) -> None:
    """Wait until a strip has its chart."""
    page.wait_for_selector(f"[data-strip={resource}] .scatterlayer .trace", state="attached")


def all_drawn(page: Page) -> None:
    """Wait until the timeline and every strip have theirs: the timeline moves what is below it."""
    page.wait_for_function(
        """() => [...document.querySelectorAll("#workload-time .plot")]
          .every((plot) => plot.data?.length)"""
    )


def is_news(answer: Response) -> bool:
    """Return True if an answer says that the store changed."""
    return '"output":"..revision' in (answer.request.post_data or "") and answer.status == 200


def fact(page: Page, name: str):
    return page.locator(f"[data-fact={name}] dd")


def bars(page: Page, number: int) -> dict[str, list[float]]:
    """Bases and lengths of the timeline's traces: 0 set-up, 1 alive, 2 epochs, 3 inside."""
    return page.evaluate(
        """(number) => {
          const trace = document.querySelector("#workload-timeline").data[number];
          return {base: Array.from(trace.base), x: Array.from(trace.x)};
        }""",
        number,
    )


def test_the_page_says_all_of_a_workload_as_it_was(bench, serve, watched, store_path):
    workload_id, runs = planted_three(bench, store_path.parent / "runs")
    folder = Path(runs[1].spool)
    (folder / "artifacts").mkdir(parents=True)
    (folder / "output.log").write_text(f"{EVIL}\n")
    page = watched.page
    page.goto(f"{serve()}/workload?w={workload_id}")

    expect(fact(page, "status")).to_have_text("2 finished, 1 OOM")
    expect(fact(page, "start-skew")).to_have_text("6.00 ms")
    expect(fact(page, "overlap")).to_have_text("30 %")
    expect(fact(page, "devices")).to_have_text("GPU 0 · 3× MPS:40")
    expect(fact(page, "completeness")).to_have_text(re.compile("^missed 7 of "))
    outcomes = page.locator("#workload-outcomes .workload-row")
    expect(outcomes).to_have_count(3)
    expect(outcomes.nth(0)).to_contain_text("1.50× slower than solo (4.20 s an epoch)")
    expect(outcomes.nth(2)).to_contain_text("OOM")
    expect(outcomes.nth(2)).to_contain_text("CUDA ran out of memory at 38.9 of 39.6 GB")
    drawn(page, "gpu-power")
    all_drawn(page)
    expect(page.locator("[data-strip=gpu-power] .workload-legend")).to_contain_text("estimated")
    context = page.evaluate("document.querySelector('#workload-timeline')._context")
    assert context["showSendToCloud"] is False
    assert context["toImageButtonOptions"]["filename"] == "radt Run timeline"
    assert len(bars(page, 0)["base"]) == 3
    assert bars(page, 2)["base"][:3] == pytest.approx([1.0, 7.3, 13.6])
    expect(page.locator(".workload-daemon .workload-seat")).to_have_count(3)
    expect(page.locator(".workload-gaps")).to_contain_text("the collector was restarted")
    page.locator("#workload-log-tabs").get_by_role("button", name="b", exact=True).click()
    expect(page.locator("#run-log")).to_have_text(EVIL)
    expect(page.locator("#workload-params")).to_contain_text(EVIL)
    expect(page).to_have_title("three of planted · Workload · radt")
    assert page.locator("#content img").count() == 0
    assert watched.errors == []
    assert all(url.startswith(("http://127.0.0.1", "data:", "blob:")) for url in watched.requests)


def test_pointing_says_what_is_loaded_and_a_zoom_is_shared_by_all_rows(
    bench, serve, watched, store_path
):
    workload_id, runs = planted_three(bench)
    page = watched.page
    page.goto(f"{serve()}/workload?w={workload_id}")
    drawn(page, "cpu")
    all_drawn(page)
    box = bounds(page.locator("[data-strip=cpu] .nsewdrag"))
    y = box["y"] + 40

    loaded = {
        run.letter: radt.load(
            run.run_id, home=store_path.parent, metrics="process.cpu.utilization"
        ).value.unique()
        for run in runs[-3:]
    }
    page.mouse.move(box["x"] + box["width"] * 0.4, y)
    tip = page.locator(".tip")
    expect(tip.locator(".tip-at")).to_have_text(
        page.locator("#workload-cursor").get_attribute("data-time")
    )
    rows = {
        row.locator("td").nth(1).inner_text(): row.locator("td").nth(2).inner_text()
        for row in tip.locator("tr").all()
    }
    assert {name: rows[name] for name in loaded} == {
        name: f"{value[0]:g} cores" for name, value in loaded.items()
    }
    expect(tip.locator("tr[data-nearest]")).to_have_count(1)
    bar = bounds(page.locator("#workload-timeline .nsewdrag"))
    page.mouse.move(bar["x"] + bar["width"] * 0.4, bar["y"] + 20)
    expect(tip).to_have_text(re.compile("^epoch \\d"))
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()

    page.mouse.move(box["x"] + 200, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, y, steps=4)
    page.mouse.up()

    expect(page).to_have_url(re.compile(r"t\.barrier="))
    ranges = """() => [...document.querySelectorAll("#workload-time .js-plotly-plot")]
      .map((plot) => plot.layout.xaxis.range.map((s) => s.toFixed(3)).join())"""
    page.wait_for_function(f"() => new Set(({ranges})()).size === 1")
    zoomed = page.evaluate(ranges)[0]
    page.reload()
    drawn(page, "cpu")
    all_drawn(page)
    page.wait_for_function(f"(zoomed) => ({ranges})().every((one) => one === zoomed)", arg=zoomed)
    box = bounds(page.locator("[data-strip=cpu] .nsewdrag"))
    page.mouse.dblclick(box["x"] + 200, box["y"] + 40)
    expect(page).not_to_have_url(re.compile(r"t\.barrier="))
    page.get_by_role("button", name="Zoom in").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"t\.barrier="))
    page.get_by_role("button", name="Zoom out").click()
    expect(page).not_to_have_url(re.compile(r"t\.barrier="))
    assert watched.errors == []


@pytest.mark.long
def test_presses_count_from_each_other_and_not_from_what_is_drawn(bench, serve, watched):
    workload_id, _ = planted_three(bench)
    page = watched.page
    page.goto(f"{serve()}/workload?w={workload_id}")
    drawn(page, "cpu")
    all_drawn(page)
    shown = """() => {
      const axis = document.querySelector("#workload-time .js-plotly-plot").layout.xaxis;
      return axis.range[1] - axis.range[0];
    }"""
    whole_s = page.evaluate(shown)

    # The second press comes before the server has drawn the first.
    page.evaluate("""() => {
      const button = document.querySelector('button[aria-label="Zoom in"]');
      button.click();
      setTimeout(() => button.click(), 0);
    }""")

    page.wait_for_function(f"(length) => Math.abs(({shown})() - length) < 1e-6", arg=whole_s / 4)
    assert watched.errors == []


@pytest.mark.long
def test_other_workloads_are_a_step_or_a_search_away(bench, serve, watched):
    first = bench.workload("first", [Planted("a")])
    bench.workload("second", [Planted("a")])
    third = bench.workload("third", [Planted("a"), Planted("b")])
    page = watched.page

    page.goto(f"{serve()}/workload")
    expect(page.get_by_role("heading", level=1)).to_have_text("third")
    expect(page.get_by_role("button", name="Next workload")).to_be_disabled()
    page.get_by_role("button", name="Previous workload").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("second")
    picker = page.get_by_role("combobox", name="Another workload")
    chosen = picker.input_value()
    assert chosen.startswith("second")
    picker.fill("no such workload")
    expect(page.get_by_text("No matching workload in this experiment")).to_be_visible()
    assert findings(page) == []
    picker.press("Escape")
    expect(picker).to_have_value(chosen)
    picker.press("ArrowDown")
    expect(page.get_by_role("option")).to_have_count(3)
    assert findings(page) == []
    picker.fill("FIRST")
    expect(page.get_by_role("option")).to_have_text([re.compile("^first")])
    picker.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("first")
    expect(page).to_have_url(re.compile(f"w={first}"))
    drawn(page, "cpu")
    assert third not in page.url
    assert watched.errors == []


def test_a_running_workload_grows_and_its_log_is_followed(bench, serve, watched, store_path):
    run = Planted("a", status=RunStatus.RUNNING, epochs=2)
    folder = store_path.parent / "runs" / run.run_id
    folder.mkdir(parents=True)
    log = folder / "output.log"
    log.write_text("epoch 1\n")
    run.spool = str(folder)
    barrier_ns = bench.now_ns
    bench.workload("live", [run])
    page = watched.page
    page.goto(f"{serve()}/workload")
    drawn(page, "cpu")
    lines = page.locator("#run-log .run-part > div")
    expect(lines).to_have_text(["epoch 1"])
    page.evaluate("document.querySelector('[data-strip=cpu] .plot').dataset.kept = 'yes'")

    with log.open("a") as file:
        file.write("epoch 2\n")
    more_s = np.arange(10.0, 60.0, 0.5)
    bench.series(
        run, "process.memory.rss", "By", Scope.PROCESS, barrier_ns, more_s, np.full(100, 2e9)
    )

    expect(lines).to_have_text(["epoch 1", "epoch 2"])
    drawn(page, "memory")
    expect(page.locator("[data-strip=memory] .workload-legend")).to_contain_text("2.00 GB")
    page.wait_for_function(
        """() => document.querySelector("#workload-timeline")
          .layout.xaxis.range[1] > 59"""
    )
    expect(page.locator("[data-strip=cpu] .plot")).to_have_attribute("data-kept", "yes")
    bench.writer.end_run(
        run.run_id,
        RunStatus.KILLED,
        barrier_ns + 60 * SECOND_NS,
        exit_code=-9,
        reason="killed by signal 9",
    )
    outcome = page.locator("#workload-outcomes .workload-row")
    expect(outcome).to_contain_text("killed by signal 9")
    assert watched.errors == []


def test_a_page_appears_although_its_store_grows_while_it_is_read(
    bench, serve, watched, wait_until
):
    run = Planted("a", status=RunStatus.RUNNING)
    barrier_ns = bench.now_ns
    bench.workload("live", [run])
    page, held = watched.page, []
    page.route("**/workload/data", lambda route: held.append(route))
    page.goto(f"{serve()}/workload")
    wait_until(lambda: page.evaluate("true") and held, "the page's request")

    with page.expect_response(is_news):
        bench.series(
            *(run, "process.memory.rss", "By", Scope.PROCESS, barrier_ns),
            *(np.arange(10.0, 60.0, 0.5), np.full(100, 2e9)),
        )
    held[0].continue_()
    drawn(page, "cpu")

    wait_until(lambda: page.evaluate("true") and held[1:], "the request of what is new")
    held[1].continue_()
    page.unroute("**/workload/data")
    drawn(page, "memory")
    assert watched.errors == []


def test_a_damaged_strip_is_blank_until_it_can_be_read_and_the_rest_works(
    bench, serve, watched, store_path
):
    first = bench.workload("first", [Planted("a")])
    run = Planted("a", epochs=9)
    folder = store_path.parent / "runs" / run.run_id
    folder.mkdir(parents=True)
    (folder / "output.log").write_text("epoch 1\n")
    run.spool = str(folder)
    barrier_ns = bench.now_ns
    bench.workload("second", [run])
    bench.series(
        *(run, "process.memory.rss", "By", Scope.PROCESS, barrier_ns),
        *(np.arange(1.0, 30.0, 0.5), np.full(58, 2e9)),
    )

    def change_checksum(by: int) -> None:
        with closing(sqlite3.connect(store_path)) as store, store:
            store.execute(
                "UPDATE chunk SET checksum = checksum + ? WHERE series_no = 0 AND run_id = ?",
                (by, run.run_id),
            )

    change_checksum(1)
    page = watched.page
    page.goto(f"{serve()}/workload?w={first}")
    drawn(page, "cpu")
    page.get_by_role("button", name="Next workload").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("second")
    legend = page.locator("[data-strip=cpu] .workload-legend")
    expect(legend).to_contain_text("damaged")
    drawn(page, "memory")
    expect(page.locator("#run-log .run-part > div")).to_have_text(["epoch 1"])
    page.wait_for_function(
        "() => document.querySelector('[data-strip=cpu] .plot').data.length === 0"
    )
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile(r"t\.barrier="))
    page.wait_for_function(
        """() => new Set([...document.querySelectorAll("#workload-time .plot")]
          .map((plot) => plot.layout.xaxis.range.join())).size === 1"""
    )
    change_checksum(-1)
    drawn(page, "cpu")
    expect(legend).not_to_contain_text("damaged")
    assert watched.errors == []


def test_a_figure_that_cannot_be_drawn_says_so_and_the_others_are_drawn(bench, serve, watched):
    workload_id, _ = planted_three(bench)
    page = watched.page
    page.goto(f"{serve()}/workload?w={workload_id}")
    drawn(page, "cpu")
    all_drawn(page)
    lengths = """(kind) => [...document.querySelectorAll(`#workload-time .plot${kind}`)]
      .map((plot) => plot.layout.xaxis.range[1] - plot.layout.xaxis.range[0])"""
    (whole_s, *_) = page.evaluate(lengths, "")
    page.evaluate("""() => {
      const { react } = Plotly;
      window.mend = () => { Plotly.react = react; };
      Plotly.react = async (box, ...figure) => {
        await react(box, ...figure);
        if (box.closest("[data-strip=cpu]")) throw new Error("no room");
      };
    }""")
    zoomed = f"""([kind, s]) => ({lengths})(kind).every((length) => Math.abs(length - s) < 1e-6)"""

    page.get_by_role("button", name="Zoom in").click()
    plot = page.locator("[data-strip=cpu] .plot")
    expect(plot).to_have_text("This figure cannot be drawn: no room")
    others = ":not([data-strip=cpu] *)"
    page.wait_for_function(zoomed, arg=[others, whole_s / 2])
    assert findings(page) == []
    page.evaluate("mend()")
    page.get_by_role("button", name="Zoom in").click()
    drawn(page, "cpu")
    expect(plot).not_to_contain_text("cannot be drawn")
    page.wait_for_function(zoomed, arg=["", whole_s / 4])
    assert watched.errors == []


@pytest.mark.long
def test_a_log_and_a_trace_are_downloaded(bench, serve, watched, store_path):
    run = Planted("a")
    folder = store_path.parent / "runs" / run.run_id
    (folder / "artifacts" / "profiles").mkdir(parents=True)
    (folder / "output.log").write_text("all of it\n")
    (folder / "artifacts" / "profiles" / "report.nsys-rep").write_text("binary")
    run.spool = str(folder)
    bench.workload("solo", [run])
    page = watched.page
    page.goto(f"{serve()}/workload")

    with page.expect_download() as log:
        page.get_by_role("link", name="whole log").click()
    assert Path(log.value.path()).read_text() == "all of it\n"
    assert log.value.suggested_filename == f"solo-a-{run.run_id[:8]}-output.log"
    with page.expect_download() as profile:
        page.get_by_role("link", name="profiles/report.nsys-rep").click()
    assert Path(profile.value.path()).read_text() == "binary"
    with page.expect_download() as trace:
        page.get_by_role("link", name="Perfetto trace").click()
    assert trace.value.suggested_filename.endswith(".trace.json.gz")


@pytest.mark.long
def test_a_workload_that_is_not_there_says_so_and_another_is_a_link_away(bench, serve, watched):
    bench.workload("solo", [Planted("a")])
    page = watched.page

    page.goto(f"{serve()}/workload?w=0123456789ab")

    expect(page.locator(".state")).to_contain_text("No workload 0123456789ab")


@pytest.mark.long
def test_a_run_that_never_started_and_one_without_listeners_have_a_page(bench, serve, watched):
    run = Planted("a", cores=None, epochs=0, status=RunStatus.FAILED, reason="exit code 3")
    bench.workload("bare", [run], skew_ns=None)
    page = watched.page

    page.goto(f"{serve()}/workload")

    expect(page.locator("#workload-outcomes")).to_contain_text("exit code 3")
    expect(page.locator("#workload-ledger")).to_contain_text("No listener")
    expect(page.locator(".workload-strip")).to_have_count(0)
    assert watched.errors == []


TRAIN = """
import time
import radt
from radt.store.reader import StoreReader

def is_seen(run_id):
    with StoreReader("radt-data/radt.db") as reader:
        counts = reader.point_counts(run_id)
        cpu = [s for s in reader.series([run_id]) if s.metric == "process.cpu.utilization"]
        return any(counts.get(one.series_no) for one in cpu)

with radt.Run() as run:
    for number in run.epochs(3):
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            sum(range(10000))
        with run.span("validate"):
            time.sleep(0.05)
        print(f"epoch {number} done", flush=True)
        run.log_metric("loss", 1 / (number + 1))
    while not is_seen(run.id):  # the collector may have been held up all the while
        time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[UsersFolder]:
    env = dict(os.environ, NO_COLOR="1", COLUMNS="100", RADT_COLLECTOR_IDLE_S="2")
    env.pop("RADT_HOME", None)
    made = UsersFolder(tmp_path, env)
    yield made
    stop_collectors(Path(env["RADT_RUNTIME_DIR"]))


@pytest.mark.long
def test_a_real_workload_of_two_scripts(folder, serve, watched):
    folder.script("train.py", TRAIN)
    path = folder.experiment(
        "Experiment,Workload,Name,Devices,Collocation,Listeners,File,Params,Cpus\n"
        "real,1,first,,-,top@200ms,train.py,,1\n"
        "real,1,second,,-,top@200ms,train.py,,1\n"
        if (os.cpu_count() or 1) > 1
        else "Experiment,Workload,Name,Devices,Collocation,Listeners,File,Params\n"
        "real,1,first,,-,top@200ms,train.py,\n"
        "real,1,second,,-,top@200ms,train.py,\n"
    )
    folder.radt(str(path))
    page = watched.page

    page.goto(f"{serve(store=folder.home / 'radt.db')}/workload")

    expect(fact(page, "status")).to_have_text("2 finished")
    drawn(page, "cpu")
    all_drawn(page)
    with StoreReader(folder.home / "radt.db") as reader:
        (workload,) = reader.workloads("real")
        runs = reader.runs(workload_id=workload.workload_id)
    skew_ms = (workload.start_skew_ns or 0) / 1e6
    assert skew_ms > 0
    expect(fact(page, "start-skew")).to_have_text(re.compile(r"s$"))
    expect(page.locator("#workload-outcomes .workload-row")).to_have_count(2)
    assert len(bars(page, 2)["base"]) == 6
    assert all(length >= 0.5 for length in bars(page, 2)["x"])
    expect(page.locator("#run-log")).to_contain_text("epoch")
    expect(page.locator("[data-strip=cpu] .workload-legend")).to_contain_text("cores")
    for run in runs:  # delivered or not, the log is there
        shutil.rmtree(run.spool)
    page.reload()
    drawn(page, "cpu")
    assert watched.errors == []
