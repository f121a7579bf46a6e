"""What the page Select sends: rows, columns, order, the basket."""

from __future__ import annotations

import pytest

from radt.frontend.data.catalog import read_catalog
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.spec import Pick
from radt.frontend.pages.select import FIRST_ROWS, answer
from radt.frontend.pages.select_lists import natural
from radt.frontend.view import View
from radt.model import RunStatus


def pane(source, name="runs", ask=None, **view):
    return answer(source, View(**view), ask)["panes"][name]


def column(sent, key):
    """The cells of a column."""
    place = [one["key"] for one in sent["columns"]].index(key)
    return [row["cells"][place] for row in sent["rows"]]


def refresh(source):
    source._hold_until = 0.0
    source.revision()


def test_the_newest_come_first(demo, source):
    demo.quickstart("older")
    demo.quickstart()
    sent = answer(source, View())
    assert column(sent["panes"]["experiments"], "name") == ["quickstart", "older"]
    assert column(sent["panes"]["workloads"], "label") == ["mix", "three", "solo"]
    assert column(sent["panes"]["workloads"], "what") == [
        "cnn-small + cnn-large",
        "3× cnn-small",
        "cnn-small",
    ]
    runs = sent["panes"]["runs"]
    assert column(runs, "run") == ["mix a", "mix b", "three a", "three b", "three c", "solo"]
    assert [row["tick"] for row in runs["rows"]] == [0] * 6
    assert sent["count"] == "12 runs"
    assert sent["experiment"] == "quickstart"
    basket = sent["basket"]
    assert basket["automatic"]
    assert [entry["label"] for entry in basket["groups"][0]["entries"]] == ["solo", "three", "mix"]


def test_what_is_in_focus_decides_what_is_listed(demo, source):
    demo.quickstart("older")
    demo.quickstart()
    assert pane(source, "workloads", experiment="older")["total"] == 3
    catalog = read_catalog(source, "older")
    three = catalog.workloads[1].record.workload_id
    sent = pane(source, experiment="older", workload=three[:12])
    assert column(sent, "run") == ["three a", "three b", "three c"]
    # A workload of another experiment is none here, nor is what a search leaves out.
    assert pane(source, experiment="quickstart", workload=three)["total"] == 6
    assert pane(source, experiment="older", workload=three, search="solo")["total"] == 1
    # Where nothing of the experiment is found, the first that is found is shown.
    demo.workload("third", "w", [demo.run("a", "other", 1.0)])
    refresh(source)
    assert answer(source, View(experiment="older", search="other"))["experiment"] == "third"


def test_every_state_of_a_run_has_its_word(demo, source):
    states = list(RunStatus)
    runs = [
        demo.run(letter, "n", 2.0, status=status)
        for letter, status in zip("abcdefgh", states, strict=True)
    ]
    demo.workload("states", "all", runs)
    sent = answer(source, View())
    assert [tuple(cell) for cell in column(sent["panes"]["runs"], "status")] == [
        ("SCHEDULED", "waiting"),
        ("RUNNING", "running"),
        ("FINISHED", "finished"),
        ("FAILED", "failed"),
        ("KILLED", "killed"),
        ("TIMEOUT", "timed out"),
        ("OOM", "OOM"),
        ("SKIPPED", "skipped"),
    ]
    clocks = column(sent["panes"]["runs"], "duration")
    start_ms, end_ms = clocks[2]
    assert end_ms - start_ms == 12_400
    assert clocks[1][1] is None
    assert ("waiting", 1) in [(one["word"], one["count"]) for one in sent["statuses"]]
    assert len(sent["statuses"]) == len(states)
    assert column(sent["panes"]["experiments"], "age") == ["1 live"]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("FINISHED", "OOM"), "OOM"),
        (("OOM", "FAILED"), "FAILED"),
        (("TIMEOUT", "FINISHED"), "TIMEOUT"),
        (("OOM", "RUNNING"), "RUNNING"),
        (("SKIPPED", "SKIPPED"), "SKIPPED"),
    ],
)
def test_a_workload_shows_the_worst_of_its_runs(demo, source, states, expected):
    runs = [
        demo.run(letter, "n", 2.0, status=RunStatus(state))
        for letter, state in zip("ab", states, strict=True)
    ]
    demo.workload("states", "two", runs)
    ((status, _, clock),) = column(pane(source, "workloads"), "duration")
    assert status == expected
    assert (clock is not None and clock[1] is None) == ("RUNNING" in states)


def test_any_column_sorts_and_what_has_no_value_comes_last(demo, source):
    for label, momentum in (("w10", "0.9"), ("w2", "1e-3"), ("w1", None)):
        run = demo.run("a", "net", 1.0)
        demo.workload("study", label, [run])
        if momentum:
            demo.writer.put_params(run.run_id, {"momentum": momentum})

    def order(sort):
        return column(pane(source, options={"select.sort": sort}), "run")

    assert order("run") == ["w1", "w2", "w10"]
    assert order("-run") == ["w10", "w2", "w1"]
    assert order("param.momentum") == ["w2", "w10", "w1"]
    assert order("-param.momentum") == ["w10", "w2", "w1"]
    assert order("age") == order("nonsense") == order("") == ["w1", "w2", "w10"]
    assert order("-age") == ["w10", "w2", "w1"]
    workloads = pane(source, "workloads", options={"select.sort.workloads": "label"})
    assert column(workloads, "label") == ["w1", "w2", "w10"]


def test_numbers_in_names_sort_as_numbers():
    assert sorted(["w10", "w2", "W1", "x", "²"], key=natural)[:3] == ["W1", "w2", "w10"]


def test_parameters_that_differ_are_columns(demo, source):
    demo.quickstart()
    keys = [one["key"] for one in pane(source)["columns"] if one["key"].startswith("param.")]
    assert keys == ["param.model"]  # all have the same batch-size
    demo.writer.put_params(demo.run_ids["mix b"], {f"p{number:02}": "1" for number in range(20)})
    refresh(source)
    sent = answer(source, View())
    keys = [one["key"] for one in sent["panes"]["runs"]["columns"] if "param." in one["key"]]
    assert len(keys) == 12
    assert sent["params_left_out"] == 9


def test_only_the_rows_in_sight_are_sent_and_what_is_in_sight_stays(demo, source):
    for number in range(200):
        demo.workload("study", f"{number}", [demo.run("a", "net", 0.05, epochs=1)])
    first = pane(source)
    assert (first["total"], first["start"], len(first["rows"])) == (200, 0, FIRST_ROWS)

    def ask(**wish):
        return {"n": 1, "runs": {"list": first["list"], **wish}}

    sent = pane(source, ask=ask(start=100, count=20))
    assert column(sent, "run") == [str(number) for number in range(99, 79, -1)]
    anchor = sent["rows"][5]["id"]
    demo.workload("study", "new", [demo.run("a", "net", 0.05, epochs=1)])
    refresh(source)
    sent = pane(source, ask=ask(start=100, count=20, anchor=anchor, anchor_at=105))
    assert (sent["anchor_at"], sent["start"]) == (106, 101)
    # Of another list the beginning is sent, or what is around the focus.
    assert pane(source, ask=ask(start=100, count=20), search="net")["start"] == 0
    catalog = read_catalog(source, "study")
    deep = catalog.workloads[20].record.workload_id
    workloads = pane(source, "workloads", workload=deep)
    assert workloads["start"] <= workloads["focus"] < workloads["start"] + FIRST_ROWS
    for senseless in (-5, 10**12, "x", None, 1.5):
        assert pane(source, ask=ask(start=senseless, count=senseless))["rows"] is not None


def test_the_basket_names_what_is_picked_and_what_is_missing(demo, source):
    demo.quickstart()
    demo.workload("other", "w", [demo.run("a", "net", 1.0)])
    picks = (
        Pick("other"),
        Pick.run("quickstart", demo.run_ids["mix b"]),
        Pick.run("quickstart", "0" * 12),
    )
    basket = answer(source, View(picks=picks))["basket"]
    assert not basket["automatic"]
    assert basket["picks"] == [str(pick) for pick in picks]
    other, own = basket["groups"]
    assert (other["entries"][0]["label"], other["entries"][0]["detail"]) == ("everything", "1 run")
    assert [entry["label"] for entry in own["entries"]] == ["mix b", "run 000000000000"]
    assert own["entries"][1]["missing"]
    assert basket["notes"] == ["1 pick not in this store"]
    assert basket["runs"] == "2 runs"


def test_nothing_recorded_is_another_page_but_nothing_found_is_none(demo, source):
    with pytest.raises(NothingRecordedError):
        answer(source, View())
    demo.quickstart()
    refresh(source)
    sent = answer(source, View(search="nothing-like-this"))
    assert [each["total"] for each in sent["panes"].values()] == [0, 0, 0]
    assert sent["count"] == "0 of 6 runs"
