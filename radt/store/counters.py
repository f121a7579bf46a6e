"""Increases of counters between readings, across restarts and wraps.

Series of kind COUNTER are stored as read. Charts and sums compute differences here, so that one
rule covers every value below the previous one:

- it *wrapped* if the series has a ``wraps_at`` and the increase across it is less than half of the
  range: counters are read often enough to grow less than that;
- otherwise it was *reset* to 0, so the new value is the increase. Counts between the last reading
  and the reset are lost, so the result is never too large. (Prometheus' ``rate`` does the same.)

Values that are not finite are not readings: the increase across them is attributed to the next
finite one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from radt.model import SeriesKind
from radt.store.records import Float64Array, Int64Array, Samples, SeriesRecord

_NS_PER_S = 1e9


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

    @property
    def timed(self) -> Increases:
        """Return the increases that span time: a second reading at one instant has no rate."""
        timed = self.end_ns > self.start_ns
        return Increases(self.start_ns[timed], self.end_ns[timed], self.amounts[timed])

    @property
    def per_s(self) -> Float64Array:
        """Return the rates per second."""
        return self.amounts / self.seconds


@dataclass(frozen=True, slots=True)
class RateUnit:
    """Unit of a counter's rate, and the factor from a rate per second to it.

    ``suffix`` follows the counter's name if the rate needs its own name.
    """

    unit: str
    factor: float = 1.0
    suffix: str = "_per_s"


_RATE_UNITS = {
    "J": RateUnit("W"),
    "s": RateUnit("1"),  # time per time is a share
    "g": RateUnit("g/h", 3600.0, "_per_h"),  # emissions per second are hard to interpret
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
        wraps_at: The value at which the counter restarts from 0, if any.
    """
    finite = np.isfinite(values)
    times_ns, values = times_ns[finite], values[finite]
    amounts = _amounts(values[:-1], values[1:], wraps_at)
    return Increases(times_ns[:-1], times_ns[1:], amounts)


def increase(before: float, after: float, wraps_at: float | None = None) -> float:
    """Return the increase of a counter from one finite reading to the next."""
    if after >= before:
        return after - before
    return float(_amounts(np.array([before]), np.array([after]), wraps_at)[0])


def _amounts(before: Float64Array, after: Float64Array, wraps_at: float | None) -> Float64Array:
    amounts: Float64Array = after - before
    fell = amounts < 0
    if fell.any():
        amounts = np.where(fell, np.maximum(after, 0.0), amounts)
        if wraps_at is not None:
            over_the_top = after + wraps_at - before
            wrapped = fell & (over_the_top >= 0) & (over_the_top < wraps_at / 2)
            amounts = np.where(wrapped, over_the_top, amounts)
    return amounts


def rates(samples: Samples, series: SeriesRecord) -> Samples:
    """Return the rates of a counter in the unit of `rate_unit`, each at the end of its interval."""
    grown = increases(samples.times_ns, samples.values, series.wraps_at).timed
    return Samples(grown.end_ns, grown.per_s * rate_unit(series.unit).factor)


def rate_series(series: SeriesRecord) -> SeriesRecord:
    """Return the series of a counter's `rates`: a gauge in another unit."""
    unit = rate_unit(series.unit).unit
    return replace(series, unit=unit, kind=SeriesKind.GAUGE, wraps_at=None)


def total_of(samples: Samples, series: SeriesRecord) -> float | None:
    """Return the total increase in a counter's points; None with fewer than two readings."""
    amounts = increases(samples.times_ns, samples.values, series.wraps_at).amounts
    return float(amounts.sum()) if len(amounts) else None
