"""A value of a report: its mean, from how many repeats, how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from radt.report.confidence import Interval, Scale, effect, mean_interval
from radt.report.quantities import Combine

_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Estimate:
    """One quantity of a workload, or of its like runs.

    Attributes:
        mean: Over the repeats.
        repeats: One value a repeat that has all that the value takes.
        parts: The single runs' values, where it is made of several.
        metrics: The series that it was read of, each once.
        methods: How these come about, as their listeners say.
        is_estimated: It was apportioned by a rule, not measured.
        reference: Of a ratio, what the other side's repeats vary by, as factors of their mean: one
            each. Empty where the value is no ratio.
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
        """How many repeats."""
        return max(1, len(self.repeats))

    @property
    def spread(self) -> float | None:
        """Standard deviation over the repeats; None for fewer than two."""
        if len(self.repeats) < 2:
            return None
        found = stdev(self.repeats)
        # Equal values of which one was rounded differently are equal.
        return found if found > _ROUNDING * abs(self.mean) else 0.0

    @property
    def interval(self) -> Interval | None:
        """The 95 % confidence interval of the mean; None for fewer than two repeats.

        That of a ratio is Welch's of its logarithm and knows the spread of both sides; where one
        side was measured once its spread is not known, and there is no interval.
        """
        if not self.reference:
            return mean_interval(self.repeats)
        if not self.repeats:
            return None
        found = effect(self.reference, self.repeats)
        return found.interval if found.scale is Scale.RATIO else None

    def over(self, baseline: Estimate) -> Estimate:
        """As a multiple of another value, which was measured as well."""
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
        """How many times another value is as much: the inverse of `over`, by this one's repeats."""
        return Estimate(
            whole.mean / self.mean,
            tuple(whole.mean / value for value in self.repeats),
            reference=tuple(whole.mean / value for value in whole.repeats) or (1.0,),
        )


def of_rows(
    rows: Sequence[Sequence[float | None]],
    combine: Combine,
    *,
    metrics: Sequence[str] = (),
    methods: Sequence[str] = (),
    is_estimated: bool = False,
) -> Estimate | None:
    """From the values of rows (K) in repeats (N); None where there is none.

    The mean is made of the rows' own means, so that a repeat in which one row came to no value
    still counts for the others; as a repeat it counts only if all rows have one.
    """
    if len(rows) == 1 and len(rows[0]) == 1:  # as are most: a run alone, once
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
    return tuple(dict.fromkeys(text for text in texts if text))


def combined(values: Sequence[float], combine: Combine) -> float:
    """Their mean or sum."""
    return fmean(values) if combine is Combine.MEAN else sum(values)
