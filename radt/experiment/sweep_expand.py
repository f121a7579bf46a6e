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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist

from radt.errors import UsageError
from radt.experiment.sweep_words import Style, Value, words

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
    """How numbers are drawn: between two limits, these included, or around a mean."""

    UNIFORM = "uniform"
    LOG_UNIFORM = "log_uniform"  # the logarithm is uniform; the limits are the values' own
    INT = "int"
    NORMAL = "normal"
    LOG_NORMAL = "log_normal"  # the logarithm is normal; mean and deviation are the logarithm's

    @property
    def is_normal(self) -> bool:
        """Return whether it has a mean and a standard deviation instead of limits."""
        return self in (Distribution.NORMAL, Distribution.LOG_NORMAL)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these values, as YAML parsed them; of several parameters a list with one for each."""

    values: tuple[Value, ...]

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Range:
    """A number drawn from a distribution.

    ``low`` and ``high`` are its limits; ``low`` is the mean of a normal one, ``high`` the mean and
    a standard deviation. With a ``step`` numbers are rounded to multiples of it, also to one that
    lies beyond a limit, as W&B does.
    """

    low: float
    high: float
    distribution: Distribution
    step: float | None = None

    @property
    def size(self) -> int | None:
        """The number of values that a grid takes; None for infinitely many.

        Those with a step are W&B's: they start at the lower limit and do not reach the upper one.
        """
        if self.distribution is Distribution.INT:
            return int(self.high) - int(self.low) + 1
        if self.step is None or self.distribution is not Distribution.UNIFORM:
            return None
        return math.ceil((self.high - self.low) / self.step)

    @property
    def values(self) -> Iterator[Value]:
        """The values that a grid takes."""
        step = self.step or 1.0
        return (_plain(self.low + index * step, step) for index in range(self.size or 0))

    def at(self, number: int) -> Value:
        """Return the number for one of 2**64 hashes, rounded to `_DIGITS` or to the step."""
        if self.distribution is Distribution.INT:
            low, high = int(self.low), int(self.high)
            return low + number * (high - low + 1) // 2**64
        drawn = self._quantile(number)
        if self.step is not None:
            return _plain(round(drawn / self.step) * self.step, self.step)
        rounded = float(f"{drawn:.{_DIGITS}g}")
        return rounded if self.distribution.is_normal else min(max(rounded, self.low), self.high)

    def _quantile(self, number: int) -> float:
        if self.distribution.is_normal:
            share = ((number >> 12) + 0.5) / 2**52  # neither 0 nor 1, where it is infinite
            drawn = self.low + (self.high - self.low) * NormalDist().inv_cdf(share)
            return drawn if self.distribution is Distribution.NORMAL else math.exp(drawn)
        share = number / 2**64
        if self.distribution is Distribution.LOG_UNIFORM:
            ratio = math.log(self.high) - math.log(self.low)
            return math.exp(math.log(self.low) + share * ratio)
        # Not low + share * (high - low), which overflows between the largest floats.
        return self.low * (1 - share) + self.high * share


def _plain(multiple: float, step: float) -> Value:
    """Return a multiple of a step without the noise of binary fractions."""
    whole = step.is_integer() and multiple.is_integer()
    return int(multiple) if whole else float(f"{multiple:.12g}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a sweep: the values it takes, and how they are passed.

    Attributes:
        names: Its name on the command line, dotted for a nested one; of parameters that vary
            together all names.
        source: What its values come from.
        style: How a value becomes arguments.
        when: Other parameters by name, and the texts of those of their values with which it is
            passed; empty for always.
        outer: The names of the parameters that it is nested in, outermost first.
    """

    names: tuple[str, ...]
    source: Choice | Range
    style: Style = Style.OPTION
    when: Mapping[str, frozenset[str]] = field(default_factory=dict)
    outer: tuple[str, ...] = ()

    def assigned(self, value: Value) -> tuple[Assignment, ...]:
        """Return what a value of it assigns to its names."""
        values = value if len(self.names) > 1 and isinstance(value, list) else [value]
        pairs = zip(self.names, values, strict=True)
        return tuple(Assignment(self, name, each) for name, each in pairs)

    def applies(self, chosen: Iterable[Assignment]) -> bool:
        """Return whether it is passed beside these values of the parameters before it."""
        texts = {each.name: str(each.value) for each in chosen}
        return all(texts.get(name) in allowed for name, allowed in self.when.items())

    def draw(self, seed: int, trial: int) -> Value:
        """Return the value of a trial; of a list the one of highest hash (rendezvous hashing)."""
        name = ", ".join(self.names)
        if isinstance(self.source, Range):
            return self.source.at(_hash(seed, name, trial))
        return max(self.source.values, key=lambda value: _hash(seed, name, trial, str(value)))


@dataclass(frozen=True, slots=True)
class Assignment:
    """A value of a parameter under one of its names."""

    parameter: Parameter
    name: str
    value: Value

    @property
    def words(self) -> list[str]:
        """The arguments that pass it."""
        return words(self.name, self.value, self.parameter.style)


@dataclass(frozen=True, slots=True)
class Combination:
    """The values of one run, in the order of the file."""

    assignments: tuple[Assignment, ...]

    @property
    def values(self) -> dict[str, Value]:
        """The values by name."""
        return {each.name: each.value for each in self.assignments}

    @property
    def key(self) -> frozenset[tuple[str, str]]:
        """What makes two combinations the same run, whatever their order."""
        return frozenset((name, str(value)) for name, value in self.values.items())

    @property
    def arguments(self) -> list[str]:
        """The program's arguments; ``name=value`` comes first, or an option might swallow it."""
        passed = [each.words for each in self.assignments]
        passed.sort(key=lambda arguments: bool(arguments) and arguments[0].startswith("-"))
        return list(itertools.chain(*passed))


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
    grid = _grid(parameters, ())
    if method is SweepMethod.RANDOM:
        grid = iter(sorted(grid, key=lambda combination: _hash(seed, combination.key)))
    return tuple(itertools.islice(grid, count))


def _space_size(parameters: Sequence[Parameter]) -> int | None:
    """Return the number of combinations; None if there are infinitely many.

    Where parameters have conditions they are counted, but not further than they are of interest.
    """
    sizes = [parameter.source.size for parameter in parameters]
    if None in sizes:
        return None
    size = math.prod(size for size in sizes if size is not None)
    if size > MAX_RUNS and any(parameter.when for parameter in parameters):
        return sum(1 for _ in itertools.islice(_grid(parameters, ()), MAX_RUNS + 1))
    return size


def _grid(parameters: Sequence[Parameter], chosen: tuple[Assignment, ...]) -> Iterator[Combination]:
    """Yield all combinations as nested loops do: the last parameter changes first."""
    if not parameters:
        yield Combination(chosen)
    elif not parameters[0].applies(chosen):
        yield from _grid(parameters[1:], chosen)
    else:
        for value in parameters[0].source.values:
            yield from _grid(parameters[1:], (*chosen, *parameters[0].assigned(value)))


def _draw(parameters: Sequence[Parameter], seed: int, count: int) -> tuple[Combination, ...]:
    drawn: dict[frozenset[tuple[str, str]], Combination] = {}
    vain = 0
    for trial in itertools.count():
        if len(drawn) == count:
            break
        chosen: tuple[Assignment, ...] = ()
        for parameter in parameters:
            if parameter.applies(chosen):
                chosen += parameter.assigned(parameter.draw(seed, trial))
        combination = Combination(chosen)
        vain = vain + 1 if combination.key in drawn else 0
        drawn.setdefault(combination.key, combination)
        if vain > _MAX_VAIN_DRAWS:
            raise UsageError(
                f"expected {count:,} different runs, got {len(drawn):,}",
                f"Write trials: {len(drawn)}, or widen the ranges",
            )
    return tuple(drawn.values())


def _hash(seed: int, *parts: object) -> int:
    """Return 64 bits that depend on these parts alone, in any process and version."""
    spelled = (sorted(part) if isinstance(part, frozenset) else part for part in parts)
    text = repr((seed, *spelled))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
