"""Student's t distribution. scipy has it, and would be a sixth of a base installation for it alone.

The incomplete beta function is computed by its continued fraction: W. H. Press et al., *Numerical
Recipes*, third edition, section 6.4. Tests compare the results with scipy's.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_PRECISION = 1e-16
_TINY = 1e-300
#: Each takes far fewer; they are there so that a rounding error cannot make a loop endless.
_MOST_TERMS, _MOST_STEPS = 10_000, 100


def two_sided_p(t: float, degrees: float) -> float:
    """Return how probable a value at least as far from 0 as ``t`` is."""
    return _tails(abs(t), degrees)[0] if t else 1.0


def critical_value(confidence: float, degrees: float) -> float:
    """Return the t that values exceed on either side with a probability of 1 - ``confidence``."""
    wanted = math.log(1 - confidence)
    t = NormalDist().inv_cdf((1 + confidence) / 2)  # that of infinite degrees
    # Newton's method for log p over log t, which falls ever faster: it passes the value once at
    # most, and comes nearer from then on.
    for _ in range(_MOST_STEPS):
        p, slope = _tails(t, degrees)
        step = (math.log(p) - wanted) * p / slope
        t *= math.exp(step)
        if abs(step) < 4 * _PRECISION:
            break
    return t


def _tails(t: float, degrees: float) -> tuple[float, float]:
    """Return the probability of both tails beyond ``t``, and how it falls with log t."""
    squared = t * t
    if squared == math.inf:
        return 0.0, 0.0
    a, b = degrees / 2, 0.5
    log_x, log_rest = -math.log1p(squared / degrees), -math.log1p(degrees / squared)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    factor = math.exp(a * log_x + b * log_rest - log_beta)
    x = math.exp(log_x)
    if x < (a + 1) / (a + b + 2):
        p = factor * _fraction(a, b, x) / a
    else:
        p = 1 - factor * _fraction(b, a, math.exp(log_rest)) / b
    return p, 2 * factor


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / _kept_from_0(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _kept_from_0(1 + term * d)
            c = _kept_from_0(1 + term / c)
            result *= d * c
        if abs(d * c - 1) <= 2 * _PRECISION:
            break
    return result


def _kept_from_0(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
