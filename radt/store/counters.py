"""Increases of counters between readings, across restarts and wraps.

Series of kind COUNTER are stored as read. Charts and sums take differences here, so that a single
rule covers a value below the previous one:

- it *wrapped* if the series has a ``wraps_at`` and the increase across it is less than half of the
  range: counters are read often enough to grow less than that;
- otherwise it was *reset* to 0, so the new value is the increase. Counts between the last reading
  and the reset are lost, so the result is never too large. (Prometheus' ``rate`` does the same.)

Values that are not finite do not count as readings: the increase across them goes to the next
finite one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from radt.model import SeriesKind
from radt.store.records import Float64Array, Int64Array, Samples, SeriesRecord

_NS_PER_S = 1e9
#: Points that `rate` processes at a time.
_BLOCK = 32_768


@dataclass(frozen=True, slots=True)
class Increases:
    """Increase of a counter from each reading to the next: arrays of shape (N,) for N + 1 readings.

    ``amounts`` are never negative; ``start_ns`` and ``end_ns`` are the two readings' times.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    amounts: Float64Array

    @property
    def seconds(self) -> Float64Array:
        """Return the time between the two readings."""
        return (self.end_ns - self.start_ns) / _NS_PER_S


@dataclass(frozen=True, slots=True)
class RateUnit:
    """Unit of a counter's rate, and the factor from a rate per second to it.

    ``suffix`` follows the counter's name where the rate needs its own name.
    """

    unit: str
    factor: float = 1.0
    suffix: str = "_per_s"


_RATE_UNITS = {
    "J": RateUnit("W"),
    "s": RateUnit("1"),  # time per time: a share
    "g": RateUnit("g/h", 3600.0, "_per_h"),  # emissions: a rate per second is hard to picture
}


def rate_unit(unit: str) -> RateUnit:
    """Return the unit of a counter's rate: ``By/s`` for ``By``, ``W`` for ``J``.

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
        values: Readings (N,); not finite for a missing value.
        wraps_at: The value at which the counter starts again from 0, if any.
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
    """Return the total increase of a counter; None with fewer than two readings."""
    amounts = increases(times_ns, values, wraps_at).amounts
    return float(amounts.sum()) if len(amounts) else None


def rate(times_ns: Int64Array, values: Float64Array, wraps_at: float | None = None) -> Float64Array:
    """Return the rate per second at each point (N,): the mean since the previous reading.

    NaN at the first reading, at missing values, and at a second reading of the same instant, which
    spans no time.
    """
    result = np.empty(len(values))
    # In blocks: with millions of points, the kernel would spend most of the time clearing large
    # arrays.
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
    """Return the defined rates of a counter as points in the unit of `rate_unit`."""
    per_s = rate(samples.times_ns, samples.values, series.wraps_at)
    known = np.isfinite(per_s)
    return Samples(samples.times_ns[known], per_s[known] * rate_unit(series.unit).factor)


def rate_series(series: SeriesRecord) -> SeriesRecord:
    """Return the series of a counter's `rates`: a gauge in another unit."""
    unit = rate_unit(series.unit).unit
    return replace(series, unit=unit, kind=SeriesKind.GAUGE, wraps_at=None)


def total_of(samples: Samples, series: SeriesRecord) -> float | None:
    """Return the `total` of a series' points in its own unit."""
    return total(samples.times_ns, samples.values, series.wraps_at)
