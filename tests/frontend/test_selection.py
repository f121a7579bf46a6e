"""The page's address and what it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.frontend.selection import MAX_RUNS, Aggregate, Level, Selection, Window

names = st.text(st.characters(exclude_characters=",", exclude_categories=["Cs"]), min_size=1)
unique_names = st.lists(names, max_size=5, unique=True).map(tuple)


@given(
    experiment=st.none() | names,
    run_ids=st.none() | st.lists(st.uuids().map(lambda u: u.hex[:12]), max_size=4, unique=True),
    metrics=st.none() | unique_names,
    level=st.sampled_from(Level),
    aggregates=st.dictionaries(names, st.sampled_from(Aggregate), max_size=3),
)
def test_an_address_says_all(experiment, run_ids, metrics, level, aggregates):
    selection = Selection(
        experiment,
        None if run_ids is None else tuple(run_ids),
        metrics,
        level,
        Window(0.5, 12.25),
        aggregates,
    )
    assert Selection.from_query("?" + selection.to_query()) == selection


def test_nothing_chosen_is_an_empty_address():
    assert Selection().to_query() == ""
    assert Selection.from_query("") == Selection.from_query(None) == Selection()


def test_nothing_selected_differs_from_nothing_chosen():
    assert Selection.from_query("?" + Selection(run_ids=()).to_query()).run_ids == ()


@pytest.mark.parametrize("zoom", ["", "1", "5,1", "a,b", "nan,1", "0,inf", "1,2,3"])
def test_a_senseless_zoom_is_none(zoom):
    assert Selection.from_query(f"?t={zoom}").window is None


def test_a_senseless_level_is_the_default():
    assert Selection.from_query("?level=galaxy").level is Level.RUN


def test_an_address_cannot_ask_for_any_number_of_runs():
    many = ",".join(f"{number:012x}" for number in range(10 * MAX_RUNS))
    assert len(Selection.from_query(f"?r={many}").run_ids or ()) == MAX_RUNS
