"""Formats of reports, comparisons and advice, and the files they are written to."""

from __future__ import annotations

import os
import re
import unicodedata
from enum import StrEnum
from pathlib import Path

from radt.errors import UsageError
from radt.render.markup import as_html, as_markdown
from radt.render.model import Document
from radt.render.report import report_document
from radt.render.report_content import Content
from radt.render.report_csv import as_csv
from radt.render.report_json import as_json
from radt.render.terminal import document_lines
from radt.store.whole_file import whole_file


class ReportFormat(StrEnum):
    """A format of reports; the value is the argument of ``--format``."""

    TABLE = "table"  # for terminals
    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"
    JSON = "json"

    @property
    def suffix(self) -> str:
        """Return the extension of files, without the dot."""
        return {ReportFormat.TABLE: "txt", ReportFormat.MARKDOWN: "md"}.get(self, self.value)

    @property
    def mime(self) -> str:
        """Return the content type."""
        kinds = {ReportFormat.TABLE: "text/plain", ReportFormat.JSON: "application/json"}
        return f"{kinds.get(self, f'text/{self}')}; charset=utf-8"

    @classmethod
    def choose(cls, given: str | None, file: Path | None) -> ReportFormat:
        """Return the given format, otherwise that of the file's extension, otherwise a table.

        Raises:
            UsageError: The extension is not that of a format.
        """
        if given is not None:
            return cls(given)
        if file is None or str(file) == "-":
            return cls.TABLE
        ending = file.suffix.lower().removeprefix(".")
        for kind in cls:
            if ending in (kind.suffix, kind.value):
                return kind
        if ending == "htm":
            return cls.HTML
        endings = ", ".join(f".{kind.suffix}" for kind in cls)
        raise UsageError(
            f"Expected a file name with one of {endings}, got {file.name!r}",
            "Rename the file, or set --format",
        )


#: Width of a table in a file.
TEXT_COLUMNS = 120
_UNSAFE = re.compile(r"[^\w.+-]+")
_NAME_CHARS = 60


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


def file_name(experiment: str, kind: ReportFormat) -> str:
    """Return ``radt-study-report.html``, in characters that every file system accepts."""
    cleaned = _UNSAFE.sub("-", unicodedata.normalize("NFC", experiment)).strip("-._")
    words = ("radt", cleaned[:_NAME_CHARS].rstrip("-._"), "report")
    return f"{'-'.join(word for word in words if word)}.{kind.suffix}"


def check_writable(path: Path, option: str) -> None:
    """Check that a file can be written before starting any work.

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
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
