"""Differences of counters: what was counted comes out again, whatever happened in between."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.model import Scope, SeriesKind
from radt.store.counters import increases, rate_unit, rates, total_of
from radt.store.records import Samples, SeriesRecord

S = 1_000_000_000
NAN = math.nan


def at(*seconds: float) -> np.ndarray:
    return np.array([round(second * S) for second in seconds], dtype=np.int64)


def readings(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def every_second(count: int) -> np.ndarray:
    return at(*range(count))


@pytest.mark.parametrize(
    ("values", "wraps_at", "expected"),
    [
        ((3, 5, 9), None, [2, 4]),
        ((3, 5, 2), None, [2, 2]),  # reset: 2 since then
        ((90, 95, 4), 100, [5, 9]),  # over the top
        ((20, 40, 5), 100, [20, 5]),  # 65 over the top is more than half: reset
        ((250, 4), 100, [4]),  # never above where it wraps, so it did something else
        ((3, NAN, 9), None, [6]),
        ((NAN, 3, math.inf, 9), None, [6]),
        ((5, 0), None, [0]),
        ((5, -3), None, [0]),  # nonsense does not count backwards
    ],
)
def test_increases(
    values: tuple[float, ...], wraps_at: float | None, expected: list[float]
) -> None:
    found = increases(every_second(len(values)), readings(*values), wraps_at)
    assert found.amounts.tolist() == expected


def counter(wraps_at: float | None = None) -> SeriesRecord:
    return SeriesRecord(
        *("r", 0, "top", "m", "By", Scope.PROCESS, SeriesKind.COUNTER), wraps_at=wraps_at
    )


def test_nothing_to_tell_from_one_reading() -> None:
    for samples in (
        Samples(at(), readings()),
        Samples(at(1), readings(7)),
        Samples(at(1, 2), readings(7, NAN)),
    ):
        assert total_of(samples, counter()) is None
        assert len(rates(samples, counter())) == 0
    assert total_of(Samples(at(1, 2), readings(7, 7)), counter()) == 0.0


def test_a_rate_is_that_of_the_time_since_the_reading_before() -> None:
    found = rates(Samples(at(0, 1, 3, 4, 8), readings(10, 12, 20, NAN, 30)), counter())
    assert found.times_ns.tolist() == at(1, 3, 8).tolist()
    assert found.values.tolist() == [2.0, 4.0, 2.0], "the last: 10 in 5 s since the value before"


def test_two_readings_of_one_instant_make_no_infinite_rate() -> None:
    samples = Samples(at(0, 1, 1, 2), readings(0, 5, 6, 8))
    assert rates(samples, counter()).times_ns.tolist() == at(1, 2).tolist()
    assert total_of(samples, counter()) == 8.0


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("By", "By/s"), ("J", "W"), ("s", "1"), ("1", "1/s"), ("", "1/s"), ("{op}", "{op}/s")],
)
def test_units_of_rates(unit: str, expected: str) -> None:
    assert rate_unit(unit).unit == expected


def test_emissions_are_shown_by_the_hour() -> None:
    assert (rate_unit("g").unit, rate_unit("g").factor) == ("g/h", 3600.0)


steps = st.lists(st.integers(0, 49), max_size=60)


@given(steps, st.integers(0, 99))
def test_wraps_lose_nothing(amounts: list[int], first: int) -> None:
    """A counter that wraps at 100 and grows by less than half of it between two readings."""
    counted = first + np.concatenate(([0], np.cumsum(amounts))) if amounts else readings(first)
    found = increases(every_second(len(counted)), np.asarray(counted % 100, dtype=float), 100.0)
    assert found.amounts.tolist() == amounts


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=60), st.integers(0, 1000))
def test_resets_never_count_too_much(growth: list[tuple[int, bool]], first: int) -> None:
    """After a reset to 0 the counter grows by what was counted since, and nothing is negative."""
    values, counted = [float(first)], 0
    for amount, reset in growth:
        values.append(amount if reset else values[-1] + amount)
        counted += amount
    found = increases(every_second(len(values)), readings(*values))
    assert (found.amounts >= 0).all()
    assert found.amounts.sum() <= counted
    if not any(reset for _, reset in growth):
        assert found.amounts.sum() == counted


@given(
    st.lists(st.one_of(st.integers(0, 10**6).map(float), st.just(NAN)), max_size=40),
    st.lists(st.integers(1, 10**9), min_size=40, max_size=40),
    st.sampled_from([None, 2.0**20]),
)
def test_rates_times_seconds_are_the_total(
    values: list[float], pauses_ns: list[int], wraps_at: float | None
) -> None:
    times = np.cumsum(pauses_ns, dtype=np.int64)[: len(values)]
    array = readings(*values)
    found = increases(times, array, wraps_at)
    known = rates(Samples(times, array), counter(wraps_at)).values
    assert len(known) == len(found.amounts)
    whole = total_of(Samples(times, array), counter(wraps_at))
    assert math.isclose(float((known * found.seconds).sum()), whole or 0.0, rel_tol=1e-9)
