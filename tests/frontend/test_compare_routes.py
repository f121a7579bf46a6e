"""What the Compare page asks of the server."""

from __future__ import annotations

import pytest

from radt.errors import UsageError
from radt.frontend import app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.metrics import hidden_keys
from radt.frontend.pages.compare import FACTS_PATH, FIGURE_PATH, facts_answer, figure_answer
from radt.frontend.selection import read_selection
from radt.frontend.view import View
from radt.model import RunStatus
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader


def asked(metric="loss", **view):
    return {"view": {"charts": [{"metric": metric, "slot": 3}], **view}, "scheme": "dark"}


@pytest.fixture
def client(demo, source):
    """A browser without a window."""
    demo.quickstart()
    return app.create_app(source, DashboardAccess()).server.test_client()


def test_facts_say_what_is_picked_and_what_is_not_there(demo, source):
    demo.quickstart()
    picks = ["quickstart", f"quickstart:r{'0' * 12}"]
    found = facts_answer(source, {"view": {"picks": picks}})["facts"]
    assert found["text"] == "3 workloads · 6 runs · 1 failed"
    assert found["notes"] == ["1 pick not in this store"]
    assert [unit["name"] for unit in found["units"]] == ["solo", "three", "mix"]
    assert all(unit["whole"] for unit in found["units"])
    assert not found["live"]
    assert found["units"][1]["runs"][2]["short"] == "three c"
    assert [metric["metric"] for metric in found["metrics"]][:2] == ["accuracy", "loss"]
    assert [chart["slot"] for chart in found["charts"]] == [0, 1, 2, 3]


def test_what_is_known_is_not_sent_again(demo, source):
    demo.quickstart()
    first = facts_answer(source, {"view": {}})
    known = {name: first[name] for name in ("stamp", "fingerprint")}
    assert facts_answer(source, {"view": {}, **known}) is None
    only_runs = facts_answer(source, {"view": {}, "stamp": first["stamp"]})
    assert only_runs["facts"] is None
    drawn = figure_answer(source, asked())
    assert figure_answer(source, {**asked(), "fingerprint": drawn["fingerprint"]}) is None
    assert drawn["fingerprint"] == first["fingerprint"]
    # With another chart the page sends no fingerprint; with other runs it is another.
    other = figure_answer(source, {**asked(picks=["quickstart:w"]), "fingerprint": "other"})
    assert other is not None


def test_a_run_that_runs_is_drawn_again_with_every_news(demo, source, wait_until):
    running = demo.run("a", "n", 1.0, status=RunStatus.RUNNING)
    demo.workload("live", "now", [running])
    before = figure_answer(source, asked())["fingerprint"]
    demo.append(running.run_id, demo.origin_ns(running.run_id), 0, [90.0], [0.1], [7])
    again = {**asked(), "fingerprint": before}
    wait_until(lambda: figure_answer(source, again) is not None, "the news")
    assert facts_answer(source, {"view": {}})["facts"]["live"]


def test_an_ended_run_is_drawn_again_when_it_changed_and_only_then(demo, source):
    demo.quickstart()
    run_id = demo.run_ids["solo a"]
    running = demo.run("a", "n", 1.0, status=RunStatus.RUNNING)
    demo.workload("live", "now", [running])
    request = asked(picks=[f"quickstart:r{run_id[:12]}"])

    def is_drawn_again():
        source._hold_until = 0.0  # reading was slow or not; here the next revision is due
        source.revision()
        found = figure_answer(source, request)
        request["fingerprint"] = found["fingerprint"] if found else request["fingerprint"]
        return found is not None

    assert is_drawn_again()
    demo.append(running.run_id, demo.origin_ns(running.run_id), 0, [90.0], [0.1], [7])
    assert not is_drawn_again()
    demo.append(run_id, demo.origin_ns(run_id), 0, [90.0], [0.1], [999])  # late points
    assert is_drawn_again()
    with StoreReader(demo.store) as reader:
        prune_run(reader, demo.writer, run_id, Keep.SUMMARIES)
    assert is_drawn_again()
    demo.writer.update_run(run_id, name="renamed")
    assert is_drawn_again()
    demo.host = "bench-2"  # the same label on another machine: the name gets the host
    demo.workload("quickstart", "solo", [demo.run("a", "cnn-small", 1.0)])
    assert is_drawn_again()
    assert not is_drawn_again()


def test_what_is_hidden_in_all_charts_is_named_by_its_lines(demo, source):
    demo.quickstart()
    selection = read_selection(source, View(experiment="quickstart"))
    three = next(unit for unit in selection.units if unit.workload.record.label == "three")
    run = f"r{demo.run_ids['mix a'][:12]}"
    workload = f"w{three.workload.record.workload_id[:12]}"
    view = View(options={"compare.hidden": f"{workload},{run}"})
    found = hidden_keys(source, selection, view, "loss")
    assert set(found) >= {run, workload, *(f"r{one.run_id[:12]}" for one in three.runs)}
    assert f"r{demo.run_ids['solo a'][:12]}" not in found
    # Of a machine, only what belongs to the workload goes.
    on_host = hidden_keys(source, selection, view, "system.cpu.utilization")
    assert {key[:13] for key in on_host} == {workload}
    assert hidden_keys(source, selection, View(), "loss") == ()

    options = dict(view.options)
    lines = figure_answer(source, asked(options=options))["figure"]["layout"]["meta"]["lines"]
    assert {line["key"] for line in lines if not line["hidden"]} == {
        f"r{demo.run_ids[name][:12]}" for name in ("solo a", "mix b")
    }


def test_a_figure_is_of_one_chart(demo, source):
    demo.quickstart()
    with pytest.raises(UsageError):
        figure_answer(source, {"view": {"charts": []}})
    assert "do not have" in figure_answer(source, asked("no.such"))["missing"]
    assert "No run" in figure_answer(source, asked(picks=[]))["missing"]


def test_answers_are_json_and_problems_have_a_remedy(client):
    found = client.post(FIGURE_PATH, json=asked())
    assert found.status_code == 200
    assert found.json["figure"]["data"]
    assert found.headers["Cache-Control"] == "no-store"
    again = client.post(FIGURE_PATH, json={**asked(), "fingerprint": found.json["fingerprint"]})
    assert (again.status_code, again.data) == (204, b"")
    wrong = client.post(FIGURE_PATH, json={"view": {"charts": []}})
    assert wrong.json["problem"]["remedy"] == "Reload the page."


@pytest.mark.parametrize("path", [FACTS_PATH, FIGURE_PATH])
def test_what_no_page_asks_is_refused(client, path):
    assert client.post(path, data={"view": "{}"}).status_code == 400
    assert client.post(path, data=b"[1]", content_type="application/json").status_code == 400
    assert client.post(path, data=b"{", content_type="application/json").status_code == 400
    large = {"view": {"search": "x" * 500_000}}
    assert client.post(path, json=large).status_code == 400
    assert client.post(path, json={}, headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("level", ["run", "workload"])
@pytest.mark.parametrize("times", [1, 3])
def test_the_list_has_the_colours_of_the_lines(demo, source, level, times):
    """Also where there are more runs than colours."""
    for _ in range(times):
        demo.quickstart()
    drawn = figure_answer(source, asked(picks=["quickstart"], board={"level": level}))
    lines = drawn["figure"]["layout"]["meta"]["lines"]
    units = facts_answer(source, {"view": {"picks": ["quickstart"]}})["facts"]["units"]
    found = {one["key"]: one["dark"] for unit in units for one in (unit, *unit["runs"])}
    assert len(lines) == times * (6 if level == "run" else 3)
    assert {line["key"]: line["colour"] for line in lines}.items() <= found.items()
