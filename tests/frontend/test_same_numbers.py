"""Every page has the same numbers: which runs count, what they are compared with, what is best."""

from __future__ import annotations

import numpy as np
import pytest

from radt.analysis.quantities import Quantity
from radt.frontend.data.catalog import read_catalog
from radt.frontend.data.explore import explored
from radt.frontend.data.machine_timeline import TimelineScope, read_timeline
from radt.frontend.data.report import read_shown
from radt.frontend.data.run_facts import slowdowns_of
from radt.frontend.data.run_table import read_table
from radt.frontend.data.spec import ColumnChoice, Pick
from radt.frontend.pages.explore import data_answer
from radt.frontend.pages.runs import answer
from radt.frontend.selection import read_selection
from radt.frontend.view import View
from radt.model import RunStatus
from radt.tags import ARCHIVED, YES
from tests.frontend.report_support import Planted, Study

STUDY = View(experiment="study")


def slowdown_everywhere(source, workload_id):
    """The slowdown of a workload's runs: Runs page, Workload page, and Report."""
    table = read_table(source, STUDY).all_runs.columns
    ratios = dict(zip(table.run_ids, table.get("vs_solo").ranks, strict=True))
    catalog = read_catalog(source, "study")
    runs = catalog.workloads_by_id[workload_id].runs
    of_page = slowdowns_of(source, catalog, workload_id)
    of_report = [
        group.mean(Quantity.SLOWDOWN)
        for entry in read_shown(source, STUDY).items
        if workload_id in entry.summary.workload_ids
        for group in entry.summary.groups
    ]
    return (
        [ratios[run.run_id] for run in runs],
        [of_page[run.run_id].ratio for run in runs],
        of_report * len(runs),
    )


@pytest.mark.parametrize("again_s", [2.0, 4.0])
def test_a_slowdown_is_the_same_on_every_page_after_a_row_ran_again(demo, source, again_s):
    demo.workload("study", "solo", [demo.run("a", "net", 3.0)])
    pair = demo.workload("study", "pair", [demo.run(letter, "net", 6.0) for letter in "ab"])
    demo.workload("study", "solo", [demo.run("a", "net", again_s)])

    for ratios in slowdown_everywhere(source, pair):
        assert ratios == [pytest.approx(6.0 / again_s)] * 2


def test_a_running_workload_has_a_slowdown_before_its_report(demo, source):
    demo.workload("study", "solo", [demo.run("a", "net", 3.0)])
    runs = [demo.run("a", "net", 6.0, status=RunStatus.RUNNING), demo.run("b", "net", 9.0)]
    pair = demo.workload("study", "pair", runs)

    columns = read_table(source, STUDY).all_runs.columns
    ratios = dict(zip(columns.run_ids, columns.get("vs_solo").ranks, strict=True))
    of_page = slowdowns_of(source, read_catalog(source, "study"), pair)
    for run, ratio in zip(runs, (2.0, 3.0), strict=True):
        assert ratios[run.run_id] == of_page[run.run_id].ratio == pytest.approx(ratio)


def archive(demo, workload, source):
    for run in workload:
        demo.writer.put_tags(run.run_id, {ARCHIVED: YES})
    source._hold_until = 0.0
    source.revision()


def test_archived_runs_are_left_out_everywhere_and_no_baselines(demo, source):
    old = demo.run("a", "net", 3.0)
    demo.workload("study", "old", [old])
    pair = demo.workload("study", "pair", [demo.run(letter, "net", 6.0) for letter in "ab"])
    assert slowdown_everywhere(source, pair)[0] == [pytest.approx(2.0)] * 2
    archive(demo, [old], source)

    assert answer(source, {"view": STUDY.to_json()})["count"] == "2 of 3 runs"
    assert len(explored(source, STUDY).runs) == 2
    shown = read_shown(source, STUDY)
    assert [entry.name for entry in shown.items] == ["pair"]
    assert shown.facts[:2] == ["1 workload", "3 runs, 2 count: 1 archived"]
    assert len(read_timeline(source, TimelineScope(experiment="study")).runs) == 2
    for picks in (None, (Pick("study"),)):
        assert len(read_selection(source, View(experiment="study", picks=picks)).runs) == 2
    named = View(picks=(Pick.run("study", old.run_id),))
    assert list(read_selection(source, named).runs) == [old.run_id]
    assert slowdowns_of(source, read_catalog(source, "study"), pair) == {}
    assert shown.items[0].summary.groups[0].mean(Quantity.SLOWDOWN) is None


def test_the_runs_of_a_report_are_those_of_the_table(demo, source):
    demo.workload("study", "pair", [demo.run(letter, "net", 6.0) for letter in "ab"])
    for epoch_s in (3.0, 2.0):
        demo.workload("study", "solo", [demo.run("a", "net", epoch_s)])
    demo.workload("other", "bad", [demo.run("a", "net", 1.0, status=RunStatus.FAILED)])

    found = answer(source, {"view": STUDY.to_json()})
    assert found["count"] == "4 runs"
    assert "4 runs, 3 count: 1 superseded" in read_shown(source, STUDY).facts
    place = [column["key"] for column in found["columns"]].index("note")
    assert [row["cells"][place] for row in found["rows"]].count("superseded") == 1
    # Its buttons count the runs of the experiment.
    assert [(one["word"], one["count"]) for one in found["statuses"]] == [("finished", 4)]
    everything = answer(source, {"view": {}})
    assert [one["count"] for one in everything["statuses"]] == [4, 1]


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.KILLED, RunStatus.RUNNING])
def test_what_does_not_count_is_never_the_best(demo, source, status):
    good, bad = demo.run("a", "net", 2.0), demo.run("a", "net", 1.0, status=status)
    other = demo.run("a", "net", 3.0)
    for number, run in enumerate((good, bad, other)):
        demo.workload("study", f"w{number}", [run])
    columns = tuple(map(ColumnChoice, ("time_per_epoch", "loss.min")))
    view = View(experiment="study", columns=columns, options={"runs.group": "none"})

    best = {row["run"]: row["best"] for row in answer(source, {"view": view.to_json()})["rows"]}
    assert best[bad.run_id] == []
    assert 0 in best[good.run_id]
    data = data_answer(source, {"view": STUDY.to_json()})
    assert dict(zip(data["ids"], data["counts"], strict=True)) == {
        good.run_id: True,
        bad.run_id: False,
        other.run_id: True,
    }


def test_the_pages_agree_on_which_values_are_better(demo, source):
    demo.quickstart("study")
    columns = read_table(source, STUDY).all_runs.columns
    choices = [
        choice
        for key, choice in explored(source, STUDY).choices.items()
        if key.startswith("metric:")
    ]
    assert len(choices) > 10
    for choice in choices:
        column = columns.get(choice.key.removeprefix("metric:"))
        assert column.better is choice.better, choice.key


def test_energy_of_a_run_is_that_of_the_report(store_path, source):
    store_path.parent.mkdir()
    study = Study(store_path)
    solo = study.workload("solo", [Planted("a", 2.0, watts=100.0, share_w=60.0)])
    rows = [
        Planted(letter, 4.0, watts=120.0, share_w=watts)
        for letter, watts in zip("ab", (40, 70), strict=True)
    ]
    pair = study.workload("pair", rows)
    ids = [study.run_id(solo, "a"), study.run_id(pair, "a"), study.run_id(pair, "b")]

    columns = read_table(source, STUDY).all_runs.columns
    places = [columns.run_ids.index(run_id) for run_id in ids]
    shares = columns.get("energy_of_runs").ranks[places].tolist()
    whole = columns.get("energy").ranks[places].tolist()
    summaries = {entry.name: entry.summary for entry in read_shown(source, STUDY).items}
    of_pair = summaries["pair"].groups[0].values[Quantity.ENERGY_OF_RUNS]
    assert shares[0] == pytest.approx(
        summaries["solo"].groups[0].values[Quantity.ENERGY_OF_RUNS].mean
    )
    assert sum(shares[1:]) == pytest.approx(of_pair.mean)
    # GPUs of several runs are the workload's.
    assert whole[0] == pytest.approx(summaries["solo"].values[Quantity.ENERGY].mean)
    assert np.isnan(whole[1:]).all()
