"""The table of runs as CSV: what the page shows, with full precision and base units."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from radt.frontend.data.run_columns import Column, Format
from radt.frontend.data.run_table import RunTable
from radt.render.report_csv import safe

#: What names a run, before the shown columns.
_NAMES = ("run_id", "experiment", "workload", "letter", "name")


def table_csv(table: RunTable) -> str:
    """Return all found runs in their order, a row each; columns have their keys as names."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_safe([*_NAMES, *(column.key for column in table.columns)]))
    for place in table.order.tolist():
        record = table.all_runs.runs[place].record
        names = (record.run_id, record.experiment, record.workload, record.letter, record.name)
        cells = [_value(column, place) for column in table.columns]
        writer.writerow(_safe([*names, *cells]))
    return text.getvalue()


def _safe(cells: Sequence[object]) -> list[object]:
    """Return cells, or names of columns, of which a spreadsheet takes none for a formula."""
    return [safe(cell) if isinstance(cell, str) else cell for cell in cells]


def _value(column: Column, place: int) -> object:
    if column.format is Format.STATUS:
        return column.cell(place)[0]  # type: ignore[index]
    if column.format is Format.TEXT:
        return column.cell(place)
    value = float(column.ranks[place])
    if column.format is Format.AGE:
        value /= -1e9
    return value if math.isfinite(value) else ""
