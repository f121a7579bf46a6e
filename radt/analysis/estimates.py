"""Values with confidence intervals, and tests of one set of repeats against another.

Times, rates and amounts are compared as ratios: their logarithms are assumed to be normal, with
Student's intervals. B over A and A over B then give the same result, and neither reaches below
zero. If a value is zero or negative, differences take the place of ratios.

Sources: B. L. Welch, The generalization of "Student's" problem, Biometrika 34 (1947); S. Holm, A
simple sequentially rejective multiple test procedure, Scand. J. Statistics 6 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from radt.analysis.quantities import Combine

#: Default confidence of reports and comparisons.
CONFIDENCE = 0.95
#: Relative differences below this are rounding errors.
_ROUNDING = 1e-12
#: Upper limit of `repeats_to_detect`.
MOST_REPEATS = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; both ends belong to it."""

    low: float
    high: float
    confidence: float = CONFIDENCE

    def holds(self, value: float) -> bool:
        """Return whether a value is within."""
        return self.low <= value <= self.high

    def mapped(self, change: Callable[[float], float]) -> Interval:
        """Return the interval of a monotonic function of the value."""
        ends = sorted((change(self.low), change(self.high)))
        return Interval(ends[0], ends[1], self.confidence)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the mean's interval by Student's t; None for fewer than two values, or infinite ones.

    >>> interval = mean_interval([1.0, 2.0, 3.0])
    >>> f"{interval.low:.4f} to {interval.high:.4f}"
    '-0.4841 to 4.4841'
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    mean, degrees = fmean(values), len(values) - 1
    half = student_quantile(degrees, confidence) * stdev(values) / math.sqrt(len(values))
    return Interval(mean - half, mean + half, confidence)


class EffectScale(StrEnum):
    """How B is compared with A."""

    RATIO = "ratio"  # B / A, the ratio of their geometric means
    DIFFERENCE = "difference"  # B - A, where a value is zero or below


class Method(StrEnum):
    """How the interval of an effect is computed."""

    PAIRED = "paired"  # Student's t of B against A in each repeat
    WELCH = "unpaired"  # Welch's t: A and B have different variances
    NONE = "none"  # no interval: A or B has only one value, or one that is not finite


@dataclass(frozen=True, slots=True)
class Effect:
    """B against A.

    Attributes:
        scale: Whether ``value`` and ``interval`` are ratios or differences.
        value: B / A or B - A.
        method: How the interval is computed.
        counts: Number of values of A and B.
        interval: None if A or B has only one value, or one that is not finite.
        p_value: Two-sided; None without an interval.
        variances: Variance of one repeat on the scale (for ratios, of logarithms): of the pairs; or
            of A and of B, then of their references.
        is_finite: Whether all values of A and B are finite.
    """

    scale: EffectScale
    value: float
    method: Method
    counts: tuple[int, int]
    interval: Interval | None = None
    p_value: float | None = None
    variances: tuple[float, ...] = ()
    is_finite: bool = True

    @property
    def none(self) -> float:
        """The value for no effect."""
        return 1.0 if self.scale is EffectScale.RATIO else 0.0


def effect(
    a: Sequence[float],
    b: Sequence[float],
    *,
    paired: bool = False,
    confidence: float = CONFIDENCE,
    references: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> Effect:
    """Compare B with A.

    Args:
        a: One value per repeat. Rows that ran together are not repeats of each other.
        b: Likewise.
        paired: Values at the same index belong together; A and B have the same number.
        confidence: Confidence of the interval, between 0 and 1.
        references: For values that are ratios, the repeats of their denominators as factors of
            their mean. Their spread counts, unless A and B have the same denominator.
    """
    if paired and len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values cannot be paired")
    is_finite = all(map(math.isfinite, (*a, *b)))
    is_ratio = all(value > 0 for value in (*a, *b))  # False for NaN
    scale = EffectScale.RATIO if is_ratio else EffectScale.DIFFERENCE
    if scale is EffectScale.RATIO:
        a, b = [math.log(value) for value in a], [math.log(value) for value in b]
        noise = _ROUNDING
    else:
        noise = _ROUNDING * max(abs(value) for value in (*a, *b))
    change = fmean(b) - fmean(a)
    counts = (len(a), len(b))
    back = _exp if scale is EffectScale.RATIO else float
    others: list[list[float]] = []
    if scale is EffectScale.RATIO and tuple(references[0]) != tuple(references[1]):
        others = [[math.log(value) for value in values] for values in references if values]
        paired = paired and not others
    if not is_finite or min(len(values) for values in (a, b, *others)) < 2:
        return Effect(scale, back(change), Method.NONE, counts, is_finite=is_finite)
    variances: tuple[float, ...]
    if paired:
        method = Method.PAIRED
        variances = (_variance([y - x for x, y in zip(a, b, strict=True)], noise),)
        error = math.sqrt(variances[0] / len(a))
        degrees = len(a) - 1.0
    else:
        method = Method.WELCH
        sets = (a, b, *others)
        variances = tuple(_variance(values, noise) for values in sets)
        error, degrees = _welch(variances, [len(values) for values in sets])
    if abs(change) <= noise:
        change = 0.0
    half = student_quantile(degrees, confidence) * error if error else 0.0
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
    """Return e to a power, infinite on overflow."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _variance(values: Sequence[float], noise: float) -> float:
    deviation = stdev(values)
    return deviation**2 if deviation > noise else 0.0


def _welch(variances: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Return the standard error of a sum or difference of means, and its degrees of freedom."""
    parts = [variance / count for variance, count in zip(variances, counts, strict=True)]
    if not any(parts):
        return 0.0, float(sum(counts) - len(counts))
    below = sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return math.sqrt(sum(parts)), sum(parts) ** 2 / below


def student_quantile(degrees: float, confidence: float) -> float:
    """Return the half-width of an interval in standard errors, by Student's t."""
    from scipy.special import stdtrit  # slow to import, and only needed with repeats

    return float(stdtrit(degrees, (1 + confidence) / 2))


def _two_sided(change: float, error: float, degrees: float) -> float:
    if not error:
        return 0.0 if change else 1.0
    from scipy.special import stdtr

    return float(2 * stdtr(degrees, -abs(change) / error))


def repeats_to_detect(effect: Effect, change: float) -> int | None:
    """Return the number of repeats of A and B that would detect a change, given the spread so far.

    With this many repeats, the interval is at most as wide as the change: it either excludes "no
    change", or lies within the change on both sides.

    Args:
        effect: A ratio with an interval.
        change: 0.05 for 5 %.

    Returns:
        At most `MOST_REPEATS`; None without an interval, and for differences.
    """
    if effect.interval is None or effect.scale is not EffectScale.RATIO:
        return None
    confidence, allowed = effect.interval.confidence, math.log1p(change)

    def is_enough(count: int) -> bool:
        if effect.method is Method.PAIRED:
            error, degrees = math.sqrt(effect.variances[0] / count), count - 1.0
        else:
            error, degrees = _welch(effect.variances, [count] * len(effect.variances))
        return 2 * student_quantile(degrees, confidence) * error <= allowed

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
    """Return p-values adjusted to their number, after Holm.

    With a limit of 5 %, at most 5 % of such sets have any false positive.

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


@dataclass(frozen=True, slots=True)
class Estimate:
    """One quantity of a workload, or of a group of like runs.

    Attributes:
        mean: Over the repeats.
        repeats: One value for each complete repeat.
        parts: The single runs' values, if it combines several.
        metrics: The metrics that it was read from, each once.
        methods: How these are measured, according to their listeners.
        is_estimated: It was apportioned by a rule, not measured.
        reference: For a ratio, the repeats of its denominator as factors of their mean; else empty.
    """

    mean: float
    repeats: tuple[float, ...] = ()
    parts: tuple[float, ...] = ()
    metrics: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    is_estimated: bool = False
    reference: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """The number of repeats."""
        return max(1, len(self.repeats))

    @property
    def interval(self) -> Interval | None:
        """The 95 % confidence interval of the mean; None for fewer than two repeats."""
        return self.interval_at(CONFIDENCE)

    def interval_at(self, confidence: float) -> Interval | None:
        """Return the confidence interval of the mean; None for fewer than two repeats.

        For a ratio it is Welch's interval of the logarithm, from the spread of numerator and
        denominator; None if one of them was measured once.
        """
        if not self.reference:
            return mean_interval(self.repeats, confidence)
        if not self.repeats:
            return None
        ratio = effect(self.reference, self.repeats, confidence=confidence)
        return ratio.interval if ratio.scale is EffectScale.RATIO else None

    def over(self, baseline: Estimate) -> Estimate:
        """Return this value as a multiple of another measured one."""
        return Estimate(
            self.mean / baseline.mean,
            tuple(value / baseline.mean for value in self.repeats),
            tuple(value / baseline.mean for value in self.parts),
            self.metrics,
            self.methods,
            self.is_estimated,
            tuple(value / baseline.mean for value in baseline.repeats) or (1.0,),
        )

    def into(self, whole: Estimate) -> Estimate:
        """Return another value as a multiple of this one, with this one's repeats."""
        return Estimate(
            whole.mean / self.mean,
            tuple(whole.mean / value for value in self.repeats),
            reference=tuple(whole.mean / value for value in whole.repeats) or (1.0,),
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """One value of one run, and its metric."""

    value: float
    metric: str = ""
    method: str = ""
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class Reached:
    """Number of finished runs that met the condition of a ``time_to``."""

    count: int
    of: int

    @property
    def is_all(self) -> bool:
        return self.count == self.of

    @property
    def text(self) -> str:
        """Return ``3 of 5 runs``."""
        return f"{self.count:,} of {self.of:,} run{'' if self.of == 1 else 's'}"


def of_rows(
    rows: Sequence[Sequence[float | None]],
    combine: Combine,
    *,
    metrics: Sequence[str] = (),
    methods: Sequence[str] = (),
    is_estimated: bool = False,
) -> Estimate | None:
    """Return an estimate from the values of K rows in N repeats; None without any value.

    The mean combines the rows' own means, so that a repeat in which one row has no value still
    counts for the other rows. It counts as a repeat only if all rows have a value.
    """
    if len(rows) == 1 and len(rows[0]) == 1:  # the common case: one run, once
        value = rows[0][0]
        if value is None:
            return None
        return Estimate(value, (value,), (), _once(metrics), _once(methods), is_estimated)
    known = [row for row in rows if any(value is not None for value in row)]
    if not known:
        return None
    parts = [fmean(value for value in row if value is not None) for row in known]
    repeats = [
        combined([value for value in values if value is not None], combine)
        for values in zip(*known, strict=True)
        if None not in values
    ]
    return Estimate(
        combined(parts, combine),
        tuple(repeats),
        tuple(parts) if len(parts) > 1 else (),
        _once(metrics),
        _once(methods),
        is_estimated,
    )


def _once(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, texts)))


def combined(values: Sequence[float], combine: Combine) -> float:
    """Return the mean or the sum of values."""
    return fmean(values) if combine is Combine.MEAN else sum(values)
