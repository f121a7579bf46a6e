"""What a comparison says around its numbers: what was compared, what else differs, conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from radt.comparison.circumstances import told
from radt.comparison.conditions import Checked, Outcome
from radt.comparison.findings import Comparison, Finding
from radt.comparison.sides import Kind, Side
from radt.comparison.words import (
    chance_text,
    change_text,
    interval_text,
    sentence,
    summary_text,
    value_text,
)
from radt.report.confidence import Method
from radt.units import plural

#: Workloads whose first finding is told in a sentence; of more, only a table.
MAX_SENTENCES = 8
_NAMED = 5


def side_text(side: Side) -> str:
    """What there is to know of A or B beside its name: ``3 workloads, 5 repeats, 2026-05-03``."""
    parts = []
    if side.kind is Kind.EXPERIMENT:
        parts.append(plural(len(side.workloads), "workload"))
    counts = sorted({len(one.workload_ids) for one in side.workloads})
    if len(counts) > 1:
        parts.append(f"{counts[0]} to {plural(counts[-1], 'repeat')}")
    else:
        parts.append(plural(counts[0], "repeat"))
    hosts = dict.fromkeys(one.host for one in side.workloads if one.host)
    parts += [", ".join(hosts)] if len(hosts) <= _NAMED else [plural(len(hosts), "machine")]
    started = [one.started_ns for found in side.workloads for one in side.rounds_of(found)]
    if started:
        when = datetime.fromtimestamp(max(started) / 1e9).astimezone()
        parts.append(f"{when:%Y-%m-%d %H:%M}")
    return ", ".join(part for part in parts if part)


def headlines(comparison: Comparison) -> list[Finding]:
    """The first finding of each workload, or of its kinds of runs; none where these are many."""
    found = []
    for one in comparison.workloads:
        if one.findings:
            first = one.findings[0].quantity
            found += [finding for finding in one.findings if finding.quantity is first]
    return found if len(found) <= MAX_SENTENCES else []


def sentences(comparison: Comparison) -> list[str]:
    """The main findings in words."""
    return [sentence(one, comparison.confidence) for one in headlines(comparison)]


def warnings(comparison: Comparison) -> list[str]:
    """What may be the reason of differences."""
    found = [(one.name, one.differences) for one in comparison.workloads]
    lines = [f"not the same: {text}" for text in told(found, disturbing=True)]
    for name, missing in (("A", comparison.only_a), ("B", comparison.only_b)):
        if missing:
            rest = len(missing) - _NAMED
            more = f" and {rest} more" if rest > 0 else ""
            lines.append(f"only in {name}: {', '.join(missing[:_NAMED])}{more}")
    return lines


def notes(comparison: Comparison) -> Iterator[str]:
    """Method and footnotes, one a line."""
    found = [(one.name, one.differences) for one in comparison.workloads]
    for text in told(found, disturbing=False):
        yield f"differs: {text}"
    yield from _footnotes(comparison)
    findings = comparison.findings
    if len(findings) > 1:
        yield summary_text(comparison)
    if chance := chance_text(comparison):
        yield chance
    methods = dict.fromkeys(one.effect.method for one in findings)
    if Method.NONE in methods:
        yield "Of one repeat nothing can be told: radt FILE --repeat 5 runs it five times"
    said = f"window: {comparison.window.text}"
    if Method.PAIRED in methods:
        said += "; paired: repeats that ran in turns are compared one by one"
    yield said


def _footnotes(comparison: Comparison) -> Iterator[str]:
    """What is poor about the measurements of A, of B, or of both."""
    a, b = comparison.a.footnotes, comparison.b.footnotes
    for text in dict.fromkeys((*a, *b)):
        whose = [name for name, side in (("A", a), ("B", b)) if text in side]
        yield f"{' and '.join(whose)}: {text}"


def condition_texts(checked: Sequence[Checked]) -> Iterator[tuple[Outcome, str]]:
    """What became of each condition, in words."""
    for one in checked:
        yield one.outcome, f"{one.condition.text}: {_condition_text(one)}"


def _condition_text(checked: Checked) -> str:
    match checked.outcome:
        case Outcome.MET:
            return f"met by {_some(checked.met)}"
        case Outcome.NOT_MET:
            return f"not met ({plural(len(checked.not_met), 'comparison')})"
    parts = []
    if checked.unknown:
        parts.append(_some(checked.unknown))
    if checked.missing:
        names = ", ".join(checked.missing[:_NAMED])
        more = f" and {len(checked.missing) - _NAMED} more" if len(checked.missing) > _NAMED else ""
        parts.append(f"not measured on both sides of {names}{more}")
    return f"cannot tell: {'; '.join(parts) or 'nothing was compared'}"


def _some(findings: Sequence[Finding]) -> str:
    told = [
        f"{one.name} ({value_text(one.quantity, one.a.mean)} → "
        f"{value_text(one.quantity, one.b.mean)}, {change_text(one)}, {_likely(one)})"
        for one in findings[:_NAMED]
    ]
    rest = len(findings) - _NAMED
    return ", ".join(told) + (f" and {rest} more" if rest > 0 else "")


def _likely(finding: Finding) -> str:
    return "one repeat" if finding.effect.interval is None else f"CI {interval_text(finding)}"
