"""Reports, comparisons and advice as text, and the files they are written to."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from radt.errors import UsageError
from radt.files import output_file
from radt.render.formats import ReportFormat
from radt.render.markup import as_html, as_markdown
from radt.render.model import Document
from radt.render.report import report_document
from radt.render.report_content import Content
from radt.render.report_csv import as_csv
from radt.render.report_json import as_json
from radt.render.terminal import document_lines

#: Width of a table in a file.
TEXT_COLUMNS = 120
#: Characters that are replaced in file names.
UNSAFE = re.compile(r"[^\w.+-]+")
#: Maximum length of a word in a file name, and of the name without its extension.
_WORD_CHARS, _NAME_CHARS = 60, 80


def rendered(content: Content, kind: ReportFormat, *, columns: int = TEXT_COLUMNS) -> str:
    """Return a report as text; ``columns`` is the width of a table."""
    match kind:
        case ReportFormat.CSV:
            return as_csv(content)
        case ReportFormat.JSON:
            return as_json(content)
        case ReportFormat.MARKDOWN:
            return as_markdown(report_document(content))
        case ReportFormat.HTML:
            return as_html(report_document(content))
        case ReportFormat.TABLE:
            return as_text(report_document(content), columns=columns)


def as_text(document: Document, *, columns: int = TEXT_COLUMNS) -> str:
    """Return a document in the format of `radt.render.terminal`, without colour."""
    lines = document_lines(document, columns, wrap=True)
    return "\n".join(line.plain for line in lines).strip("\n") + "\n"


def file_name(words: Iterable[str], suffix: str) -> str:
    """Return ``radt-study-report.html``: words in characters that every file system accepts."""
    cleaned = [UNSAFE.sub("-", unicodedata.normalize("NFC", word)).strip("-._") for word in words]
    parts = ("radt", *(word[:_WORD_CHARS].rstrip("-._") for word in cleaned))
    stem = "-".join(filter(None, parts))[:_NAME_CHARS].rstrip("-._")
    return f"{stem}.{suffix}"


def check_writable(path: Path, option: str) -> None:
    """Check that a file can be written, before any work starts.

    Raises:
        UsageError: The file cannot be written; the remedy names ``option``.
    """
    folder = path.absolute().parent
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"{folder} is not a folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = f"{folder} is not writable"
    elif path.exists() and not path.is_file():
        reason = "it is not a regular file"
    else:
        return
    raise UsageError(f"Cannot write {path}: {reason}", f"Set another path with {option}")


def write(path: Path, text: str) -> None:
    """Replace a file with a text atomically.

    Raises:
        UsageError: The file cannot be written.
    """
    with output_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
