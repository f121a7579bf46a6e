"""The table as a file: CSV with all digits, Markdown as it is read."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from radt.frontend.report.cells import column
from radt.frontend.report.choices import Choices
from radt.frontend.report.data import Entry, Shown, sorted_groups
from radt.model import RunStatus
from radt.report.quantities import ABOUT
from radt.report.summary import GroupSummary
from radt.units import NO_VALUE

#: Spreadsheets take a cell that begins so for a formula (OWASP, "CSV injection").
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def rows_of(shown: Shown, choices: Choices) -> list[tuple[Entry, GroupSummary]]:
    """The lines of the table, whole."""
    return [(entry, group) for entry in shown.entries for group in sorted_groups(entry, choices)]


def as_csv(shown: Shown, choices: Choices) -> str:
    """Values in their units as they are stored, with number of repeats and standard deviation.

    What is of a workload's devices stands in the line of each of its groups.
    """
    stream = io.StringIO()
    writer = csv.writer(stream)
    heads = ["experiment", "workload", "machine", "runs", "name", "status", "repeats"]
    for quantity in shown.columns:
        unit = ABOUT[quantity].unit
        named = quantity.value if unit == "x" else f"{quantity.value} [{unit}]"
        heads += [named, f"{quantity.value} s.d."]
    writer.writerow(heads)
    for entry, group in rows_of(shown, choices):
        cells: list[object] = [
            *map(_safe, (entry.experiment, entry.summary.label, entry.summary.host)),
            len(group.runs),
            _safe(group.name),
            group.status.value,
            group.repeats,
        ]
        for quantity in shown.columns:
            estimate = entry.summary.estimate(quantity, group)
            spread = None if estimate is None else estimate.spread
            cells += ["" if estimate is None else repr(estimate.mean)]
            cells += ["" if spread is None else repr(spread)]
        writer.writerow(cells)
    return stream.getvalue()


def as_markdown(shown: Shown, choices: Choices) -> str:
    """A table for a document or an issue."""
    lines = rows_of(shown, choices)
    columns = [
        column(
            quantity,
            [found for entry, group in lines if (found := entry.summary.estimate(quantity, group))],
        )
        for quantity in shown.columns
    ]
    heads = ["workload", "runs", *(["repeats"] if shown.with_repeats else [])]
    heads += [f"{one.title} [{one.unit}]" if one.unit else one.title for one in columns]
    table = [heads, ["---"] * 2 + ["---:"] * (len(heads) - 2)]
    for entry, group in lines:
        row = [_cell(entry.name), _cell(runs_text(group))]
        if shown.with_repeats:
            row.append(str(group.repeats) if group.repeats else NO_VALUE)
        for place, one in enumerate(columns):
            found = entry.summary.estimate(one.quantity, group)
            text = NO_VALUE if found is None else one.number(found.mean)
            if found is not None and found.spread is not None:
                text += f" ± {one.spread(found.spread)}"
            if place == 0 and group.status is not RunStatus.FINISHED:
                text = str(group.status)
            row.append(text)
        table.append(row)
    notes = f"Window: {shown.window}."
    return "\n".join(_line(row) for row in table) + f"\n\n{notes}\n"


def runs_text(group: GroupSummary) -> str:
    """``3 × cnn-small``."""
    alike = len({run.name for run in group.runs}) == 1
    count = f"{len(group.runs)} × " if len(group.runs) > 1 and alike else ""
    return f"{count}{group.name}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """A name in Markdown is only a name."""
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]<>()#|!~" else c for c in text)
    return " ".join(escaped.split())


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
