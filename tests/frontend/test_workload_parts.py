"""The route of the Workload page makes and sends the parts that a change concerns, no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.spec import AxisRange, XAxis
from radt.frontend.pages import run, workload
from radt.frontend.view import View
from radt.model import Scope
from tests.frontend.workload_support import BEGAN_NS, Bench, Planted, planted_three

MADE = ("_comparison", "_devices", "_ledger", "_draw_strip", "facts_of", "listed_files")


@dataclass
class Asker:
    """A browser that shows the page, and the functions that its requests called."""

    source: CachedStore
    view: View
    made: list[str] = field(default_factory=list)
    stamps: Mapping[str, str] = field(default_factory=dict)

    def ask(self, **change: Any) -> tuple[set[str], set[str]]:
        """Return what was called, and the names of the parts and figures that the answer has."""
        self.view = replace(self.view, **change)
        self.made.clear()
        found = workload.answer(self.source, {"view": self.view.to_json(), "stamps": self.stamps})
        if found is None:
            return {*self.made}, set()
        self.stamps = found["stamps"]
        return {*self.made}, {*found["parts"], *found["figures"]}


@pytest.fixture
def asker(source: CachedStore, monkeypatch: pytest.MonkeyPatch) -> Asker:
    browser = Asker(source, View())

    def noted(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def call(*some: Any, **more: Any) -> Any:
            browser.made.append(name)
            return make(*some, **more)

        return call

    for name in MADE:
        monkeypatch.setattr(workload, name, noted(name, getattr(workload, name)))
    return browser


def test_a_change_of_the_view_concerns_some_parts_only(
    bench: Bench, asker: Asker, store_path: Path
) -> None:
    workload_id, runs = planted_three(bench, store_path.parent / "runs")
    folder = Path(runs[0].spool) / "artifacts"
    folder.mkdir(parents=True)

    made, whole = asker.ask(workload=workload_id)
    assert made == {*MADE}
    assert asker.ask() == (set(), set())
    made, sent = asker.ask(windows={XAxis.BARRIER: AxisRange(7.0, 9.0)})
    assert made == {"_draw_strip"}
    drawn = {name for name in whole if name.startswith(("plot ", "legend "))}
    assert {"workload-timeline", "workload-zoom-text"} < sent
    assert sent <= {"workload-timeline", "workload-zoom-text", *drawn}
    options = {workload.LOG_OPTION: runs[1].run_id[:12]}
    assert asker.ask(options=options) == (set(), {"workload-log-tabs"})
    (folder / "ckpt").mkdir()
    asker.ask()
    for change in (
        lambda: (folder / "model.pt").write_text("weights"),
        lambda: (folder / "model.pt").write_text("more weights"),
        lambda: (folder / "ckpt" / "e1.pt").write_text("weights"),
        lambda: (folder / "ckpt" / "e1.pt").unlink(),
    ):
        change()
        assert asker.ask() == ({"listed_files"}, {"workload-files"})


def test_a_change_of_the_store_concerns_the_parts_of_its_runs(
    bench: Bench, asker: Asker, wait_until: Callable[..., Any]
) -> None:
    workload_id, runs = planted_three(bench)
    asker.ask(workload=workload_id)

    def written(write: Callable[[], object]) -> tuple[set[str], set[str]]:
        before = asker.source.revision()
        write()
        wait_until(lambda: asker.source.revision() != before, "the next revision")
        return asker.ask()

    elsewhere = written(lambda: bench.workload("other", [Planted("a")], experiment="another"))
    assert elsewhere == ({"_comparison"}, set())
    ticks_s = np.arange(1.0, 15.0, 0.5)
    readings = ("process.memory.rss", "By", Scope.PROCESS, BEGAN_NS, ticks_s, ticks_s * 1e6)
    made, sent = written(lambda: bench.series(runs[2], *readings))
    assert made == {*MADE}
    memory = {f"{kind} memory|{bench.host}|" for kind in ("plot", "legend")}
    assert sent == {"workload-strips", *memory}


def test_a_tag_that_came_after_another_page_s_reads_is_shown_with_the_next_revision(
    bench: Bench, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Planted("a", tags={"grade": "old"})
    asker.view = View(workload=bench.workload("alone", [alone]))
    asker.source.revision()
    run.answer(asker.source, {"view": View(run=alone.run_id).to_json()})
    monkeypatch.setattr(asker.source, "_hold_until", float("inf"))
    bench.writer.put_tags(alone.run_id, {"grade": "new"})
    asker.ask()
    monkeypatch.setattr(asker.source, "_hold_until", 0.0)
    assert "workload-params" in asker.ask()[1]
