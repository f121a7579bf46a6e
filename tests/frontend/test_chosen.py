"""From picks to runs."""

from __future__ import annotations

import pytest

from radt.frontend.catalog import AUTOMATIC_RUNS, read_catalog
from radt.frontend.charts.spec import Level
from radt.frontend.chosen import MAX_RUNS, choose
from radt.frontend.keepers import NothingRecordedError
from radt.frontend.picks import Pick
from radt.frontend.view import View
from radt.store.tags import PROFILED


def titles(chosen):
    return [run.short for run in chosen.runs.values()]


def refresh(source):
    source._hold_until = 0.0
    source.revision()


def test_without_picks_the_newest_whole_workloads_that_began_are_shown(demo, source):
    demo.quickstart("older")
    demo.quickstart()
    chosen = choose(source, View())
    assert chosen.automatic
    assert chosen.experiments == ("quickstart",)
    assert len(chosen.runs) == 6
    for number in range(3):
        demo.workload("quickstart", f"x{number}", [demo.run(letter, "n", 1.0) for letter in "abc"])
    refresh(source)
    chosen = choose(source, View())
    assert len(chosen.runs) <= AUTOMATIC_RUNS
    assert titles(chosen) == ["x1 a", "x1 b", "x1 c", "x2 a", "x2 b", "x2 c"]
    assert choose(source, View(experiment="older")).experiments == ("older",)


def test_profiled_workloads_are_chosen_only_where_there_is_nothing_else(demo, source):
    pair = [demo.run(letter, "net", 2.0) for letter in "ab"]
    demo.workload("study", "pair", pair)
    demo.writer.put_tags(pair[0].run_id, {PROFILED: "nsys"})
    assert titles(choose(source, View())) == ["pair a", "pair b"]
    demo.workload("study", "solo", [demo.run("a", "net", 1.0)])
    refresh(source)
    assert titles(choose(source, View())) == ["solo"]
    assert titles(choose(source, View(picks=(Pick("study"),)))) == ["pair a", "pair b", "solo"]


def test_picks_become_units_in_the_order_of_the_experiment(demo, source):
    demo.quickstart()
    ids = demo.run_ids
    three = read_catalog(source, "quickstart").runs[ids["three a"]].record.workload_id
    picks = (
        Pick.run("quickstart", ids["mix b"]),
        Pick.workload("quickstart", three),
        Pick.run("quickstart", "0" * 12),
    )
    chosen = choose(source, View(picks=picks))
    assert titles(chosen) == ["three a", "three b", "three c", "mix b"]
    assert [unit.whole for unit in chosen.units] == [True, False]
    assert chosen.missing == picks[2:]
    assert not chosen.automatic
    drawn = chosen.drawn_at(Level.AUTO)
    assert [drawn[run_id] for run_id in chosen.runs] == [True, True, True, False]
    assert [run.short for run in chosen.find(picks[0])] == ["mix b"]


def test_several_experiments_are_told_apart_and_keep_their_colours(demo, source):
    demo.quickstart("one")
    demo.quickstart("two")
    chosen = choose(source, View(picks=(Pick("two"), Pick("one"))))
    first, *_, last = chosen.runs.values()
    assert (first.short, first.dash, first.ordinal) == ("two solo", 0, 0)
    assert (last.short, last.dash, last.ordinal) == ("one mix b", 1, 5)


def test_more_runs_than_anybody_sees_are_counted(demo, source):
    letters = [f"{number:03}" for number in range(MAX_RUNS // 2 + 1)]
    for label in ("x", "y"):
        runs = [demo.run(letter, "n", 0.1, epochs=1) for letter in letters]
        demo.workload("many", label, runs)
    chosen = choose(source, View(picks=(Pick("many"),)))
    assert (len(chosen.runs), chosen.left_out) == (MAX_RUNS, 2)


def test_nothing_recorded_is_said(demo, source):
    with pytest.raises(NothingRecordedError):
        choose(source, View())
    assert choose(source, View(picks=())).runs == {}
