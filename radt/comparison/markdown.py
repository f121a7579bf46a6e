"""A comparison as Markdown, for the comment of a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from radt.comparison.conditions import Checked, Outcome
from radt.comparison.findings import Comparison, Finding
from radt.comparison.outline import condition_texts, notes, sentences, side_text, warnings
from radt.comparison.words import (
    SIGNS,
    count_text,
    interval_text,
    noun,
    printable,
    value_text,
    verdict_text,
    wanted_text,
)

#: What Markdown would read as its own.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")
_HEAD = ("workload", "quantity", "A", "B", "B against A", "interval", "n")
_MARKS = {Outcome.MET: "✘", Outcome.NOT_MET: "✔", Outcome.UNKNOWN: "?"}


def markdown(comparison: Comparison, checked: Sequence[Checked] = ()) -> str:
    """GitHub's Markdown."""
    lines = [f"**{_safe(comparison.b.text)}** against **{_safe(comparison.a.text)}**", ""]
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        lines.append(f"- {letter}: {_safe(side.text)}, {_safe(side_text(side))}")
    lines.append("")
    for mark, text in ((_MARKS[outcome], text) for outcome, text in condition_texts(checked)):
        lines += [f"- {mark} {_safe(text)}"]
    if checked:
        lines.append("")
    if told := sentences(comparison):
        lines += [*(f"- {_safe(text)}" for text in told), ""]
    if comparison.findings:
        lines += [_row(_HEAD), "|---|---|--:|--:|---|--:|--:|"]
        lines += [_row(_cells(finding)) for finding in comparison.findings]
        lines.append("")
    lines += [f"> {_safe(text)}\n" for text in warnings(comparison)]
    lines += [f"{_safe(text)}\n" for text in notes(comparison)]
    return "\n".join(lines).rstrip()


def _cells(finding: Finding) -> list[str]:
    wanted = wanted_text(finding)
    said = f"{SIGNS[finding.verdict]} {verdict_text(finding)}" + (f"; {wanted}" if wanted else "")
    return [
        _safe(finding.name),
        _safe(noun(finding.quantity)),
        value_text(finding.quantity, finding.a.mean),
        value_text(finding.quantity, finding.b.mean),
        said,
        interval_text(finding),
        count_text(finding),
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", printable(" ".join(text.split())))
