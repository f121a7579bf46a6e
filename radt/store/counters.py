"""Counters: how much they grew between readings, across restarts and wraps.

Series of kind COUNTER are stored as they were read. What shows or sums them takes differences here,
so that there is one rule for a value below the one before:

- it *wrapped* if the series says where (``wraps_at``) and the way over the top is the shorter one,
  less than half of the range: a counter is read often enough to grow less than that;
- else it was *reset* and began again from 0, so the new value is the increase. What it had counted
  between the last reading and the reset is lost: the result is never too large. (Prometheus'
  ``rate`` does the same.)

Values that are not finite are no readings: the increase across them goes to the next one that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from radt.model import SeriesKind
from radt.store.records import Float64Array, Int64Array, Samples, SeriesRecord

_NS_PER_S = 1e9
#: Points that `rate` takes at a time.
_BLOCK = 32_768


@dataclass(frozen=True, slots=True)
class Increases:
    """How much a counter grew from each reading to the next: all arrays (N,), N readings less one.

    ``amounts`` are never negative; ``start_ns`` and ``end_ns`` are the two readings' times.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    amounts: Float64Array

    @property
    def seconds(self) -> Float64Array:
        """How far the two readings are apart."""
        return (self.end_ns - self.start_ns) / _NS_PER_S


@dataclass(frozen=True, slots=True)
class RateUnit:
    """The unit of a counter's rate, and what a rate per second is multiplied with to have it.

    ``suffix`` stands behind the counter's name where the rate needs a name of its own.
    """

    unit: str
    factor: float = 1.0
    suffix: str = "_per_s"


_RATE_UNITS = {
    "J": RateUnit("W"),
    "s": RateUnit("1"),  # time used per time: a share
    "g": RateUnit("g/h", 3600.0, "_per_h"),  # of emissions: per second nobody can picture them
}


def rate_unit(unit: str) -> RateUnit:
    """Return what the rate of a counter is in: ``By/s`` for ``By``, ``W`` for ``J``.

    >>> rate_unit("By").unit, rate_unit("J").unit, rate_unit("1").unit, rate_unit("{packets}").unit
    ('By/s', 'W', '1/s', '{packets}/s')
    """
    return _RATE_UNITS.get(unit) or RateUnit(f"{unit or '1'}/s")


def increases(
    times_ns: Int64Array, values: Float64Array, wraps_at: float | None = None
) -> Increases:
    """Return the increases of a raw counter.

    Args:
        times_ns: Times of the readings, in order (N,).
        values: What was read (N,); not finite for no value.
        wraps_at: The value at which the counter starts again from 0, if it does.
    """
    finite = np.isfinite(values)
    times_ns, values = times_ns[finite], values[finite]
    before, after = values[:-1], values[1:]
    amounts: Float64Array = after - before
    fell = amounts < 0
    if fell.any():
        amounts = np.where(fell, np.maximum(after, 0.0), amounts)
        if wraps_at is not None:
            over_the_top = after + wraps_at - before
            wrapped = fell & (over_the_top >= 0) & (over_the_top < wraps_at / 2)
            amounts = np.where(wrapped, over_the_top, amounts)
    return Increases(times_ns[:-1], times_ns[1:], amounts)


def total(
    times_ns: Int64Array, values: Float64Array, wraps_at: float | None = None
) -> float | None:
    """Return how much a counter grew in all; None with fewer than two readings."""
    amounts = increases(times_ns, values, wraps_at).amounts
    return float(amounts.sum()) if len(amounts) else None


def rate(times_ns: Int64Array, values: Float64Array, wraps_at: float | None = None) -> Float64Array:
    """Per second, at each of the points (N,): the mean since the reading before.

    NaN at the first reading, where there is no value, and at a second reading of the same instant,
    whose increase belongs to no time.
    """
    result = np.empty(len(values))
    # In blocks: of many million points, the kernel clearing large arrays takes most of the time.
    last = 0  # of the readings before the block
    for start in range(0, len(values), _BLOCK):
        block = slice(start, start + _BLOCK)
        if start == 0:
            result[block] = _rate(times_ns[block], values[block], wraps_at)
        else:
            result[block] = _rate(
                np.concatenate([times_ns[last : last + 1], times_ns[block]]),
                np.concatenate([values[last : last + 1], values[block]]),
                wraps_at,
            )[1:]
        readings = np.flatnonzero(np.isfinite(values[block]))
        if len(readings):
            last = start + int(readings[-1])
    return result


def _rate(times_ns: Int64Array, values: Float64Array, wraps_at: float | None) -> Float64Array:
    result = np.full(len(values), np.nan)
    grown = increases(times_ns, values, wraps_at)
    places = np.flatnonzero(np.isfinite(values))[1:]
    timed = grown.end_ns > grown.start_ns
    result[places[timed]] = grown.amounts[timed] / grown.seconds[timed]
    return result


def rates(samples: Samples, series: SeriesRecord) -> Samples:
    """Return the points of a counter that have a rate, as rates in the unit of `rate_unit`."""
    per_s = rate(samples.times_ns, samples.values, series.wraps_at)
    known = np.isfinite(per_s)
    return Samples(samples.times_ns[known], per_s[known] * rate_unit(series.unit).factor)


def rate_series(series: SeriesRecord) -> SeriesRecord:
    """Return what `rates` makes of a counter: a gauge in another unit."""
    unit = rate_unit(series.unit).unit
    return replace(series, unit=unit, kind=SeriesKind.GAUGE, wraps_at=None)


def total_of(samples: Samples, series: SeriesRecord) -> float | None:
    """`total` of a series' points, in its own unit."""
    return total(samples.times_ns, samples.values, series.wraps_at)
