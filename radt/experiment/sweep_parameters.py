"""The ``parameters:`` of a sweep: lists of values, as the original has them, and ranges."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import yaml

from radt.errors import Problem, UsageError
from radt.experiment.cells import did_you_mean
from radt.experiment.sweep_document import Entry, entries_of, line_of, noting, text_of, value_of
from radt.experiment.sweep_space import (
    Choice,
    Distribution,
    Parameter,
    Range,
    SweepMethod,
    Value,
)

PARAMETERS = "parameters"

_LISTS = ("values", "value")
_ENDS = ("min", "max")
_DISTRIBUTION = "distribution"
_KEYS = (*_LISTS, *_ENDS, _DISTRIBUTION)
#: With the names that other tools have for the same.
_DISTRIBUTIONS: Mapping[str, Distribution] = {
    **{one.value: one for one in Distribution},
    "log_uniform_values": Distribution.LOG_UNIFORM,
    "int_uniform": Distribution.INT,
}
_NAME = re.compile(r"\w[\w.+-]*")
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
#: Beyond it floating point numbers skip whole ones.
_LARGEST_INT = 2**53


def read_parameters(
    entry: Entry, method: SweepMethod, problems: list[Problem]
) -> tuple[Parameter, ...]:
    """Understand the parameters; those that cannot be understood are in ``problems``."""
    if not isinstance(entry.value, yaml.MappingNode):
        problems.append(
            Problem(
                "this is no mapping",
                "Write a parameter a line: lr: {values: [0.1, 0.01]}",
                entry.line,
                PARAMETERS,
            )
        )
        return ()
    named = entries_of(entry.value, problems, PARAMETERS)
    if not entry.value.value:
        problems.append(
            Problem(
                "there is no parameter",
                "Name one: lr: {values: [0.1, 0.01]}",
                entry.line,
                PARAMETERS,
            )
        )
    found: list[Parameter] = []
    for one in named.values():
        with noting(problems, one.line, PARAMETERS):
            parameter = _parameter(one, method, problems)
            if parameter is not None:
                found.append(parameter)
    return tuple(found)


def _parameter(entry: Entry, method: SweepMethod, problems: list[Problem]) -> Parameter | None:
    name = entry.name
    if _NAME.fullmatch(name) is None:
        bare = name.lstrip("-")
        raise UsageError(
            f"{name!r} cannot be the name of an option",
            f"Write it without dashes before it: {bare}"
            if _NAME.fullmatch(bare)
            else "Use letters, digits and dashes",
        )
    if not isinstance(entry.value, yaml.MappingNode):
        return _choice(name, entry.value, problems)  # `lr: [0.1, 0.01]` can mean nothing else
    keys = entries_of(entry.value, problems, PARAMETERS)
    for key in keys:
        if key not in _KEYS:
            raise UsageError(
                f"{name} has an unknown key {key!r}",
                did_you_mean(key, _KEYS) or f"Write {name}: {{values: [0.1, 0.01]}}",
            )
    lists = [keys[key] for key in _LISTS if key in keys]
    ranged = [key for key in (*_ENDS, _DISTRIBUTION) if key in keys]
    if len(lists) + bool(ranged) > 1:
        raise UsageError(f"{name} has values twice, or a range, too", "Remove one of the two")
    if lists:
        node = lists[0].value
        if lists[0].name == _LISTS[0] and isinstance(node, yaml.ScalarNode):
            raise UsageError(f"{name}: values is no list", f"Write values: [{node.value}]")
        return _choice(name, node, problems)
    if not all(key in keys for key in _ENDS):
        raise UsageError(
            f"{name} has no values", f"Write {name}: {{values: [0.1, 0.01]}}, or min and max"
        )
    if method is SweepMethod.GRID:
        raise UsageError(
            f"{name} is a range, and a grid needs values",
            "List them, or write method: random and trials: 20",
        )
    return _range(name, keys)


def _choice(name: str, node: yaml.Node, problems: list[Problem]) -> Choice | None:
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not items:
        raise UsageError(f"{name} has no values", "Add one, or remove the parameter")
    values: dict[str, Value] = {}
    before = len(problems)
    for item in items:
        with noting(problems, line_of(item), PARAMETERS):
            try:
                value = value_of(item)
            except UsageError as error:
                raise UsageError(f"{name}: {error.message}", error.remedy) from None
            if str(value) in values:
                raise UsageError(
                    f"{name}: {value} is there twice",
                    "Name it once; repeat: 3 runs everything three times",
                )
            values[str(value)] = value
    return Choice(name, tuple(values.values())) if len(problems) == before else None


def _range(name: str, keys: Mapping[str, Entry]) -> Range:
    texts = {key: text_of(keys[key].value) for key in _ENDS}
    low, high = (_number(f"{name}: {key}", text) for key, text in texts.items())
    whole = all(_WHOLE.fullmatch(text) for text in texts.values())
    distribution = Distribution.INT if whole else Distribution.UNIFORM
    if _DISTRIBUTION in keys:
        given = text_of(keys[_DISTRIBUTION].value).lower()
        if given not in _DISTRIBUTIONS:
            raise UsageError(
                f"{name}: unknown distribution {given!r}",
                did_you_mean(given, _DISTRIBUTIONS) or f"Write one of {', '.join(Distribution)}",
            )
        distribution = _DISTRIBUTIONS[given]
    if low > high:
        raise UsageError(f"{name}: min is above max", "Exchange them")
    if distribution is Distribution.LOG_UNIFORM and low <= 0:
        raise UsageError(
            f"{name}: log_uniform needs min above 0",
            "Write the smallest value itself, not its logarithm",
        )
    if distribution is Distribution.INT and not (
        low.is_integer() and high.is_integer() and max(abs(low), abs(high)) <= _LARGEST_INT
    ):
        raise UsageError(f"{name}: int needs whole numbers", "Write such as min: 1, max: 8")
    return Range(name, low, high, distribution)


def _number(what: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{what} is {text!r}, not a number", "Write such as 0.1 or 1e-4")
    return number
