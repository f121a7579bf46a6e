"""The Explore page in a browser: what is on screen is what `radt.load` has."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page, expect

import radt
from benchmarks.dashboard.stores import EXPERIMENT, Size, searched
from radt.errors import RunNotFoundError
from radt.frontend.app import PAGES
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.explore import Shown, explored
from radt.frontend.data.run_facts import time_per_epoch_s
from radt.frontend.pages.explore import data_answer
from radt.frontend.view import View
from radt.model import SOFTWARE, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import SeriesRecord
from radt.store.writer import StoreWriter
from tests.frontend.conftest import Demo, bounds, shown
from tests.frontend.test_accessibility import findings
from tests.support.waiting import wait_until as until

RUNS = 48
ENERGY, ACCURACY = "metric:gpu.energy.last", "metric:accuracy.max"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a search for hyperparameters."""
    folder = tmp_path_factory.mktemp("explore")
    path = folder / "radt.db"
    searched(path, Size(runs=RUNS))
    with StoreReader(path) as reader:
        samples = radt.load([run.run_id for run in reader.runs()], home=folder)
    accuracies = samples[samples["metric"] == "accuracy"].groupby("run_id")["value"].max()
    with closing(StoreWriter(path)) as writer:  # the best one failed, and does not count
        writer.update_run(str(accuracies.idxmax()), status=RunStatus.FAILED)
    return folder


@pytest.fixture(scope="module")
def truth(study: Path) -> pd.DataFrame:
    """Energy, accuracy and params by run, from all samples."""
    with StoreReader(study / "radt.db") as reader:
        statuses = {run.run_id: run.status for run in reader.runs()}
        ids = list(statuses)
        params = reader.params_of(ids)
    rows = {}
    for run_id in ids:
        samples = radt.load(run_id, home=study).set_index("metric")["value"]
        rows[run_id] = {
            ENERGY: samples["gpu.energy"].iloc[-1] - samples["gpu.energy"].iloc[0],
            ACCURACY: samples["accuracy"].max(),
            "counts": statuses[run_id] is RunStatus.FINISHED,
            **{f"param:{name}": params[run_id][name] for name in ("lr", "width", "optimizer")},
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def open_page(page: Page, url: str, query: str = "") -> None:
    page.goto(f"{url}/explore{query}")
    settled(page)


def settled(page: Page) -> None:
    """Wait for the last part of the page, after which nothing moves."""
    shown(page, "#explore-importance :is(table, p:not(.explore-wait))")


def drag(page: Page, selector: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag from one place of an element to another, both as shares of its size."""
    box = bounds(page.locator(selector))
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=4)
    page.mouse.up()


def ranges(page: Page) -> dict[str, tuple[float, float]]:
    """The brushes of the view."""
    text = page.evaluate("window.radt.view.options['explore.brush']")
    parts = (part.partition("=") for part in text.split(";"))
    return {
        page.evaluate("decodeURIComponent", key): tuple(map(float, ends.split("..")))  # type: ignore[misc]
        for key, _, ends in parts
    }


def met(truth: pd.DataFrame, by: dict[str, tuple[float, float]]) -> set[str]:
    kept = truth
    for key, (low, high) in by.items():
        values = kept[key].astype(float)
        kept = kept[(values >= low) & (values <= high)]
    return {run_id[:12] for run_id in kept.index}


def test_front_brushes_and_the_run_under_the_pointer(study, truth, serve, watched):
    page = watched.page
    url = serve(store=study / "radt.db")
    open_page(page, url)
    expect(page.locator("#explore-facts")).to_have_text(f"{RUNS} runs")
    counted = truth[truth["counts"]]
    best = [
        run_id
        for run_id, run in counted.iterrows()
        if not any(
            (counted[ENERGY] <= run[ENERGY])
            & (counted[ACCURACY] >= run[ACCURACY])
            & ((counted[ENERGY] < run[ENERGY]) | (counted[ACCURACY] > run[ACCURACY]))
        )
    ]
    best.sort(key=lambda run_id: truth[ENERGY][run_id])
    rows = page.locator("#explore-front tbody tr")
    until(
        lambda: rows.evaluate_all("rows => rows.map(row => row.dataset.run)") == best, "the front"
    )
    for row, run_id in zip(rows.all(), best, strict=True):
        name, accuracy, energy = row.locator("td").all_inner_texts()
        assert f"lr {truth['param:lr'][run_id]}, " in name
        assert float(accuracy) / 100 == pytest.approx(truth[ACCURACY][run_id], rel=1e-3)
        assert float(energy.replace(",", "")) * 1000 == pytest.approx(
            truth[ENERGY][run_id], rel=1e-3
        )
    front = page.locator("#explore-front")
    heads = front.locator("th").all_inner_texts()
    assert heads == ["run", "accuracy max [%]", "gpu.energy total [kJ]"]
    decimals = [text.partition(".")[2] for text in rows.locator("td:last-child").all_inner_texts()]
    assert len({len(each) for each in decimals}) == 1
    expect(front).to_contain_text("× 1 run that failed or otherwise does not count")

    # A box in the scatter, then a range on the axis of the learning rate.
    drag(page, "#explore-scatter", (0.05, 0.05), (0.6, 0.6))
    compare = page.locator("#explore-brushed a").first
    until(lambda: len(ranges(page)) == 2, "the ranges of the box")
    first = met(truth, ranges(page))
    assert 1 < len(first) < RUNS
    expect(compare).to_have_text(f"Compare {len(first)} brushed →")
    spot = page.evaluate("""() => {
        const names = [...document.querySelectorAll("#explore-panel-parallel .choice-chip")];
        return names.findIndex(name => name.textContent === "lr") / (names.length - 1);
    }""")
    width = page.locator("#explore-parallel").evaluate("element => element.clientWidth")
    at = (48 + spot * (width - 48 - 96)) / width
    drag(page, "#explore-parallel", (at, 0.15), (at, 0.7))
    until(lambda: "param:lr" in ranges(page), "the range of the learning rate")
    both = met(truth, ranges(page))
    assert 0 < len(both) < len(first)
    expect(compare).to_have_text(f"Compare {len(both)} brushed →")
    picked = page.evaluate("window.radt.view.picks")
    assert {pick.removeprefix(f"{EXPERIMENT}:r") for pick in picked} == both

    # The selection and the brushes are in the address.
    until(lambda: "explore.brush" in page.url, "the address")
    page.reload()
    expect(compare).to_have_text(f"Compare {len(both)} brushed →")
    settled(page)
    point_at_any(page)
    tip = page.locator(".tip")
    values = tip.locator(".tip-name + td").all_inner_texts()
    facts = dict(zip(tip.locator(".tip-name").all_inner_texts(), values, strict=True))
    run_id = next(run_id for run_id in truth.index if seed_of(study, run_id) == facts["seed"])
    assert float(facts["lr"].replace("e−", "e-")) == pytest.approx(
        float(truth["param:lr"][run_id]), rel=1e-3
    )
    assert facts["optimizer"] == truth["param:optimizer"][run_id]
    page.mouse.down()
    page.mouse.up()
    until(lambda: urlsplit(page.url).path == "/run", "the run's page")
    assert parse_qs(urlsplit(page.url).query)["id"] == [run_id]

    page.go_back()
    whole = '{"values": [1, 2, null, 4], "factor": 1, "unit": ""}'
    ticks = page.evaluate(f"radt.canvas.scaleOf({whole}, 0.04).ticks(8).map(tick => tick.text)")
    assert ticks == ["1", "2", "3", "4"]
    # Values that differ by rounding only have few ticks, too.
    alike = '{"values": [0.3, 0.30000000000000004], "factor": 1, "unit": ""}'
    assert page.evaluate(f"radt.canvas.scaleOf({alike}, 0.04).ticks(8).length") < 20
    compare.click()
    expect(page.locator(".compare-list .pick")).to_have_count(len(both))
    assert watched.errors == []


@pytest.mark.long
def test_ranges_by_keyboard_are_a_search_however_many_runs_are_left(
    study, truth, serve, watched, monkeypatch
):
    monkeypatch.setattr("radt.frontend.pages.explore.MAX_PICKS", 5)
    page = watched.page
    url = serve(store=study / "radt.db")
    axes = "param%3Alr;param%3Aoptimizer;time%3Aepoch;metric%3Aaccuracy.max"
    more = ";param%3A".join(["", "width", "dropout", "seed"])
    more += "".join(f";metric%3Agpu.{of}" for of in ("power.mean", "power.max", "energy.last"))
    more += ";time%3Aduration;metric%3Aaccuracy.last"
    open_page(page, url, f"?o.explore.axes={axes}{more}")
    expect(page.locator("#explore-ends > *")).to_have_count(2 * 12)
    rate = page.get_by_role("slider", name="lr, to")
    rate.focus()
    for key in ("PageDown", "ArrowDown", "ArrowDown"):
        rate.press(key)
    expect(rate).to_be_focused()
    optimizer = page.get_by_role("slider", name="optimizer, from")
    optimizer.press("ArrowUp")
    expect(optimizer).to_have_attribute(
        "aria-valuetext", sorted(truth["param:optimizer"].unique())[1]
    )
    epoch = page.get_by_role("slider", name="time per epoch, from")
    epoch.press("ArrowUp")
    accuracy = page.get_by_role("slider", name="accuracy max, from")
    accuracy.press("ArrowUp")
    until(lambda: ACCURACY in ranges(page), "the range of the accuracy")
    found = ranges(page)
    optimizers = sorted(truth["param:optimizer"].unique())
    left = truth.assign(**{"param:optimizer": truth["param:optimizer"].map(optimizers.index)})
    times_s = found.pop("time:epoch")
    kept = met(left, found) & {
        run_id[:12] for run_id, time_s in epochs_s(study).items() if times_s[0] <= time_s
    }
    assert 5 < len(kept) < RUNS
    expect(page.locator("#explore-brushed")).not_to_contain_text("Compare")
    assert findings(page) == []
    page.get_by_role("link", name=f"List {len(kept)} →").click()
    expect(page.locator("#runs-count")).to_have_text(f"{len(kept)} of {RUNS} runs")
    expect(page.locator(".runs-problems")).to_be_hidden()
    page.go_back()
    optimizer.press("Delete")
    until(lambda: "param:optimizer" not in ranges(page), "the range is gone")
    assert watched.errors == []


def epochs_s(study: Path) -> dict[str, float]:
    with closing(CachedStore(study / "radt.db")) as source:
        return dict(time_per_epoch_s(source))


def seed_of(study: Path, run_id: str) -> str:
    with StoreReader(study / "radt.db") as reader:
        return reader.params(run_id)["seed"]


def point_at_any(page: Page) -> None:
    """Move the pointer over the scatter until it is at a run."""
    box: Any = bounds(page.locator("#explore-scatter"))
    for y in range(20, int(box["height"]) - 60, 20):
        for x in range(80, int(box["width"]) - 20, 20):
            page.mouse.move(box["x"] + x, box["y"] + y)
            # The browser handles movements once a frame; the tip may be of the place before.
            page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
            if page.locator(".tip").is_visible():
                return
    raise AssertionError("no run is under the pointer anywhere")


def log(demo: Demo, run: str, metric: str, value: float) -> None:
    """Log a metric that few runs have."""
    run_id = demo.run_ids[run]
    demo.writer.add_series(
        [SeriesRecord(run_id, 9, SOFTWARE, metric, "", Scope.RUN, SeriesKind.GAUGE)]
    )
    demo.append(run_id, demo.origin_ns(run_id), 9, [1.0], [value])


def test_a_chart_that_cannot_be_drawn_says_so_and_the_other_is_drawn(study, serve, watched):
    page = watched.page
    open_page(page, serve(store=study / "radt.db"))
    facts, axes = page.locator("#explore-facts"), page.locator("#explore-ends [role=slider]")
    runs, count = facts.inner_text(), axes.count()
    page.evaluate("""() => {
      const { canvas } = radt, { scatter } = canvas;
      window.mend = () => { canvas.scatter = scatter; };
      canvas.scatter = () => { throw new Error("no room"); };
    }""")

    page.locator("#explore-axes .choice-chip button").first.click()
    expect(facts).to_have_text("The scatter plot cannot be drawn: no room")
    expect(axes).to_have_count(count - 2)
    page.evaluate("mend()")
    page.locator("#explore-axes .choice-chip button").first.click()
    expect(facts).to_have_text(runs)
    expect(axes).to_have_count(count - 4)
    assert watched.errors == []


def test_the_first_metric_is_one_that_most_runs_have(demo, source):
    demo.sweep()
    log(demo, "000 a", "a/accuracy", 0.5)
    log(demo, "001 a", "accuracy.b", 0.5)
    here = explored(source, View(experiment="sweep"))
    shown = Shown.of({}, here)
    assert (shown.y, shown.x, shown.target) == (ACCURACY, "time:epoch", ACCURACY)
    assert here.names == [f"lr {rate}" for rate in ("0.001", "0.003", "0.01", "0.03", "0.1", "0.3")]
    assert "metric:a/accuracy.max" in here.choices


def test_without_epochs_and_energy_the_x_axis_is_the_duration(demo, source):
    demo.workload("study", "0", [demo.run("a", "n", 4.0, epochs=0)])
    shown = Shown.of({}, explored(source, View(experiment="study")))
    assert shown.x == "time:duration"


@pytest.mark.parametrize("path", ["explore", "compare", "timeline", "workload", "run"])
def test_an_unknown_experiment_is_said(demo, path):
    demo.sweep()
    (page,) = (page for page in PAGES if page.path == path)
    with closing(CachedStore(demo.store)) as source, pytest.raises(RunNotFoundError) as error:
        page.layout(source, View(experiment="nothing"))
    assert error.value.message.startswith("no experiment nothing in ")
    assert error.value.remedy


@pytest.mark.long
def test_importance_is_that_of_a_forest_and_needs_twenty_runs(study, truth, serve, watched):
    from sklearn.ensemble import RandomForestRegressor  # takes long

    found, truth = truth, truth[truth["counts"]]
    page = watched.page
    url = serve(store=study / "radt.db")
    open_page(page, url)
    with StoreReader(study / "radt.db") as reader:
        params = reader.params_of(list(truth.index))
    names = sorted(set(params[truth.index[0]]) - {"model", "batch-size"})
    table = pd.DataFrame([params[run_id] for run_id in truth.index])[names]
    table["optimizer"] = table["optimizer"].rank(method="dense")
    forest = RandomForestRegressor(
        100, min_samples_leaf=3, max_features=2, random_state=0, oob_score=True
    ).fit(table.astype(np.float32), truth[ACCURACY])
    text = page.locator("#explore-importance p").first.inner_text()
    assert text.startswith(f"n = {len(truth)}, R² = {forest.oob_score_:.3f}".replace("-", "−"))
    rows = page.locator("#explore-importance tbody tr")
    expect(rows).to_have_count(len(names))
    assert rows.first.get_attribute("data-param") == "lr"

    open_page(page, url, "?q=optimizer=adam")
    count = (truth["param:optimizer"] == "adam").sum()
    assert 0 < count < 20
    matching = (found["param:optimizer"] == "adam").sum()
    expect(page.locator("#explore-facts")).to_contain_text(f"{matching} runs that match")
    expect(page.locator("#explore-importance")).to_have_text(
        f"Importance needs at least 20 runs with this metric, got {count}."
    )
    assert watched.errors == []


def test_runs_added_while_the_page_is_read_come_with_the_next_request(demo, source, monkeypatch):
    demo.sweep()

    def explored_before_a_write(source, view):
        here = explored(source, view)
        demo.workload("sweep", "003", [demo.run("a", "train", 4.0, params={"lr": "1"})])
        source._hold_until = 0.0  # reading was slow or not; here the next revision is due
        source.revision()
        return here

    with monkeypatch.context() as patch:
        patch.setattr("radt.frontend.pages.explore.explored", explored_before_a_write)
        answer = data_answer(source, {})
    assert len(answer["ids"]) == 6
    for sent in (7, None):  # then the page has them
        answer = data_answer(source, {"stamp": answer["stamp"], "have": ["param:lr"]})
        assert (len(answer["ids"]) if sent else answer.get("ids")) == sent
