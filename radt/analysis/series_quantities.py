"""Quantities of any series: ``last(accuracy)``, ``p95(latency)``, ``time_to(accuracy>=0.65)``.

Each is one number per run, from one metric of that run. `radt.analysis.series_values` reads it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from radt.analysis.quantities import (
    Combine,
    Direction,
    Quantity,
    QuantityInfo,
    Statistic,
    Subject,
    direction_of,
)
from radt.errors import UsageError
from radt.store.records import Float64Array
from radt.units import seconds_text

#: Forms that `parse_series_quantity` accepts, for help and errors.
SERIES_FORMS = (
    "last(METRIC), max(…), min(…), mean(…), p50(…), p95(…), p99(…), total(…), "
    "time_to(METRIC>=NUMBER)"
)


_IN_WINDOW = "within the window"
_MEANINGS = {
    Statistic.LAST: "Last value of {metric} in each run",
    Statistic.MAX: "Highest value of {metric} in each whole run",
    Statistic.MIN: "Lowest value of {metric} in each whole run",
    Statistic.MEAN: f"Mean of {{metric}} {_IN_WINDOW}",
    Statistic.P50: f"Median of {{metric}} {_IN_WINDOW}",
    Statistic.P95: f"95th percentile of {{metric}} {_IN_WINDOW}",
    Statistic.P99: f"99th percentile of {{metric}} {_IN_WINDOW}",
    Statistic.TOTAL: "Sum of all values of {metric} in each whole run; of a counter, its growth",
    Statistic.TIME_TO: "Time from the start of each run until {metric} was first {relation} "
    "{limit}; runs that never got there have no value",
}


class Relation(StrEnum):
    """When a value meets the condition of ``time_to``."""

    AT_LEAST = ">="
    AT_MOST = "<="
    ABOVE = ">"
    BELOW = "<"


_WORDS = {
    Relation.AT_LEAST: "at least",
    Relation.AT_MOST: "at most",
    Relation.ABOVE: "above",
    Relation.BELOW: "below",
}


@dataclass(frozen=True, slots=True)
class SeriesQuantity:
    """One number per run from one of its metrics.

    Attributes:
        statistic: How the values become one number.
        metric: The metric's name.
        relation: The condition of ``time_to``; None for the other statistics.
        limit: The limit of this condition.
        unit: The number's unit (UCUM), empty for plain numbers; None before a store was read.
            Quantities that differ only in it are equal.
    """

    statistic: Statistic
    metric: str
    relation: Relation | None = None
    limit: float = 0.0
    unit: str | None = field(default=None, compare=False)

    @property
    def value(self) -> str:
        """Return its name, which `parse_series_quantity` parses."""
        return f"{self.statistic}({self.condition})"

    @property
    def condition(self) -> str:
        """Return ``accuracy>=0.65`` for ``time_to``, and the metric for other statistics."""
        limit = "" if self.relation is None else f"{self.relation}{_number_text(self.limit)}"
        return f"{self.metric}{limit}"

    @property
    def words(self) -> str:
        """Return it without operators, for file names: ``time_to accuracy at least 0.65``."""
        if self.relation is None:
            return f"{self.statistic} {self.metric}"
        limit = _number_text(self.limit)
        return f"{self.statistic} {self.metric} {_WORDS[self.relation]} {limit}"

    @property
    def info(self) -> QuantityInfo:
        """Return its title, unit and explanation."""
        relation = "" if self.relation is None else _WORDS[self.relation]
        meaning = _MEANINGS[self.statistic].format(
            metric=self.metric, relation=relation, limit=_number_text(self.limit)
        )
        unit = self.unit or ""
        return QuantityInfo(
            *(self.value, unit, Subject.RUNS, Combine.MEAN),
            f"{meaning}; mean of the runs",
            better=Direction.LOWER
            if self.statistic is Statistic.TIME_TO
            else direction_of(self.metric, self.statistic, unit),
        )

    def met(self, values: Float64Array) -> npt.NDArray[np.bool_]:
        """Return a mask (N,) of the values (N,) that meet the condition of ``time_to``."""
        match self.relation:
            case Relation.AT_LEAST:
                return values >= self.limit
            case Relation.AT_MOST:
                return values <= self.limit
            case Relation.ABOVE:
                return values > self.limit
            case _:
                return values < self.limit


#: A column of reports and comparisons.
AnyQuantity: TypeAlias = Quantity | SeriesQuantity


def _number_text(value: float) -> str:
    return seconds_text(value) if 1e-4 <= abs(value) < 1e15 or not value else repr(value)


_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*\((.*)\)", re.DOTALL)
_CONDITION = re.compile(
    r"(.+?)\s*(>=|<=|>|<|≥|≤)\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)", re.DOTALL
)
_SIGNS = {"≥": Relation.AT_LEAST, "≤": Relation.AT_MOST}


def is_series_quantity(text: str) -> bool:
    """Return whether a text can only be meant as a quantity of a series."""
    return "(" in text


def parse_series_quantity(text: str) -> SeriesQuantity:
    """Parse ``last(accuracy)`` or ``time_to(accuracy >= 0.65)``.

    >>> parse_series_quantity("time_to( accuracy >= .65 )").value
    'time_to(accuracy>=0.65)'

    Raises:
        UsageError: It is not such a quantity.
    """
    call = _CALL.fullmatch(text.strip())
    if call is None:
        raise UsageError(f"{text!r} is not a quantity of a series", f"Write {SERIES_FORMS}")
    name, inner = call[1].lower(), call[2].strip()
    if name not in list(Statistic):
        near = difflib.get_close_matches(name, list(Statistic), 1)
        remedy = f"Did you mean {near[0]}({inner})?" if near else f"Write {SERIES_FORMS}"
        raise UsageError(f"{call[1]!r} in {text!r} is not a statistic", remedy)
    statistic = Statistic(name)
    if not inner:
        raise UsageError(f"{text!r} has no metric", f"Write {name}(accuracy)")
    if statistic is not Statistic.TIME_TO:
        return SeriesQuantity(statistic, inner)
    condition = _CONDITION.fullmatch(inner)
    if condition is None:
        raise UsageError(
            f"Expected a condition in {text!r}, such as accuracy>=0.65",
            f"Write time_to({inner}>=0.65), or with <=, > or <",
        )
    limit = float(condition[3])
    if not math.isfinite(limit):
        raise UsageError(f"the number in {text!r} is too large", "Write a smaller one")
    sign = condition[2]
    relation = _SIGNS.get(sign) or Relation(sign)
    return SeriesQuantity(statistic, condition[1], relation, limit, unit="s")


def parse_quantity(text: str) -> AnyQuantity:
    """Parse the name of a quantity, or a quantity of a series.

    Raises:
        UsageError: There is no such quantity.
    """
    if is_series_quantity(text):
        return parse_series_quantity(text)
    name = text.strip().lower().replace("-", "_")
    try:
        return Quantity(name)
    except ValueError:
        near = difflib.get_close_matches(name, list(Quantity), 1)
        raise UsageError(
            f"Unknown quantity {text!r}",
            f"Did you mean {near[0]}?"
            if near
            else f"Quantities: {', '.join(Quantity)}; of any metric: {SERIES_FORMS}",
        ) from None


def series_quantities(quantities: Iterable[AnyQuantity]) -> tuple[SeriesQuantity, ...]:
    """Return the quantities of series, each once, in order."""
    return tuple(dict.fromkeys(each for each in quantities if isinstance(each, SeriesQuantity)))


@dataclass(frozen=True, slots=True)
class SeriesProblem:
    """Why a quantity of a series has no value in any run.

    Attributes:
        quantity: The quantity.
        error: The problem.
        is_unknown: No run has the metric; otherwise its units differ.
    """

    quantity: SeriesQuantity
    error: UsageError
    is_unknown: bool


#: Maximum number of metrics listed if none has a similar name.
_MOST_NAMES = 12


def unknown_metric(quantity: SeriesQuantity, where: str, metrics: Iterable[str]) -> SeriesProblem:
    """Return the problem that no run has a metric, with similar names.

    Args:
        quantity: The quantity of the metric.
        where: Whose runs: ``study``.
        metrics: The metrics that they have.
    """
    known = sorted(set(metrics))
    near = difflib.get_close_matches(quantity.metric, known, 3, 0.5)
    # ``accuracy`` for ``test/accuracy``, which is too long to be found as a similar name.
    near += [name for name in known if quantity.metric.lower() in name.lower() and name not in near]
    if near:
        remedy = f"Did you mean {' or '.join(near[:3])}?"
    elif known:
        more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
        remedy = f"Metrics: {', '.join(known[:_MOST_NAMES])}{more}"
    else:
        remedy = "Its runs have no metrics"
    cause = f"No finished run of {where} has the metric {quantity.metric!r}"
    return SeriesProblem(quantity, UsageError(cause, remedy), is_unknown=True)


def several_units(quantity: SeriesQuantity, found: Sequence[str]) -> SeriesProblem:
    """Return the problem that a metric has several units."""
    listed = ", ".join(sorted(repr(unit) if unit else "none" for unit in found))
    cause = f"{quantity.metric!r} has several units: {listed}"
    error = UsageError(cause, "Compare runs that record it in one unit")
    return SeriesProblem(quantity, error, is_unknown=False)


@dataclass(frozen=True, slots=True)
class KnownSeries:
    """The quantities of series that runs have, with their units, and problems with the others."""

    quantities: tuple[SeriesQuantity, ...] = ()
    problems: tuple[SeriesProblem, ...] = ()


def joined(asked: Iterable[SeriesQuantity], sides: Sequence[KnownSeries]) -> KnownSeries:
    """Return the quantities that any side has, if all sides that have them agree on the unit.

    A metric is unknown only if no side has it.
    """
    quantities, problems = [], []
    for quantity in asked:
        own = [
            problem for side in sides for problem in side.problems if problem.quantity == quantity
        ]
        known = [each for side in sides for each in side.quantities if each == quantity]
        found = {each.unit for each in known if each.unit is not None}
        mixed = [problem for problem in own if not problem.is_unknown]
        if mixed or not known:
            problems += (mixed or own)[:1]
        elif len(found) > 1:
            problems.append(several_units(quantity, sorted(found)))
        else:
            quantities.append(replace(quantity, unit=next(iter(found), None)))
    return KnownSeries(tuple(quantities), tuple(problems))


def with_units(quantities: Iterable[AnyQuantity], known: KnownSeries) -> tuple[AnyQuantity, ...]:
    """Return quantities, with the runs' units for those of series."""
    units = {quantity: quantity for quantity in known.quantities}
    return tuple(
        units.get(quantity, quantity) if isinstance(quantity, SeriesQuantity) else quantity
        for quantity in quantities
    )
