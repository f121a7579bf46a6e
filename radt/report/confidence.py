"""Confidence intervals over repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

#: What reports and comparisons use.
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends belong to it."""

    low: float
    high: float
    confidence: float = CONFIDENCE


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """The mean's confidence interval by Student's t; None for fewer than two values.

    >>> found = mean_interval([1.0, 2.0, 3.0])
    >>> f"{found.low:.4f} to {found.high:.4f}"
    '-0.4841 to 4.4841'
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # slow to load: only where there are repeats

    mean, degrees = fmean(values), len(values) - 1
    half = float(stdtrit(degrees, (1 + confidence) / 2)) * stdev(values) / math.sqrt(len(values))
    return Interval(mean - half, mean + half, confidence)
