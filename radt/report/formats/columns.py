"""Numbers in columns: one unit a column, in its head; three digits; points below each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from radt import units
from radt.report.confidence import CONFIDENCE
from radt.report.estimates import Estimate
from radt.report.quantities import ABOUT, Quantity

_FACTOR, _RATIO, _SECONDS, _PER_S = "x", "1", "s", "1/s"
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"))
_SYMBOLS = {"By": "B", "By/s": "B/s", "W": "W", "J": "J", "g": "g"}
#: As wide as a digit, and as wide as a point (Unicode's FIGURE SPACE and PUNCTUATION SPACE).
_DIGIT_SPACE, _POINT_SPACE = "\N{FIGURE SPACE}", "\N{PUNCTUATION SPACE}"
_ROUNDING = 1e-9
_SAYS_UNIT = (Quantity.SAMPLES_PER_S, Quantity.SAMPLES_PER_S_OF_RUN)

#: What ±, brackets and whiskers stand for, in words.
INTERVAL_WORDS = (
    f"± or from–to: {CONFIDENCE * 100:.0f} % confidence interval of the mean over n repeats."
)


@dataclass(frozen=True, slots=True)
class Scale:
    """A stored value times ``factor`` is what is shown, in ``label``."""

    factor: float
    label: str


@dataclass(frozen=True, slots=True)
class Column:
    """A quantity in a table: ``scale`` from stored values to those that are shown."""

    quantity: Quantity
    scale: Scale

    @property
    def title(self) -> str:
        return ABOUT[self.quantity].title

    @property
    def unit(self) -> str:
        """Empty where the title says it."""
        if self.quantity is Quantity.CPU:
            return "% of a core"
        return "" if self.quantity in _SAYS_UNIT else self.scale.label

    @property
    def head(self) -> str:
        """Title and unit: ``time/epoch [s]``."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title

    def number(self, value: float) -> str:
        """A value without its unit, as `radt report` rounds it."""
        if ABOUT[self.quantity].unit == _RATIO:
            return units.percent(value).removesuffix(" %")
        return units.significant(value * self.scale.factor)

    def spread(self, estimate: Estimate) -> str:
        """The confidence interval: ``±0.14``, of ratios ``1.20–2.90``; empty without one."""
        return _spread(estimate, self.scale.factor, self.number(estimate.mean))

    def text(self, estimate: Estimate | None) -> str:
        """A cell: ``2.00 ±0.14``, ``1.85 1.20–2.90``; what is estimated has a tilde."""
        if estimate is None:
            return units.NO_VALUE
        number = f"{'~' if estimate.is_estimated else ''}{self.number(estimate.mean)}"
        return f"{number} {self.spread(estimate)}".rstrip()


def column(quantity: Quantity, found: Sequence[Estimate]) -> Column:
    """A column for these values."""
    return Column(quantity, scale_of(quantity, [estimate.mean for estimate in found]))


def scale_of(quantity: Quantity, values: Sequence[float]) -> Scale:
    """The unit that reads well for the largest of the values."""
    unit = ABOUT[quantity].unit
    largest = max(map(abs, values), default=0.0)
    if unit == _FACTOR:
        return Scale(1.0, "×")
    if unit == _RATIO:
        return Scale(100.0, "%")
    if unit == _SECONDS:
        size, prefix = next((p for p in _SMALL_PREFIXES if largest >= p[0]), _SMALL_PREFIXES[0])
        return Scale(1 / size, f"{prefix}s")
    if unit == _PER_S:
        return Scale(1.0, "/s")
    symbol = _SYMBOLS.get(unit)
    if symbol is None:
        return Scale(1.0, unit)
    for size, prefix in _PREFIXES:
        if largest >= size:
            # Memory is sold in powers of 1000 with a capital K; for thousands the SI has k.
            is_bytes = symbol.startswith("B") and prefix == "k"
            return Scale(1 / size, ("K" if is_bytes else prefix) + symbol)
    return Scale(1.0, symbol)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a confidence interval reaches from the mean; nothing where all repeats are equal."""

    below: float
    above: float


def reach_of(estimate: Estimate) -> Reach | None:
    """That of an estimate; None for fewer than two repeats."""
    interval = estimate.interval
    if interval is None:
        return None
    mean = estimate.mean
    # Equal values of which one was rounded differently are equal.
    if interval.high - interval.low <= 2 * _ROUNDING * abs(mean):
        return Reach(0.0, 0.0)
    # A ratio's interval is about its geometric mean, which is a little below the mean.
    return Reach(max(mean - interval.low, 0.0), max(interval.high - mean, 0.0))


def with_unit(quantity: Quantity, estimate: Estimate | None, *, brief: bool = False) -> str:
    """A value with its interval and its unit, as on terminals: ``4.20 ±0.03 s``.

    Ratios: ``1.85 1.20–2.90×``. From a minute on the interval has a unit of its own:
    ``1:38 ±1.20 s``. ``brief`` leaves the interval out.
    """
    write = ABOUT[quantity].text
    if estimate is None:
        return units.NO_VALUE
    text = write(estimate.mean)
    reach = None if brief else reach_of(estimate)
    tilde = "~" if estimate.is_estimated else ""
    if reach is None:
        return f"{tilde}{text}"
    number, unit = _parted(text)
    shown = _read(number)
    if shown is None:
        return f"{tilde}{text} ±{write(reach.above)}"
    # Units are powers of ten apart, so rounding does not hide which one it is.
    ratio = abs(shown / estimate.mean) if shown and estimate.mean else 1.0
    return f"{tilde}{number} {_spread(estimate, 10 ** round(math.log10(ratio)), number)}{unit}"


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
    """All about a value in a sentence: ``2.00 s · n = 3 · 95 % CI 1.90 s to 2.10 s``."""
    text = ABOUT[quantity].text
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
    reach = reach_of(estimate)
    if reach is None:
        return ""
    if not estimate.reference:
        return f"±{_as_exact(reach.above * factor, like)}"
    ends = (estimate.mean - reach.below, estimate.mean + reach.above)
    return "–".join(_as_exact(end * factor, like) for end in ends)


def _as_exact(value: float, like: str) -> str:
    """With as many decimals as another number; what would be 0 then has one digit."""
    decimals = len(like.partition(".")[2])
    text = f"{value:,.{decimals}f}"
    if value > 0 and not text.strip("0.,"):
        return units.significant(value, 1)
    return text


def _parted(text: str) -> tuple[str, str]:
    """A number and its unit with what is between them."""
    end = next((place for place, one in enumerate(text) if one in " ×"), len(text))
    return text[:end], text[end:]


def _read(number: str) -> float | None:
    try:
        return float(number.replace(",", ""))
    except ValueError:  # 1:38
        return None
