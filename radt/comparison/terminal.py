"""A comparison on a terminal: sentences, a table that fits into 80 columns, what else differs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from radt.comparison.conditions import Checked, Outcome
from radt.comparison.findings import Compared, Comparison, Finding, Verdict
from radt.comparison.outline import condition_texts, notes, sentences, side_text, warnings
from radt.comparison.words import (
    SIGNS,
    count_text,
    interval_text,
    noun,
    value_text,
    verdict_text,
    wanted_text,
)
from radt.report.confidence import Method

#: More workloads than this are left to --format json; those with differences come first.
MAX_WORKLOADS = 30
_MIN_WIDTH = 40
_DIFFER = (Verdict.BETTER, Verdict.WORSE, Verdict.DIFFERENT)
_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "yellow"}
_MARKS = {Outcome.MET: ("✘", "red"), Outcome.NOT_MET: ("✔", "green"), Outcome.UNKNOWN: ("?", "")}


def print_comparison(comparison: Comparison, checked: Sequence[Checked], console: Console) -> None:
    """Print all of it."""
    console.print()
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        _say(console, f"{letter}  {_safe(side.text)}", style="bold", after=side_text(side))
    console.print()
    told = sentences(comparison)
    for text in told:
        _say(console, _safe(text), indent=2)
    if told:
        console.print()
    shown = _shown(comparison.workloads)
    if any(one.findings for one in shown):
        console.print(_table(shown))
    else:
        _say(console, "Nothing was measured on both sides", indent=2)
    if len(shown) < len(comparison.workloads):
        left = len(comparison.workloads) - len(shown)
        _say(console, f"… and {left:,} more workloads; --format json has all", indent=2, dim=True)
    console.print()
    for text in warnings(comparison):
        _say(console, f"! {_safe(text)}", style="yellow")
    for text in notes(comparison):
        _say(console, _safe(text), indent=2, dim=True)
    if checked:
        console.print()
    for outcome, text in condition_texts(checked):
        mark, style = _MARKS[outcome]
        _say(console, f"{mark} {_safe(text)}", style=style)
    console.print()


def _shown(workloads: Sequence[Compared]) -> list[Compared]:
    if len(workloads) <= MAX_WORKLOADS:
        return list(workloads)
    ranked = sorted(
        range(len(workloads)),
        key=lambda place: not any(one.verdict in _DIFFER for one in workloads[place].findings),
    )
    return [workloads[place] for place in sorted(ranked[:MAX_WORKLOADS])]


def _table(workloads: Sequence[Compared]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True, overflow="ellipsis", max_width=19)
    for name in ("A", "B"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("  B against A")
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for number, one in enumerate(workloads):
        if not one.findings:
            continue
        if number:
            table.add_row("")
        table.add_row(Text(f"  {_safe(one.name)}", style="bold", overflow="ellipsis"))
        kinds = len({finding.runs for finding in one.findings if finding.runs}) > 1
        for finding in one.findings:
            table.add_row(*_cells(finding, with_runs=kinds))
    return table


def _cells(finding: Finding, *, with_runs: bool) -> list[Text | str]:
    name = noun(finding.quantity)
    style = _STYLES.get(finding.verdict, "")
    said = Text(f"{SIGNS[finding.verdict]} {verdict_text(finding)}", style=style)
    if finding.verdict is Verdict.UNKNOWN and finding.effect.method is not Method.NONE:
        wanted = wanted_text(finding).replace(" would tell ", "\n  would tell ")
        said.append(f"\n  {wanted}" if wanted else "", style="dim")
    of_runs = f"\n    {_safe(finding.runs)}" if with_runs and finding.runs else ""
    return [
        Text.assemble(f"  {name}", (of_runs, "dim")),
        value_text(finding.quantity, finding.a.mean),
        value_text(finding.quantity, finding.b.mean),
        said,
        interval_text(finding),
        Text(count_text(finding)),
    ]


def _say(
    console: Console,
    text: str,
    *,
    style: str = "",
    after: str = "",
    indent: int = 0,
    dim: bool = False,
) -> None:
    """A line, broken by words where the terminal ends."""
    width = max(_MIN_WIDTH, console.width)
    whole = f"{text}  {after}" if after else text
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


def _safe(text: str) -> str:
    """What a terminal would obey is spelled out."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
