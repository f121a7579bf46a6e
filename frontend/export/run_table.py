"""The table of runs as CSV: the page's content, with full precision and base units."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from radt import units
from radt.frontend.data.run_columns import Format, RunColumn
from radt.frontend.data.run_table import RunTable
from radt.render.report_csv import safe

#: Columns that identify a run, before the shown columns.
_NAMES = ("run_id", "experiment", "workload", "letter", "name")


def table_csv(table: RunTable) -> str:
    """Return all matching runs in their order, one per row. Column names are the columns' keys."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    columns = [column for column in table.columns if column.key not in _NAMES]
    writer.writerow(_safe([*_NAMES, *(column.key for column in columns)]))
    for place in table.order.tolist():
        record = table.all_runs.runs[place].record
        names = (record.run_id, record.experiment, record.workload, record.letter, record.name)
        cells = [_value(column, place) for column in columns]
        writer.writerow(_safe([*names, *cells]))
    return text.getvalue()


def _safe(cells: Sequence[object]) -> list[object]:
    """Escape cells or column names that a spreadsheet would run as formulas."""
    return [safe(cell) if isinstance(cell, str) else cell for cell in cells]


def _value(column: RunColumn, place: int) -> object:
    if column.format is Format.STATUS:
        return column.cell(place)[0]  # type: ignore[index]
    if column.format is Format.TEXT:
        return column.cell(place)
    value = float(column.ranks[place])
    if column.format is Format.AGE:
        value /= -1e9  # ranks are negative ns, the newest first; files get seconds since 1970
    return "" if math.isnan(value) and column.cell(place) != units.not_finite(value) else value
