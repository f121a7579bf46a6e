"""What the selftest found: one line a measurement, with the bar that it is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from radt import units

#: Of the JSON document; raised when a key changes its meaning or goes away.
SCHEMA = "radt.selftest/1"


class Unit(StrEnum):
    """What a value is in; UCUM, with ``x`` for a factor."""

    SECONDS = "s"
    BYTES = "By"
    RATIO = "1"  # shown in per cent
    FACTOR = "x"
    COUNT = "{count}"

    def text(self, value: float | None) -> str:
        """A value for people."""
        match self:
            case Unit.SECONDS:
                return units.duration(value)
            case Unit.BYTES:
                return units.size(value)
            case Unit.RATIO:
                return units.percent(value)
            case Unit.FACTOR:
                return units.NO_VALUE if value is None else f"{value:.3f}×"
        return units.NO_VALUE if value is None else f"{value:,.0f}"


class Verdict(StrEnum):
    """Whether a bar is held."""

    HELD = "held"
    MISSED = "missed"
    UNCLEAR = "cannot tell"  # the bar lies within what is uncertain
    NOTED = "noted"  # there is no bar
    FAILED = "failed"  # it could not be measured, or does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One measurement.

    Attributes:
        key: Stable, for programs.
        subject: What was measured, for people.
        value: In ``unit``; None where it could not be measured.
        unit: What the value and the bar are in.
        bar: The value may be at most this; None for no bar.
        bar_of: What the bar is a share of (``of a core``).
        low, high: The 95 % confidence interval, or the lowest and highest of a few values, where
            there is one; the verdict follows from both.
        detail: What else there is to say.
        failure: Why it could not be measured, or does not work.
        remedy: What to do about that.
        is_compared: Without an interval there is no verdict.
        is_upper_bound: The machine was busy; without that it would be less.
    """

    key: str
    subject: str
    value: float | None = None
    unit: Unit = Unit.COUNT
    bar: float | None = None
    bar_of: str = ""
    low: float | None = None
    high: float | None = None
    detail: str = ""
    failure: str = ""
    remedy: str = ""
    is_compared: bool = False
    is_upper_bound: bool = False

    @property
    def verdict(self) -> Verdict:
        """Held or missed only where the whole interval says so, and nobody disturbed."""
        if self.failure or self.value is None:
            return Verdict.FAILED
        if self.bar is None:
            return Verdict.NOTED
        if self.is_compared and (self.low is None or self.high is None):
            return Verdict.UNCLEAR
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        if high <= self.bar:
            return Verdict.HELD
        is_missed = low > self.bar and not self.is_upper_bound
        return Verdict.MISSED if is_missed else Verdict.UNCLEAR

    @property
    def value_text(self) -> str:
        return self.unit.text(self.value)

    @property
    def bar_text(self) -> str:
        """``at most 2 % of a core``; empty without a bar."""
        if self.bar is None:
            return ""
        if self.unit is Unit.COUNT and self.bar == 0:
            return "none"
        bar = f"{self.bar:g}×" if self.unit is Unit.FACTOR else self.unit.text(self.bar)
        if self.unit is Unit.RATIO:
            bar = f"{self.bar * 100:g} %"
        elif self.unit is Unit.SECONDS:
            bar = bar.replace(".00", "").replace(".0 ", " ")
        return " ".join(filter(None, ("at most", bar, self.bar_of)))

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "key": self.key,
            "subject": self.subject,
            "value": self.value,
            "unit": str(self.unit),
            "low": self.low,
            "high": self.high,
            "bar": self.bar,
            "verdict": str(self.verdict),
            "detail": self.detail,
            "failure": self.failure,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Selftest:
    """All findings of one selftest.

    Attributes:
        machine: What it ran on, by name of the fact.
        options: What was asked for, the seed among it.
        findings: In the order in which they were measured.
        warnings: Why the numbers may say less than they seem to.
        raw: Single measurements, by what they are of.
        began_ns: Wall time of the beginning.
        took_s: How long all of it took.
    """

    machine: Mapping[str, Any]
    options: Mapping[str, Any]
    findings: Sequence[Finding]
    warnings: Sequence[str] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)
    began_ns: int = 0
    took_s: float = 0.0

    def count(self, verdict: Verdict) -> int:
        """How many findings came to it."""
        return sum(finding.verdict is verdict for finding in self.findings)

    @property
    def passed(self) -> bool:
        """Whether everything works and no bar is missed for certain."""
        return not self.count(Verdict.MISSED) and not self.count(Verdict.FAILED)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "schema": SCHEMA,
            "began_ns": self.began_ns,
            "took_s": self.took_s,
            "passed": self.passed,
            "machine": dict(self.machine),
            "options": dict(self.options),
            "warnings": list(self.warnings),
            "findings": [finding.document() for finding in self.findings],
            "raw": dict(self.raw),
        }
