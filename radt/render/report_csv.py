"""A report as tidy CSV: one value per row, with its interval, at full precision.

Columns: ``experiment``, ``workload``, ``machine``, ``of`` (``runs`` or ``workload``: the subject of
the value), ``runs`` (their number, empty for a workload), ``name``, ``status``, ``quantity``,
``value``, ``low`` and ``high`` (95 % confidence interval of the mean, empty for one repeat), ``n``
(repeats), ``unit`` (UCUM; ``x`` for a factor), ``window``, ``estimated`` (``true`` or ``false``),
``metrics`` (separated by spaces), ``reached`` (``3/5``: how many runs met the condition of a
``time_to``; empty for other quantities). Runs without a value have one row without a quantity,
because running out of memory is also a result.
"""

from __future__ import annotations

import csv
import io

from radt.analysis.estimates import Estimate, Reached
from radt.analysis.quantities import Subject
from radt.analysis.series_quantities import AnyQuantity
from radt.analysis.summaries import GroupSummary
from radt.render.report_content import Content, Item, with_children

COLUMNS = (
    *("experiment", "workload", "machine", "of", "runs", "name", "status", "quantity"),
    *("value", "low", "high", "n", "unit", "window", "estimated", "metrics", "reached"),
)
#: Spreadsheets interpret cells with these beginnings as formulas (OWASP, "CSV injection").
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(content: Content) -> str:
    """Return all values of a report as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for item in content.items:
        for group in with_children(item.groups):
            writer.writerows(_rows(content, item, group) or [_lead(item, group)])
        writer.writerows(_rows(content, item))
    return stream.getvalue()


def _rows(
    content: Content, item: Item, group: GroupSummary | None = None
) -> list[dict[str, object]]:
    """Return the values of like runs or of the whole workload; a condition never met has none."""
    window = {report.experiment: report.window.text for report in content.reports}
    lead = _lead(item, group) | {"window": window.get(item.experiment, content.window)}
    found, reached = content.values(item, group), {} if group is None else group.reached
    known = {quantity: estimate for quantity, estimate in found.items() if estimate is not None}
    never = [quantity for quantity, each in reached.items() if not each.count]
    return [
        *(lead | _value(quantity, known[quantity], reached.get(quantity)) for quantity in known),
        *(lead | _value(quantity, None, reached[quantity]) for quantity in never),
    ]


def _lead(item: Item, group: GroupSummary | None) -> dict[str, object]:
    """Return the columns of the subject of values."""
    subject = Subject.WORKLOAD if group is None else Subject.RUNS
    names = (item.experiment, item.summary.label, item.summary.host)
    lead: dict[str, object] = {
        column: safe(name) for column, name in zip(COLUMNS[:3], names, strict=True)
    }
    lead["of"] = subject.value
    if group is not None:
        lead |= {"runs": len(group.runs), "name": safe(group.name), "status": group.status.value}
    return lead


def _value(
    quantity: AnyQuantity, estimate: Estimate | None, reached: Reached | None
) -> dict[str, object]:
    row: dict[str, object] = {"quantity": quantity.value, "n": 0, "unit": quantity.info.unit}
    if estimate is not None:
        interval = estimate.interval
        row |= {"value": repr(estimate.mean), "n": estimate.count}
        row |= {"low": repr(interval.low), "high": repr(interval.high)} if interval else {}
        row["metrics"] = safe(" ".join(estimate.metrics))
    row["estimated"] = "true" if estimate is not None and estimate.is_estimated else "false"
    return row | ({} if reached is None else {"reached": f"{reached.count}/{reached.of}"})


def safe(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
