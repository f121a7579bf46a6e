"""Findings in words: ``B is 1.32× faster``, or that it cannot be told."""

from __future__ import annotations

import re
from collections.abc import Callable

from radt.comparison.findings import MARGIN, Comparison, Finding, Verdict
from radt.report.confidence import MOST_REPEATS, Interval, Method, Scale
from radt.report.quantities import ABOUT, Quantity
from radt.units import NO_VALUE, plural, significant

#: Of lengths of time one is faster or slower, of all others higher or lower.
_TIME = "s"
#: Before what is said; colour only adds to it.
SIGNS = {
    Verdict.BETTER: "+",
    Verdict.WORSE: "-",
    Verdict.DIFFERENT: "≠",
    Verdict.ALIKE: "=",
    Verdict.EQUAL: "=",
    Verdict.UNKNOWN: "?",
}
#: Behind a difference that may be one of those that chance makes among so many comparisons.
DOUBT = "†"


def noun(quantity: Quantity) -> str:
    """In a sentence: ``time per epoch``."""
    return re.sub(r"/(epoch|sample)\b", r" per \1", ABOUT[quantity].title)


def printable(text: str) -> str:
    """What a terminal would obey, not show, is spelled out."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def value_text(quantity: Quantity, value: float | None) -> str:
    """With its unit."""
    return ABOUT[quantity].text(value)


def change_text(finding: Finding) -> str:
    """How B differs from A as far as means tell: ``1.32× faster``, ``1.10× lower``."""
    found = finding.effect
    if found.value == found.none:
        return "equal"
    lower = found.value < found.none
    is_time = ABOUT[finding.quantity].unit == _TIME
    word = ("faster" if lower else "slower") if is_time else ("lower" if lower else "higher")
    return f"{_size(finding)(found.value)} {word}"


def verdict_text(finding: Finding) -> str:
    """In a table: ``1.32× faster``, ``within 5 %``, ``cannot tell``."""
    match finding.verdict:
        case Verdict.ALIKE:
            return f"within {MARGIN * 100:g} %"
        case Verdict.BETTER | Verdict.WORSE | Verdict.DIFFERENT:
            return change_text(finding) + ("" if finding.holds else f" {DOUBT}")
    return str(finding.verdict)


def interval_text(finding: Finding) -> str:
    """Both ends, said as the verdict is: of what is 1.32× faster ``1.28–1.36×``."""
    interval = finding.effect.interval
    if interval is None or finding.verdict is Verdict.EQUAL:
        return NO_VALUE
    if finding.effect.scale is Scale.DIFFERENCE:
        unit = _amount(finding.quantity)
        return f"{unit(interval.low)} to {unit(interval.high)}"
    if finding.verdict in (Verdict.BETTER, Verdict.WORSE, Verdict.DIFFERENT):
        interval = interval.mapped(lambda ratio: ratio if finding.effect.value > 1 else 1 / ratio)
    return _ends(interval)


def count_text(finding: Finding) -> str:
    """How many repeats: ``5``, ``5, 3`` where A and B have not as many."""
    a, b = finding.effect.counts
    return str(a) if a == b else f"{a}, {b}"


def wanted_text(finding: Finding) -> str:
    """How many repeats would tell; empty where that is not known."""
    if finding.verdict is not Verdict.UNKNOWN:
        return ""
    if finding.effect.method is Method.NONE:
        return "one repeat has no spread"
    if finding.repeats_wanted is None:
        return ""
    change = f"{MARGIN * 100:g} %"
    if finding.repeats_wanted >= MOST_REPEATS:
        return f"{MOST_REPEATS:,} repeats would not tell {change}"
    return f"about {plural(finding.repeats_wanted, 'repeat')} would tell {change}"


def sentence(finding: Finding, confidence: float) -> str:
    """All of it: ``three: B is 1.32× faster (time per epoch 2.69 s → 2.04 s, 95 % CI …)``."""
    values = " → ".join(value_text(finding.quantity, one.mean) for one in (finding.a, finding.b))
    about = f"{noun(finding.quantity)} {values}"
    level = f"{confidence * 100:g} % CI {interval_text(finding)}"
    count = f"n={count_text(finding).replace(', ', ' and ')}"
    method = "" if finding.effect.method is Method.NONE else f", {finding.effect.method}"
    match finding.verdict:
        case Verdict.UNKNOWN if finding.effect.interval is None:
            said = f"cannot tell: {about}, {count}; {wanted_text(finding)}"
        case Verdict.UNKNOWN:
            wanted = wanted_text(finding)
            said = f"cannot tell: {interval_text(finding)} ({about}), {count}{method}" + (
                f"; {wanted}" if wanted else ""
            )
        case Verdict.EQUAL:
            said = f"equal ({about}, {count})"
        case Verdict.ALIKE:
            said = f"alike {verdict_text(finding)} ({about}, {level}, {count}{method})"
        case _:
            change = change_text(finding)
            said = (
                f"B is {change} ({about}, {level}, {count}{method})"
                if ABOUT[finding.quantity].unit == _TIME
                else f"B has {change} {noun(finding.quantity)} ({values}, {level}, {count}{method})"
            )
            if not finding.holds:
                said += "; may be chance among so many comparisons"
    return f"{finding.name}: {said}"


def summary_text(comparison: Comparison) -> str:
    """``15 comparisons: 3 better, 1 worse, 9 alike, 2 cannot be told``."""
    findings = comparison.findings
    counts = [
        (sum(one.verdict in verdicts for one in findings), word)
        for verdicts, word in (
            ((Verdict.BETTER,), "better"),
            ((Verdict.WORSE,), "worse"),
            ((Verdict.DIFFERENT,), "different"),
            ((Verdict.ALIKE,), "alike"),
            ((Verdict.EQUAL,), "equal"),
            ((Verdict.UNKNOWN,), "cannot be told"),
        )
    ]
    told = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    return f"{plural(len(findings), 'comparison')}: {told}"


def chance_text(comparison: Comparison) -> str:
    """What so many comparisons mean; empty for fewer than two with an interval."""
    count = len(comparison.tested)
    if count < 2:
        return ""
    false = count * (1 - comparison.confidence)
    doubtful = sum(not one.holds and one.verdict in _DIFFER for one in comparison.tested)
    said = (
        f"Among {count:,} comparisons chance alone shows {significant(false, 2)} differences "
        "on average"
    )
    if doubtful:
        said += f"; {DOUBT} may be one of these (Holm)"
    return said


_DIFFER = (Verdict.BETTER, Verdict.WORSE, Verdict.DIFFERENT)


def _size(finding: Finding) -> Callable[[float], str]:
    """How much, without the direction."""
    if finding.effect.scale is Scale.RATIO:
        return lambda ratio: f"{significant(ratio if ratio > 1 else 1 / ratio)}×"
    unit = _amount(finding.quantity)
    return lambda change: unit(abs(change))


def _amount(quantity: Quantity) -> Callable[[float], str]:
    """A difference with the quantity's unit and its sign."""
    return lambda value: f"{'−' if value < 0 else ''}{ABOUT[quantity].text(abs(value))}"


def _ends(interval: Interval) -> str:
    """``1.28–1.36×``, with as many decimals on both sides as tell them apart."""
    low, high = interval.low, interval.high
    for digits in range(3, 7):
        _, _, fraction = significant(high, digits).partition(".")
        ends = [f"{end:,.{len(fraction)}f}" for end in (low, high)]
        if ends[0] != ends[1] or low == high:
            break
    if not float(ends[0].replace(",", "")):  # far below the other end
        ends[0] = significant(low)
    return f"{ends[0]}–{ends[1]}×"
