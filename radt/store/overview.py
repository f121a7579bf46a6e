"""Reduce a series to fewer points for a chart without losing peaks, decoding few chunks.

If chunks are finer than the chart can show, their headers tell which ones matter: only chunks with
the extremes of a stretch are decoded, to find the points themselves. So time and memory do not grow
with the series, except for its headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, text
from tsdownsample import MinMaxDownsampler

from radt.model import NO_STEP
from radt.store import chunks
from radt.store.points import Part
from radt.store.records import Float64Array, Int64Array, Samples

#: With fewer points, some part of the result would get no share.
MIN_POINTS = 16

_MINMAX = MinMaxDownsampler()  # type: ignore[no-untyped-call]


def envelope(samples: Samples, max_points: int) -> Samples:
    """Return at most ``max_points`` (and at least 16) of the given points.

    The points are cut into stretches of equal number; each keeps its smallest and largest finite
    value, so a spike of one point survives among millions. The first and last point are kept, and
    one non-finite value per stretch, which a chart shows as a gap.

    MinMaxLTTB would be smoother but keeps only one of two opposite spikes in a stretch. Stretches
    do not have equal duration, because tsdownsample's search for those fails on equal and on
    extreme times.

    Args:
        samples: Points in time order.
        max_points: Maximum number of points to keep.
    """
    chosen = envelope_indices(samples, max_points)
    if len(chosen) == len(samples):
        return samples
    steps = samples.steps
    return Samples(
        samples.times_ns[chosen],
        samples.values[chosen],
        None if steps is None else steps[chosen],
    )


def envelope_indices(samples: Samples, max_points: int) -> Int64Array:
    """Return the indices of the points that `envelope` keeps, in order."""
    count = len(samples)
    budget = max(max_points, MIN_POINTS)
    if count <= budget:
        return np.arange(count, dtype=np.int64)
    kept = [np.array([0, count - 1], dtype=np.int64)]
    budget -= 2
    finite = np.isfinite(samples.values)
    if finite.all():
        kept.append(_extremes(samples.values, budget))
    else:
        missing = np.flatnonzero(~finite)
        gaps = missing[one_of_each_stretch(len(missing), budget // 4)]
        present = np.flatnonzero(finite)
        kept += [gaps, present[_extremes(samples.values[present], budget - len(gaps))]]
    return np.unique(np.concatenate(kept))


def _extremes(values: Float64Array, max_points: int) -> Int64Array:
    """Return the indices of minimum and maximum of each stretch."""
    if len(values) <= max_points:
        return np.arange(len(values), dtype=np.int64)
    chosen = _MINMAX.downsample(np.ascontiguousarray(values), n_out=max_points // 2 * 2)
    return np.asarray(chosen, dtype=np.int64)


def one_of_each_stretch(count: int, max_points: int) -> Int64Array:
    """Return at most ``max_points`` of the numbers from 0 to ``count``, evenly spaced."""
    if count <= max_points:
        return np.arange(count, dtype=np.int64)
    return np.arange(max_points, dtype=np.int64) * count // max_points


#: Points of the first and of the last chunk: end, extremes, one non-finite value.
_BORDER_POINTS = 8

_HEADER_COLUMNS = (
    "chunk_no, point_count, finite_count, first_ns, last_ns, value_min, value_max, "
    "step_data IS NOT NULL, kept_count IS NOT NULL"
)


class ChunkHeader(NamedTuple):
    """Header of a chunk; if ``thinned``, its statistics describe more than its stored points."""

    chunk_no: int
    point_count: int
    finite_count: int
    first_ns: int
    last_ns: int
    value_min: float | None
    value_max: float | None
    has_steps: bool
    thinned: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """Plan of the chunks to decode and the points to take from them.

    Attributes:
        smallest: Numbers of chunks that hold the smallest value of a stretch.
        largest: Numbers of chunks that hold the largest value of a stretch.
        gaps: Numbers of chunks whose first non-finite value is shown.
        first: Number of the first chunk of the range.
        last: Number of the last chunk of the range.
        has_steps: Whether any chunk of the range has steps.
        part: The requested range of a series.
    """

    smallest: frozenset[int]
    largest: frozenset[int]
    gaps: frozenset[int]
    first: int
    last: int
    has_steps: bool
    part: Part

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the chunks to decode, in the order of writing."""
        return sorted({self.first, self.last} | self.smallest | self.largest | self.gaps)

    def points(self, data: Sequence[chunks.ChunkData]) -> Samples:
        """Return the chart's points, given the chunks of these numbers.

        Raises:
            CodecError: A chunk is damaged.
        """
        times: list[Int64Array] = []
        values, steps = [], []
        for chunk in data:
            samples = chunks.time_sorted(chunk.samples())
            if chunk.chunk_no in (self.first, self.last):
                samples = chunks.between(samples, self.part.start_ns, self.part.end_ns)
            chosen = self._chosen(chunk.chunk_no, samples)
            times.append(samples.times_ns[chosen])
            values.append(samples.values[chosen])
            if self.has_steps:
                given = samples.steps
                steps.append(
                    np.full(len(chosen), NO_STEP, dtype=np.int64)
                    if given is None
                    else given[chosen]
                )
        return Samples(
            np.concatenate(times),
            np.concatenate(values),
            np.concatenate(steps) if self.has_steps else None,
        )

    def _chosen(self, chunk_no: int, samples: Samples) -> list[int]:
        """Return the indices of the points to show, in order."""
        values = samples.values
        if not len(values):
            return []
        chosen = set()
        at_border = chunk_no in (self.first, self.last)
        finite = np.isfinite(values)
        complete = bool(finite.all())
        if at_border or chunk_no in self.smallest:
            chosen.add(int(np.argmin(values if complete else np.where(finite, values, np.inf))))
        if at_border or chunk_no in self.largest:
            chosen.add(int(np.argmax(values if complete else np.where(finite, values, -np.inf))))
        if not complete and (at_border or chunk_no in self.gaps):
            chosen.add(int(np.argmin(finite)))
        if chunk_no == self.first:
            chosen.add(0)
        if chunk_no == self.last:
            chosen.add(len(values) - 1)
        return sorted(chosen)


def read_headers(connection: Connection, part: Part) -> list[ChunkHeader]:
    """Return the headers of the chunks with points in a range, in the order of writing."""
    statement = text(
        f"SELECT {_HEADER_COLUMNS} FROM chunk "  # noqa: S608 - our own names
        f"WHERE {part.condition} ORDER BY chunk_no"
    )
    return [ChunkHeader._make(row) for row in connection.execute(statement, part.parameters)]


def plan(headers: Sequence[ChunkHeader], part: Part, max_points: int) -> Overview | None:
    """Return a plan for at most ``max_points``, or None if all chunks must be decoded.

    All must be decoded if there are too few, if they overlap because clocks were set back, or if
    retention has thinned them.
    """
    budget = max(max_points, MIN_POINTS) - _BORDER_POINTS
    if len(headers) < budget or any(header.thinned for header in headers):
        return None
    first_ns = np.array([header.first_ns for header in headers], dtype=np.int64)
    last_ns = np.array([header.last_ns for header in headers], dtype=np.int64)
    if np.any(first_ns[1:] < last_ns[:-1]):
        return None
    inner = headers[1:-1]
    incomplete = [index.chunk_no for index in inner if index.finite_count < index.point_count]
    gaps = [incomplete[at] for at in one_of_each_stretch(len(incomplete), budget // 4)]
    valued = [index for index in inner if index.finite_count]
    smallest, largest = set(), set()
    for stretch in _stretches(valued, (budget - len(gaps)) // 2):
        smallest.add(min(stretch, key=_smallest).chunk_no)
        largest.add(max(stretch, key=_largest).chunk_no)
    return Overview(
        frozenset(smallest),
        frozenset(largest),
        frozenset(gaps),
        headers[0].chunk_no,
        headers[-1].chunk_no,
        any(header.has_steps for header in headers),
        part,
    )


def _stretches(headers: Sequence[ChunkHeader], count: int) -> list[Sequence[ChunkHeader]]:
    """Split headers into nonempty stretches of about as many points."""
    if not headers:
        return []
    before = np.cumsum([0, *(header.point_count for header in headers)])
    ends = np.searchsorted(before, before[-1] * np.arange(1, count + 1) / count)
    ends[-1] = len(headers)
    bounds = np.unique(np.concatenate([[0], ends]))
    return [headers[start:stop] for start, stop in pairwise(bounds.tolist())]


def _smallest(header: ChunkHeader) -> float:
    assert header.value_min is not None
    return header.value_min


def _largest(header: ChunkHeader) -> float:
    assert header.value_max is not None
    return header.value_max
