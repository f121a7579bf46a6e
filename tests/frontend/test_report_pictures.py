"""Figures of a report: what is on them, and that a real browser draws them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from radt.frontend.data.source import Source
from radt.frontend.export import report_files as pictures
from radt.frontend.export.render_worker import Order
from radt.frontend.export.renderer import Renderer
from radt.frontend.export.request import FileFormat
from radt.frontend.view import View
from radt.model import RunStatus
from tests.frontend.report_support import Planted, Study

HOSTILE = "<img src=x>/../"
VIEW = View(experiment="study")


@pytest.fixture
def study(store_path: Path) -> Iterator[Study]:
    """Two repeats alone, two and seven at once, one of which did not fit; a mix."""
    store_path.parent.mkdir(parents=True)
    made = Study(store_path)
    busy = {"gpu.sm.active": 0.4, "gpu.memory.used": 5e9}
    for epoch_s in (1.9, 2.1):
        made.workload("solo", [Planted("a", epoch_s, gpu=busy)], tags={"radt.series": "s"})
    made.workload("pair", [Planted(one, 3.0, gpu=busy) for one in "ab"])
    seven = [Planted(one, 6.0) for one in "abcdef"]
    made.workload("seven", [*seven, Planted("g", 6.0, status=RunStatus.OOM)])
    large = {"size": "L"}
    made.workload("large", [Planted("a", 4.0, name=HOSTILE, params=large)])
    mix = [Planted("a", 3.0), Planted("b", 5.0, name=HOSTILE, params=large)]
    made.workload(HOSTILE, mix)
    yield made
    made.writer.close()


def drawn(source: Source) -> dict[str, Order]:
    """What is drawn by the words that name it."""
    found = pictures.orders(source, VIEW, FileFormat.SVG)
    return {" ".join(words[1:]): order for words, order in found}


def test_the_figures_of_a_study(study: Study, source: Source) -> None:
    found = drawn(source)
    assert {"time_per_epoch", "vs_solo", "speed_up", "sm_active"} <= found.keys()
    assert {"model resnet26", "total-time", "interference"} <= found.keys()
    assert {name for name in found if name.startswith("timeline ")} == {
        "timeline pair",
        "timeline seven",
        f"timeline {HOSTILE}",
    }
    ours = {name: order for name, order in found.items() if not name.startswith("timeline ")}
    assert [name for name, order in ours.items() if "<img" in json.dumps(order.figure)] == []
    assert "&lt;img" in json.dumps(found["interference"].figure)


def test_panels_of_a_model_show_time_activity_and_memory(study: Study, source: Source) -> None:
    figure = drawn(source)["model resnet26"].figure
    texts = [note["text"] for note in figure["layout"]["annotations"]]
    titles = [text for text in texts if text.startswith("<b>(")]
    assert [title.split("</b>")[0] for title in titles] == [
        "<b>(a) Time per epoch",
        "<b>(b) GPU: SM active",
        "<b>(c) GPU memory, peak",
    ]
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    assert [len(trace["x"]) for trace in bars] == [3, 2, 2]  # the seven have no card
    assert bars[0]["y"] == pytest.approx([2.0, 3.0, 6.0])
    assert bars[0]["error_y"]["array"] == [pytest.approx(1.2706, abs=1e-4), None, None]
    assert "OOM" in texts
    assert any(text.startswith("Whiskers: 95 %") for text in texts)


def test_total_time_is_beside_one_after_the_other(study: Study, source: Source) -> None:
    serial, together = drawn(source)["total-time"].figure["data"]
    # Set-up, first epoch, two epochs, the end: 15 s alone. Seven have no whole result.
    assert serial["y"] == pytest.approx([30.0, 15.0 + 19.0])
    assert together["y"] == pytest.approx([17.0, 21.0])


def test_the_heat_map_has_the_slowdown_of_each_model(study: Study, source: Source) -> None:
    (trace,) = drawn(source)["interference"].figure["data"]
    assert trace["z"] == [
        [pytest.approx(1.5), pytest.approx(1.5)],
        [pytest.approx(1.25), None],
    ]


def test_files_of_each_kind_are_drawn_by_a_browser(
    study: Study, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = Renderer()
    monkeypatch.setattr(pictures, "Renderer", lambda: renderer)
    monkeypatch.setattr(renderer, "close", lambda: None)  # one browser for all kinds
    try:
        for kind, begins in (
            (FileFormat.SVG, b"<svg"),
            (FileFormat.PNG, b"\x89PNG"),
            (FileFormat.PDF, b"%PDF"),
        ):
            files = pictures.draw(source, VIEW, tmp_path, kind)
            path = next(files)
            assert path.name.startswith("radt-study-")
            assert path.read_bytes().startswith(begins)
            files.close()  # type: ignore[attr-defined]
        ElementTree.parse(next(tmp_path.glob("*.svg")))
    finally:
        monkeypatch.undo()
        renderer.close()
