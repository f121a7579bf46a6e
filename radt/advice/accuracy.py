"""How good the predictions are: compared with what was measured, each predicted without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from radt.advice.predict import Predictor
from radt.advice.study import Measured
from radt.advice.words import Fit, Method, ModelKey, Range


@dataclass(frozen=True, slots=True)
class Compared:
    """One model's slowdown in one workload."""

    label: str
    name: str
    method: Method
    expected: float
    range: Range
    measured: float

    @property
    def error(self) -> float:
        """Relative: 0.1 where ten per cent too much was expected."""
        return self.expected / self.measured - 1

    @property
    def within(self) -> bool:
        """Whether what was measured lies in the range by the model, but for a twentieth."""
        return self.range.low / 1.05 <= self.measured <= self.range.high * 1.05


@dataclass(frozen=True, slots=True)
class FitCompared:
    """Whether a workload's memory sufficed."""

    label: str
    predicted: Fit
    fitted: bool

    @property
    def right(self) -> bool | None:
        """None where it could not be told, or only just."""
        if self.predicted in (Fit.UNKNOWN, Fit.TIGHT):
            return None
        return (self.predicted is Fit.YES) is self.fitted


@dataclass(frozen=True, slots=True)
class Accuracy:
    """All that could be compared."""

    slowdowns: tuple[Compared, ...] = ()
    fits: tuple[FitCompared, ...] = ()

    @property
    def median_error(self) -> float | None:
        """Of the sizes of the relative errors."""
        return median(abs(one.error) for one in self.slowdowns) if self.slowdowns else None

    @property
    def worst(self) -> Compared | None:
        return max(self.slowdowns, key=lambda one: abs(one.error), default=None)

    @property
    def within(self) -> int:
        """How many measurements lie in the range by the model."""
        return sum(one.within for one in self.slowdowns)

    @property
    def decided(self) -> tuple[FitCompared, ...]:
        """Those of which it was said whether they fit."""
        return tuple(one for one in self.fits if one.right is not None)

    @property
    def wrong(self) -> tuple[FitCompared, ...]:
        return tuple(one for one in self.fits if one.right is False)


def compare(predictor: Predictor, measured: Sequence[Measured]) -> Accuracy:
    """Predict each measured workload as if neither it nor one of the same models were known."""
    slowdowns, fits = [], []
    for one in measured:
        found = predictor.predict(one.candidate)
        if one.fits is not None:
            fits.append(FitCompared(one.label, found.fit, one.fits))
        if not found.rows or not one.slowdowns:
            continue
        by_model: dict[ModelKey, list[int]] = {}
        for place, row in enumerate(one.candidate.rows):
            by_model.setdefault(row.solo.key, []).append(place)
        for places in by_model.values():
            row_found = found.rows[places[0]]
            slowdowns.append(
                Compared(
                    one.label,
                    row_found.row.solo.name,
                    one.candidate.method,
                    fmean(found.rows[place].expected for place in places),
                    row_found.range,
                    fmean(one.slowdowns[place] for place in places),
                )
            )
    return Accuracy(tuple(slowdowns), tuple(fits))
