"""The few points that are kept of many show every peak."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from radt.store.cells import kept
from radt.store.records import Samples


def test_one_spike_among_ten_million_points_survives() -> None:
    times = np.arange(10_000_000, dtype=np.int64) * 1000
    values = np.zeros(10_000_000)
    values[7_654_321], values[7_654_322] = 1.0, -1.0
    chosen = kept(Samples(times, values, times), 2000)
    assert len(chosen) <= 2000
    by_time = dict(zip(chosen.times_ns.tolist(), chosen.values.tolist(), strict=True))
    assert by_time[7_654_321_000] == 1.0
    assert by_time[7_654_322_000] == -1.0
    assert chosen.times_ns[0] == 0
    assert chosen.times_ns[-1] == 9_999_999_000
    assert chosen.steps is not None
    assert chosen.steps.tolist() == chosen.times_ns.tolist()


@given(
    values=npst.arrays(np.float64, st.integers(1, 3000), elements=st.floats(width=64)),
    max_points=st.integers(0, 300),
)
@settings(max_examples=100, deadline=None)
def test_real_points_are_kept_with_ends_extremes_and_gaps(
    values: np.ndarray, max_points: int
) -> None:
    times = np.arange(len(values), dtype=np.int64) ** 2
    chosen = kept(Samples(times, values), max_points)
    assert len(chosen) <= max(max_points, 16)
    indices = np.searchsorted(times, chosen.times_ns)
    assert np.array_equal(times[indices], chosen.times_ns)
    assert np.array_equal(values[indices].view(np.int64), chosen.values.view(np.int64))
    assert np.all(np.diff(chosen.times_ns) > 0)
    assert (indices[0], indices[-1]) == (0, len(values) - 1)
    finite = values[np.isfinite(values)]
    if len(finite):
        left = chosen.values[np.isfinite(chosen.values)]
        assert (left.min(), left.max()) == (finite.min(), finite.max())
    assert np.isnan(values).any() <= (~np.isfinite(chosen.values)).any()


@pytest.mark.parametrize(
    "times", [np.zeros(5000), np.array([-(2**63)] * 2500 + [2**63 - 1] * 2500)]
)
def test_equal_and_extreme_times_are_no_problem(times: np.ndarray) -> None:
    values = np.sin(np.arange(5000))
    chosen = kept(Samples(times.astype(np.int64), values), 100)
    assert 50 < len(chosen) <= 100
    assert chosen.values.max() == values.max()


def test_few_points_are_left_alone() -> None:
    samples = Samples(np.arange(50, dtype=np.int64), np.full(50, np.nan))
    assert len(kept(samples, 50)) == 50
