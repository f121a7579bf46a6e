"""The table of runs: rows, groups, columns, order, and what the page sends of it."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest

import radt
from radt.analysis.estimates import mean_interval
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.run_table import read_table
from radt.frontend.data.spec import ColumnChoice, Pick
from radt.frontend.export.run_table import table_csv
from radt.frontend.pages.runs import FIRST_ROWS, answer, columns_to_choose, found_picks, picks_after
from radt.frontend.view import View
from radt.model import SOFTWARE, RunStatus, Scope, SeriesKind
from radt.render.labels import natural
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader
from radt.store.records import SeriesRecord
from radt.tags import PROFILED


def sent(source, columns=(), **view):
    """What the page gets for a view."""
    choices = tuple(map(ColumnChoice, columns)) or None
    return answer(source, {"view": View(columns=choices, **view).to_json()})


def names(answered):
    return [row["name"] for row in answered["rows"]]


def column(answered, key):
    """The cells of a column."""
    place = [one["key"] for one in answered["columns"]].index(key)
    return [row["cells"][place] for row in answered["rows"]]


def flat(**options):
    return {"runs.group": "none", **{f"runs.{name}": text for name, text in options.items()}}


def refresh(source):
    source._hold_until = 0.0
    source.revision()


def test_workloads_are_groups_and_the_newest_come_first(demo, source):
    demo.quickstart("older")
    demo.quickstart()
    found = sent(source)
    assert names(found)[:8] == ["mix", "a", "b", "three", "a", "b", "c", "solo"]
    assert found["rows"][0]["detail"] == "cnn-small + cnn-large"
    assert [row["level"] for row in found["rows"]][:4] == [1, 2, 2, 1]
    assert column(found, "status")[0] == ["FAILED", "failed"]
    assert (found["count"], found["total"]) == ("12 runs", 16)
    assert [one["name"] for one in found["experiments"]] == ["quickstart", "older"]
    run = found["rows"][1]
    assert run["href"] == f"./run?id={demo.run_ids['mix a']}"
    group = found["rows"][0]
    assert group["href"].startswith("./workload?e=quickstart&w=")
    closed = answer(source, {"view": {}, "toggled": [group["id"]]})
    assert names(closed)[:2] == ["mix", "three"]
    assert names(sent(source, options={"runs.open": "no"})) == ["mix", "three", "solo"] * 2
    one = sent(source, experiment="older")
    assert (one["count"], one["total"]) == ("6 runs", 8)


def test_every_state_of_a_run_has_its_word(demo, source):
    states = list(RunStatus)
    runs = [
        demo.run(letter, "n", 2.0, status=status)
        for letter, status in zip("abcdefgh", states, strict=True)
    ]
    demo.workload("states", "all", runs)
    found = sent(source)
    assert [cell[1] for cell in column(found, "status")] == [
        "running",  # the workload
        *("waiting", "running", "finished", "failed", "killed", "timed out", "OOM", "skipped"),
    ]
    clocks = column(found, "duration")[1:]
    assert clocks[2] == "00:12"
    assert isinstance(clocks[1], int)
    assert (found["statuses"][0]["word"], found["statuses"][0]["count"]) == ("waiting", 1)
    only = sent(source, options={"runs.status": "OOM,KILLED"})
    assert names(only) == ["all", "e", "g"]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("FINISHED", "OOM"), "OOM"),
        (("OOM", "FAILED"), "FAILED"),
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
    assert column(sent(source), "status")[0][0] == expected


def test_any_columns_sort_and_what_has_no_value_comes_last(demo, source):
    for label, momentum in (("w10", "0.9"), ("w2", "1e-3"), ("w1", None), ("w3", "0.9")):
        run = demo.run("a", "net", 1.0)
        demo.workload("study", label, [run])
        if momentum:
            demo.writer.put_params(run.run_id, {"momentum": momentum})

    def order(sort):
        return names(sent(source, options={"runs.sort": sort}))

    assert order("workload") == ["w1", "w2", "w3", "w10"]
    assert order("-workload") == ["w10", "w3", "w2", "w1"]
    assert order("param.momentum,workload") == ["w2", "w3", "w10", "w1"]
    assert order("-param.momentum,-workload") == ["w10", "w3", "w2", "w1"]
    assert order("age") == order("nonsense") == order("") == ["w3", "w1", "w2", "w10"]


def test_numbers_in_names_sort_as_numbers():
    assert sorted(["w10", "w2", "W1", "x", "²"], key=natural)[:3] == ["W1", "w2", "w10"]


def test_metrics_are_those_of_radt_load_and_the_best_is_marked(demo, source):
    demo.quickstart()
    keys = ("accuracy.max", "accuracy.last", "loss.min", "process.memory.rss.mean")
    found = sent(source, keys, options=flat(sort="-accuracy.max"))
    frame = radt.load(list(demo.run_ids.values()), home=demo.store.parent)
    table = read_table(source, View(columns=tuple(map(ColumnChoice, keys))))
    for key in keys:
        metric, _, statistic = key.rpartition(".")
        of_metric = frame[frame["metric"] == metric].groupby("run_id")["value"]
        expected = getattr(of_metric, statistic)()
        values = table.all_runs.columns.get(key).ranks
        for run_id, value in zip(table.all_runs.columns.run_ids, values, strict=True):
            assert value == pytest.approx(expected[run_id], rel=1e-12)
    highest = frame[frame["metric"] == "accuracy"].groupby("run_id")["value"].max()
    assert found["rows"][0]["pick"].endswith(str(highest.idxmax())[:12])
    assert 0 in found["rows"][0]["best"]
    assert float(found["rows"][0]["cells"][0]) == pytest.approx(highest.max(), abs=1e-4)
    assert sum(0 in row["best"] for row in found["rows"]) == 1
    lowest = frame[frame["metric"] == "loss"].groupby("run_id")["value"].min().idxmin()
    assert [row["pick"][-12:] for row in found["rows"] if 2 in row["best"]] == [lowest[:12]]
    labels = [one["label"] for one in found["columns"]]
    assert labels == ["accuracy max", "accuracy last", "loss min", "process.memory.rss mean, MB"]


def test_a_column_has_one_unit(demo, source):
    demo.quickstart()
    found = sent(source, ["duration", "time_per_epoch"], options={"runs.group": "none"})
    assert [one["label"] for one in found["columns"]] == ["Took", "Time/epoch, s"]
    assert column(found, "duration") == ["00:39", "00:51", "01:00", "01:02", "01:04", "00:23"]
    solo = column(found, "time_per_epoch")[-1]
    assert float(solo) == pytest.approx(4.2, rel=0.05)


def test_groups_have_means_and_intervals(demo, source):
    values = {"sgd": [0.5, 0.7, 0.6], "adam": [0.9, 0.8], "none": [0.1]}
    for optimizer, accuracies in values.items():
        for accuracy in accuracies:
            run = demo.run("a", "net", 1.0)
            demo.workload("study", f"{optimizer} {accuracy}", [run])
            demo.writer.put_params(run.run_id, {"score": str(accuracy)})
            if optimizer != "none":
                demo.writer.put_params(run.run_id, {"optimizer": optimizer})
    options = {"runs.group": "param.optimizer", "runs.sort": "-param.score"}
    found = sent(source, ["param.score", "param.optimizer"], options=options)
    assert [(row["name"], row["detail"]) for row in found["rows"]] == [
        ("adam", "2 runs"),
        ("sgd", "3 runs"),
        ("none", "1 run"),
    ]
    assert column(found, "param.optimizer") == ["adam", "sgd", ""]
    *cells, single = column(found, "param.score")
    assert float(single) == 0.1
    for cell, accuracies in zip(cells, (values["adam"], values["sgd"]), strict=True):
        interval = mean_interval(accuracies)
        mean, _, half = cell.partition(" ± ")
        assert float(mean) == pytest.approx(np.mean(accuracies), abs=1e-3)
        assert float(half) == pytest.approx((interval.high - interval.low) / 2, abs=1e-3)
    opened = answer(source, {"view": View(options=options).to_json(), "toggled": ["gadam"]})
    assert names(opened) == ["adam", "adam 0.9", "adam 0.8", "sgd", "none"]
    ticked = picks_after(
        source,
        {
            "view": View(options=options).to_json(),
            "steps": [{"group": "gadam", "on": True}],
        },
    )
    assert ticked["picks"] == [row["pick"] for row in opened["rows"][1:3]]


def test_the_dashboard_chooses_what_tells_runs_apart(demo, source):
    demo.quickstart()
    assert [one["key"] for one in sent(source)["columns"]] == [
        *("status", "duration", "loss.min", "accuracy.max", "time_per_epoch"),
        *("param.model", "age"),  # all have the same batch-size
    ]
    sections = {one["title"]: one["items"] for one in columns_to_choose(source, {})["sections"]}
    assert [one["label"] for one in sections["Parameters"]] == ["batch-size", "model"]
    assert [one["label"] for one in sections["Logged metrics"]] == ["accuracy", "loss"]


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ([0, 1], "", "0.500 ± 6.353"),
        ([3, 4], "", "3.500 ± 6.353"),
        ([2, 2], "", "2"),
        ([2e9, 4e9], "By", "3 ± 12.706"),
    ],
)
def test_means_of_whole_numbers_are_not_rounded_to_whole_numbers(
    demo, source, values, unit, expected
):
    for value in values:
        run = demo.run("a", "net", 1.0)
        demo.workload("study", str(value), [run])
        demo.writer.add_series(
            [
                SeriesRecord(
                    *(run.run_id, 90, SOFTWARE, "score", unit, Scope.RUN, SeriesKind.GAUGE, "")
                )
            ]
        )
        demo.append(run.run_id, demo.origin_ns(run.run_id), 90, [1.0], [float(value)])
    found = sent(source, ["score.last"], options={"runs.group": "experiment"})
    assert column(found, "score.last")[0] == expected


def test_runs_that_are_not_comparable_say_so(demo, source):
    old, new = demo.run("a", "net", 2.0), demo.run("b", "net", 1.0)
    demo.workload("study", "pair", [old, new])
    demo.writer.put_tags(new.run_id, {PROFILED: "nsys"})
    with StoreReader(demo.writer.address) as reader:
        prune_run(reader, demo.writer, old.run_id, Keep.SUMMARIES)
    found = sent(source)
    assert column(found, "note") == [
        "",
        "beside a profiled run · thinned",
        "profiled by nsys",
    ]
    assert "points kept" in found["rows"][1]["title"]
    assert names(sent(source, search="pruned:kept", options=flat())) == ["pair a"]
    assert names(sent(source, search="profiled:nsys", options=flat())) == ["pair b"]


def test_only_the_rows_in_sight_are_sent_and_what_is_in_sight_stays(demo, source):
    for number in range(200):
        demo.workload("study", f"{number}", [demo.run("a", "net", 0.05, epochs=1)])
    first = sent(source)
    assert (first["total"], first["start"], len(first["rows"])) == (200, 0, FIRST_ROWS)

    def ask(**wish):
        return answer(source, {"view": {}, "list": first["list"], **wish})

    found = ask(start=100, count=20)
    assert names(found) == [str(number) for number in range(99, 79, -1)]
    anchor = found["rows"][5]["id"]
    demo.workload("study", "new", [demo.run("a", "net", 0.05, epochs=1)])
    refresh(source)
    found = ask(start=100, count=20, anchor=anchor, anchor_at=105)
    assert (found["shift"], found["start"]) == (1, 101)
    assert ask(start=100, count=20, list="another")["start"] == 0
    for senseless in (-5, 10**12, "x", None, 1.5):
        assert ask(start=senseless, count=senseless)["rows"] is not None


def test_what_is_ticked_and_what_is_found_can_be_compared(demo, source):
    demo.quickstart()
    demo.workload("other", "w", [demo.run("a", "net", 1.0)])
    picks = (Pick("other"), Pick.run("quickstart", "0" * 12))
    found = sent(source, picks=picks)
    assert found["picked"] == {
        "count": 1,
        "text": "1 run ticked",
        "notes": ["1 pick not in this store"],
        "runs": [demo.run_ids["w a"]],
    }
    assert [row["name"] for row in found["rows"] if row["tick"]] == ["w"]
    query = found_picks(source, {"view": {"search": "model:cnn-large"}})["query"]
    assert View.from_query(query).picks == (Pick.run("quickstart", demo.run_ids["mix b"]),)
    query = found_picks(source, {"view": {"experiment": "quickstart"}})["query"]
    assert View.from_query(query).picks == (Pick("quickstart"),)


def test_the_file_has_all_that_is_found_with_full_precision(demo, source):
    demo.quickstart()
    demo.writer.put_params(demo.run_ids["mix b"], {"note": "=1+1"})
    keys = ("status", "duration", "accuracy.max", "name", "workload", "param.note")
    view = View(columns=tuple(map(ColumnChoice, keys)), options={"runs.sort": "-accuracy.max"})
    text = table_csv(read_table(source, view))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 6
    header = text.splitlines()[0].split(",")
    assert len(set(header)) == len(header)
    best = [float(row["accuracy.max"]) for row in rows]
    assert best == sorted(best, reverse=True)
    (last,) = (row for row in rows if row["run_id"] == demo.run_ids["mix b"])
    assert (last["status"], last["param.note"], last["workload"]) == ("FAILED", "'=1+1", "mix")
    assert math.isfinite(float(last["duration"]))


def test_names_of_columns_in_the_file_are_not_formulas(demo, source):
    demo.quickstart()
    run_id = demo.run_ids["mix b"]
    series = [
        SeriesRecord(
            run_id, 90 + number, SOFTWARE, f"{start}cmd", "", Scope.RUN, SeriesKind.GAUGE, ""
        )
        for number, start in enumerate("=@")
    ]
    demo.writer.add_series(series)
    for record in series:
        demo.append(run_id, demo.origin_ns(run_id), record.series_no, [1.0], [2.0])
    view = View(columns=tuple(ColumnChoice(f"{record.metric}.max") for record in series))
    (header, *_) = csv.reader(io.StringIO(table_csv(read_table(source, view))))
    assert header[-2:] == ["'=cmd.max", "'@cmd.max"]


def test_nothing_recorded_is_another_page_but_nothing_found_is_none(demo, source):
    with pytest.raises(NothingRecordedError):
        sent(source)
    demo.quickstart()
    refresh(source)
    found = sent(source, search="nothing-like-this")
    assert (found["total"], found["count"]) == (0, "0 of 6 runs")
