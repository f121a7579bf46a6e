"""Which runs a random sweep draws: the same ones for the same seed, however the file is written."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radt.errors import UsageError
from radt.experiment.sweep_expand import (
    MAX_RUNS,
    Combination,
    Distribution,
    SweepChoice,
    SweepMethod,
    SweepParameter,
    SweepRange,
    Value,
    expand,
)

RANDOM = SweepMethod.RANDOM

names = st.sampled_from(["lr", "bs", "wd", "seed"])
choices = st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True)
grids = st.dictionaries(names, choices, min_size=1, max_size=4)
ends = st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)).map(sorted)
LIMITED = [each for each in Distribution if not each.is_normal]
ranges = st.builds(
    lambda name, pair, kind: (
        number(name, math.floor(pair[0]), math.ceil(pair[1]) + 10**6, kind)
        if kind is Distribution.INT
        else number(name, pair[0], pair[1] * 10, kind)
    ),
    names.map("range-{}".format),
    ends,
    st.sampled_from(LIMITED),
)


def number(
    name: str,
    low: float,
    high: float,
    kind: Distribution = Distribution.UNIFORM,
    step: float | None = None,
) -> SweepParameter:
    return SweepParameter((name,), SweepRange(low, high, kind, step))


def listed(name: str, values: Sequence[Value], **when: set[str]) -> SweepParameter:
    conditions = {other: frozenset(texts) for other, texts in when.items()}
    return SweepParameter(tuple(name.split(", ")), SweepChoice(tuple(values)), when=conditions)


def parameters(grid: dict[str, list[int]]) -> list[SweepParameter]:
    return [listed(name, values) for name, values in grid.items()]


def lines(found: Iterable[Combination]) -> list[str]:
    return [shlex.join(one.arguments) for one in found]


def keys(found: tuple[Combination, ...]) -> list[frozenset[tuple[str, str]]]:
    return [one.key for one in found]


@settings(deadline=None)
@given(grids, st.data())
def test_order_does_not_matter(grid: dict[str, list[int]], data: st.DataObject) -> None:
    seed, trials = data.draw(st.integers(0, 5)), data.draw(st.none() | st.integers(1, 40))
    ranged = data.draw(st.lists(ranges, max_size=2, unique_by=lambda one: one.names))
    trials = trials or (20 if ranged else None)
    space = [*parameters(grid), *ranged]
    shuffled = [
        listed(one.names[0], data.draw(st.permutations(one.source.values)))
        if isinstance(one.source, SweepChoice)
        else one
        for one in data.draw(st.permutations(space))
    ]

    one, other = (expand(each, RANDOM, seed, trials) for each in (space, shuffled))

    assert keys(one) == keys(other)


@settings(deadline=None)
@given(grids, ranges, st.integers(0, 5), st.integers(1, 20), st.integers(0, 20))
def test_more_trials_add_to_the_earlier_ones(
    grid: dict[str, list[int]], ranged: SweepParameter, seed: int, trials: int, more: int
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
def test_ranges_hold(ranged: SweepParameter, seed: int) -> None:
    source = ranged.source
    assert isinstance(source, SweepRange)
    for one in expand([ranged], RANDOM, seed, 20):
        value = one.values[ranged.names[0]]
        assert isinstance(value, int if source.distribution is Distribution.INT else float)
        assert source.low <= value <= source.high
        assert len(f"{value:.6g}") <= 12 or isinstance(value, int)


@pytest.mark.parametrize(
    ("source", "cuts"),
    [
        (SweepRange(1, 10**6, Distribution.UNIFORM), (333_334, 666_667)),
        (SweepRange(1, 10**6, Distribution.INT), (333_334, 666_667)),
        (SweepRange(1, 10**6, Distribution.LOG_UNIFORM), (100, 10_000)),
        (SweepRange(1, 10**6, Distribution.LOG_UNIFORM, 0.5), (100, 10_000)),
        # The thirds of the normal distribution are 0.4307 deviations from its mean.
        (SweepRange(10, 12, Distribution.NORMAL), (9.1386, 10.8614)),
        (SweepRange(0, 1, Distribution.LOG_NORMAL), (0.65, 1.5384)),
    ],
)
def test_a_third_of_the_draws_is_in_each_third(
    source: SweepRange, cuts: tuple[float, float]
) -> None:
    """Of 3,000 draws a third each, within five standard deviations (129)."""
    drawn = [SweepParameter(("x",), source).draw(7, trial) for trial in range(3000)]

    thirds = [sum(float(str(value)) < cut for value in drawn) for cut in cuts]
    assert abs(thirds[0] - 1000) < 129 and abs(thirds[1] - 2000) < 129


def test_both_ends_are_drawn() -> None:
    whole = number("n", 0, 2, Distribution.INT)

    assert {whole.draw(7, trial) for trial in range(50)} == {0, 1, 2}
    for end in (0, 2**64 - 1):
        for distribution in Distribution:
            assert math.isfinite(float(str(SweepRange(1, 2, distribution).at(end))))


@pytest.mark.parametrize(
    ("low", "high", "step", "drawn"),
    [
        (0, 10, 5.0, {0, 5, 10}),
        (0, 1, 0.5, {0.0, 0.5, 1.0}),
        (0.1, 0.4, 0.1, {0.1, 0.2, 0.3, 0.4}),
        (1, 11, 3.0, {0, 3, 6, 9, 12}),  # also beyond the limits
    ],
)
def test_numbers_with_a_step_are_those_of_wandb(
    low: float, high: float, step: float, drawn: set[float]
) -> None:
    """W&B rounds what it draws, and takes `numpy.arange` for a grid."""
    ranged = number("x", low, high, step=step)

    values = [ranged.draw(1, trial) for trial in range(200)]

    assert set(values) == drawn
    assert {type(value) for value in values} == {int if step.is_integer() else float}
    grid = [one.values["x"] for one in expand([ranged], SweepMethod.GRID, 0, None)]
    assert grid == pytest.approx(numpy.arange(low, high, step).tolist())


def test_parameters_vary_together() -> None:
    grid = [listed("model, lr", [["vit", 0.1], ["cnn", 0.1]]), listed("bs", [1, 2])]

    assert lines(expand(grid, SweepMethod.GRID, 0, None)) == [
        "--model vit --lr 0.1 --bs 1",
        "--model vit --lr 0.1 --bs 2",
        "--model cnn --lr 0.1 --bs 1",
        "--model cnn --lr 0.1 --bs 2",
    ]
    drawn = expand([*grid, number("wd", 0, 1)], RANDOM, 0, 50)
    assert {(one.values["model"], one.values["lr"]) for one in drawn} == {
        ("vit", 0.1),
        ("cnn", 0.1),
    }


def test_parameters_are_passed_where_their_condition_holds() -> None:
    grid = [
        listed("opt", ["sgd", "adam", "none"]),
        listed("momentum", [0.5, 0.9], opt={"sgd"}),
        listed("nesterov", [True, False], opt={"sgd"}, momentum={"0.9"}),
        listed("lr", [1], opt={"sgd", "adam"}),
    ]
    expected = [
        "--opt sgd --momentum 0.5 --lr 1",
        "--opt sgd --momentum 0.9 --nesterov --lr 1",
        "--opt sgd --momentum 0.9 --lr 1",
        "--opt adam --lr 1",
        "--opt none",
    ]

    assert lines(expand(grid, SweepMethod.GRID, 0, None)) == expected
    assert sorted(lines(expand(grid, RANDOM, 3, None))) == sorted(expected)
    drawn = expand([*grid, number("wd", 0, 1)], RANDOM, 0, 100)
    assert {re.sub(" --wd .*", "", line) for line in lines(drawn)} == set(expected)


def test_only_combinations_that_occur_are_counted() -> None:
    """Of 11 x 11**4 combinations of values 11 + 10 differ."""
    many = [str(number) for number in range(11)]
    rest = [listed(name, many, a={"0"} if name == "b" else {"none"}) for name in "bcde"]

    assert len(expand([listed("a", many), *rest], SweepMethod.GRID, 0, None)) == 21


def test_seeds_differ() -> None:
    given = [number("lr", 0.0, 1.0), listed("bs", (1, 2, 3))]

    one, other = (expand(given, RANDOM, seed, 10) for seed in (1, 2))

    assert not set(keys(one)) & set(keys(other))
    grid = parameters({"a": [1, 2, 3], "b": [4, 5, 6]})
    assert keys(expand(grid, RANDOM, 1, None)) != keys(expand(grid, RANDOM, 2, None))


def test_other_processes_draw_the_same() -> None:
    program = (
        "from radt.experiment.sweep_expand import *\n"
        "lr = SweepParameter(('lr',), SweepRange(1e-4, 0.1, Distribution.LOG_UNIFORM))\n"
        "bs = SweepParameter(('bs',), SweepChoice((32, 64, 128)))\n"
        "drawn = expand([lr, bs], SweepMethod.RANDOM, 42, 4)\n"
        "print([' '.join(c.arguments) for c in drawn])\n"
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
    ranged = number("lr", 0.0, 1.0)
    before = expand([ranged, listed("bs", range(10))], RANDOM, 3, 400)
    after = expand([ranged, listed("bs", range(11))], RANDOM, 3, 400)

    gone = set(keys(before)) - set(keys(after))

    assert 10 <= len(gone) <= 80


def test_a_space_too_large_for_a_list_is_drawn_from() -> None:
    given = parameters({name: list(range(30)) for name in "abcdefgh"})

    found = keys(expand(given, RANDOM, 1, 50))

    assert len(set(found)) == 50


@pytest.mark.parametrize(
    ("given", "trials", "cause"),
    [
        ([number("a", 0.0, 1.0)], None, "infinitely many"),
        ([listed("a", range(MAX_RUNS + 1))], None, "got 10,001"),
        ([number("a", 0.0, 1.0)], MAX_RUNS + 1, "got 10,001"),
        ([number("a", 1.0, 1.00002)], 10, "10 different runs, got 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    given: list[SweepParameter], trials: int | None, cause: str
) -> None:
    with pytest.raises(UsageError, match=cause) as caught:
        expand(given, RANDOM, 1, trials)
    assert "trials: " in str(caught.value.remedy)


def test_whole_numbers_are_all_drawn_where_there_are_few() -> None:
    found = expand([number("n", 1, 3, Distribution.INT)], RANDOM, 1, 10)

    assert sorted(lines(found)) == ["--n 1", "--n 2", "--n 3"]
