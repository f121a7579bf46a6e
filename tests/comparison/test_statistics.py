"""Intervals of ratios and differences, against scipy and against distributions that are known."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import pytest
import scipy  # its parts when they are used
from hypothesis import given
from hypothesis import strategies as st

from radt.analysis.estimates import (
    MOST_REPEATS,
    Effect,
    EffectScale,
    Method,
    effect,
    holm,
    mean_interval,
    repeats_to_detect,
)

A = [2.69, 2.71, 2.66, 2.75, 2.70]
B = [2.04, 2.06, 2.01, 2.10, 2.03]


def interval_of(found: Effect) -> tuple[float, float]:
    assert found.interval is not None
    return found.interval.low, found.interval.high


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_a_mean_as_scipy_has_it(confidence: float) -> None:
    found = mean_interval(A, confidence)
    assert found is not None
    expected = scipy.stats.ttest_1samp(A, 0).confidence_interval(confidence)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_pairs_as_scipy_has_them(confidence: float) -> None:
    found = effect(A, B, paired=True, confidence=confidence)
    expected = scipy.stats.ttest_rel(np.log(B), np.log(A))
    bounds = expected.confidence_interval(confidence)
    assert (found.scale, found.method, found.counts) == (EffectScale.RATIO, Method.PAIRED, (5, 5))
    assert found.value == pytest.approx(math.exp(np.mean(np.log(B)) - np.mean(np.log(A))))
    assert interval_of(found) == pytest.approx((math.exp(bounds.low), math.exp(bounds.high)))
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize("b", [B, B[:3], [1.0, 9.0]])
def test_sides_of_their_own_as_scipy_has_them(b: list[float]) -> None:
    found = effect(A, b)
    expected = scipy.stats.ttest_ind(np.log(b), np.log(A), equal_var=False)
    bounds = expected.confidence_interval(0.95)
    assert (found.method, found.counts) == (Method.WELCH, (5, len(b)))
    assert interval_of(found) == pytest.approx((math.exp(bounds.low), math.exp(bounds.high)))
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize("paired", [True, False])
def test_values_that_are_not_above_zero_have_a_difference(paired: bool) -> None:
    a, b = [0.0, 1.0, -2.0], [5.0, 7.0, 6.0]
    found = effect(a, b, paired=paired)
    test = scipy.stats.ttest_rel(b, a) if paired else scipy.stats.ttest_ind(b, a, equal_var=False)
    bounds = test.confidence_interval(0.95)
    assert found.scale is EffectScale.DIFFERENCE
    assert found.value == pytest.approx(6 + 1 / 3)
    assert interval_of(found) == pytest.approx((bounds.low, bounds.high))
    assert repeats_to_detect(found, 0.05) is None


def test_one_against_the_other_is_the_other_way_round() -> None:
    there, back = interval_of(effect(A, B)), interval_of(effect(B, A))
    assert there == pytest.approx((1 / back[1], 1 / back[0]))


@pytest.mark.parametrize(("a", "b"), [([2.0], [3.0]), ([2.0], B), (A, [3.0])])
def test_a_single_value_has_no_interval(a: list[float], b: list[float]) -> None:
    found = effect(a, b)
    assert (found.method, found.interval, found.p_value) == (Method.NONE, None, None)
    assert found.value == pytest.approx(
        math.exp(np.mean(np.log(b)) - np.mean(np.log(a))), rel=1e-12
    )


@pytest.mark.parametrize("paired", [True, False])
def test_values_without_spread(paired: bool) -> None:
    same = effect([6e9] * 3, [6e9] * 3, paired=paired)
    assert (interval_of(same), same.value, same.p_value) == ((1.0, 1.0), 1.0, 1.0)
    # 0.1 + 0.2 and 0.3 were rounded differently, and are equal.
    rounded = effect([0.1 + 0.2, 0.3, 0.3], [0.3, 0.3, 0.1 + 0.2], paired=paired)
    assert (interval_of(rounded), rounded.p_value) == ((1.0, 1.0), 1.0)
    twice = effect([3e9] * 3, [6e9] * 3, paired=paired)
    assert interval_of(twice) == pytest.approx((2.0, 2.0))
    assert twice.p_value == 0.0
    nothing = effect([0.0] * 3, [0.0] * 3, paired=paired)
    assert (interval_of(nothing), nothing.p_value) == ((0.0, 0.0), 1.0)


def test_values_that_are_worlds_apart() -> None:
    low, high = interval_of(effect([1e-300, 1.0], [1.0, 1e300]))
    assert low == 0.0
    assert high == math.inf


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("b", [[math.nan, 2.0], [2.0, math.nan], [2.0, math.inf], [-math.inf, 2.0]])
def test_a_value_that_is_not_finite_leaves_no_interval(b: list[float], paired: bool) -> None:
    for found in (effect([1.0, 2.0], b, paired=paired), effect(b, [1.0, 2.0], paired=paired)):
        assert (found.method, found.interval, found.p_value) == (Method.NONE, None, None)
        assert not found.is_finite
        has_ratio = all(value > 0 for value in b)
        assert found.scale is (EffectScale.RATIO if has_ratio else EffectScale.DIFFERENCE)
        assert repeats_to_detect(found, 0.05) is None


def test_pairs_need_each_other() -> None:
    with pytest.raises(ValueError, match="5 and 3 values cannot be paired"):
        effect(A, B[:3], paired=True)


def drawn(count: int, spread: float, ratio: float = 1.0) -> Callable[[np.random.Generator], list]:
    return lambda rng: list(ratio * np.exp(spread * rng.standard_normal(count)))


RATIO = 1.3
#: Four standard errors of a share of 0.95 in so many draws.
#: Few by default; as many as are exact in a full run (`make test-full`).
DRAWS, TOLERANCE = (3000, 0.016) if os.environ.get("HYPOTHESIS_PROFILE") == "full" else (600, 0.025)


@pytest.mark.parametrize(
    ("a", "b", "tolerance"),
    [
        (drawn(5, 0.05), drawn(5, 0.05, RATIO), TOLERANCE),
        (drawn(4, 0.20), drawn(8, 0.05, RATIO), TOLERANCE),
        # With few on one side Welch's approximation is known to be a little short of it.
        (drawn(10, 0.01), drawn(3, 0.01, RATIO), 2 * TOLERANCE),
    ],
    ids=["alike", "unequal", "few"],
)
def test_unpaired_intervals_hold_the_truth_as_often_as_they_say(
    a: Callable[[np.random.Generator], list],
    b: Callable[[np.random.Generator], list],
    tolerance: float,
) -> None:
    rng = np.random.default_rng(7)
    found = (effect(a(rng), b(rng)).interval for _ in range(DRAWS))
    held = np.mean([one is not None and one.holds(RATIO) for one in found])
    assert held == pytest.approx(0.95, abs=tolerance)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_paired_intervals_hold_the_truth_as_often_as_they_say(confidence: float) -> None:
    """What drifts from round to round, much more than B differs from A, does not matter."""
    rng = np.random.default_rng(8)
    held, widths = [], []
    for _ in range(DRAWS):
        drift = np.exp(0.3 * rng.standard_normal(4))
        a = drift * np.exp(0.01 * rng.standard_normal(4))
        b = RATIO * drift * np.exp(0.01 * rng.standard_normal(4))
        found = effect(list(a), list(b), paired=True, confidence=confidence).interval
        assert found is not None
        held.append(found.holds(RATIO))
        widths.append(found.high / found.low)
    assert np.mean(held) == pytest.approx(
        confidence, abs=TOLERANCE * (2 if confidence < 0.9 else 1)
    )
    assert np.median(widths) < 1.06


def test_a_multiple_has_the_spread_of_what_it_is_a_multiple_of() -> None:
    """Slowdowns against baselines: each of four sets varies, and all of it counts."""
    rng = np.random.default_rng(9)
    held, alone = [], []
    for _ in range(DRAWS):
        a, b = drawn(5, 0.02)(rng), drawn(5, 0.02, RATIO)(rng)
        bases = [drawn(5, 0.05)(rng), drawn(4, 0.05)(rng)]
        multiples = [
            [value / np.mean(base) for value in values]
            for values, base in ((a, bases[0]), (b, bases[1]))
        ]
        first, second = ([value / np.mean(base) for value in base] for base in bases)
        found = effect(*multiples, references=(first, second)).interval
        without = effect(*multiples).interval
        assert found is not None
        assert without is not None
        held.append(found.holds(RATIO))
        alone.append(without.holds(RATIO))
    assert np.mean(held) == pytest.approx(0.95, abs=TOLERANCE)
    assert np.mean(alone) < 0.85


def test_what_is_a_multiple_of_the_same_needs_no_spread_of_it() -> None:
    base = [0.9, 1.1]
    assert effect(A, B, references=(base, base)) == effect(A, B)
    assert effect(A, B, references=([1.0], [0.9, 1.1])).method is Method.NONE


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("spread", [0.001, 0.01, 0.05])
def test_so_many_repeats_tell_five_per_cent(paired: bool, spread: float) -> None:
    rng = np.random.default_rng(10)
    found = effect(drawn(6, spread)(rng), drawn(6, spread)(rng), paired=paired)
    count = repeats_to_detect(found, 0.05)
    assert count is not None

    def width(count: int) -> float:
        if paired:
            error, degrees = math.sqrt(found.variances[0] / count), count - 1
        else:
            x, y = (one / count for one in found.variances)
            error, degrees = math.sqrt(x + y), (x + y) ** 2 / ((x**2 + y**2) / (count - 1))
        return 2 * scipy.stats.t.ppf(0.975, degrees) * error

    assert width(count) <= math.log(1.05)
    assert count == 2 or width(count - 1) > math.log(1.05)


def test_there_is_an_end_to_repeats() -> None:
    assert repeats_to_detect(effect([1.0, 50.0], [1.0, 90.0]), 0.05) == MOST_REPEATS
    assert repeats_to_detect(effect([2.0] * 3, [3.0] * 3), 0.05) == 2
    assert repeats_to_detect(effect([2.0], [3.0]), 0.05) is None


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_by_its_definition(p_values: list[float]) -> None:
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    expected = np.empty(len(p_values))
    expected[order] = np.maximum.accumulate(
        np.minimum(1, factors * np.array(p_values, float)[order])
    )
    assert holm(p_values) == pytest.approx(list(expected))


def test_holm_keeps_false_alarms_of_a_set_rare() -> None:
    rng = np.random.default_rng(11)
    alarms = [min(holm(list(rng.random(20)))) <= 0.05 for _ in range(DRAWS)]
    assert np.mean(alarms) == pytest.approx(0.05, abs=TOLERANCE)
