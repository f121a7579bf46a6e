"""The Run page in a browser: facts, metrics, log, files, what was logged by step; hostile files."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

import radt
from radt import units
from radt.frontend.data.run.figure import TRACES
from radt.model import RunStatus
from radt.store.reader import StoreReader
from tests.frontend.conftest import bounds
from tests.frontend.test_accessibility import findings, stops
from tests.frontend.test_hostile_files import a_long_list, png_of
from tests.frontend.workload_support import EVIL, Planted
from tests.support.bench import bench_in

TRAIN = """\
import mlflow, numpy as np, pandas as pd, plotly.graph_objects as go, radt
from matplotlib.figure import Figure
from PIL import Image
image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
with radt.Run(params={"lr": 0.1}) as run:
    for step in range(5):
        run.log_metric("loss", 1 / (step + 3), step)
        run.log_image("val/samples", image + np.uint8(step), step=10 * step)
        errors = pd.DataFrame({"class": ["cat", "dog"], "count": [step, 7]})
        run.log_table("errors", errors, step=10 * step)
        run.log_text(f"after {step}", "story.txt", step=10 * step)
        run.log_image("bars", go.Figure(go.Bar(x=["cat", "dog"], y=[step, 7])), step=10 * step)
    mlflow.log_image(Image.fromarray(image), key="theirs/grad", step=3)
    mlflow.log_table({"q": ["a", "b"], "score": [0.5, 0.75]}, "eval/answers.json")
    mlflow.log_image(image, "final.png")
    figure = Figure(figsize=(1, 1), dpi=40, facecolor="red")
    mlflow.log_figure(figure, "plots/theirs.png")
    run.log_image("ours", figure)
    lines = go.Figure(go.Scattergl(x=np.arange(9), y=np.arange(9.0) ** 2, name="squares"))
    mlflow.log_figure(lines.update_layout(title="Squares"), "plots/plotly.html")
    print("the end")
"""

TITLE = "'pwned'"
SVG = (
    "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='20' "
    f'onload="top.document.title={TITLE}"><script>top.document.title={TITLE}</script>'
    "<rect width='40' height='20'/></svg>"
)
HTML = f"<script>top.document.title={TITLE}</script><h1>hello</h1>"
#: A figure whose texts are HTML, with pictures of another server and what our Plotly does not draw.
FIGURE = go.Figure(go.Scatter(x=[1, 2], y=[3, 4], text=[HTML, EVIL], mode="text"))
FIGURE.update_layout(
    title=f'{HTML}<a href="javascript:top.document.title={TITLE}">click</a>',
    images=[{"source": "https://evil.example/a.png"}],
    font_color="white",
    updatemenus=[{"buttons": [{"label": "Play", "method": "animate"}]}],
)
#: Plotly would make millions of ticks, contour lines and axes of it.
HANGS = go.Figure(
    [
        go.Scatter(x=["0001-01-01", "9999-01-01"], y=[1, 2]),
        go.Contour(z=[[1, 2], [3, 4]], contours={"start": 1, "end": 4, "size": 1e-7}),
    ],
    {"title": "drawn", "xaxis": {"dtick": 1}, "grid": {"rows": 20_000, "columns": 20_000}},
)
MARKDOWN = (
    f"# Results\n\n{HTML}\n\n[click](javascript:top.document.title={TITLE}) **bold**\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n"
)


def planted(store_path: Path, letter: str, files: dict[str, str | bytes], **options) -> Planted:
    """A run with these artifacts beside the store."""
    run = Planted(letter, **options)
    folder = store_path.parent / "runs" / run.run_id
    (folder / "artifacts").mkdir(parents=True)
    run.spool = str(folder)
    for name, content in files.items():
        write(run, name, content)
    return run


def write(run: Planted, name: str, content: str | bytes) -> None:
    path = Path(run.spool) / "artifacts" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def fact(page: Page, name: str):
    return page.locator(f"[data-fact={name}] dd")


def card(page: Page, name: str):
    return page.locator(f".run-card[data-name='{name}']")


def pixels(page: Page, name: str, run: int = 0) -> list[object]:
    """The pixels of a card's image, of one of its runs, as the browser has loaded it."""
    content = page.evaluate(
        """async (image) => {
          await image.decode();
          const answer = await fetch(image.src);
          return [...new Uint8Array(await answer.arrayBuffer())];
        }""",
        card(page, name).locator("img").nth(run).element_handle(),
    )
    return np.asarray(Image.open(io.BytesIO(bytes(content)))).tolist()


def traces(figure) -> list[list[object]]:
    """Type and values of each trace that Plotly has drawn."""
    return figure.evaluate("figure => figure._fullData.map(one => [one.type, [...one.y]])")


def in_bytes(text: str) -> float:
    """The number of bytes, or of bytes a second, in a text."""
    number, unit = text.removesuffix("/s").split()
    return float(number) * 1000.0 ** ["B", "KB", "MB", "GB"].index(unit)


def cells(table) -> list[list[str]]:
    texts = "rows => rows.map(row => [...row.querySelectorAll('th, td')].map(one => one.innerText))"
    return table.locator("tbody tr").evaluate_all(texts)


@pytest.mark.mlflow
def test_a_real_run_shows_what_its_script_logged(tmp_path, serve, watched):
    with bench_in(tmp_path, columns=100, RADT_COLLECTOR_IDLE_S="2") as folder:
        folder.script("train.py", TRAIN)
        folder.radt("train.py")
        folder.wait_delivered()
        (record,) = folder.reader.runs()
        values = radt.load(record.run_id, home=folder.home, metrics="loss")["value"]
        page = watched.page
        page.goto(f"{serve(store=folder.home / 'radt.db')}/run?id={record.run_id[:8]}")

        expect(fact(page, "status")).to_have_text("finished")
        expect(fact(page, "command")).to_contain_text("train.py")
        loss = page.locator("tr[data-metric=loss] td")
        numbers = (values.iloc[-1], values.min(), values.max(), values.mean())
        expect(loss).to_have_count(8)
        texts = [units.significant(number, 4) for number in numbers]
        assert loss.all_inner_texts()[1:7] == [*texts, "", str(len(values))]
        written = radt.load(record.run_id, home=folder.home, metrics="process.io.written")
        first, last = written.iloc[0], written.iloc[-1]
        total = last["value"] - first["value"]
        rate = total / (last["elapsed_s"] - first["elapsed_s"])
        counter = page.locator("tr[data-metric='process.io.written'] td").all_inner_texts()
        assert counter[1:4] == ["–"] * 3
        assert in_bytes(f"{counter[4]} {counter[0]}") == pytest.approx(rate, rel=1e-3)
        assert in_bytes(counter[5]) == pytest.approx(total, rel=1e-3)
        totals = page.locator("tr[data-metric] td:nth-child(7)").all_inner_texts()
        assert not any("%" in text for text in totals)
        log = page.locator("#run-log")
        expect(log).to_contain_text("the end")
        page.get_by_placeholder("Search the log").fill("the end")
        page.locator(".run-found button").press("Enter")
        expect(log.locator(".run-hit")).to_have_text("the end")
        assert findings(page) == []
        expect(page.locator(".run-card")).to_have_count(10)

        # The slider by keys: every name at the chosen step, or the last one until then.
        image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
        expect(card(page, "errors").locator("tbody")).to_contain_text("4")
        assert pixels(page, "val/samples") == (image + 4).tolist()
        page.locator("#run-step").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")  # the step of MLflow's image
        page.keyboard.press("ArrowRight")
        expect(page.locator("#run-step-text")).to_have_text("step 10 of 40")
        expect(card(page, "val/samples").locator("img")).to_have_attribute(
            "alt", "val/samples, step 10"
        )
        assert pixels(page, "val/samples") == (image + 1).tolist()
        expect(card(page, "theirs/grad")).to_contain_text("step 3")
        assert pixels(page, "theirs/grad") == image.tolist()
        assert pixels(page, "final") == image.tolist()
        for name in ("plots/theirs", "ours"):
            figure = np.asarray(pixels(page, name))
            assert figure.shape == (40, 40, 4)
            assert (figure == [255, 0, 0, 255]).all()
        squares = card(page, "plots/plotly").locator(".run-figure")
        expect(squares.locator(".gtitle")).to_have_text("Squares")
        assert traces(squares) == [["scatter", [float(x**2) for x in range(9)]]]
        paper = "figure => figure._fullLayout.paper_bgcolor"
        assert squares.evaluate(paper) == "#ffffff"
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(
            f"figure => ({paper})(figure) === '#1b1e22'", arg=squares.element_handle()
        )
        drawable = page.evaluate("Object.keys(Plotly.PlotSchema.get().traces)")
        assert set(drawable) == TRACES
        bars = card(page, "bars").locator(".run-figure")
        expect(bars.locator(".bars .point")).to_have_count(2)
        assert traces(bars) == [["bar", [1, 7]]]
        expect(page.locator("#run-files")).to_contain_text("plots/plotly.html")
        expect(card(page, "story").locator("pre")).to_have_text("after 1")
        errors = card(page, "errors").locator("table")
        expect(errors.locator("tbody tr").first).to_contain_text("1")
        assert cells(errors) == [["cat", "1"], ["dog", "7"]]
        assert cells(card(page, "eval/answers").locator("table")) == [["a", "0.5"], ["b", "0.75"]]
        page.reload()  # the step is part of the address
        expect(page.locator("#run-step-text")).to_have_text("step 10 of 40")
        assert watched.errors == []


def test_files_are_shown_for_what_they_are_and_run_nothing(bench, serve, watched, store_path):
    frame = pd.DataFrame({"n": range(3000), "name": [f"{EVIL} {n}" for n in range(3000)]})
    parquet = io.BytesIO()
    frame.to_parquet(parquet)
    run = planted(
        store_path,
        "a",
        {
            "page.html": HTML,
            "figure.html": FIGURE.to_html(include_plotlyjs="cdn"),
            "plot.html": FIGURE.to_html(include_plotlyjs=True),
            "hangs.html": HANGS.to_html(include_plotlyjs=False),
            "surface.html": go.Figure(go.Surface(z=[[1, 2], [3, 4]])).to_html(),
            "drawing.svg": SVG,
            "README.md": MARKDOWN,
            f"{EVIL.replace('/', '')}.txt": EVIL,
            "frame.csv": frame.to_csv(index=False),
            "frame.parquet": parquet.getvalue(),
            "config.json": json.dumps({"html": HTML}),
            "weights.bin": os.urandom(3000),
            "picture.png": HTML,
            "bomb.png": png_of(60_000, 60_000),
            "bomb.parquet": a_long_list(),
            "bomb.json": "[" * 400 + "]" * 400,
            "a#b%20c?.txt": "an odd name",
        },
    )
    bench.workload("solo", [run])
    page = watched.page
    url = serve()
    page.goto(f"{url}/run?id={run.run_id}")
    preview = page.locator(".run-preview")

    def open_file(name: str) -> None:
        page.locator("#run-files button").filter(has_text=name).first.click()
        expect(preview.locator("strong").first).to_contain_text(name)

    # Figures above the list push it down as they are drawn; this is the last of them.
    expect(page.get_by_text("does not draw traces of type surface")).to_be_visible()
    open_file("page.html")
    expect(preview.locator("pre")).to_have_text(HTML)
    for name in ("figure.html", "plot.html"):
        open_file(name)
        title = preview.locator(".run-figure .gtitle")
        expect(title).to_contain_text("click")
        assert title.locator("a").count() == 0
        assert preview.locator("script, h1, .updatemenu-container, image").count() == 0
    open_file("hangs.html")
    expect(preview.locator(".run-figure .gtitle")).to_have_text("drawn")
    open_file("surface.html")
    expect(preview).to_contain_text("does not draw traces of type surface. Download it")
    open_file(EVIL[:20])
    expect(preview.locator("pre")).to_have_text(EVIL)
    open_file("config.json")
    expect(preview.locator("pre")).to_contain_text('"html": "<script>')
    open_file("a#b%20c?.txt")
    expect(preview.locator("pre")).to_have_text("an odd name")
    for name in ("frame.csv", "frame.parquet"):
        open_file(name)
        expect(preview).to_contain_text("The first 1,000 of 3,000 rows")
        assert cells(preview.locator("table"))[999] == ["999", f"{EVIL} 999"]
    open_file("weights.bin")
    expect(preview).to_contain_text("Not a text, image, table, sound or film")
    open_file("picture.png")
    expect(preview).to_contain_text("Not shown: it does not begin as a PNG")
    open_file("bomb.png")
    expect(preview).to_contain_text("60,000 × 60,000 pixels, more than 50 million. Download it")
    open_file("bomb.parquet")
    expect(preview).to_contain_text("reading it takes more than 419 MB of memory")
    open_file("bomb.json")
    expect(preview).to_contain_text("Values nested deeper than 50 levels are shown as {…}")
    open_file("drawing.svg")
    drawn = preview.locator("img")
    assert (
        drawn.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }")
        == 40
    )
    open_file("README.md")
    expect(preview.locator(".run-markdown h1")).to_have_text("Results")
    assert preview.locator("script, h1:text('hello')").count() == 0
    preview.get_by_text("click").click()
    assert findings(page) == []
    # Opened by itself, a picture is in a sandbox.
    alone = page.context.new_page()
    alone.goto(url + drawn_address(run, "drawing.svg"))
    expect(alone.locator("rect")).to_have_count(1)
    assert alone.title() != "pwned"
    alone.close()
    assert page.title() != "pwned"
    known = ("Content Security Policy", "415 (UNSUPPORTED MEDIA TYPE)")
    assert [one for one in watched.errors if not any(each in one for each in known)] == []


def drawn_address(run: Planted, path: str) -> str:
    return f"/files/{run.run_id}/view?path={path}"


@pytest.mark.long
def test_a_running_run_is_followed_until_its_end(bench, serve, watched, store_path):
    run = planted(
        store_path, "a", {"images/x/step-1.png": png(10)}, status=RunStatus.RUNNING, end_s=9.0
    )
    log = Path(run.spool) / "output.log"
    log.write_text("first\n  50%|#####")
    bench.workload("solo", [run])
    page = watched.page
    page.goto(f"{serve()}/run")

    expect(fact(page, "status")).to_have_text("running")
    expect(page.locator("#run-log .run-rest")).to_have_text("  50%|#####")
    expect(card(page, "x")).to_contain_text("step 1")
    with log.open("a") as file:
        file.write("\r 100%|##########\nsecond\n")
    write(run, "images/x/step-2.png", png(20))
    expect(page.locator("#run-log")).to_contain_text("second")
    assert page.locator("#run-log").inner_text().split("\n")[:3] == [
        *("first", " 100%|##########", "second")
    ]
    expect(card(page, "x")).to_contain_text("step 2")  # the end of the slider follows
    assert pixels(page, "x") == [[20] * 4] * 4
    address = page.url
    page.goto(address.replace("/run", f"/compare?s=planted:r{run.run_id[:12]}"))
    page.locator("#compare-media-panel summary").click()
    expect(card(page, "x")).to_contain_text("step 2")
    write(run, "images/x/step-3.png", png(30))
    expect(card(page, "x")).to_contain_text("step 3")
    expect(card(page, "x").locator("img")).to_have_js_property("complete", value=True)
    assert pixels(page, "x") == [[30] * 4] * 4
    page.goto(address)
    expect(page.locator("#run-log")).to_contain_text("second")
    with StoreReader(store_path) as reader:
        record = reader.run(run.run_id)
    with log.open("a") as file:
        file.write("third\n")
    bench.writer.put_run(
        replace(
            record,
            status=RunStatus.FAILED,
            ended_ns=record.created_ns + 10**10,
            end_reason="exit code 3",
        )
    )
    expect(fact(page, "status")).to_have_text("failed")
    failure = page.locator(".run-failure")
    expect(failure.locator("h2")).to_have_text("Exit code 3.")
    expect(failure.locator("pre")).to_contain_text("third")
    expect(page.locator("#run-log")).to_contain_text("third")
    order = page.locator(".run-failure, #run-facts, .notes, #run-differences")
    tops = [bounds(order.nth(place))["y"] for place in range(order.count())]
    assert len(tops) == 4
    assert tops == sorted(tops)
    assert findings(page) == []
    assert watched.errors == []


@pytest.mark.long
def test_another_run_beside_it_a_long_log_and_a_run_without_anything(
    bench, serve, watched, store_path
):
    packages, image = "environment/packages.txt", "images/x/step-1.png"
    first = planted(store_path, "a", {packages: "torch==2.6\nnumpy==2.1\n", image: png(10)})
    second = planted(
        store_path,
        "b",
        {packages: "torch==2.7\nnumpy==2.1\n", image: png(20), "images/y.png": png(30)},
        params={"lr": "0.2"},
    )
    lines = [f"line {n}" + (" with a Needle" if n % 50_000 == 7 else "") for n in range(1_000_000)]
    (Path(second.spool) / "output.log").write_text("\n".join(lines) + "\n")
    bench.workload("pair", [first, second])
    empty = Planted("a", cores=None)
    bench.workload("empty", [empty])
    page = watched.page
    site = serve()
    page.goto(f"{site}/workload")
    page.locator("#workload-pick").click()
    page.get_by_role("option").filter(has_text="pair").click()
    page.locator("#workload-rows a").filter(has_text="b").click()

    expect(page.locator("h1")).to_contain_text("pair b")
    differences = page.locator("#run-differences")
    expect(differences).to_contain_text("torch")
    tables = {
        title: cells(part.locator("table").first)
        for part in differences.locator("> div").all()
        for title in part.locator("h3").all_inner_texts()
    }
    assert tables["Parameters"] == [["lr", "0.2", "–"]]
    assert tables["Packages"] == [["torch", "2.7", "2.6"]]

    log = page.locator("#run-log")
    expect(log).to_contain_text("line 999999")
    assert "line 900000" not in log.inner_text()  # a part only
    page.get_by_placeholder("Search the log").fill("needle")
    expect(page.locator(".run-found li")).to_have_count(20)
    hit = page.locator(".run-found button").nth(3)
    assert hit.inner_text().split("\n") == ["150,008", "line 150007 with a Needle"]
    hit.press("Enter")
    expect(log.locator(".run-hit")).to_have_text("line 150007 with a Needle")
    expect(log).to_contain_text("line 150006")
    expect(log).to_contain_text("line 150008")
    assert findings(page, without="#run-log") == []  # with a short one above: this takes 15 s
    page.locator("h1").click()
    assert not [one for one in stops(page, 30) if one.startswith("unseen")]
    page.get_by_role("button", name="latest").click()
    expect(log).to_contain_text("line 999999")
    log.evaluate("(box) => { box.scrollTop = 0; }")
    expect(log).to_contain_text("line 990000")

    # Side by side.
    page.goto(f"{site}/compare?s=planted:r{first.run_id[:12]},r{second.run_id[:12]}")
    page.locator("#compare-media-panel summary").click()
    expect(card(page, "x").locator("img")).to_have_count(2)
    assert [pixels(page, "x", run)[0] for run in (0, 1)] == [[10] * 4, [20] * 4]
    expect(card(page, "y").locator(".run-pane").first).to_contain_text("none")
    assert findings(page) == []

    # Of another run, nothing stays.
    page.goto(f"{site}/run?id={second.run_id}")
    page.locator("#run-files button").filter(has_text="packages.txt").click()
    expect(page.locator("#run-preview")).to_contain_text("torch==2.7")
    page.locator("#run-pick input").click()
    page.get_by_role("option").filter(has_text="empty").click()
    expect(page.locator("h1")).to_contain_text("empty")
    expect(page.locator("#run-pick input")).to_be_focused()
    expect(page.locator("#run-preview")).to_be_empty()
    expect(page.locator("#run-metrics")).to_have_text("No metrics recorded.")
    expect(page.locator("#run-files")).to_contain_text("no files")
    expect(page.locator("#run-log-note")).to_contain_text("is not on this machine")
    expect(page.locator("#run-media-panel")).to_be_hidden()
    assert findings(page) == []
