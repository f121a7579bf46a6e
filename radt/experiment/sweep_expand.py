"""The runs of a sweep: every combination of values, or some drawn at random.

The expansion does not depend on the order in which parameters or values are written. A random
choice hashes the seed with the alternatives instead of calling a generator in turn. So the same
seed gives the same runs after the file was reordered, more trials add to the earlier ones, and a
new value changes only the trials that take it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from radt.errors import UsageError

#: A sweep of more runs is a mistake: at a minute each it takes a week.
MAX_RUNS = 10_000

#: Draws without a new combination before a random sweep of few trials gives up.
_MAX_VAIN_DRAWS = 10_000
#: Significant digits of a number drawn from a range.
_DIGITS = 6


class SweepMethod(StrEnum):
    """How runs are chosen."""

    GRID = "grid"
    RANDOM = "random"


class Distribution(StrEnum):
    """How numbers are drawn from a range, limits included."""

    UNIFORM = "uniform"
    LOG_UNIFORM = "log_uniform"  # the logarithm is uniform; the limits are the values' own
    INT = "int"


Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A parameter that takes one of these values, as YAML parsed them."""

    name: str
    values: tuple[Value, ...]

    def draw(self, seed: int, trial: int) -> Value:
        """Return the value of a trial: the one with the highest hash (rendezvous hashing)."""
        return max(self.values, key=lambda value: _hash(seed, self.name, trial, str(value)))


@dataclass(frozen=True, slots=True)
class Range:
    """A parameter that takes numbers between two limits."""

    name: str
    low: float
    high: float
    distribution: Distribution

    def draw(self, seed: int, trial: int) -> Value:
        """Return the number of a trial, rounded to `_DIGITS`."""
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


@dataclass(frozen=True, slots=True)
class Combination:
    """The values of one run, in the order of the file."""

    values: tuple[tuple[str, Value], ...]

    @property
    def key(self) -> frozenset[tuple[str, str]]:
        """What makes two combinations the same run, whatever their order."""
        return frozenset((name, str(value)) for name, value in self.values)

    @property
    def params(self) -> str:
        """The program's arguments; each value is one argument, whatever characters it has."""
        return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in self.values)


def expand(
    parameters: Sequence[Parameter], method: SweepMethod, seed: int, trials: int | None
) -> tuple[Combination, ...]:
    """Return the runs of a sweep.

    Args:
        parameters: All of them, in the file's order.
        method: A grid takes the first ``trials`` combinations; a random sweep draws.
        seed: Of a random sweep.
        trials: The largest number of runs; None for all.

    Raises:
        UsageError: There are more than `MAX_RUNS`, or infinitely many.
    """
    size = _space_size(parameters)
    if trials is None and size is None:
        raise UsageError("a range has infinitely many values", "Limit the runs: trials: 20")
    count = min(number for number in (size, trials) if number is not None)
    if count > MAX_RUNS:
        raise UsageError(
            f"expected at most {MAX_RUNS:,} runs, got {count:,}", "Limit them: trials: 100"
        )
    if size is None or (method is SweepMethod.RANDOM and size > MAX_RUNS):
        return _draw(parameters, seed, count)
    grid = _grid([_as_choice(parameter) for parameter in parameters])
    if method is SweepMethod.RANDOM:
        grid = iter(sorted(grid, key=lambda combination: _hash(seed, combination.key)))
    return tuple(itertools.islice(grid, count))


def _space_size(parameters: Sequence[Parameter]) -> int | None:
    """Return the number of all combinations; None with a range that is not of whole numbers."""
    size = 1
    for parameter in parameters:
        if isinstance(parameter, Choice):
            size *= len(parameter.values)
        elif parameter.distribution is Distribution.INT:
            size *= int(parameter.high) - int(parameter.low) + 1
        else:
            return None
    return size


def _grid(choices: Sequence[Choice]) -> Iterator[Combination]:
    """Yield all combinations as nested loops do: the last parameter changes first."""
    names = [choice.name for choice in choices]
    for values in itertools.product(*(choice.values for choice in choices)):
        yield Combination(tuple(zip(names, values, strict=True)))


def _draw(parameters: Sequence[Parameter], seed: int, count: int) -> tuple[Combination, ...]:
    drawn: dict[frozenset[tuple[str, str]], Combination] = {}
    vain = 0
    for trial in itertools.count():
        if len(drawn) == count:
            break
        combination = Combination(tuple((p.name, p.draw(seed, trial)) for p in parameters))
        vain = vain + 1 if combination.key in drawn else 0
        drawn.setdefault(combination.key, combination)
        if vain > _MAX_VAIN_DRAWS:
            raise UsageError(
                f"expected {count:,} different runs, got {len(drawn):,}",
                f"Write trials: {len(drawn)}, or widen the ranges",
            )
    return tuple(drawn.values())


def _as_choice(parameter: Parameter) -> Choice:
    if isinstance(parameter, Choice):
        return parameter
    return Choice(parameter.name, tuple(range(int(parameter.low), int(parameter.high) + 1)))


def _hash(seed: int, *parts: object) -> int:
    """Return 64 bits that depend on these parts alone, in any process and version."""
    spelled = (sorted(part) if isinstance(part, frozenset) else part for part in parts)
    text = repr((seed, *spelled))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
