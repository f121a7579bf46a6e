"""radt.loaders.Plateau: when to stop echoing."""

from __future__ import annotations

import json
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from radt.errors import LoaderError, UsageError
from radt.loaders import Plateau

accuracies = st.lists(st.floats(0, 1) | st.just(math.nan), max_size=20)


def test_the_patience_counts_values_that_do_not_grow() -> None:
    plateau = Plateau(patience=3, min_delta=0.01, at_latest=1.0)
    grown = [plateau.reached(value, 0.0) for value in (0.5, 0.6, 0.605, 0.61, math.nan)]
    assert grown == [False, False, False, False, True]
    assert plateau.reached(0.9, 0.0), "once reached, always reached"


def test_growth_starts_the_patience_anew() -> None:
    plateau = Plateau(patience=2, min_delta=0.0, at_latest=1.0)
    assert not any(plateau.reached(value, 0.0) for value in (0.5, 0.5, 0.6, 0.6, 0.7, 0.1))
    assert plateau.reached(0.7, 0.0)


def test_losses_are_given_as_their_negative() -> None:
    plateau = Plateau(patience=2, min_delta=0.1, at_latest=1.0)
    assert not any(plateau.reached(-loss, 0.0) for loss in (5.0, 4.0, 3.0, 2.95))
    assert plateau.reached(-2.95, 0.0)


def test_at_the_end_of_the_budget_it_is_time_in_any_case() -> None:
    plateau = Plateau()
    assert [plateau.reached(epoch / 8, epoch / 8) for epoch in range(1, 8)] == [False] * 5 + [
        True
    ] * 2


@given(accuracies, st.data())
def test_a_state_goes_on_in_the_same_way(values: list[float], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(values)))
    whole, before, after = Plateau(2, 0.05), Plateau(2, 0.05), Plateau(2, 0.05)
    expected = [whole.reached(value, 0.0) for value in values]
    got = [before.reached(value, 0.0) for value in values[:at]]
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert got + [after.reached(value, 0.0) for value in values[at:]] == expected


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(LoaderError, match="no 'without_growth'"):
        Plateau().load_state_dict({"best": 0.5})


@pytest.mark.parametrize(
    "arguments",
    [{"patience": 0}, {"min_delta": -0.1}, {"min_delta": math.nan}, {"at_latest": 1.5}],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="Expected patience"):
        Plateau(**arguments)  # type: ignore[arg-type]
