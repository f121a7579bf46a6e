"""Estimates as text, with their unit or in the unit of a column: three digits and an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from radt import units
from radt.analysis.estimates import CONFIDENCE, Estimate
from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import AnyQuantity

_ROUNDING = 1e-9

#: The meaning of ±, ranges and whiskers.
INTERVAL_NOTE = (
    f"± or from–to: {CONFIDENCE * 100:.0f} % confidence interval of the mean over n repeats."
)


@dataclass(frozen=True, slots=True)
class ScaledQuantity:
    """A quantity in the unit of a column or an axis."""

    quantity: AnyQuantity
    scale: units.Scale

    @property
    def title(self) -> str:
        return self.quantity.info.title

    @property
    def unit(self) -> str:
        """Return the unit; empty if the title contains it."""
        if self.quantity is Quantity.CPU:
            return "% of a core"
        return "" if self.quantity.info.names_unit else self.scale.label

    @property
    def head(self) -> str:
        """Return title and unit: ``time/epoch [s]``."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title

    def number(self, value: float) -> str:
        """Return a value without its unit, rounded."""
        if self.quantity.info.unit == "1":
            return units.percent(value).removesuffix(" %")
        return units.significant(value * self.scale.factor)

    def spread(self, estimate: Estimate) -> str:
        """Return the confidence interval: ``±0.14``, ``1.20–2.90`` of a ratio, or nothing."""
        return _spread(estimate, self.scale.factor, self.number(estimate.mean))

    def number_text(self, estimate: Estimate) -> str:
        """Return the mean, with a tilde if it is estimated."""
        return f"{'~' if estimate.is_estimated else ''}{self.number(estimate.mean)}"


def scaled(quantity: AnyQuantity, estimates: Sequence[Estimate]) -> ScaledQuantity:
    """Return a quantity in the unit that suits these values."""
    largest = max((abs(estimate.mean) for estimate in estimates), default=0.0)
    return ScaledQuantity(quantity, units.scale_of(quantity.info.unit, largest))


@dataclass(frozen=True, slots=True)
class ErrorBar:
    """Distances from the ends of a confidence interval to the mean; 0 if all repeats are equal."""

    below: float
    above: float


def error_bar(estimate: Estimate) -> ErrorBar | None:
    """Return the error bar of an estimate; None for fewer than two repeats."""
    interval = estimate.interval
    if interval is None:
        return None
    mean = estimate.mean
    # Equal values may differ by rounding.
    if interval.high - interval.low <= 2 * _ROUNDING * abs(mean):
        return ErrorBar(0.0, 0.0)
    # A ratio's interval refers to its geometric mean, which is slightly below the mean.
    return ErrorBar(max(mean - interval.low, 0.0), max(interval.high - mean, 0.0))


def with_unit(quantity: AnyQuantity, estimate: Estimate | None, *, brief: bool = False) -> str:
    """Return a value with its interval and its unit: ``4.20 ±0.03 s``.

    Ratios: ``1.85 1.20–2.90×``. From a minute on, the interval has its own unit: ``1:38 ±1.20 s``.
    ``brief`` omits the interval.
    """
    write = quantity.info.text
    if estimate is None:
        return units.NO_VALUE
    text = write(estimate.mean)
    reach = None if brief else error_bar(estimate)
    tilde = "~" if estimate.is_estimated else ""
    if reach is None:
        return f"{tilde}{text}"
    end = next((place for place, character in enumerate(text) if character in " ×"), len(text))
    number, unit = text[:end], text[end:]  # the unit with the space before it
    shown = _read(number)
    if shown is None:
        return f"{tilde}{text} ±{write(reach.above)}"
    # Units are powers of ten apart, so the choice is unambiguous despite rounding.
    ratio = abs(shown / estimate.mean) if shown and estimate.mean else 1.0
    return f"{tilde}{number} {_spread(estimate, 10 ** round(math.log10(ratio)), number)}{unit}"


def describe(quantity: AnyQuantity, estimate: Estimate, run_count: int = 1) -> str:
    """Return a value with all details in a line: ``2.00 s · n = 3 · 95 % CI 1.90 s to 2.10 s``."""
    text = quantity.info.text
    words = [text(estimate.mean), f"n = {estimate.count}"]
    interval = estimate.interval
    if interval is not None:
        words.append(
            f"{interval.confidence * 100:.0f} % CI {text(interval.low)} to {text(interval.high)}"
        )
    if len(estimate.parts) > 1:
        words.append(f"runs {text(min(estimate.parts))} to {text(max(estimate.parts))}")
    elif run_count > 1:
        words.append(units.plural(run_count, "run"))
    if estimate.is_estimated:
        words.append("estimated")
    if estimate.metrics:
        words.append(", ".join(estimate.metrics))
    return " · ".join(words)


def _spread(estimate: Estimate, factor: float, like: str) -> str:
    reach = error_bar(estimate)
    if reach is None:
        return ""
    if not estimate.reference:
        return f"±{_as_exact(reach.above * factor, like)}"
    ends = (estimate.mean - reach.below, estimate.mean + reach.above)
    return "–".join(_as_exact(end * factor, like) for end in ends)


def _as_exact(value: float, like: str) -> str:
    """Round to the decimals of another number; keep one digit if the result would be 0."""
    decimals = len(like.partition(".")[2])
    text = f"{value:,.{decimals}f}"
    if value > 0 and not text.strip("0.,"):
        return units.significant(value, 1)
    return text


def _read(number: str) -> float | None:
    try:
        return float(number.replace(",", ""))
    except ValueError:  # a time such as 1:38
        return None
