"""Comparisons as documents: ``B is 1.32× faster``, with its interval, or inconclusive."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from radt.analysis.estimates import MOST_REPEATS, EffectScale, Interval, Method
from radt.analysis.fail_if import CheckedCondition, Outcome
from radt.analysis.findings import MARGIN, ComparedWorkload, Comparison, Finding, Verdict
from radt.analysis.matching import difference_sentences
from radt.analysis.operands import Operand, OperandKind
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity
from radt.render.model import Block, Cell, ColumnHead, Document, Note, Notes, Role, Row, Table, Tone
from radt.units import NO_VALUE, listed, plural, significant

#: Quantities in this unit are faster or slower, all others higher or lower.
_TIME = "s"
#: Signs before the verdict, so that it is readable without colour.
_SIGNS = {
    Verdict.BETTER: "+",
    Verdict.WORSE: "-",
    Verdict.DIFFERENT: "≠",
    Verdict.ALIKE: "=",
    Verdict.EQUAL: "=",
    Verdict.INCONCLUSIVE: "?",
}
#: Marks a difference that may be a false positive, given the number of comparisons.
_DOUBT = "†"
_NOT_FINITE = "a value is not finite"
_DIFFER = (Verdict.BETTER, Verdict.WORSE, Verdict.DIFFERENT)
_TONES = {Verdict.BETTER: Tone.GOOD, Verdict.WORSE: Tone.WARNING}
_CONDITION_NOTES = {
    Outcome.MET: ("✘", Tone.BAD),
    Outcome.NOT_MET: ("✔", Tone.GOOD),
    Outcome.INCONCLUSIVE: ("?", Tone.NORMAL),
}
#: Maximum number of workloads whose first finding becomes a sentence; more have only a table.
_MAX_SENTENCES = 8
#: Maximum number of workloads in the table; those with differences come first.
MAX_WORKLOADS = 30
#: Maximum number of names in a list, before "and N more".
_NAMED = 5


def comparison_document(
    comparison: Comparison, checked: Sequence[CheckedCondition] = ()
) -> Document:
    """Return a comparison: operands, conditions, sentences, a table, and notes."""
    a, b = comparison.a, comparison.b
    shown = _shown(comparison.workloads)
    hidden = len(comparison.workloads) - len(shown)
    blocks: list[Block] = [
        Notes(
            [Note(f"{name}: {side.text}, {_facts(side)}") for name, side in (("A", a), ("B", b))]
        ),
        Notes(_condition_notes(checked), "Conditions"),
        Notes([Note(text) for text in sentences(comparison)]),
        _table(shown, comparison.confidence),
    ]
    if not comparison.findings:
        blocks.append(Notes([Note("No quantity was measured on both sides")]))
    if hidden:
        blocks.append(Notes([Note(f"{hidden:,} more workloads: --format json", Tone.DIM)]))
    blocks.append(Notes([Note(text, Tone.WARNING, "!") for text in warnings(comparison)]))
    blocks.append(Notes([Note(text, Tone.DIM) for text in _notes(comparison)]))
    return Document(f"{b.text} vs {a.text}", (), blocks)


def _shown(workloads: Sequence[ComparedWorkload]) -> list[ComparedWorkload]:
    """Return the first workloads, those with differences before the others, in their order."""
    differ = [any(finding.verdict in _DIFFER for finding in each.findings) for each in workloads]
    ranked = sorted(range(len(workloads)), key=lambda place: not differ[place])
    return [workloads[place] for place in sorted(ranked[:MAX_WORKLOADS])]


def _table(workloads: Sequence[ComparedWorkload], confidence: float) -> Table:
    columns = [
        ColumnHead("workload", role=Role.HEADING, is_number=False),
        ColumnHead("quantity", role=Role.KEY, is_number=False),
        ColumnHead("A"),
        ColumnHead("B"),
        ColumnHead("  B vs A", is_number=False),
        ColumnHead(f"{confidence * 100:g} % CI"),
        ColumnHead("n", explanation="repeats of A and B"),
    ]
    rows = []
    for workload in workloads:
        # Findings of all runs first, then those of each group of runs.
        kinds = ["", *dict.fromkeys(finding.runs for finding in workload.findings)]
        for finding in sorted(workload.findings, key=lambda finding: kinds.index(finding.runs)):
            a, b = (finding.quantity.info.text(side.mean) for side in (finding.a, finding.b))
            verdict = f"{_SIGNS[finding.verdict]} {_verdict_text(finding)}"
            several = not _is_single(finding)
            cells = [
                Cell(finding.name),
                Cell(_noun(finding.quantity)),
                Cell(a),
                Cell(b),
                Cell(verdict, tone=_TONES.get(finding.verdict, Tone.NORMAL)),
                Cell(_interval_text(finding)),
                Cell(_count_text(finding)),
            ]
            rows.append(Row(cells, note=_repeats_needed_text(finding) if several else ""))
    return Table(columns, rows)


def _noun(quantity: AnyQuantity) -> str:
    """Return a quantity as it appears in a sentence: ``time per epoch``."""
    if isinstance(quantity, SeriesQuantity):
        return quantity.value
    return re.sub(r"/(epoch|sample)\b", r" per \1", quantity.info.title)


def _change_text(finding: Finding) -> str:
    """Return the difference of B's mean from A's: ``1.32× faster``, ``1.10× lower``."""
    effect = finding.effect
    if effect.value == effect.none:
        return "equal"
    lower = effect.value < effect.none
    is_time = finding.quantity.info.unit == _TIME
    word = ("faster" if lower else "slower") if is_time else ("lower" if lower else "higher")
    if effect.scale is EffectScale.DIFFERENCE:
        return f"{finding.quantity.info.text(abs(effect.value))} {word}"
    return f"{significant(max(effect.value, 1 / effect.value))}× {word}"


def _verdict_text(finding: Finding) -> str:
    """Return the verdict: ``1.32× faster``, ``within 5 %``, ``inconclusive``."""
    match finding.verdict:
        case Verdict.ALIKE:
            return f"within {MARGIN * 100:g} %"
        case Verdict.BETTER | Verdict.WORSE | Verdict.DIFFERENT:
            return _change_text(finding) + ("" if finding.holds else f" {_DOUBT}")
        case Verdict.INCONCLUSIVE if _is_single(finding):
            return _change_text(finding)
    return finding.verdict.value


def _is_single(finding: Finding) -> bool:
    """Return True if A or B has only one value, no run lacks one, and all are finite."""
    effect = finding.effect
    return effect.method is Method.NONE and effect.is_finite and finding.shortfall is None


def _interval_text(finding: Finding) -> str:
    """Return both ends, in the direction of the verdict: ``1.28–1.36×`` for 1.32× faster."""
    interval = finding.effect.interval
    if interval is None or finding.verdict is Verdict.EQUAL:
        return NO_VALUE
    if finding.effect.scale is EffectScale.DIFFERENCE:
        low, high = (
            f"{'−' if end < 0 else ''}{finding.quantity.info.text(abs(end))}"
            for end in (interval.low, interval.high)
        )
        return f"{low} to {high}"
    if finding.verdict in (Verdict.BETTER, Verdict.WORSE, Verdict.DIFFERENT):
        interval = interval.mapped(lambda ratio: ratio if finding.effect.value > 1 else 1 / ratio)
    return _ends(interval)


def _count_text(finding: Finding) -> str:
    """Return the number of repeats: ``5``, or ``5, 3`` if those of A and B differ."""
    a, b = finding.effect.counts
    return str(a) if a == b else f"{a}, {b}"


def _repeats_needed_text(finding: Finding) -> str:
    """Return the number of repeats that would be conclusive; empty if unknown."""
    if finding.verdict is not Verdict.INCONCLUSIVE:
        return ""
    if finding.shortfall is not None:
        return finding.shortfall.text
    if not finding.effect.is_finite:
        return _NOT_FINITE
    if finding.effect.method is Method.NONE:
        return "one repeat, no interval"
    if finding.repeats_wanted is None:
        return ""
    change = f"{MARGIN * 100:g} %"
    if finding.repeats_wanted >= MOST_REPEATS:
        return f"{MOST_REPEATS:,} repeats would not detect {change}"
    return f"about {plural(finding.repeats_wanted, 'repeat')} would detect {change}"


def sentence(finding: Finding, confidence: float) -> str:
    """Return a finding: ``three: B is 1.32× faster (time per epoch 2.69 s → 2.04 s, …)``."""
    noun, effect = _noun(finding.quantity), finding.effect
    is_time = finding.quantity.info.unit == _TIME
    values = " → ".join(finding.quantity.info.text(side.mean) for side in (finding.a, finding.b))
    facts = [f"{noun} {values}"]
    match finding.verdict:
        case Verdict.INCONCLUSIVE if _is_single(finding):
            text = f"B is {_change_text(finding)}"
        case Verdict.INCONCLUSIVE | Verdict.EQUAL:
            text = finding.verdict.value
        case Verdict.ALIKE:
            text = f"alike {_verdict_text(finding)}"
        case _ if is_time:
            text = f"B is {_change_text(finding)}"
        case _:
            text, facts = f"B has {_change_text(finding)} {noun}", [values]
    if effect.interval is not None and finding.verdict is not Verdict.EQUAL:
        facts.append(f"{confidence * 100:g} % CI {_interval_text(finding)}")
    if not _is_single(finding):
        facts.append(f"n = {_count_text(finding).replace(', ', ' and ')}")
        facts += [effect.method] if effect.method is not Method.NONE else []
    text += f" ({', '.join(facts)})"
    if needed := _repeats_needed_text(finding):
        text += f"; {needed}"
    if finding.verdict in _DIFFER and not finding.holds:
        text += "; may be a false positive among so many comparisons"
    return f"{finding.name}: {text}"


def summary_text(comparison: Comparison) -> str:
    """Return the verdicts: ``15 comparisons: 3 better, 1 worse, 9 alike, 2 inconclusive``."""
    verdicts = Counter(finding.verdict for finding in comparison.findings)
    total = plural(len(comparison.findings), "comparison")
    if len(verdicts) == 1:
        return f"{total}, all {next(iter(verdicts)).value}"
    counts = [f"{verdicts[verdict]:,} {verdict.value}" for verdict in Verdict if verdicts[verdict]]
    return f"{total}: {', '.join(counts)}"


def false_positives_text(comparison: Comparison) -> str:
    """Return the expected number of false positives; empty for fewer than two intervals."""
    count = len(comparison.tested)
    if count < 2:
        return ""
    expected = significant(count * (1 - comparison.confidence), 2)
    text = (
        f"With {count:,} comparisons at {comparison.confidence * 100:g} %, "
        f"expect {expected} false positives"
    )
    if any(not finding.holds and finding.verdict in _DIFFER for finding in comparison.tested):
        text += f"; {_DOUBT} may be one of them (Holm)"
    return text


def _ends(interval: Interval) -> str:
    """Return ``1.28–1.36×``, with enough decimals to distinguish the ends."""
    low, high = interval.low, interval.high
    for digits in range(3, 7):
        _, _, fraction = significant(high, digits).partition(".")
        ends = [f"{end:,.{len(fraction)}f}" for end in (low, high)]
        if ends[0] != ends[1] or low == high:
            break
    if not float(ends[0].replace(",", "")):  # rounded away, as it is far below the other end
        ends[0] = significant(low)
    return f"{ends[0]}–{ends[1]}×"


def _facts(operand: Operand) -> str:
    """Return the extent of an operand: ``3 workloads, 5 repeats, gpu-01, 2026-05-03``."""
    parts = []
    if operand.kind is OperandKind.EXPERIMENT:
        parts.append(plural(len(operand.workloads), "workload"))
    counts = sorted({len(workload.workload_ids) for workload in operand.workloads})
    least = f"{counts[0]} to " if len(counts) > 1 else ""
    parts.append(least + plural(counts[-1], "repeat"))
    hosts = dict.fromkeys(workload.host for workload in operand.workloads if workload.host)
    parts += [", ".join(hosts)] if len(hosts) <= _NAMED else [plural(len(hosts), "machine")]
    started = [
        repeat.started_ns
        for workload in operand.workloads
        for repeat in operand.starts_of(workload)
    ]
    if started:
        when = datetime.fromtimestamp(max(started) / 1e9).astimezone()
        parts.append(f"{when:%Y-%m-%d %H:%M}")
    return ", ".join(filter(None, parts))


def sentences(comparison: Comparison) -> list[str]:
    """Return the first finding of each workload or group of runs; none if there are many."""
    first = [
        finding
        for workload in comparison.workloads
        for finding in workload.findings
        if finding.quantity == workload.findings[0].quantity
    ]
    if len(first) > _MAX_SENTENCES:
        return []
    return [sentence(finding, comparison.confidence) for finding in first]


def warnings(comparison: Comparison) -> list[str]:
    """Return the other differences between A and B that may explain the result."""
    differences = [(workload.name, workload.differences) for workload in comparison.workloads]
    texts = [
        f"different conditions: {text}" for text in difference_sentences(differences, warnings=True)
    ]
    for name, missing in (("A", comparison.only_a), ("B", comparison.only_b)):
        if missing:
            texts.append(f"only in {name}: {listed(missing, _NAMED)}")
    return texts


def _notes(comparison: Comparison) -> Iterator[str]:
    """Yield other differences, footnotes and methods."""
    differences = [(workload.name, workload.differences) for workload in comparison.workloads]
    for text in difference_sentences(differences, warnings=False):
        yield f"Also different: {text}"
    a, b = comparison.a.footnotes, comparison.b.footnotes
    for text in dict.fromkeys((*a, *b)):
        whose = [name for name, notes in (("A", a), ("B", b)) if text in notes]
        yield f"{' and '.join(whose)}: {text}"
    if len(comparison.findings) > 1:
        yield summary_text(comparison)
    if text := false_positives_text(comparison):
        yield text
    for workload in comparison.workloads:
        compared = [(finding.quantity, finding.runs) for finding in workload.findings]
        for shortfall in workload.shortfalls:
            if (shortfall.quantity, shortfall.runs) not in compared:
                name = ", ".join(filter(None, (workload.name, shortfall.runs)))
                yield f"{name}: {shortfall.quantity.value} {shortfall.text}, so there is no value"
    methods = {
        finding.effect.method
        for finding in comparison.findings
        if finding.shortfall is None and finding.effect.is_finite
    }
    if Method.NONE in methods:
        yield "One repeat gives no confidence interval. Run `radt FILE --repeat 5`."
    if Method.PAIRED in methods:
        yield "Paired: repeats that ran in turns are compared pair by pair"
    yield f"Window: {comparison.window.text}"


def _condition_notes(checked: Sequence[CheckedCondition]) -> list[Note]:
    notes = []
    for condition in checked:
        mark, tone = _CONDITION_NOTES[condition.outcome]
        text = f"{condition.condition.text}: {_condition_text(condition)}"
        notes.append(Note(text, tone, mark))
    return notes


def _condition_text(checked: CheckedCondition) -> str:
    match checked.outcome:
        case Outcome.MET:
            return f"met by {_found(checked.findings[Outcome.MET])}"
        case Outcome.NOT_MET:
            return f"not met ({plural(len(checked.findings[Outcome.NOT_MET]), 'comparison')})"
    parts = []
    if inconclusive := checked.findings[Outcome.INCONCLUSIVE]:
        parts.append(_found(inconclusive))
    if checked.missing:
        quantity = checked.condition.quantity
        is_time = isinstance(quantity, SeriesQuantity) and quantity.relation is not None
        what = "not reached by all runs" if is_time else "not measured on both sides"
        parts.append(f"{what} of {listed(checked.missing, _NAMED)}")
    return f"inconclusive: {'; '.join(parts) or 'nothing was compared'}"


def _found(findings: Sequence[Finding]) -> str:
    return listed([_short_text(finding) for finding in findings], _NAMED)


def _short_text(finding: Finding) -> str:
    a, b = (finding.quantity.info.text(side.mean) for side in (finding.a, finding.b))
    alone = finding.effect.interval is None
    if finding.shortfall is not None:
        return f"{finding.name} ({a} → {b}, {finding.shortfall.text})"
    if not finding.effect.is_finite:
        return f"{finding.name} ({a} → {b}, {_NOT_FINITE})"
    interval = "one repeat" if alone else f"CI {_interval_text(finding)}"
    return f"{finding.name} ({a} → {b}, {_change_text(finding)}, {interval})"
