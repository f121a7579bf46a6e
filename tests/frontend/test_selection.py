"""Picks in addresses, and the runs that they select."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.frontend.data.catalog import AUTOMATIC_RUNS, read_catalog
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.spec import MAX_PICKS, Level, Pick, PickKind, format_picks, parse_picks
from radt.frontend.selection import MAX_RUNS, read_selection
from radt.frontend.view import View
from radt.tags import PROFILED

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
ids = st.uuids().map(lambda one: one.hex[:12])
picks = st.one_of(
    names.map(Pick),
    st.builds(Pick.workload, names, ids),
    st.builds(Pick.run, names, ids),
)


@given(st.lists(picks, max_size=8, unique=True))
def test_addresses_keep_picks_and_their_order(given_picks):
    assert parse_picks(format_picks(given_picks)) == tuple(given_picks)
    assert all(Pick.parse(str(pick)) == pick for pick in given_picks)


def test_neighbours_share_their_experiment():
    given_picks = [Pick.workload("a b", "w1"), Pick.run("a b", "r1"), Pick("c"), Pick.run("c", "2")]
    assert format_picks(given_picks) == ["a%20b:ww1,rr1", "c", "c:r2"]


@pytest.mark.parametrize("text", ["", ":r1", "x:", "x:z1", "x:r", "x" * 600])
def test_what_makes_no_sense_is_no_pick(text):
    assert parse_picks([text]) == ()
    assert Pick.parse(text) is None


def test_ids_are_as_short_as_links_want_them():
    assert Pick.run("x", "f" * 32).id == "f" * 12
    assert parse_picks(["x:r" + "f" * 32]) == (Pick("x", PickKind.RUN, "f" * 12),)


def test_an_address_cannot_ask_for_any_number():
    many = ",".join(f"r{number:012x}" for number in range(10 * MAX_PICKS))
    assert len(parse_picks([f"x:{many}"])) == MAX_PICKS
    assert len(parse_picks([f"x{number}" for number in range(10 * MAX_PICKS)])) == MAX_PICKS


def titles(selection):
    return [run.short for run in selection.runs.values()]


def refresh(source):
    source._hold_until = 0.0
    source.revision()


def test_without_picks_the_newest_whole_workloads_that_began_are_shown(demo, source):
    demo.quickstart("older")
    demo.quickstart()
    selection = read_selection(source, View())
    assert selection.automatic
    assert selection.experiments == ("quickstart",)
    assert len(selection.runs) == 6
    for number in range(3):
        demo.workload("quickstart", f"x{number}", [demo.run(letter, "n", 1.0) for letter in "abc"])
    refresh(source)
    selection = read_selection(source, View())
    assert len(selection.runs) <= AUTOMATIC_RUNS
    assert titles(selection) == ["x1 a", "x1 b", "x1 c", "x2 a", "x2 b", "x2 c"]
    assert read_selection(source, View(experiment="older")).experiments == ("older",)


def test_profiled_workloads_are_chosen_only_where_there_is_nothing_else(demo, source):
    pair = [demo.run(letter, "net", 2.0) for letter in "ab"]
    demo.workload("study", "pair", pair)
    demo.writer.put_tags(pair[0].run_id, {PROFILED: "nsys"})
    assert titles(read_selection(source, View())) == ["pair a", "pair b"]
    demo.workload("study", "solo", [demo.run("a", "net", 1.0)])
    refresh(source)
    assert titles(read_selection(source, View())) == ["solo"]
    assert titles(read_selection(source, View(picks=(Pick("study"),)))) == [
        "pair a",
        "pair b",
        "solo",
    ]


def test_picks_become_units_in_the_order_of_the_experiment(demo, source):
    demo.quickstart()
    ids = demo.run_ids
    three = read_catalog(source, "quickstart").runs[ids["three a"]].record.workload_id
    picks = (
        Pick.run("quickstart", ids["mix b"]),
        Pick.workload("quickstart", three),
        Pick.run("quickstart", "0" * 12),
    )
    selection = read_selection(source, View(picks=picks))
    assert titles(selection) == ["three a", "three b", "three c", "mix b"]
    assert [unit.whole for unit in selection.units] == [True, False]
    assert selection.missing == picks[2:]
    assert not selection.automatic
    drawn = selection.drawn_at(Level.AUTO)
    assert [drawn[run_id] for run_id in selection.runs] == [True, True, True, False]
    assert [run.short for run in selection.find(picks[0])] == ["mix b"]


def test_runs_of_a_sweep_are_named_by_what_differs_and_drawn_as_runs(demo, source):
    demo.sweep()
    for name, run_id in demo.run_ids.items():
        demo.writer.put_params(run_id, {"output_dir": f"runs/{name}"})
    rates = ["lr 0.001", "lr 0.003", "lr 0.01", "lr 0.03", "lr 0.1", "lr 0.3"]
    selection = read_selection(source, View(picks=(Pick("sweep"),)))
    assert titles(selection) == rates
    assert [run.title for run in selection.runs.values()] == rates
    assert not any(selection.drawn_at(Level.AUTO).values())
    assert all(selection.drawn_at(Level.WORKLOAD).values())
    # Two of a batch, with the next one.
    some = [Pick.run("sweep", run_id) for run_id in list(selection.runs)[1:4]]
    assert titles(read_selection(source, View(picks=some))) == rates[1:4]
    # Collocated runs beside them keep their names.
    demo.quickstart()
    refresh(source)
    both = read_selection(source, View(picks=(Pick("sweep"), Pick("quickstart"))))
    assert titles(both)[5:8] == ["sweep lr 0.3", "quickstart solo", "quickstart three a"]
    drawn = both.drawn_at(Level.AUTO)
    assert [drawn[run_id] for run_id in both.runs] == [False] * 6 + [True] * 6


def test_repeats_within_a_sweep_and_named_workloads_stay_distinct(demo, source):
    for label, rates in (("0", "ab"), ("1", "ab"), ("warm-up", "cd"), ("final", "e")):
        rows = [
            demo.run(letter, "train", 1.0, params={"lr": rate})
            for letter, rate in zip("ab", rates, strict=False)
        ]
        demo.workload("study", label, rows)
    assert titles(read_selection(source, View(picks=(Pick("study"),)))) == [
        *("lr a (0 a)", "lr b (0 b)", "lr a (1 a)", "lr b (1 b)"),
        *("warm-up lr c", "warm-up lr d", "final"),
    ]


def test_several_experiments_are_told_apart_and_keep_their_colours(demo, source):
    demo.quickstart("one")
    demo.quickstart("two")
    selection = read_selection(source, View(picks=(Pick("two"), Pick("one"))))
    first, *_, last = selection.runs.values()
    assert (first.short, first.ordinal) == ("two solo", 0)
    assert (last.short, last.ordinal) == ("one mix b", 5)


def test_more_runs_than_anybody_sees_are_counted(demo, source):
    letters = [f"{number:03}" for number in range(MAX_RUNS // 2 + 1)]
    for label in ("x", "y"):
        runs = [demo.run(letter, "n", 0.1, epochs=1) for letter in letters]
        demo.workload("many", label, runs)
    selection = read_selection(source, View(picks=(Pick("many"),)))
    assert (len(selection.runs), selection.left_out) == (MAX_RUNS, 2)


def test_nothing_recorded_is_said(demo, source):
    with pytest.raises(NothingRecordedError):
        read_selection(source, View())
    assert read_selection(source, View(picks=())).runs == {}
