"""The view: the same in an address, in a page and in a file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.errors import UsageError
from radt.frontend.data.spec import (
    OVER,
    Aggregate,
    AxisRange,
    BoardSpec,
    ChartSpec,
    Level,
    Pick,
    Relative,
    XAxis,
    with_slots,
)
from radt.frontend.view import MAX_QUERY, View

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
ids = st.uuids().map(lambda one: one.hex[:12])
picks = st.one_of(texts.map(Pick), st.builds(Pick.run, texts, ids))
axes = st.sampled_from([x for x in XAxis if x is not XAxis.METRIC])
charts = st.builds(
    ChartSpec,
    metric=texts,
    level=st.none() | st.sampled_from(Level),
    aggregate=st.sampled_from(Aggregate),
    x=st.none() | axes,
    over=st.just("") | texts,
    second=st.just("") | texts,
    log_x=st.booleans(),
    log=st.booleans(),
    hidden=st.lists(texts, max_size=2).map(tuple),
    columns=st.integers(1, 3),
)
views = st.builds(
    View,
    picks=st.none() | st.lists(picks, max_size=4, unique=True).map(tuple),
    search=st.just("") | texts,
    experiment=st.none() | texts,
    workload=st.none() | ids,
    charts=st.none() | st.lists(charts, max_size=3).map(lambda them: with_slots(tuple(them))),
    board=st.builds(
        BoardSpec,
        level=st.sampled_from(Level),
        x=axes,
        smoothing_pct=st.sampled_from([0.0, 2.5, 50.0]),
        relative=st.sampled_from(Relative),
        monochrome=st.booleans(),
    ),
    windows=st.dictionaries(
        axes | texts.map(OVER.__add__), st.just(AxisRange(0.5, 12.25)), max_size=2
    ),
    options=st.dictionaries(st.sampled_from(["select.sort", "report.sort"]), texts, max_size=2),
)


@given(views)
def test_all_three_forms_say_all(view):
    assert View.from_query("?" + view.to_query()) == view
    assert View.from_json(json.loads(json.dumps(view.to_json()))) == view
    assert View.from_file(view.to_file()) == view


def test_nothing_chosen_is_an_empty_address():
    assert View().to_query() == ""
    assert View.from_query("") == View.from_query(None) == View()


def test_nothing_picked_differs_from_nothing_chosen():
    assert View.from_query("?" + View(picks=()).to_query()).picks == ()
    assert View.from_query("?" + View(charts=()).to_query()).charts == ()


@pytest.mark.parametrize("zoom", ["", "1", "5,1", "a,b", "nan,1", "0,inf", "1,2,3"])
def test_a_senseless_zoom_is_none(zoom):
    view = View.from_query(f"?t.barrier={zoom}&t.elsewhere=1,2&t.step=1,2")
    assert list(view.windows) == ["step"]
    assert [problem.partition(" ")[0] for problem in view.problems] == [
        f"“t.barrier={zoom}”",
        "“t.elsewhere=1,2”",
    ]
    assert View.from_json(view.to_json()).problems == ()


@pytest.mark.parametrize("query", ["level=galaxy", "x=here", "smooth=-1", "rel=1", "c=;x=step"])
def test_what_makes_no_sense_is_left_out(query):
    view = View.from_query(query)
    assert view.board == BoardSpec()
    assert not view.charts


def test_endless_addresses_are_cut():
    assert len(View.from_query("q=" + "x" * 10 * MAX_QUERY).search) <= MAX_QUERY


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"format": "other"}', '{"format": "radt-view", "version": "1"}'),
        pytest.param("[" * 100_000, id="brackets"),
    ],
)
def test_other_files_are_refused(text):
    with pytest.raises(UsageError) as caught:
        View.from_file(text)
    assert caught.value.remedy


def test_files_of_a_later_radt_are_refused():
    content = json.loads(View().to_file())
    with pytest.raises(UsageError, match="later radt wrote it"):
        View.from_file(json.dumps(content | {"version": content["version"] + 1}))
