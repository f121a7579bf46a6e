"""Numbers in columns: one unit a column, in its head; three digits; points below each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radt import units
from radt.frontend.charts.quantity import UnitScale, unit_scale
from radt.report.estimates import Estimate
from radt.report.quantities import ABOUT, Quantity

_FACTOR, _RATIO = "x", "1"
#: As wide as a digit, and as wide as a point (Unicode's FIGURE SPACE and PUNCTUATION SPACE).
_DIGIT_SPACE, _POINT_SPACE = "\N{FIGURE SPACE}", "\N{PUNCTUATION SPACE}"


@dataclass(frozen=True, slots=True)
class Column:
    """A quantity in a table: ``scale`` from stored values to those that are shown."""

    quantity: Quantity
    scale: UnitScale

    @property
    def title(self) -> str:
        return ABOUT[self.quantity].title

    @property
    def unit(self) -> str:
        """Empty where the title says it."""
        if self.quantity is Quantity.CPU:
            return "% of a core"
        return "" if self.quantity in _SAYS_UNIT else self.scale.label

    def number(self, value: float) -> str:
        """A value without its unit, as `radt report` rounds it."""
        if ABOUT[self.quantity].unit == _RATIO:
            return units.percent(value).removesuffix(" %")
        return units.significant(value * self.scale.factor)

    def spread(self, value: float) -> str:
        """A standard deviation, with two digits: more would be pretence."""
        return units.significant(value * self.scale.factor, 2)


_SAYS_UNIT = (Quantity.SAMPLES_PER_S, Quantity.SAMPLES_PER_S_OF_RUN)


def column(quantity: Quantity, found: Sequence[Estimate]) -> Column:
    """A column for these values."""
    return Column(quantity, scale_of(quantity, [estimate.mean for estimate in found]))


def scale_of(quantity: Quantity, values: Sequence[float]) -> UnitScale:
    """The unit that reads well for the largest of the values."""
    unit = ABOUT[quantity].unit
    if unit == _FACTOR:
        return UnitScale(1.0, "×")
    return unit_scale(unit, max(map(abs, values), default=0.0))


def aligned(texts: Sequence[str]) -> list[str]:
    """The same, padded at the right so that their points stand below each other."""
    behind = [len(fraction) for text in texts for fraction in [text.partition(".")[2]]]
    widest = max(behind, default=0)
    if not widest:
        return list(texts)
    return [
        text + (_POINT_SPACE if text and "." not in text else "") + _DIGIT_SPACE * (widest - count)
        if text
        else text
        for text, count in zip(texts, behind, strict=True)
    ]


def told(quantity: Quantity, estimate: Estimate, run_count: int = 1) -> str:
    """All about a value in a sentence: ``2.00 s · n 3 · s.d. 0.04 s · of 3 runs``."""
    text = ABOUT[quantity].text
    words = [text(estimate.mean), f"n = {estimate.count}"]
    if estimate.spread is not None:
        words.append(f"s.d. {text(estimate.spread)}")
    if len(estimate.parts) > 1:
        words.append(f"runs {text(min(estimate.parts))} to {text(max(estimate.parts))}")
    elif run_count > 1:
        words.append(units.plural(run_count, "run"))
    if estimate.is_estimated:
        words.append("estimated")
    if estimate.metrics:
        words.append(", ".join(estimate.metrics))
    return " · ".join(words)
