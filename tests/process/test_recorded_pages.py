"""What a real experiment records is what every page of the dashboard and every file shows."""

from __future__ import annotations

import json
import os
import re
from html import unescape

import pytest

from radt import units
from radt.frontend.app import PAGES, create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.pages import workload as workload_page
from radt.frontend.pages.report import path_of
from radt.frontend.view import View
from radt.render.formats import ReportFormat
from tests.support.bench import Bench

_SCRIPT = """
import radt

with radt.Run() as run:
    for epoch in run.epochs(3):
        run.log_metric("loss", 1 / (epoch + 1), step=epoch)
"""


def words(html: str) -> str:
    """The text of HTML, and its titles."""
    titled = re.sub(r'title="([^"]*)"[^>]*>', r"> \1 ", html)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", titled)).split())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_every_page_and_file_opens_on_a_real_experiment(bench: Bench) -> None:
    core = min(os.sched_getaffinity(0))
    bench.script("train.py", _SCRIPT)
    path = bench.experiment(
        f"Workload,Name,Cpus,File\n1,pinned,#{core},train.py\n1,free,,train.py\n2,alone,,train.py\n"
    )
    console = bench.radt(path.name).stdout
    source = CachedStore(bench.home / "radt.db")
    try:
        app = create_app(source, DashboardAccess())
        client = app.server.test_client()
        with app.server.test_request_context():
            for page in PAGES:
                follow = page.layout(source, View()).to_plotly_json()["props"]["data-follow"]
                answer = client.post(f"/{follow}", json={"view": {}})
                assert answer.status_code == 200, page.title
                assert "problem" not in answer.get_json(), page.title
        sections = {}
        for workload in source.reader.workloads():
            view = View(workload=workload.workload_id)
            content = workload_page.answer(source, {"view": view.to_json()})
            assert content is not None
            sections[workload.label] = {
                key.removeprefix("workload-"): words(html) for key, html in content["parts"].items()
            }
        experiment = source.reader.runs()[0].experiment
        for address in (
            f"/export/data?s={experiment}&of=full",
            f"/export/data?s={experiment}&of=shown",
            f"/export/view?s={experiment}",
            f"/{path_of(ReportFormat.MARKDOWN)}?e={experiment}",
        ):
            assert client.get(address).status_code == 200, address
    finally:
        source.close()

    # What recording cost is the same at the end of a run, in its report, and on its page.
    report = json.loads(bench.shown("report", experiment, "--format", "json"))
    (tracker,) = report["tracker"]
    share = units.percent(tracker["cpu_s"] / tracker["workload_s"])
    assert f"tracker {share} of a core during runs" in " ".join(console.split())
    for workload in report["workloads"]:
        share = units.percent(workload["values"]["tracker_cpu"]["mean"])
        assert f"Tracker {share} of a core" in sections[workload["label"]]["facts"]

    assert f"core {core}: a" in sections["1"]["devices"]
    assert "b free all cores" in sections["1"]["devices"]
    # A run that was not pinned is on all cores, not on the core whose number is their count.
    others = [number for number in range(os.cpu_count() or 1) if number != core]
    assert all(
        f"core {other}: no run is pinned to it" in sections["1"]["devices"] for other in others
    )
    assert "runs share all cores" in sections["2"]["devices"]
