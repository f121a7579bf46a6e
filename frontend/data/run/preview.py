"""The beginning of a file as text or as a table, or its figure.

What is read is limited, whatever the file is: scripts may write anything under any name.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from radt import units
from radt.frontend.data.run.figure import figure_of
from radt.frontend.data.run.kinds import Kind, kind_of, suffix_of

MAX_ROWS = 1000
_MAX_COLUMNS = 200
_MAX_CELL = 500
_TEXT_BYTES = 256 * 1024
_CSV_BYTES = 8 * 2**20
_JSON_BYTES = 16 * 2**20
#: The whole library of plotly may be in the file, 5 MB.
_HTML_BYTES = 16 * 2**20
#: A group of rows is decoded as a whole.
_PARQUET_BYTES = 256 * 2**20
_DELIMITERS = ",;\t|"


@dataclass(frozen=True, slots=True)
class Preview:
    """A file as the page shows it: a text, a table, a figure, or a note why it is none of them.

    ``numeric`` are the columns with numbers only; ``rows`` have texts, None where there is no
    value. ``figure`` is that of plotly, in JSON. ``note`` says what is left out.
    """

    kind: Kind | None
    text: str = ""
    columns: tuple[str, ...] = ()
    numeric: tuple[bool, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    figure: str = ""
    note: str = ""


def preview(file: BinaryIO, path: str) -> Preview:
    """Return the beginning of a file, as its name says it is to be read.

    Raises:
        OSError: The file cannot be read.
    """
    kind, suffix = kind_of(path), suffix_of(path)
    if suffix == ".parquet":
        return _parquet(file)
    if kind is Kind.TABLE:
        return _separated(file, suffix)
    if kind is Kind.JSON:
        return _json(file)
    if kind is Kind.FIGURE:
        return _figure(file)
    return _text(file, kind)


def _text(file: BinaryIO, kind: Kind = Kind.TEXT) -> Preview:
    file.seek(0)
    data = file.read(_TEXT_BYTES)
    text = data.decode("utf-8", "replace")
    if "\0" in text or text.count("�") > len(text) / 10:
        return Preview(None, note="Not a text, image, table, sound or film")
    size = os.fstat(file.fileno()).st_size
    return Preview(kind, text, note=_cut(size) if size > len(data) else "")


def _cut(size: int) -> str:
    return f"The first {units.size(_TEXT_BYTES)} of {units.size(size)}"


def _json(file: BinaryIO) -> Preview:
    if os.fstat(file.fileno()).st_size > _JSON_BYTES:
        return _text(file)
    try:
        content = json.loads(file.read(_JSON_BYTES))
        # As MLflow's and radt's log_table write it, and pandas (orient="split").
        if isinstance(content, dict) and {"columns", "data"} <= set(content):
            columns, data = content["columns"], content["data"]
            if isinstance(columns, list) and all(isinstance(row, list) for row in data):
                return _table(columns, data, len(data))
        text = json.dumps(content, indent=2, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return _text(file)
    note = _cut(len(text)) if len(text) > _TEXT_BYTES else ""
    return Preview(Kind.JSON, text[:_TEXT_BYTES], note=note)


def _figure(file: BinaryIO) -> Preview:
    if os.fstat(file.fileno()).st_size <= _HTML_BYTES:
        html = file.read(_HTML_BYTES).decode("utf-8", "replace")
        if (figure := figure_of(html)) is not None:
            return Preview(Kind.FIGURE, figure=figure.json, note=figure.note)
    return _text(file)


def _separated(file: BinaryIO, suffix: str) -> Preview:
    data = file.read(_CSV_BYTES).decode("utf-8-sig", "replace")
    first = data.partition("\n")[0]
    delimiter = "\t" if suffix == ".tsv" else max(_DELIMITERS, key=first.count)
    rows: list[list[str]] = []
    total = 0
    try:
        for row in csv.reader(io.StringIO(data, newline=""), delimiter=delimiter):
            total += bool(row)
            if row and len(rows) <= MAX_ROWS:
                rows.append(row)
    except csv.Error:
        return _text(file)
    if not rows:
        return _text(file)
    whole = os.fstat(file.fileno()).st_size <= _CSV_BYTES
    return _table(rows[0], rows[1:], total - 1 if whole else None)


def _parquet(file: BinaryIO) -> Preview:
    import pyarrow as pa  # imported here: it takes half a second
    import pyarrow.parquet as pq

    try:
        content = pq.ParquetFile(file)
        names = content.schema_arrow.names
        groups = [content.metadata.row_group(n) for n in range(content.num_row_groups)]
        if any(group.total_byte_size > _PARQUET_BYTES for group in groups[:1]):
            return Preview(None, note=f"Groups of rows beyond {units.size(_PARQUET_BYTES)}")
        rows: list[Sequence[object]] = []
        for batch in content.iter_batches(MAX_ROWS, columns=names[:_MAX_COLUMNS]):
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            if len(rows) >= MAX_ROWS:
                break
        return _table(names, rows, content.metadata.num_rows)
    except (pa.ArrowException, OSError, ValueError) as error:
        return Preview(None, note=f"Not a Parquet file: {error!s:.200}")


def _table(columns: Sequence[object], data: Iterable[Sequence[Any]], total: int | None) -> Preview:
    """Return the beginning of a table; ``total`` None if the number of its rows is not known."""
    shown = [row for _, row in zip(range(MAX_ROWS), data, strict=False)]
    names = [_cell(name) or "" for name in columns[:_MAX_COLUMNS]]
    width = len(names)
    rows = [
        tuple(_cell(row[place]) if len(row) > place else None for place in range(width))
        for row in shown
    ]
    by_column = [[cell for row in rows if (cell := row[place])] for place in range(width)]
    numeric = [bool(cells) and all(map(_is_number, cells)) for cells in by_column]
    notes = []
    if total is None or total > len(shown):
        known = "more" if total is None else f"{total:,}"
        notes.append(f"the first {len(shown):,} of {known} rows")
    if len(columns) > width:
        notes.append(f"the first {width} of {len(columns):,} columns")
    note = ", ".join(notes)
    return Preview(
        Kind.TABLE,
        columns=tuple(names),
        numeric=tuple(numeric),
        rows=tuple(rows),
        note=note[:1].upper() + note[1:],
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _cell(value: object) -> str | None:
    if value is None or (type(value) is float and math.isnan(value)):
        return None
    text = value if isinstance(value, str) else str(value)
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"
