"""The steady state of planted series: constants, ramps, steps, noise, and what never settles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from radt.analysis.steady_state import MIN_SAMPLES, steady_stretch
from radt.store.records import Samples

S = 1_000_000_000
Values = npt.NDArray[np.float64]


def found(values: Values) -> tuple[int, int] | None:
    """The first and last of one value a second that are in the steady state."""
    times_ns = np.arange(len(values), dtype=np.int64) * S
    stretch = steady_stretch(Samples(times_ns, np.asarray(values, dtype=np.float64)))
    return None if stretch is None else (stretch[0] // S, stretch[1] // S)


def plateau(up: int, flat: int, down: int) -> Values:
    """From 0 to 1, there, and back."""
    rising = np.linspace(0, 1, up, endpoint=False)
    return np.concatenate([rising, np.ones(flat), np.linspace(1, 0, down)])


def noise(count: int, size: float, seed: int = 0) -> Values:
    return np.random.default_rng(seed).normal(0, size, count)


@pytest.mark.parametrize("level", [0.0, 1.0, -3.0, 1e-300, 1e300, 7e15])
def test_what_stays_as_it_is_counts_as_a_whole(level: float) -> None:
    assert found(np.full(203, level)) == (0, 202)


def test_what_hardly_moves_counts_as_a_whole() -> None:
    assert found(1000 + np.linspace(0, 9, 300)) == (0, 299)


@pytest.mark.parametrize(
    ("before", "there"), [(0, 100), (5, 95), (40, 60), (60, 40), (95, 5), (100, 200), (1234, 3000)]
)
def test_the_longer_side_of_a_step_counts(before: int, there: int) -> None:
    """To the batch: five values, or half a percent."""
    first, last = found(np.repeat([3.0, 8.0], [before, there])) or (-1, -1)
    batch = max(5, -(-(before + there) // 200))
    expected = (before, before + there - 1) if there > before else (0, before - 1)
    assert 0 <= first - expected[0] < batch
    assert 0 <= expected[1] - last < batch


@pytest.mark.parametrize("count", [100, 173, 2000])
def test_of_two_levels_of_the_same_length_none_is_the_steady_one(count: int) -> None:
    levels = np.repeat([3.0, 8.0], [count // 2, count - count // 2])
    assert found(levels) is None
    assert found(levels + noise(count, 0.2)) is None


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e15])
@pytest.mark.parametrize(("up", "flat", "down"), [(20, 70, 10), (0, 80, 20), (120, 400, 80)])
def test_both_ends_of_a_run_are_left_out(up: int, flat: int, down: int, scale: float) -> None:
    first, last = found(scale * plateau(up, flat, down)) or (-1, -1)
    assert up <= first < up + 5
    # The last of the way up, and the first of the way down, may be as good as level.
    assert up + flat - 5 <= last <= up + flat + 5


@pytest.mark.parametrize("seed", range(20))
def test_noise_hides_no_warm_up(seed: int) -> None:
    values = plateau(120, 400, 80) + noise(600, 0.05, seed)
    first, last = found(values) or (-1, -1)
    # What of the ramp is within the noise is no matter.
    assert 95 <= first <= 200
    assert 440 <= last <= 535
    assert values[first : last + 1].mean() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("count", [MIN_SAMPLES, 200, 3000])
def test_noise_alone_is_steady(count: int) -> None:
    """Chance may cut some of it, and of the shortest series may make one in ten drift."""
    lengths = []
    for seed in range(100):
        stretch = found(10 + noise(count, 1.0, seed))
        if stretch is not None:
            lengths.append((stretch[1] - stretch[0] + 1) / count)
    assert len(lengths) >= (90 if count == MIN_SAMPLES else 99)
    assert min(lengths) >= 0.5
    assert np.mean(lengths) > (0.95 if count == 3000 else 0.65)


@pytest.mark.parametrize("count", [MIN_SAMPLES, 173, 5000])
@pytest.mark.parametrize("shape", ["linear", "root", "exponential"])
@pytest.mark.parametrize("way", [1, -1])
def test_what_never_settles_has_no_steady_state(count: int, shape: str, way: int) -> None:
    part = np.linspace(0, 1, count)
    values = {"linear": part, "root": np.sqrt(part), "exponential": np.exp(2 * part)}[shape]
    spread = values.max() - values.min()
    assert found(way * values + noise(count, 0.01 * spread)) is None


def test_few_values_are_not_enough() -> None:
    assert found(np.ones(MIN_SAMPLES)) == (0, MIN_SAMPLES - 1)
    assert found(np.ones(MIN_SAMPLES - 1)) is None
    assert found(np.empty(0)) is None
    values = np.ones(MIN_SAMPLES + 1)
    values[[3, 30]] = np.nan, np.inf
    assert found(values) is None


def test_values_that_are_none_leave_the_others() -> None:
    values = plateau(50, 200, 50)
    values[::7] = np.nan
    first, last = found(values) or (-1, -1)
    assert 50 <= first < 58
    assert 240 <= last <= 256


def test_the_largest_values_there_are_do_no_harm() -> None:
    assert found(1.7e308 * plateau(30, 100, 0)) == (30, 129)


def test_times_are_those_of_the_values() -> None:
    """However far they are apart."""
    values = plateau(50, 200, 50)
    times_ns = np.cumsum(np.random.default_rng(1).integers(1, 10 * S, len(values)))
    stretch = steady_stretch(Samples(times_ns, values))
    assert stretch is not None
    assert list(np.searchsorted(times_ns, stretch)) == [50, 249]
