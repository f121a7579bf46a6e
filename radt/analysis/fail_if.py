"""Conditions of ``radt compare --fail-if``: when a comparison fails.

::

    time_per_epoch > +5%      B takes over 5 % longer than A
    samples_per_s < -3 %      B is over 3 % below A
    energy > 1.1x             B over A
    makespan > +10 s          B less A
    time_per_epoch > 2.5 s    B alone, regardless of A
    last(accuracy) < 0.65     likewise, for a quantity of a series
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from radt.analysis.estimates import EffectScale, Interval
from radt.analysis.findings import Comparison, Finding
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity, parse_quantity
from radt.errors import UsageError


class ExitCode(IntEnum):
    """Exit code of ``radt compare``; 1 and 2 mean the same in every command."""

    FINE = 0
    FAILED = 4  # a condition of --fail-if is met
    UNKNOWN = 5  # with --fail-if-unknown: a condition is inconclusive


class Outcome(StrEnum):
    """The outcome of a condition in one finding."""

    MET = "met"
    NOT_MET = "not met"
    INCONCLUSIVE = "inconclusive"


class Limit(StrEnum):
    """The value that is compared with the limit."""

    CHANGE = "change"  # B / A - 1, given in per cent with a sign
    RATIO = "ratio"  # B / A
    DIFFERENCE = "difference"  # B - A, in the quantity's unit with a sign
    VALUE = "value"  # B, in the quantity's unit


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition for a comparison to fail.

    Attributes:
        text: The user's text.
        quantity: The quantity to compare.
        above: The condition is met above the limit, otherwise below.
        limit: The value that is compared with the limit.
        value: The limit, in the quantity's unit, or as a ratio (1.05 for +5 %).
    """

    text: str
    quantity: AnyQuantity
    above: bool
    limit: Limit
    value: float

    def beyond(self, value: float) -> bool:
        """Return True if a value is beyond the limit."""
        return value > self.value if self.above else value < self.value


@dataclass(frozen=True, slots=True)
class CheckedCondition:
    """A condition, and the findings on its quantity by outcome.

    ``missing`` names the workloads or like runs whose quantity is missing in A or B.
    """

    condition: Condition
    findings: Mapping[Outcome, Sequence[Finding]]
    missing: Sequence[str]

    @property
    def outcome(self) -> Outcome:
        """Return the outcome of all findings together; inconclusive if there are none."""
        if self.findings[Outcome.MET]:
            return Outcome.MET
        if self.findings[Outcome.INCONCLUSIVE] or self.missing:
            return Outcome.INCONCLUSIVE
        return Outcome.NOT_MET if self.findings[Outcome.NOT_MET] else Outcome.INCONCLUSIVE


def check(
    comparison: Comparison, conditions: Iterable[Condition], *, strict: bool = False
) -> list[CheckedCondition]:
    """Check the conditions of a comparison.

    Args:
        comparison: The comparison of the conditions' quantities.
        conditions: The conditions.
        strict: Decide by the means. Otherwise a condition is met only if the whole interval is
            beyond the limit, and not met only if none of it is.
    """
    checked = []
    for condition in conditions:
        by_outcome: dict[Outcome, list[Finding]] = {outcome: [] for outcome in Outcome}
        for finding in comparison.findings:
            if finding.quantity == condition.quantity:
                outcome = _outcome(condition, finding, comparison.confidence, strict)
                by_outcome[outcome].append(finding)
        missing = [
            name for each in comparison.workloads for name in each.without(condition.quantity)
        ]
        checked.append(CheckedCondition(condition, by_outcome, [*missing, *comparison.only_a]))
    return checked


def exit_code(checked: Iterable[CheckedCondition], *, fail_if_unknown: bool = False) -> ExitCode:
    """Return the exit code of ``radt compare``."""
    outcomes = {condition.outcome for condition in checked}
    if Outcome.MET in outcomes:
        return ExitCode.FAILED
    if fail_if_unknown and Outcome.INCONCLUSIVE in outcomes:
        return ExitCode.UNKNOWN
    return ExitCode.FINE


def _outcome(condition: Condition, finding: Finding, confidence: float, strict: bool) -> Outcome:
    shortfall = finding.shortfall
    if shortfall is not None and (condition.limit is not Limit.VALUE or shortfall.is_in_b):
        return Outcome.INCONCLUSIVE
    mean, interval = _compared_value(condition, finding, confidence)
    if mean is None or math.isnan(mean):
        return Outcome.INCONCLUSIVE
    if strict:
        return Outcome.MET if condition.beyond(mean) else Outcome.NOT_MET
    if interval is None:
        return Outcome.INCONCLUSIVE
    beyond = [condition.beyond(end) for end in (interval.low, interval.high)]
    if all(beyond):
        return Outcome.MET
    return Outcome.INCONCLUSIVE if any(beyond) else Outcome.NOT_MET


def _compared_value(
    condition: Condition, finding: Finding, confidence: float
) -> tuple[float | None, Interval | None]:
    """Return the value to compare with the limit, and its interval, as far as they exist."""
    change = finding.effect
    match condition.limit:
        case Limit.VALUE:
            return finding.b.mean, finding.b.interval_at(confidence)
        case Limit.CHANGE | Limit.RATIO:
            if change.scale is not EffectScale.RATIO:
                return None, None
            return change.value, change.interval
        case Limit.DIFFERENCE:
            difference = finding.b.mean - finding.a.mean
            if change.scale is EffectScale.DIFFERENCE:
                return difference, change.interval
            if change.interval is None:
                return difference, None
            # The interval of the ratio to A's mean.
            base = finding.a.mean
            return difference, change.interval.mapped(lambda ratio: (ratio - 1) * base)


_CONDITION = re.compile(
    r"\s*(?P<quantity>\w+\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?)\s*(?P<relation>[<>])\s*(?P<sign>[+−-]?)\s*"
    r"(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(?P<unit>[^\s<>()]*)\s*",
    re.DOTALL,
)

_DECIMAL = {"B": 1.0, "KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BINARY = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
#: Units of limits by units of quantities, as multiples of these.
_UNITS: dict[str, dict[str, float]] = {
    "s": {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    "By": _DECIMAL | _BINARY,
    "J": {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6},
    "W": {"mW": 1e-3, "W": 1.0, "kW": 1e3},
    "g": {"mg": 1e-3, "g": 1.0, "kg": 1e3},
    "1/s": {"/s": 1.0, "1/s": 1.0},
    "1": {"%": 0.01},
    "x": {"x": 1.0, "×": 1.0},
}
_UNITS["By/s"] = {f"{unit}/s": factor for unit, factor in _UNITS["By"].items()}
#: Units of counts and factors, which can be omitted.
_PLAIN = ("1/s", "1", "x")
_RATIO = ("x", "×")


def parse(text: str, known: Sequence[SeriesQuantity] = ()) -> Condition:
    """Parse a condition.

    >>> parse("time_per_epoch > +5%").value
    1.05

    Args:
        text: The condition.
        known: Quantities of series with their units. The limit of any other is not converted.

    Raises:
        UsageError: The condition is not valid.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        if text.count("(") > text.count(")"):
            raise _wrong(text, "a parenthesis is not closed", "Write last(accuracy) < 0.65")
        raise _wrong(
            text,
            "expected a quantity, > or <, and a limit",
            "Write time_per_epoch > +5%, or with a ratio (1.1x) or a value (2.5 s); one --fail-if "
            "for each condition",
        )
    try:
        quantity = parse_quantity(match["quantity"].strip())
    except UsageError as error:
        raise _wrong(text, error.message, error.remedy or "") from None
    quantity = next((each for each in known if each == quantity), quantity)
    value = float(match["number"])
    if not math.isfinite(value):
        raise _wrong(text, "the number is too large", _examples(quantity))
    signed = -value if match["sign"] in ("-", "−") else value
    limit, size = _limit(text, quantity, match["sign"], signed, match["unit"])
    return Condition(text.strip(), quantity, match["relation"] == ">", limit, size)


def _limit(
    text: str, quantity: AnyQuantity, sign: str, value: float, unit: str
) -> tuple[Limit, float]:
    is_relative = unit in _RATIO or (unit == "%" and sign)
    if isinstance(quantity, SeriesQuantity) and quantity.unit is None and not is_relative:
        # It is parsed again once the unit is known.
        return (Limit.DIFFERENCE if sign else Limit.VALUE), value
    own = quantity.info.unit
    if unit == "%" and (sign or own != "1"):
        if not sign:
            raise _wrong(
                text, "a percentage change needs a sign", f"Write +{value:g}% or -{value:g}%"
            )
        if value <= -100:
            raise _wrong(text, "a change must be above -100 %", _examples(quantity))
        return Limit.CHANGE, 1 + value / 100
    if unit in _RATIO and own != "x":
        if sign or value <= 0:
            raise _wrong(text, "a ratio must be above 0, without a sign", "Write 1.1x")
        return Limit.RATIO, value
    factors = _units_of(own)
    if unit not in factors:
        cause = f"{unit!r} is not a unit of {quantity.value}" if unit else "expected a unit"
        raise _wrong(text, cause, _examples(quantity))
    return (Limit.DIFFERENCE if sign else Limit.VALUE), value * factors[unit]


def _units_of(own: str) -> dict[str, float]:
    """Return the limit units for a quantity's unit, which can be omitted if it is plain or rare."""
    known = _UNITS.get(own)
    if known is None:
        return {"": 1.0, own: 1.0, own.strip("{}"): 1.0}
    return known | ({"": 1.0} if own in _PLAIN else {})


def _examples(quantity: AnyQuantity) -> str:
    units = ", ".join(filter(None, _units_of(quantity.info.unit))) or "none"
    return f"Write a change (+5%), a ratio (1.1x) or a value; units of {quantity.value}: {units}"


def _wrong(text: str, cause: str, remedy: str) -> UsageError:
    return UsageError(f"--fail-if {text!r}: {cause}", remedy)
