"""Picks as addresses have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.frontend.picks import MAX_PICKS, Pick, PickKind, format_picks, parse_picks

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
