"""Return the beginning of a file as text or as a table, or its figure.

Reading, decoding and the answer are limited for all files: scripts may write anything under any
name, and a small file may decode to gigabytes. This runs in a helper process with a memory limit
(`radt.frontend.data.run.previews`), which also holds if a library decodes more than requested.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from radt import units
from radt.frontend.data.run.figure import figure_of
from radt.frontend.data.run.kinds import FileKind, kind_of, suffix_of

MAX_ROWS = 1000
_MAX_COLUMNS = 200
_MAX_CELL = 500
#: Maximum size of all cells of a table; browsers take seconds for more.
_TABLE_CHARS = 2 * 2**20
_TEXT_BYTES = 256 * 1024
_CSV_BYTES = 8 * 2**20
_JSON_BYTES = 16 * 2**20
#: Characters that may begin a link, emphasis and so on, in a paragraph or a list.
_MARKS = re.compile(r"[\[*_`~!<]|://")
_MAX_MARKS = 600
#: Task lists: the beginning of an item, and what is shown for it.
_BOXES = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}
#: A line with this many nested quotations and lists.
_NESTED = re.compile(r"^[ \t]*(?:>[ \t]*|[*+-][ \t]+){50}", re.MULTILINE)
_JSON_DEPTH = 50
#: Placeholder for deeper nesting.
_LEFT_OUT = "{…}"
#: Large enough for a file that includes all of plotly.js (5 MB).
_HTML_BYTES = 16 * 2**20
#: Maximum decoded size, over all row groups.
_PARQUET_BYTES = 64 * 2**20
#: Number of rows decoded at once, as each may be large.
_PARQUET_ROWS = 8
_DELIMITERS = ",;\t|"


@dataclass(frozen=True, slots=True)
class Preview:
    """A file as the page shows it: a text, a table, a figure, or a note why it is none of them.

    ``numeric`` are the columns with only numbers. ``rows`` have texts, None for missing values.
    ``figure`` is a plotly figure as JSON, ``html`` the text of Markdown in HTML. ``note`` says what
    is left out.
    """

    kind: FileKind | None
    text: str = ""
    columns: tuple[str, ...] = ()
    numeric: tuple[bool, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    figure: str = ""
    html: str = ""
    note: str = ""


def preview(file: BinaryIO, path: str) -> Preview:
    """Return the beginning of a file, in the format that its name indicates.

    Raises:
        OSError: The file cannot be read.
    """
    kind, suffix = kind_of(path), suffix_of(path)
    if suffix == ".parquet":
        return _parquet(file)
    if kind is FileKind.TABLE:
        return _separated(file, suffix)
    if kind is FileKind.JSON:
        return _json(file)
    if kind is FileKind.FIGURE:
        return _figure(file)
    if kind is FileKind.MARKDOWN:
        return _markdown(file)
    return _text(file)


def _text(file: BinaryIO, kind: FileKind = FileKind.TEXT) -> Preview:
    file.seek(0)
    data = file.read(_TEXT_BYTES)
    text = data.decode("utf-8", "replace")
    if "\0" in text or text.count("�") > len(text) / 10:
        return Preview(None, note="Not a text, image, table, sound or film")
    size = os.fstat(file.fileno()).st_size
    return Preview(kind, text, note=_cut(size) if size > len(data) else "")


def _markdown(file: BinaryIO) -> Preview:
    """Return Markdown in HTML; as plain text if it would take minutes to parse."""
    read = _text(file, FileKind.MARKDOWN)
    blocks = re.split(r"\n\s*\n", read.text)
    if any(len(_MARKS.findall(block)) > _MAX_MARKS for block in blocks) or _NESTED.search(
        read.text
    ):
        notes = [read.note, "Shown as text: too many marks of Markdown without an empty line"]
        return replace(read, kind=FileKind.TEXT, note=". ".join(filter(None, notes)))
    from markdown_it import MarkdownIt

    # HTML in the text is shown as it is written, and links to scripts are left out.
    parser = MarkdownIt("commonmark", {"html": False, "linkify": True})
    parser.enable(["table", "strikethrough", "linkify"])
    _link_web_only(parser.linkify)
    tokens = parser.parse(read.text)
    for place, token in enumerate(tokens):
        for inner in token.children or ():
            if inner.type == "link_open":
                inner.attrs |= {"target": "_blank", "rel": "noreferrer noopener"}
        if token.children and tokens[place - 2].type == "list_item_open":
            first = token.children[0]
            if first.type == "text" and first.content[:4] in _BOXES:
                first.content = _BOXES[first.content[:4]] + first.content[4:]
    return replace(read, html=parser.renderer.render(tokens, parser.options, {}))


def _link_web_only(linkify: Any) -> None:
    """Make links of bare addresses with http and https only, not of `main.py`."""
    linkify.set({"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False})
    for scheme in ("ftp:", "mailto:", "//"):
        linkify.add(scheme, None)


def _cut(size: int) -> str:
    return f"The first {units.size(_TEXT_BYTES)} of {units.size(size)}"


def _json(file: BinaryIO) -> Preview:
    if os.fstat(file.fileno()).st_size > _JSON_BYTES:
        return _text(file)
    try:
        content = json.loads(file.read(_JSON_BYTES))
        # The format of log_table of MLflow and radt, and of pandas (orient="split").
        if isinstance(content, dict) and {"columns", "data"} <= set(content):
            columns, data = content["columns"], content["data"]
            if isinstance(columns, list) and all(isinstance(row, list) for row in data):
                return _table(columns, data, len(data))
    except (ValueError, TypeError, RecursionError):
        return _text(file)
    written = io.StringIO()
    is_deep = False
    for piece in _pieces(content):
        written.write(piece)
        is_deep = is_deep or piece is _LEFT_OUT
        if written.tell() > _TEXT_BYTES:
            break
    text = written.getvalue()
    notes = []
    if len(text) > _TEXT_BYTES:
        notes.append(f"Cut after {units.size(_TEXT_BYTES)}")
    if is_deep:
        notes.append(f"Values nested deeper than {_JSON_DEPTH} levels are shown as {_LEFT_OUT}")
    return Preview(FileKind.JSON, text[:_TEXT_BYTES], note=". ".join(notes))


def _pieces(value: object, indent: str = "") -> Iterator[str]:
    """Yield a value as indented JSON in pieces, so that writing can stop anywhere."""
    if not isinstance(value, dict | list) or not value:
        yield json.dumps(value, ensure_ascii=False)
    elif len(indent) == 2 * _JSON_DEPTH:
        yield _LEFT_OUT
    else:
        inner = f"{indent}  "
        begin, end = "{}" if isinstance(value, dict) else "[]"
        items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        for name, item in items:
            yield f"{begin}\n{inner}"
            if name is not None:
                yield f"{json.dumps(name, ensure_ascii=False)}: "
            yield from _pieces(item, inner)
            begin = ","
        yield f"\n{indent}{end}"


def _figure(file: BinaryIO) -> Preview:
    if os.fstat(file.fileno()).st_size <= _HTML_BYTES:
        html = file.read(_HTML_BYTES).decode("utf-8", "replace")
        if (figure := figure_of(html)) is not None:
            return Preview(FileKind.FIGURE, figure=figure.json, note=figure.note)
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
    import pyarrow as pa  # takes half a second to import
    import pyarrow.parquet as pq

    pa.set_memory_pool(pa.system_memory_pool())  # other pools keep freed memory
    try:
        metadata = pq.read_metadata(file)
        leaves = (metadata.schema.column(place) for place in range(metadata.num_columns))
        # Decode a value that many rows share only once.
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        content = pq.ParquetFile(
            file,
            metadata=metadata,
            read_dictionary=[path for path in texts if "." not in path],
            buffer_size=1 << 16,  # read page by page, not a whole row group
        )
        names = content.schema_arrow.names
        batches = content.iter_batches(
            _PARQUET_ROWS, columns=names[:_MAX_COLUMNS], use_threads=False
        )
        return _table(names, _rows(batches), metadata.num_rows)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        return Preview(None, note=f"Not a Parquet file: {error!s:.200}")


def _rows(batches: Iterable[Any]) -> Iterator[list[object]]:
    """Yield the rows of record batches, up to `_PARQUET_BYTES`."""
    room = _PARQUET_BYTES
    for batch in batches:
        columns = batch.columns
        for place in range(batch.num_rows):  # one by one: a cell is cut before the next is decoded
            yield [column[place].as_py() for column in columns]
        room -= batch.nbytes
        if room < 0:
            return


def _table(columns: Sequence[object], data: Iterable[Sequence[Any]], total: int | None) -> Preview:
    """Return the beginning of a table. ``total`` is None if the number of rows is unknown."""
    names = [_cell(name) or "" for name in columns[:_MAX_COLUMNS]]
    width = len(names)
    rows: list[tuple[str | None, ...]] = []
    room = _TABLE_CHARS
    for _, row in zip(range(MAX_ROWS), data, strict=False):
        cells = tuple(_cell(row[place]) if len(row) > place else None for place in range(width))
        room -= sum(len(cell) for cell in cells if cell)
        if room < 0:
            break
        rows.append(cells)
    by_column = [[cell for row in rows if (cell := row[place])] for place in range(width)]
    numeric = [bool(cells) and all(map(_is_number, cells)) for cells in by_column]
    notes = []
    if total is None or total > len(rows):
        known = "more" if total is None else f"{total:,}"
        notes.append(f"the first {len(rows):,} of {known} rows")
    if len(columns) > width:
        notes.append(f"the first {width} of {len(columns):,} columns")
    note = ", ".join(notes)
    if notes and len(rows) < min(MAX_ROWS, total or MAX_ROWS):
        note += ": the rows are large"
    return Preview(
        FileKind.TABLE,
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
    if isinstance(value, str | bytes):
        value = value[: _MAX_CELL + 1]
    text = value if isinstance(value, str) else str(value)
    text = text[: _MAX_CELL + 1].encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"
