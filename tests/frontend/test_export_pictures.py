"""Pictures of charts: drawn in a real browser, opened and looked into."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dash import Dash, html
from flask.testing import FlaskClient
from pypdf import PdfReader

from radt.frontend.auth import Access, Guard
from radt.frontend.data.source import Source
from radt.frontend.data.spec import ChartSpec
from radt.frontend.export import render_worker, routes
from radt.frontend.export import renderer as rendering
from radt.frontend.export.print_layout import Box, Merger, Place, Sheet, arranged, order
from radt.frontend.export.render_worker import Answer, Failure, Order
from radt.frontend.export.renderer import PictureError, Renderer
from radt.frontend.export.request import Asked, FileFormat, Share, pinned
from radt.frontend.helper import BusyError, Helper
from radt.frontend.selection import read_selection
from radt.frontend.view import View
from tests.frontend.conftest import Demo

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    """One browser for these tests."""
    made = Renderer()
    yield made
    made.close()


@pytest.fixture
def client(source: Source, renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    """The routes, without a network."""
    monkeypatch.setattr(routes, "Renderer", lambda: renderer)
    app = Dash("pictures", add_log_handler=False)
    app.layout = html.Div()
    Guard(Access()).install(app)
    routes.install(app.server, source)
    return app.server.test_client()


def picture(client: FlaskClient, query: str, status: int = 200) -> bytes:
    """What the address gives."""
    with closing(client.get(f"/export/picture?{query}")) as answer:
        assert answer.status_code == status, answer.get_data(as_text=True)[:500]
        return answer.get_data()


def texts(svg: bytes) -> set[str]:
    """What is written in a picture."""
    return {"".join(one.itertext()) for one in ET.fromstring(svg).iter(f"{SVG}text")}


def chrome_processes(of: str) -> list[int]:
    """Processes of this test's worker that still run, its browser among them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"RADT_TEST_RENDERER={of}".encode() in environment:
                found.append(int(entry.name))
    return found


# -- the files -----------------------------------------------------------------------------------


def test_a_chart_as_png(demo: Demo, client: FlaskClient) -> None:
    """Sharp: two pixels for one of the sheet."""
    demo.quickstart()
    content = picture(client, "c=loss&c=accuracy&chart=0&format=png")
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[12:16] == b"IHDR"
    width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
    assert width == 2 * (880 + 32)
    assert height > 800
    assert len(content) > 20_000  # not an empty sheet


def test_a_chart_as_svg_stands_alone(demo: Demo, client: FlaskClient) -> None:
    """Title, unit, the axis' name, a legend; names are text; nothing is fetched."""
    hostile = "<img src=x onerror=alert(1)>"
    run = demo.run("a", hostile, 4.0)
    demo.workload("shop <b>floor</b>", "solo", [run])
    content = picture(client, "c=process.memory.rss&format=svg")
    written = texts(content)
    assert "shop <b>floor</b>" in written
    assert f"solo {hostile}" in written
    assert any("process.memory.rss" in text for text in written)
    assert any(text.startswith(("MB", "process.memory.rssMB")) for text in written)
    assert any(text.startswith("time since the barrier") for text in written)
    tags = {one.tag.removeprefix(SVG) for one in ET.fromstring(content).iter()}
    assert not tags & {"script", "foreignObject", "image", "img", "b"}
    assert b"http" not in content.replace(b"http://www.w3.org", b"")


def test_all_charts_as_one_pdf(demo: Demo, client: FlaskClient) -> None:
    """A grid on one page, with all titles."""
    demo.quickstart()
    metrics = ["loss", "accuracy", "process.memory.rss", "system.cpu.utilization"]
    query = "&".join(f"c={metric}" for metric in metrics)
    pdf = PdfReader(io.BytesIO(picture(client, f"{query}&format=pdf&columns=2")))
    assert len(pdf.pages) == 1
    text = pdf.pages[0].extract_text()
    for metric in metrics:
        assert metric in text
    box = pdf.pages[0].mediabox
    assert float(box.width) == pytest.approx((2 * 560 + 32) * 0.75, abs=1)


def test_print_is_monochrome_if_the_view_is(demo: Demo, client: FlaskClient) -> None:
    demo.quickstart()
    coloured = picture(client, "c=loss&format=svg").decode()
    plain = picture(client, "c=loss&mono=1&format=svg").decode()
    assert "rgb(0, 114, 178)" in coloured
    assert "rgb(0, 114, 178)" not in plain
    assert "stroke-dasharray" in plain


def test_a_chart_without_its_metric_says_so(demo: Demo, client: FlaskClient) -> None:
    demo.quickstart()
    written = texts(picture(client, "c=no.such&c=loss&format=svg"))
    assert "the selected runs do not have this metric" in written


def test_wrong_addresses_are_answered(demo: Demo, client: FlaskClient) -> None:
    demo.quickstart()
    for query in ("format=exe", "c=loss&chart=4", "c=", "columns=99&c=loss"):
        found = json.loads(picture(client, query, 400))
        assert found["cause"]
        assert found["remedy"]


# -- the sheet -----------------------------------------------------------------------------------


def test_charts_stand_as_in_the_page_s_grid() -> None:
    """As `grid-auto-flow: row` places them, checked by hand."""
    specs = [
        ChartSpec("a", columns=2),
        ChartSpec("b", rows=2),
        ChartSpec("c"),
        ChartSpec("d", columns=3),
        ChartSpec("e"),
    ]
    assert arranged(specs, 3) == [
        Place(0, 0, 2, 1),
        Place(2, 0, 1, 2),
        Place(0, 1, 1, 1),
        Place(0, 2, 3, 1),
        Place(0, 3, 1, 1),
    ]
    assert [place.columns for place in arranged(specs, 1)] == [1, 1, 1, 1, 1]


def test_figures_keep_their_axes_apart() -> None:
    one = {
        "data": [{"x": [1], "y": [2]}, {"x": [1], "y": [2], "yaxis": "y2"}],
        "layout": {
            "xaxis": {"anchor": "y2"},
            "yaxis": {"domain": [0.5, 1]},
            "yaxis2": {"domain": [0, 0.4]},
            "shapes": [{"x0": 1, "yref": "paper"}],
            "annotations": [{"xref": "paper", "yref": "y domain"}],
        },
    }
    merger = Merger(Sheet(200, 100))
    merger.add(one, Box(0, 0, 100, 100))
    merger.add(one, Box(100, 50, 100, 50))
    assert set(merger.axes) == {"xaxis", "yaxis", "yaxis2", "xaxis2", "yaxis3", "yaxis4"}
    assert merger.axes["xaxis2"]["anchor"] == "y4"
    assert merger.axes["xaxis2"]["domain"] == [0.5, 1.0]
    assert merger.axes["yaxis3"]["domain"] == [0.75, 1.0]
    assert merger.axes["yaxis3"]["anchor"] == "x2"
    assert [trace["yaxis"] for trace in merger.traces] == ["y", "y2", "y3", "y4"]
    assert merger.shapes[1] == {"x0": 1, "xref": "x2", "yref": "y3 domain"}
    assert merger.annotations[1] == {"xref": "x2 domain", "yref": "y3 domain"}


def test_lines_are_named_once(demo: Demo, source: Source) -> None:
    """A workload's sum in one chart and its mean in the other are one entry."""
    demo.quickstart()
    view = View.from_query("level=workload&c=loss&c=process.memory.rss&c=accuracy")
    selection = read_selection(source, view)
    asked = Asked(pinned(source, view, selection), Share.PICTURE, FileFormat.SVG)
    figure = order(source, asked, selection).figure
    named = [trace["name"] for trace in figure["data"] if trace.get("showlegend")]
    assert named == ["solo", "three", "mix"]


# -- the browser ---------------------------------------------------------------------------------


def plain(**layout: Any) -> Order:
    """A small figure."""
    figure = {"data": [{"type": "scatter", "x": [1, 2], "y": [1, 2]}], "layout": layout}
    return Order(figure, "svg", 200, 100, 1.0)


def test_a_figure_that_fails_ends_nothing(renderer: Renderer) -> None:
    with pytest.raises(PictureError, match="cannot be drawn") as raised:
        renderer.draw(Order({"data": [], "layout": {"xaxis": 5}}, "svg", 10, 10, 1.0))
    assert not raised.value.is_lasting
    assert renderer.draw(plain()).startswith(b"<svg")


def test_an_idle_browser_is_ended(
    monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    """No process and no file stays; the next one is started when a picture is wanted."""
    monkeypatch.setenv("RADT_TEST_RENDERER", "idle")
    renderer = Renderer()
    renderer.draw(plain())
    (helper,) = renderer.helpers.all
    worker = helper.running
    assert worker is not None
    helper.kind = replace(
        helper.kind, idle_s=0.2
    )  # from the next picture on: with it the worker may be gone at once
    renderer.draw(plain())
    wait_until(lambda: not chrome_processes("idle"), "the browser has ended")
    wait_until(lambda: helper.running is None, "it is noticed")
    assert not Path(worker.folder).exists()
    renderer.close()


@pytest.mark.long
def test_one_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    """With its browser; the next picture is drawn by another."""
    monkeypatch.setenv("RADT_TEST_RENDERER", "hang")
    renderer = Renderer()
    renderer.draw(plain())
    (helper,) = renderer.helpers.all
    worker = helper.running
    assert worker is not None
    wait_until(lambda: len(chrome_processes("hang")) > 2, "the browser runs")
    os.kill(worker.process.pid, 19)  # SIGSTOP: it neither answers nor ends
    helper.kind = replace(helper.kind, give_up_s=0.3)
    with pytest.raises(PictureError, match="took too long"):
        renderer.draw(plain())
    wait_until(lambda: not chrome_processes("hang"), "the browser has ended")
    wait_until(lambda: not Path(worker.folder).exists(), "its folder is deleted")
    helper.kind = replace(helper.kind, give_up_s=60.0)
    assert renderer.draw(plain()).startswith(b"<svg")
    renderer.close()
    assert not Path(worker.folder).exists()


def test_the_browser_goes_with_the_dashboard(wait_until: Callable[..., None]) -> None:
    """Also if the dashboard is killed."""
    script = (
        "from radt.frontend.export.renderer import Renderer\n"
        "from radt.frontend.export.render_worker import Order\n"
        "r = Renderer()\n"
        "r.draw(Order({'data': [], 'layout': {}}, 'svg', 10, 10, 1.0))\n"
        "print(r.helpers.all[0].running.folder, flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    dashboard = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RADT_TEST_RENDERER": "killed"},
    )
    assert dashboard.stdout is not None
    folder = dashboard.stdout.readline().strip()
    assert Path(folder).is_dir()
    dashboard.kill()
    dashboard.wait()
    dashboard.stdout.close()
    wait_until(lambda: not chrome_processes("killed"), "all of it has ended")
    wait_until(lambda: not Path(folder).exists(), "its folder is deleted")


def test_a_missing_browser_is_said_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nothing"))
    renderer = Renderer()
    with pytest.raises(PictureError, match="was not found") as raised:
        renderer.draw(plain())
    assert "apt install chromium" in (raised.value.remedy or "")
    assert raised.value.is_lasting
    assert renderer.helpers.all[0].running is None


@pytest.mark.long
def test_a_browser_that_does_not_start_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It ends at once, as one does that lacks a library."""
    broken = tmp_path / "chrome"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(broken))
    renderer = Renderer()
    with pytest.raises(PictureError, match="cannot be used"):
        renderer.draw(plain())
    renderer.close()


def test_a_browser_whose_start_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kaleido may wait for ever for a browser that ended at once."""

    class Hanging:
        def __init__(self, **options: object) -> None: ...

        async def __aenter__(self) -> None:
            await asyncio.Event().wait()

        async def __aexit__(self, *error: object) -> None: ...

    monkeypatch.setattr("kaleido.Kaleido", Hanging)
    monkeypatch.setattr(render_worker, "START_S", 0.1, raising=False)
    answers = io.BytesIO()
    worker = render_worker.work(io.BytesIO(plain().to_line()), answers)
    # In a thread: Playwright's loop may run in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, asyncio.wait_for(worker, timeout=180)).result()
    answer = Answer.from_line(answers.getvalue())
    assert answer.failure == Failure.BROWSER
    assert answer.detail == "it did not start within 0.1 s"


def test_without_kaleido_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "is_installed", lambda: False)
    with pytest.raises(PictureError, match="not installed") as raised:
        Renderer().draw(plain())
    assert 'pip install "radt[export]"' in (raised.value.remedy or "")
    assert raised.value.is_lasting


def test_only_a_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are told to come again."""
    renderer = Renderer()
    began, go_on = threading.Event(), threading.Event()

    def drawn(*_: object) -> tuple[bytes, bytes]:
        began.set()
        assert go_on.wait(180)
        return Answer(7).to_line(), b"picture"

    monkeypatch.setattr(Helper, "ask", drawn)
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(renderer.draw(plain())))
        for _ in range(1 + rendering.MAX_WAITING)
    ]
    for thread in threads:
        thread.start()
    assert began.wait(180)
    deadline = time.monotonic() + 180
    while renderer.helpers._places._value and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.01)
    with pytest.raises(BusyError, match="pictures are already being drawn"):
        renderer.draw(plain())
    go_on.set()
    for thread in threads:
        thread.join()
    assert results == [b"picture"] * 4
    assert renderer.draw(plain()) == b"picture"
