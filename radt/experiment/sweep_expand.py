"""The runs of a sweep: every combination of values, or some drawn at random.

The expansion does not depend on the order of parameters or values in the file. A random choice
hashes the seed with the alternatives instead of using a sequential generator. Therefore the same
seed gives the same runs after reordering, more trials extend the earlier ones, and a new value
changes only the trials that draw it. Only `words` knows how a style formats a value; quoting for a
cell is done by `radt.experiment.sweep_spec.SweepSpec.rows`.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist
from typing import TypeAlias

from radt.errors import UsageError

#: The types of values in YAML. Mappings only occur in W&B's sweeps, for nested parameters.
Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"

#: Words that start with a dash but that argparse accepts as values.
_NUMBER = re.compile(r"-\d+|-\d*\.\d+|-", re.ASCII)
#: Texts that Hydra reads as another type.
_KEYWORDS = ("true", "false", "null", "nan", "inf", "-inf", "+inf")
#: Other texts in lists that Hydra reads without quotes.
_PLAIN = re.compile(r"[A-Za-z_/.+-][\w/.+-]*", re.ASCII)


class Style(StrEnum):
    """The way a parameter is passed to a program."""

    #: As for argparse: a flag or nothing for booleans, nothing for null, several words for a list
    #: (``nargs="+"``).
    OPTION = "--name value"
    #: The same, with ``--no-name`` for false (``argparse.BooleanOptionalAction``).
    ON_OFF = "--name/--no-name"
    #: One word with the value as Python prints it, for any type. W&B's default.
    TEXT = "--name=value"
    #: As for Hydra and OmegaConf: ``lr=0.1``, ``amp=true``, ``sizes=[1,2]``; nothing for null.
    ASSIGNMENT = "name=value"
    # The argument macros of W&B's sweep commands, besides ``args``, which is TEXT.
    ARGS_NO_EQUALS = "args_no_equals"
    ARGS_NO_BOOLEAN_FLAGS = "args_no_boolean_flags"
    ARGS_NO_HYPHENS = "args_no_hyphens"


def words(name: str, value: Value, style: Style) -> list[str]:
    """Return the arguments that pass a value; empty if there is nothing to pass.

    >>> words("sizes", [1, 2], Style.OPTION), words("amp", False, Style.ON_OFF)
    (['--sizes', '1', '2'], ['--no-amp'])
    """
    match style, value:
        case Style.OPTION | Style.ON_OFF | Style.ASSIGNMENT, None:
            return []
        case Style.OPTION | Style.ARGS_NO_BOOLEAN_FLAGS, False:
            return []
        case Style.OPTION | Style.ON_OFF | Style.ARGS_NO_BOOLEAN_FLAGS, True:
            return [f"--{name}"]
        case Style.ON_OFF, False:
            return [f"--no-{name}"]
        case Style.OPTION | Style.ON_OFF, list():
            return [f"--{name}", *map(str, value)]
        case Style.ARGS_NO_EQUALS, _:
            return [f"--{name}", str(value)]
        case Style.ARGS_NO_HYPHENS, _:
            return [f"{name}={value}"]
        case Style.ASSIGNMENT, _:
            return [f"{name}={_assigned(value)}"]
        case Style.OPTION | Style.ON_OFF, _ if not is_option(str(value)):
            return [f"--{name}", str(value)]
    return [f"--{name}={value}"]


def is_option(word: str) -> bool:
    """Return whether argparse takes a word for an option in any position."""
    return word.startswith("-") and _NUMBER.fullmatch(word) is None


def _assigned(value: Value, *, is_item: bool = False) -> str:
    """Return a value in the syntax of Hydra's overrides; text outside of lists is unchanged."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{','.join(_assigned(item, is_item=True) for item in value)}]"
        case str() if is_item and (_PLAIN.fullmatch(value) is None or value.lower() in _KEYWORDS):
            # A backslash is literal unless a quote follows, including the closing one.
            quotes = re.compile(r"(\\*)('|\Z)")
            literal = quotes.sub(lambda quote: quote[1] * 2 + (r"\'" if quote[2] else ""), value)
            return f"'{literal}'"
    return str(value)


#: A sweep of more runs is a mistake: at a minute each, it would take a week.
MAX_RUNS = 10_000

#: Draws without a new combination before a random sweep of few trials gives up.
_MAX_VAIN_DRAWS = 10_000
#: Significant digits of a number drawn from a range.
_DIGITS = 6


class SweepMethod(StrEnum):
    """The way runs are chosen."""

    GRID = "grid"
    RANDOM = "random"


class Distribution(StrEnum):
    """The distribution of numbers: between two limits, both included, or around a mean."""

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
class SweepChoice:
    """One of these values, as YAML parsed them; for several parameters, a list of one for each."""

    values: tuple[Value, ...]

    @property
    def size(self) -> int:
        """Return the number of values."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class SweepRange:
    """A number drawn from a distribution.

    ``low`` and ``high`` are its limits; for a normal distribution, ``low`` is the mean, and
    ``high`` the mean plus the standard deviation. With a ``step``, numbers are rounded to multiples
    of it, even to a multiple beyond a limit, as in W&B.
    """

    low: float
    high: float
    distribution: Distribution
    step: float | None = None

    @property
    def size(self) -> int | None:
        """The number of values that a grid takes; None for infinitely many.

        With a step, they are W&B's: they start at the lower limit and exclude the upper one.
        """
        if self.distribution is Distribution.INT:
            return int(self.high) - int(self.low) + 1
        if self.step is None or self.distribution is not Distribution.UNIFORM:
            return None
        return math.ceil((self.high - self.low) / self.step)

    @property
    def values(self) -> Iterator[Value]:
        """Yield the values that a grid takes."""
        step = self.step or 1.0
        return (_plain(self.low + index * step, step) for index in range(self.size or 0))

    def at(self, number: int) -> Value:
        """Map one of 2**64 hashes to a number, rounded to `_DIGITS` or to the step."""
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
            share = ((number >> 12) + 0.5) / 2**52  # excludes 0 and 1, where inv_cdf is infinite
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
class SweepParameter:
    """A parameter of a sweep: the values it takes, and how they are passed.

    Attributes:
        names: Its name on the command line, dotted if nested; for parameters that vary together,
            all of their names.
        source: The source of its values.
        style: How a value becomes arguments.
        when: The condition to pass it: other parameters by name, with the texts of their matching
            values; empty for always.
        outer: The names of the parameters that it is nested in, outermost first.
    """

    names: tuple[str, ...]
    source: SweepChoice | SweepRange
    style: Style = Style.OPTION
    when: Mapping[str, frozenset[str]] = field(default_factory=dict)
    outer: tuple[str, ...] = ()

    def assigned(self, value: Value) -> tuple[Assignment, ...]:
        """Return the assignments of a value to each of its names."""
        values = value if len(self.names) > 1 and isinstance(value, list) else [value]
        pairs = zip(self.names, values, strict=True)
        return tuple(Assignment(self, name, each) for name, each in pairs)

    def applies(self, chosen: Iterable[Assignment]) -> bool:
        """Return whether it is passed, given the values of the parameters before it."""
        texts = {each.name: str(each.value) for each in chosen}
        return all(texts.get(name) in allowed for name, allowed in self.when.items())

    def draw(self, seed: int, trial: int) -> Value:
        """Return the value of a trial; from a list, that of highest hash (rendezvous hashing)."""
        name = ", ".join(self.names)
        if isinstance(self.source, SweepRange):
            return self.source.at(_hash(seed, name, trial))
        return max(self.source.values, key=lambda value: _hash(seed, name, trial, str(value)))


@dataclass(frozen=True, slots=True)
class Assignment:
    """A value of a parameter under one of its names."""

    parameter: SweepParameter
    name: str
    value: Value

    @property
    def words(self) -> list[str]:
        """Return the arguments that pass it."""
        return words(self.name, self.value, self.parameter.style)


@dataclass(frozen=True, slots=True)
class Combination:
    """The values of one run, in the order of the file."""

    assignments: tuple[Assignment, ...]

    @property
    def values(self) -> dict[str, Value]:
        """Return the values by name."""
        return {each.name: each.value for each in self.assignments}

    @property
    def key(self) -> frozenset[tuple[str, str]]:
        """Return a key that equal combinations share, whatever their order."""
        return frozenset((name, str(value)) for name, value in self.values.items())

    @property
    def arguments(self) -> list[str]:
        """Return the program's arguments; ``name=value`` first, so that no option consumes it."""
        passed = [each.words for each in self.assignments]
        passed.sort(key=lambda arguments: bool(arguments) and arguments[0].startswith("-"))
        return list(itertools.chain(*passed))


def expand(
    parameters: Sequence[SweepParameter], method: SweepMethod, seed: int, trials: int | None
) -> tuple[Combination, ...]:
    """Return the runs of a sweep.

    Args:
        parameters: All of them, in the file's order.
        method: A grid takes the first ``trials`` combinations; a random sweep draws them.
        seed: The seed of a random sweep.
        trials: The maximum number of runs; None for all.

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


def _space_size(parameters: Sequence[SweepParameter]) -> int | None:
    """Return the number of combinations; None if there are infinitely many.

    With conditions, combinations are counted one by one, up to the limit.
    """
    sizes = [parameter.source.size for parameter in parameters]
    if None in sizes:
        return None
    size = math.prod(size for size in sizes if size is not None)
    if size > MAX_RUNS and any(parameter.when for parameter in parameters):
        return sum(1 for _ in itertools.islice(_grid(parameters, ()), MAX_RUNS + 1))
    return size


def _grid(
    parameters: Sequence[SweepParameter], chosen: tuple[Assignment, ...]
) -> Iterator[Combination]:
    """Yield all combinations as nested loops do: the last parameter changes first."""
    if not parameters:
        yield Combination(chosen)
    elif not parameters[0].applies(chosen):
        yield from _grid(parameters[1:], chosen)
    else:
        for value in parameters[0].source.values:
            yield from _grid(parameters[1:], (*chosen, *parameters[0].assigned(value)))


def _draw(parameters: Sequence[SweepParameter], seed: int, count: int) -> tuple[Combination, ...]:
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
    """Return 64 bits that depend only on these parts, in any process and version."""
    spelled = (sorted(part) if isinstance(part, frozenset) else part for part in parts)
    text = repr((seed, *spelled))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
