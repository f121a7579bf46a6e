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
from collections.abc import Iterator

from radt.analysis.estimates import Estimate, Reached
from radt.analysis.quantities import Subject
from radt.analysis.series_quantities import AnyQuantity
from radt.analysis.summaries import GroupSummary
from radt.render.report_content import Content, Item, is_shared, with_children

COLUMNS = (
    *("experiment", "workload", "machine", "of", "runs", "name", "status", "quantity"),
    *("value", "low", "high", "n", "unit", "window", "estimated", "metrics", "reached"),
)
#: Spreadsheets interpret cells with these beginnings as formulas (OWASP, "CSV injection").
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(content: Content) -> str:
    """Return all values of a report as CSV."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    windows = {report.experiment: report.window.text for report in content.reports}
    for item in content.items:
        window = windows.get(item.experiment, content.window)
        for group in with_children(item.groups):
            lead = [
                *_workload(item),
                *(Subject.RUNS.value, len(group.runs), safe(group.name), group.status.value),
            ]
            values = list(_values(content, item, group, shared=False))
            for quantity, estimate in values:
                reached = group.reached.get(quantity)
                writer.writerow([*lead, *_value(quantity, estimate, window, reached)])
            never = [(unmet, each) for unmet, each in group.reached.items() if not each.count]
            for unmet, reached in never:
                writer.writerow([*lead, *_value(unmet, None, window, reached)])
            if not (values or never):
                writer.writerow([*lead, *[""] * (len(COLUMNS) - len(lead))])
        lead = [*_workload(item), Subject.WORKLOAD.value, "", "", ""]
        for quantity, estimate in _values(content, item, item.groups[0], shared=True):
            writer.writerow([*lead, *_value(quantity, estimate, window)])
    return stream.getvalue()


def _workload(item: Item) -> list[str]:
    return [safe(text) for text in (item.experiment, item.summary.label, item.summary.host)]


def _values(
    content: Content, item: Item, group: GroupSummary, *, shared: bool
) -> Iterator[tuple[AnyQuantity, Estimate]]:
    for quantity in content.written:
        if (
            is_shared(quantity) is shared
            and (estimate := item.summary.estimate(quantity, group)) is not None
        ):
            yield quantity, estimate


def _value(
    quantity: AnyQuantity, estimate: Estimate | None, window: str, reached: Reached | None = None
) -> list[object]:
    interval = None if estimate is None else estimate.interval
    return [
        quantity.value,
        "" if estimate is None else repr(estimate.mean),
        "" if interval is None else repr(interval.low),
        "" if interval is None else repr(interval.high),
        0 if estimate is None else estimate.count,
        quantity.info.unit,
        window,
        "true" if estimate is not None and estimate.is_estimated else "false",
        "" if estimate is None else safe(" ".join(estimate.metrics)),
        "" if reached is None else f"{reached.count}/{reached.of}",
    ]


def safe(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
