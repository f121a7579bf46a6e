"""A comparison on a terminal: sentences, a table that fits into 80 columns, what else differs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from radt.comparison.conditions import Checked, Outcome
from radt.comparison.findings import Compared, Comparison, Finding, Verdict
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
from radt.report.confidence import Method

#: More workloads than this are left to --format json; those with differences come first.
MAX_WORKLOADS = 30
_MIN_WIDTH = 40
_INDENT, _GAP = 4, "  "
#: The place of what is said among the cells.
_VERDICT = 3
_DIFFER = (Verdict.BETTER, Verdict.WORSE, Verdict.DIFFERENT)
_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "yellow"}
_MARKS = {Outcome.MET: ("✘", "red"), Outcome.NOT_MET: ("✔", "green"), Outcome.UNKNOWN: ("?", "")}


def print_comparison(comparison: Comparison, checked: Sequence[Checked], console: Console) -> None:
    """Print all of it."""
    console.print()
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        _say(console, f"{letter}  {printable(side.text)}", style="bold", after=side_text(side))
    console.print()
    told = sentences(comparison)
    for text in told:
        _say(console, printable(text), indent=2)
    if told:
        console.print()
    shown = _shown(comparison.workloads)
    if any(one.findings for one in shown):
        _print_table(comparison, shown, console)
    else:
        _say(console, "Nothing was measured on both sides", indent=2)
    if len(shown) < len(comparison.workloads):
        left = len(comparison.workloads) - len(shown)
        _say(console, f"… and {left:,} more workloads; --format json has all", indent=2, dim=True)
    console.print()
    for text in warnings(comparison):
        _say(console, f"! {printable(text)}", style="yellow")
    for text in notes(comparison):
        _say(console, printable(text), indent=2, dim=True)
    if checked:
        console.print()
    for outcome, text in condition_texts(checked):
        mark, style = _MARKS[outcome]
        _say(console, f"{mark} {printable(text)}", style=style)
    console.print()


def _shown(workloads: Sequence[Compared]) -> list[Compared]:
    if len(workloads) <= MAX_WORKLOADS:
        return list(workloads)
    ranked = sorted(
        range(len(workloads)),
        key=lambda place: not any(one.verdict in _DIFFER for one in workloads[place].findings),
    )
    return [workloads[place] for place in sorted(ranked[:MAX_WORKLOADS])]


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the table: ``cells`` in the order of `_print_table`; ``below`` stands under it."""

    cells: Sequence[str]
    style: str = ""
    below: str = ""


def _print_table(comparison: Comparison, workloads: Sequence[Compared], console: Console) -> None:
    """Columns are as wide as the widest cell; a workload's name has a line of its own."""
    head = ("", "A", "B", "  B against A", f"{comparison.confidence * 100:g} % CI", "n")
    rows = [(one.name, _rows(one.findings)) for one in workloads]
    every = [head, *(row.cells for _, of in rows for found in of.values() for row in found)]
    widths = [max(len(cells[place]) for cells in every) for place in range(len(head))]
    console.print(Text(_line(head, widths), style="dim"), soft_wrap=True)
    for name, of_runs in rows:
        if not of_runs:
            continue
        console.print(Text(f"  {printable(name)}", style="bold"), soft_wrap=True)
        for runs, found in of_runs.items():
            if runs:
                console.print(Text(f"   {printable(runs)}"), soft_wrap=True)
            for row in found:
                line = Text(_line(row.cells, widths))
                start = line.plain.index(row.cells[_VERDICT])
                line.stylize(row.style, start, start + len(row.cells[_VERDICT]))
                console.print(line, soft_wrap=True)
                if row.below:
                    before = sum(widths[:_VERDICT]) + _VERDICT * len(_GAP) + _INDENT + 2
                    console.print(Text(" " * before + row.below, style="dim"), soft_wrap=True)


def _rows(findings: Sequence[Finding]) -> dict[str, list[_Row]]:
    """Those of all runs first, then kind by kind, by the kind's name."""
    found: dict[str, list[_Row]] = {}
    for finding in sorted(findings, key=lambda one: bool(one.runs)):
        found.setdefault(finding.runs, []).append(_row(finding))
    return found


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if place in (0, _VERDICT) else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return " " * _INDENT + _GAP.join(padded).rstrip()


def _row(finding: Finding) -> _Row:
    wanted = wanted_text(finding) if finding.effect.method is not Method.NONE else ""
    return _Row(
        (
            noun(finding.quantity),
            value_text(finding.quantity, finding.a.mean),
            value_text(finding.quantity, finding.b.mean),
            f"{SIGNS[finding.verdict]} {verdict_text(finding)}",
            interval_text(finding),
            count_text(finding),
        ),
        _STYLES.get(finding.verdict, ""),
        wanted,
    )


def _say(
    console: Console,
    text: str,
    *,
    style: str = "",
    after: str = "",
    indent: int = 0,
    dim: bool = False,
) -> None:
    """A line, broken by words where a terminal ends; programs get it whole."""
    whole = f"{text}  {after}" if after else text
    width = max(_MIN_WIDTH, console.width) if console.is_terminal else indent + len(whole)
    lines = textwrap.wrap(
        whole,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent or 2),
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    shown = Text("\n".join(lines), style="dim" if dim else "")
    if style:
        # Of the first words only where something stands behind them.
        shown.stylize(style, 0, len(text) if after else 1 if text[:1] in "!✘✔?" else None)
    console.print(shown, soft_wrap=True)
