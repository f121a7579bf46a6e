"""Which runs a random sweep draws: the same ones for the same seed, however the file is written."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radt.errors import UsageError
from radt.experiment.sweep_expand import (
    MAX_RUNS,
    Choice,
    Combination,
    Distribution,
    Parameter,
    Range,
    SweepMethod,
    expand,
)

RANDOM = SweepMethod.RANDOM

names = st.sampled_from(["lr", "bs", "wd", "seed"])
choices = st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True)
grids = st.dictionaries(names, choices, min_size=1, max_size=4)
ends = st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)).map(sorted)
ranges = st.builds(
    lambda name, pair, kind: (
        Range(name, math.floor(pair[0]), math.ceil(pair[1]) + 10**6, kind)
        if kind is Distribution.INT
        else Range(name, pair[0], pair[1] * 10, kind)
    ),
    names.map("range-{}".format),
    ends,
    st.sampled_from(Distribution),
)


def parameters(grid: dict[str, list[int]]) -> list[Parameter]:
    return [Choice(name, tuple(values)) for name, values in grid.items()]


def keys(found: tuple[Combination, ...]) -> list[frozenset[tuple[str, str]]]:
    return [one.key for one in found]


@settings(deadline=None)
@given(grids, st.data())
def test_order_does_not_matter(grid: dict[str, list[int]], data: st.DataObject) -> None:
    seed, trials = data.draw(st.integers(0, 5)), data.draw(st.none() | st.integers(1, 40))
    ranged = data.draw(st.lists(ranges, max_size=2, unique_by=lambda one: one.name))
    trials = trials or (20 if ranged else None)
    space = [*parameters(grid), *ranged]
    shuffled = [
        Choice(one.name, tuple(data.draw(st.permutations(one.values))))
        if isinstance(one, Choice)
        else one
        for one in data.draw(st.permutations(space))
    ]

    one, other = (expand(each, RANDOM, seed, trials) for each in (space, shuffled))

    assert keys(one) == keys(other)


@settings(deadline=None)
@given(grids, ranges, st.integers(0, 5), st.integers(1, 20), st.integers(0, 20))
def test_more_trials_add_to_the_earlier_ones(
    grid: dict[str, list[int]], ranged: Range, seed: int, trials: int, more: int
) -> None:
    for space in (parameters(grid), [*parameters(grid), ranged]):
        few = expand(space, RANDOM, seed, trials)
        many = expand(space, RANDOM, seed, trials + more)
        assert keys(many)[: len(few)] == keys(few)


@settings(deadline=None)
@given(grids, st.none() | st.integers(1, 50), st.sampled_from(SweepMethod))
def test_lists_are_drawn_without_repetition_until_there_are_no_more(
    grid: dict[str, list[int]], trials: int | None, method: SweepMethod
) -> None:
    found = keys(expand(parameters(grid), method, 1, trials))

    size = math.prod(map(len, grid.values()))
    assert len(found) == len(set(found)) == min(size, trials or size)
    for key in found:
        assert {name: int(value) in grid[name] for name, value in key} == dict.fromkeys(grid, True)


@settings(deadline=None)
@given(ranges, st.integers(0, 2**31))
def test_ranges_hold(ranged: Range, seed: int) -> None:
    for one in expand([ranged], RANDOM, seed, 20):
        value = dict(one.values)[ranged.name]
        assert isinstance(value, int if ranged.distribution is Distribution.INT else float)
        assert ranged.low <= value <= ranged.high
        assert len(f"{value:.6g}") <= 12 or isinstance(value, int)


@pytest.mark.parametrize("distribution", Distribution)
def test_both_ends_and_the_middle_are_reached(distribution: Distribution) -> None:
    """Of 3,000 draws a third each, within five standard deviations (129)."""
    ranged = Range("x", 1, 10**6, distribution)
    cuts = {
        Distribution.UNIFORM: (333_334, 666_667),
        Distribution.INT: (333_334, 666_667),
        Distribution.LOG_UNIFORM: (100, 10_000),
    }[distribution]

    values = [float(str(ranged.draw(7, trial))) for trial in range(3000)]

    thirds = [sum(value < cut for value in values) for cut in cuts]
    assert abs(thirds[0] - 1000) < 129 and abs(thirds[1] - 2000) < 129
    assert {Range("n", 0, 2, Distribution.INT).draw(7, trial) for trial in range(50)} == {0, 1, 2}


def test_seeds_differ() -> None:
    given = [Range("lr", 0.0, 1.0, Distribution.UNIFORM), Choice("bs", (1, 2, 3))]

    one, other = (expand(given, RANDOM, seed, 10) for seed in (1, 2))

    assert not set(keys(one)) & set(keys(other))
    grid = parameters({"a": [1, 2, 3], "b": [4, 5, 6]})
    assert keys(expand(grid, RANDOM, 1, None)) != keys(expand(grid, RANDOM, 2, None))


def test_other_processes_draw_the_same() -> None:
    program = (
        "from radt.experiment.sweep_expand import *\n"
        "given = [Range('lr', 1e-4, 0.1, Distribution.LOG_UNIFORM), Choice('bs', (32, 64, 128))]\n"
        "print([c.params for c in expand(given, SweepMethod.RANDOM, 42, 4)])\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    # What was drawn once is drawn for ever: a sweep of last year is resumed by this release.
    assert printed == {DRAWN + "\n"}


DRAWN = (
    "['--lr 0.000227925 --bs 128', '--lr 0.0118802 --bs 32', "
    "'--lr 0.00624636 --bs 128', '--lr 0.000730698 --bs 64']"
)


def test_a_new_value_among_many_changes_few_trials() -> None:
    """One of eleven values is new: of 400 trials about 36 take it, the others stay."""
    ranged = Range("lr", 0.0, 1.0, Distribution.UNIFORM)
    before = expand([ranged, Choice("bs", tuple(range(10)))], RANDOM, 3, 400)
    after = expand([ranged, Choice("bs", tuple(range(11)))], RANDOM, 3, 400)

    gone = set(keys(before)) - set(keys(after))

    assert 10 <= len(gone) <= 80


def test_a_space_too_large_for_a_list_is_drawn_from() -> None:
    given = parameters({name: list(range(30)) for name in "abcdefgh"})

    found = keys(expand(given, RANDOM, 1, 50))

    assert len(set(found)) == 50


@pytest.mark.parametrize(
    ("given", "trials", "cause"),
    [
        ([Range("a", 0.0, 1.0, Distribution.UNIFORM)], None, "infinitely many"),
        ([Choice("a", tuple(range(MAX_RUNS + 1)))], None, "got 10,001"),
        (
            [Range("a", 0.0, 1.0, Distribution.UNIFORM)],
            MAX_RUNS + 1,
            "got 10,001",
        ),
        ([Range("a", 1.0, 1.00002, Distribution.UNIFORM)], 10, "10 different runs, got 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    given: list[Parameter], trials: int | None, cause: str
) -> None:
    with pytest.raises(UsageError, match=cause) as caught:
        expand(given, RANDOM, 1, trials)
    assert "trials: " in str(caught.value.remedy)


def test_whole_numbers_are_all_drawn_where_there_are_few() -> None:
    found = expand([Range("n", 1, 3, Distribution.INT)], RANDOM, 1, 10)

    assert sorted(one.params for one in found) == ["--n 1", "--n 2", "--n 3"]
