"""Stretches of time against sets of instants."""

from __future__ import annotations

import numpy as np
import pytest

from radt.analysis.stretches import (
    EARLIEST_NS,
    LATEST_NS,
    Stretch,
    Stretches,
    Within,
    clipped,
    covered_ns,
    length_s,
    merged,
)


def some(seed: int) -> Stretches:
    """At most six, in order and apart."""
    edges = np.random.default_rng(seed).integers(0, 60, (seed % 7, 2))
    return merged((int(low), int(high)) for low, high in np.sort(edges, axis=1) if low < high)


def steps(stretches: Stretches) -> set[int]:
    """The instants from which time goes on within them."""
    return {at for start, end in stretches for at in range(start, end)}


@pytest.mark.parametrize("seed", range(40))
def test_stretches_are_the_time_they_are_made_of(seed: int) -> None:
    stretches = some(seed)
    within = Within(stretches)
    times = np.arange(-5, 66)
    inside = [any(start <= time <= end for start, end in stretches) for time in times]
    assert within.mask(times).tolist() == inside
    for first in range(0, 60, 7):
        for last in range(first, 60, 5):
            bounds: Stretch = (first, last)
            assert steps(clipped(stretches, bounds)) == steps(stretches) & steps([bounds])
            held = any(start <= first and last <= end for start, end in stretches)
            assert within.holds(first, last) == held
            met = any(start <= last and first <= end for start, end in stretches)
            assert within.meets(first, last) == met
    edges = np.cumsum(np.random.default_rng(seed).integers(0, 9, 20)) - 10
    covered = covered_ns(stretches, edges[:-1], edges[1:])
    expected = [
        len(steps(stretches) & steps([(start, end)]))
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    assert covered.tolist() == expected


def test_stretches_without_an_end_have_no_length_but_hold_all() -> None:
    always = [(EARLIEST_NS, LATEST_NS)]
    times = np.array([EARLIEST_NS, 0, 1_780_000_000_000_000_000, LATEST_NS])
    assert length_s(always) is None
    assert length_s([]) is None
    assert length_s([(0, 5), (7, 10**9)]) == (10**9 - 2) / 1e9
    assert Within(always).mask(times).all()
    assert covered_ns(always, times[1:2], times[2:3]).tolist() == [int(times[2])]
    two = [(EARLIEST_NS, 10), (20, LATEST_NS)]
    assert Within(two).mask(times).all()
    assert covered_ns(two, np.array([5, 15]), np.array([15, 25])).tolist() == [5, 5]
