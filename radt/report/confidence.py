"""Confidence intervals over repeats, and of one set of repeats against another.

Times, rates and amounts are compared as ratios: their logarithms are taken for normal, whose
intervals are Student's. A ratio of B to A and one of A to B then say the same, and none is below
zero. Where values are not all above zero, differences take the place of ratios.

Sources: B. L. Welch, The generalization of "Student's" problem, Biometrika 34 (1947);
S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statistics 6 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

#: What reports and comparisons use.
CONFIDENCE = 0.95
#: Values that are closer than this (relative) differ by how they were rounded, if at all.
_ROUNDING = 1e-12
#: More repeats than this are not counted one by one.
MOST_REPEATS = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends belong to it."""

    low: float
    high: float
    confidence: float = CONFIDENCE

    def holds(self, value: float) -> bool:
        """Whether a value is within."""
        return self.low <= value <= self.high

    def mapped(self, change: Callable[[float], float]) -> Interval:
        """Of a quantity that follows from this one, rising or falling with it."""
        ends = sorted((change(self.low), change(self.high)))
        return Interval(ends[0], ends[1], self.confidence)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """The mean's confidence interval by Student's t; None for fewer than two, or infinite, values.

    >>> found = mean_interval([1.0, 2.0, 3.0])
    >>> f"{found.low:.4f} to {found.high:.4f}"
    '-0.4841 to 4.4841'
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    mean, degrees = fmean(values), len(values) - 1
    half = _quantile(degrees, confidence) * stdev(values) / math.sqrt(len(values))
    return Interval(mean - half, mean + half, confidence)


class Scale(StrEnum):
    """How B is put against A."""

    RATIO = "ratio"  # B / A, the ratio of their geometric means
    DIFFERENCE = "difference"  # B - A, where a value is zero or below


class Method(StrEnum):
    """How the interval of an effect comes about."""

    PAIRED = "paired"  # Student's t of what B is against A in each repeat
    WELCH = "unpaired"  # Welch's t: each side has a spread of its own
    NONE = "none"  # a side has one value only: there is no interval


@dataclass(frozen=True, slots=True)
class Effect:
    """B against A.

    Attributes:
        scale: Whether ``value`` and ``interval`` are ratios or differences.
        value: B / A or B - A.
        method: How the interval comes about.
        counts: How many values of A and B it is made of.
        interval: None where a side has one value only.
        p_value: How often chance alone would show as much, two-sided; None likewise.
        variances: Of what one repeat adds, on the scale (of ratios that of logarithms): one of the
            pairs; or A's and B's, then those of what they are multiples of.
    """

    scale: Scale
    value: float
    method: Method
    counts: tuple[int, int]
    interval: Interval | None = None
    p_value: float | None = None
    variances: tuple[float, ...] = ()

    @property
    def none(self) -> float:
        """The value that says that B is as A."""
        return 1.0 if self.scale is Scale.RATIO else 0.0


def effect(
    a: Sequence[float],
    b: Sequence[float],
    *,
    paired: bool = False,
    confidence: float = CONFIDENCE,
    references: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> Effect:
    """What B is against A, with its confidence interval.

    Args:
        a: One value a repeat; values of rows that ran together are no repeats of each other.
        b: Likewise.
        paired: The values at the same place belong to each other; there are as many.
        confidence: Of the interval, between 0 and 1.
        references: Of values that are multiples of others: what A's and B's others vary by, as
            factors of their mean. Their spread counts, unless both are multiples of the same.
    """
    if paired and len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values are no pairs")
    scale = Scale.RATIO if min(*a, *b) > 0 else Scale.DIFFERENCE
    if scale is Scale.RATIO:
        a, b = [math.log(value) for value in a], [math.log(value) for value in b]
        noise = _ROUNDING
    else:
        noise = _ROUNDING * max(abs(value) for value in (*a, *b))
    change = fmean(b) - fmean(a)
    counts = (len(a), len(b))
    back = _exp if scale is Scale.RATIO else float
    others: list[list[float]] = []
    if scale is Scale.RATIO and tuple(references[0]) != tuple(references[1]):
        others = [[math.log(value) for value in one] for one in references if one]
        paired = paired and not others
    if min(len(one) for one in (a, b, *others)) < 2:
        return Effect(scale, back(change), Method.NONE, counts)
    variances: tuple[float, ...]
    if paired:
        method = Method.PAIRED
        variances = (_variance([y - x for x, y in zip(a, b, strict=True)], noise),)
        error = math.sqrt(variances[0] / len(a))
        degrees = len(a) - 1.0
    else:
        method = Method.WELCH
        sets = (a, b, *others)
        variances = tuple(_variance(one, noise) for one in sets)
        error, degrees = _welch(variances, [len(one) for one in sets])
    if abs(change) <= noise:
        change = 0.0
    half = _quantile(degrees, confidence) * error if error else 0.0
    return Effect(
        scale,
        back(change),
        method,
        counts,
        Interval(change - half, change + half, confidence).mapped(back),
        _two_sided(change, error, degrees),
        variances,
    )


def _exp(value: float) -> float:
    """Infinite where two values are so far apart that nothing is known."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _variance(values: Sequence[float], noise: float) -> float:
    found = stdev(values)
    return found**2 if found > noise else 0.0


def _welch(variances: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """The standard error of a sum or difference of means, and its degrees of freedom."""
    parts = [variance / count for variance, count in zip(variances, counts, strict=True)]
    if not any(parts):
        return 0.0, float(sum(counts) - len(counts))
    below = sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return math.sqrt(sum(parts)), sum(parts) ** 2 / below


def _quantile(degrees: float, confidence: float) -> float:
    """How many standard errors an interval reaches on each side, by Student's t."""
    from scipy.special import stdtrit  # slow to load: only where there are repeats

    return float(stdtrit(degrees, (1 + confidence) / 2))


def _two_sided(change: float, error: float, degrees: float) -> float:
    if not error:
        return 0.0 if change else 1.0
    from scipy.special import stdtr

    return float(2 * stdtr(degrees, -abs(change) / error))


def repeats_that_tell(found: Effect, change: float) -> int | None:
    """How many repeats a side would tell a change of this size, by the spread seen so far.

    With so many the interval is as wide as the change or narrower: it either leaves out that
    nothing changed, or lies within the change on either side.

    Args:
        found: A ratio with an interval.
        change: 0.05 for 5 %.

    Returns:
        At most `MOST_REPEATS`; None where there is no spread to tell it by, and for differences.
    """
    if found.interval is None or found.scale is not Scale.RATIO:
        return None
    confidence, allowed = found.interval.confidence, math.log1p(change)

    def is_enough(count: int) -> bool:
        if found.method is Method.PAIRED:
            error, degrees = math.sqrt(found.variances[0] / count), count - 1.0
        else:
            error, degrees = _welch(found.variances, [count] * len(found.variances))
        return 2 * _quantile(degrees, confidence) * error <= allowed

    low, high = 1, 2
    while not is_enough(high):
        if high >= MOST_REPEATS:
            return MOST_REPEATS
        low, high = high, min(2 * high, MOST_REPEATS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """The same, adjusted to how many they are, after Holm.

    Of those that stay below 5 %, chance has brought forth any in at most 5 % of such sets.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    count = len(p_values)
    adjusted = [0.0] * count
    highest = 0.0
    for rank, place in enumerate(sorted(range(count), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (count - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted
