"""What the runs of a sweep are: every combination of values, or some drawn at random.

Nothing here depends on the order in which parameters or values are written. A random choice is
made by hashing the seed with what is chosen from, not by a generator that is called in turn, so
that the same seed gives the same runs after the file was reordered, more trials add to the earlier
ones, and a new value among others changes only the trials that take it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice, product

from radt.errors import UsageError

#: A sweep of more runs is a mistake: at a minute each it takes a week.
MAX_RUNS = 10_000
#: Draws that bring nothing new before a random sweep of few trials gives up.
_MAX_VAIN_DRAWS = 10_000
#: Digits of a number drawn from a range; more would make commands unreadable, and say nothing.
_DIGITS = 6


class SweepMethod(StrEnum):
    """How runs are chosen."""

    GRID = "grid"
    RANDOM = "random"


class Distribution(StrEnum):
    """How numbers are drawn from a range; ends included."""

    UNIFORM = "uniform"
    LOG_UNIFORM = "log_uniform"  # the logarithm is uniform; the ends are the values' own
    INT = "int"


Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A parameter that takes one of these values; ``values`` as YAML understood them."""

    name: str
    values: tuple[Value, ...]

    def __len__(self) -> int:
        return len(self.values)

    def draw(self, seed: int, trial: int) -> Value:
        """The value of a trial: the one with the highest hash (rendezvous hashing)."""
        return max(self.values, key=lambda value: _hash(seed, self.name, trial, str(value)))


@dataclass(frozen=True, slots=True)
class Range:
    """A parameter that takes numbers between two ends."""

    name: str
    low: float
    high: float
    distribution: Distribution

    def draw(self, seed: int, trial: int) -> Value:
        """The number of a trial, rounded to what is worth writing down."""
        share = _hash(seed, self.name, trial) / 2**64
        match self.distribution:
            case Distribution.INT:
                low, high = int(self.low), int(self.high)
                return low + _hash(seed, self.name, trial) * (high - low + 1) // 2**64
            case Distribution.LOG_UNIFORM:
                ratio = math.log(self.high) - math.log(self.low)
                number = math.exp(math.log(self.low) + share * ratio)
            case Distribution.UNIFORM:
                # Not low + share * (high - low), which overflows between the largest floats.
                number = self.low * (1 - share) + self.high * share
        return min(max(float(f"{number:.{_DIGITS}g}"), self.low), self.high)


Parameter = Choice | Range
Key = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Combination:
    """One run's values, in the order of the file."""

    values: tuple[tuple[str, Value], ...]

    @property
    def key(self) -> Key:
        """What makes two combinations the same run, whatever their order."""
        return frozenset((name, str(value)) for name, value in self.values)

    @property
    def params(self) -> str:
        """The program's arguments; each value is one argument, whatever is in it."""
        return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in self.values)

    @property
    def original_params(self) -> str:
        """How radT 0.2 writes them, without quotes."""
        return " ".join(f"--{name} {value}" for name, value in self.values)


def combinations(
    parameters: Sequence[Parameter], method: SweepMethod, seed: int, trials: int | None
) -> tuple[Combination, ...]:
    """The runs of a sweep.

    Args:
        parameters: Each of them, in the file's order.
        method: A grid takes the first ``trials`` of all combinations, a random sweep draws.
        seed: Of a random sweep.
        trials: At most so many, None for all there are.

    Raises:
        UsageError: There are more than `MAX_RUNS`, or no end of them.
    """
    size = space_size(parameters)
    if trials is None and size is None:
        raise UsageError("a range has no end of values", "Say how many runs to draw: trials: 20")
    count = min(one for one in (size, trials) if one is not None)
    if count > MAX_RUNS:
        raise UsageError(
            f"{count:,} runs are more than the {MAX_RUNS:,} that a sweep may have",
            f"Say how many of them to run, {MAX_RUNS} at most: trials: 100",
        )
    if size is None or (method is SweepMethod.RANDOM and size > MAX_RUNS):
        return _drawn(parameters, seed, count)
    every = _grid([_as_choice(parameter) for parameter in parameters])
    if method is SweepMethod.RANDOM:
        every = iter(sorted(every, key=lambda one: _hash(seed, one.key)))
    return tuple(islice(every, count))


def space_size(parameters: Sequence[Parameter]) -> int | None:
    """The number of all combinations; None with a range that is not of whole numbers."""
    size = 1
    for parameter in parameters:
        if isinstance(parameter, Choice):
            size *= len(parameter)
        elif parameter.distribution is Distribution.INT:
            size *= int(parameter.high) - int(parameter.low) + 1
        else:
            return None
    return size


def _grid(choices: Sequence[Choice]) -> Iterator[Combination]:
    """All combinations, those of the last parameter first, as nested loops would have them."""
    names = [choice.name for choice in choices]
    for values in product(*(choice.values for choice in choices)):
        yield Combination(tuple(zip(names, values, strict=True)))


def _drawn(parameters: Sequence[Parameter], seed: int, count: int) -> tuple[Combination, ...]:
    found: dict[Key, Combination] = {}
    vain = 0
    for trial in itertools.count():
        if len(found) == count:
            break
        one = Combination(tuple((p.name, p.draw(seed, trial)) for p in parameters))
        vain = vain + 1 if one.key in found else 0
        found.setdefault(one.key, one)
        if vain > _MAX_VAIN_DRAWS:
            raise UsageError(
                f"{len(found):,} different runs are all that could be drawn, not {count:,}",
                f"Write trials: {len(found)}, or widen the ranges",
            )
    return tuple(found.values())


def _as_choice(parameter: Parameter) -> Choice:
    if isinstance(parameter, Choice):
        return parameter
    return Choice(parameter.name, tuple(range(int(parameter.low), int(parameter.high) + 1)))


def _hash(seed: int, *parts: object) -> int:
    """64 bits that depend on nothing but these parts, in any process and version."""
    spelled = (sorted(part) if isinstance(part, frozenset) else part for part in parts)
    text = repr((seed, *spelled))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
