"""A series as a viewer draws it: steps that hold until the next value.

Viewers know no missing value: a counter keeps its last one for ever. So a curve is taken to 0
where nothing was measured, which draws nothing; what was missing, and why, stands beside it as a
slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from radt.model import SeriesKind
from radt.store.counters import increases, rate_unit
from radt.store.overview import envelope
from radt.store.records import Float64Array, Int64Array, Samples, SeriesRecord

#: A pause longer than this many intervals is a gap, not jitter.
GAP_INTERVALS = 3.5
#: A pause that is known to be a gap is longer than this many.
_MISSED_INTERVALS = 1.5
#: From fewer points nobody can tell how often a series is read.
_MIN_TO_TELL = 3
_NOTHING = 0.0
_WORDS = {"By": "bytes", "By/s": "bytes/s", "1": "ratio", "Cel": "°C", "": "value"}


@dataclass(frozen=True, slots=True)
class Steps:
    """Values that hold from their time to the next; NaN where nothing is known. Arrays (N,)."""

    times_ns: Int64Array
    values: Float64Array

    def __len__(self) -> int:
        return len(self.times_ns)

    def points(self) -> Iterator[tuple[int, float]]:
        """For `radt.trace.chrome.TraceFile.counter`: nothing known is drawn as nothing."""
        values = np.where(np.isfinite(self.values), self.values, _NOTHING)
        return zip(self.times_ns.tolist(), values.tolist(), strict=True)


def unit_of(series: SeriesRecord) -> str:
    """What the steps of a series are in, in words that stand behind its name."""
    unit = rate_unit(series.unit).unit if series.kind is SeriesKind.COUNTER else series.unit
    return _WORDS.get(unit, unit.replace("{", "").replace("}", ""))


def merged(parts: Sequence[Samples]) -> Samples:
    """What several runs have of one device: each instant once."""
    if len(parts) == 1:
        return parts[0]
    times_ns, first = np.unique(
        np.concatenate([part.times_ns for part in parts]), return_index=True
    )
    return Samples(times_ns, np.concatenate([part.values for part in parts])[first])


def steps(
    samples: Samples,
    series: SeriesRecord,
    holes_ns: Sequence[int],
    end_ns: int,
    max_points: int,
) -> Steps:
    """A series as steps.

    Args:
        samples: Its points, in time order.
        series: What it is: counters become rates, in the unit of `unit_of`.
        holes_ns: When recorded gaps begin.
        end_ns: When the run ended: what scripts log holds until then.
        max_points: How many points to keep; extremes are kept, and gaps are added.
    """
    if not len(samples):
        return Steps(samples.times_ns, samples.values)
    interval_ns = _interval_ns(samples, series)
    last_ns = int(samples.times_ns[-1])
    if series.kind is SeriesKind.COUNTER:
        samples = _rates(samples, series)
        if not len(samples):
            return Steps(samples.times_ns, samples.values)
    elif interval_ns is None:
        last_ns = max(last_ns + 1, end_ns)
    else:
        last_ns += interval_ns
    breaks_ns = _breaks(samples.times_ns, interval_ns, holes_ns, last_ns)
    kept = envelope(samples, max_points)
    times_ns = np.concatenate([kept.times_ns, breaks_ns])
    values = np.concatenate([kept.values, np.full(len(breaks_ns), np.nan)])
    order = np.argsort(times_ns, kind="stable")
    return Steps(times_ns[order], values[order])


def _interval_ns(samples: Samples, series: SeriesRecord) -> int | None:
    """How far readings are apart; None for what scripts log.

    A listener may read what is costly less often than its interval says: then that is no gap.
    """
    if series.interval_s is None:
        return None
    given_ns = round(series.interval_s * 1e9)
    if len(samples) < _MIN_TO_TELL:
        return given_ns
    return max(given_ns, int(np.median(np.diff(samples.times_ns))))


def _rates(samples: Samples, series: SeriesRecord) -> Samples:
    """Per second, from each reading on until the next: as steps hold, not as means of the past."""
    found = increases(samples.times_ns, samples.values, series.wraps_at)
    timed = found.seconds > 0
    per_s = found.amounts[timed] / found.seconds[timed]
    return Samples(found.start_ns[timed], per_s * rate_unit(series.unit).factor)


def _breaks(
    times_ns: Int64Array, interval_ns: int | None, holes_ns: Sequence[int], last_ns: int
) -> Int64Array:
    """When the value before holds no longer although no other follows, and the end."""
    following_ns = np.append(times_ns[1:], last_ns)
    if interval_ns is None:
        return np.array([last_ns], np.int64)
    pause_ns = following_ns - times_ns
    at_hole = np.zeros(len(times_ns), dtype=bool)
    # The reading at which a gap was noticed may carry the gap's own time stamp.
    places = np.searchsorted(times_ns, np.array(holes_ns, np.int64), "right") - 1
    at_hole[places[places >= 0]] = True
    # Another run may have had the device's values in one run's gap: then there is none to see.
    broken = at_hole & (pause_ns > _MISSED_INTERVALS * interval_ns)
    broken |= pause_ns > GAP_INTERVALS * interval_ns
    return np.append(times_ns[broken] + interval_ns, last_ns).astype(np.int64)
