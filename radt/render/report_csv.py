"""A report as tidy CSV: one value per row, with its interval, at full precision.

Columns: ``experiment``, ``workload``, ``machine``, ``of`` (``runs`` or ``workload``: the subject of
the value), ``runs`` (their number, empty for a workload), ``name``, ``status``, ``quantity``,
``value``, ``low`` and ``high`` (95 % confidence interval of the mean, empty for one repeat), ``n``
(repeats), ``unit`` (UCUM; ``x`` for a factor), ``window``, ``estimated`` (``true`` or ``false``),
``metrics`` (separated by spaces). Runs without a value have one row without a quantity, because
running out of memory is also a result.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity, Subject
from radt.analysis.summaries import GroupSummary
from radt.render.report_content import Content, Item, is_shared

COLUMNS = (
    *("experiment", "workload", "machine", "of", "runs", "name", "status", "quantity"),
    *("value", "low", "high", "n", "unit", "window", "estimated", "metrics"),
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
        for group in item.groups:
            lead = [
                *_workload(item),
                *(Subject.RUNS.value, len(group.runs), _safe(group.name), group.status.value),
            ]
            values = list(_values(item, group, shared=False))
            for quantity, estimate in values:
                writer.writerow([*lead, *_value(quantity, estimate, window)])
            if not values:
                writer.writerow([*lead, *[""] * (len(COLUMNS) - len(lead))])
        lead = [*_workload(item), Subject.WORKLOAD.value, "", "", ""]
        for quantity, estimate in _values(item, item.groups[0], shared=True):
            writer.writerow([*lead, *_value(quantity, estimate, window)])
    return stream.getvalue()


def _workload(item: Item) -> list[str]:
    return [_safe(text) for text in (item.experiment, item.summary.label, item.summary.host)]


def _values(
    item: Item, group: GroupSummary, *, shared: bool
) -> Iterator[tuple[Quantity, Estimate]]:
    for quantity in Quantity:
        if (
            is_shared(quantity) is shared
            and (estimate := item.summary.estimate(quantity, group)) is not None
        ):
            yield quantity, estimate


def _value(quantity: Quantity, estimate: Estimate, window: str) -> list[object]:
    interval = estimate.interval
    return [
        quantity.value,
        repr(estimate.mean),
        "" if interval is None else repr(interval.low),
        "" if interval is None else repr(interval.high),
        estimate.count,
        quantity.info.unit,
        window,
        "true" if estimate.is_estimated else "false",
        _safe(" ".join(estimate.metrics)),
    ]


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
