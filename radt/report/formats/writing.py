"""Reports into files and texts."""

from __future__ import annotations

import io
import os
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from radt.errors import UsageError
from radt.report.formats.content import Content
from radt.report.formats.html_page import as_html
from radt.report.formats.json_report import as_json
from radt.report.formats.kinds import ReportFormat
from radt.report.formats.markdown import as_markdown
from radt.report.formats.terminal import print_report
from radt.report.formats.tidy_csv import as_csv
from radt.store.whole_file import whole_file

#: Of a table in a file: nothing there says how wide it may be.
TEXT_COLUMNS = 120
_UNSAFE = re.compile(r"[^\w.+-]+")
_NAME_CHARS = 60


def rendered(content: Content, kind: ReportFormat, *, columns: int = TEXT_COLUMNS) -> str:
    """A report as text; ``columns`` is how wide a table may be."""
    return _WRITERS[kind](content) if kind in _WRITERS else _as_table(content, columns)


def file_name(experiment: str, kind: ReportFormat) -> str:
    """``radt-study-report.html``: in characters that every file system takes."""
    cleaned = _UNSAFE.sub("-", unicodedata.normalize("NFC", experiment)).strip("-._")
    words = ("radt", cleaned[:_NAME_CHARS].rstrip("-._"), "report")
    return f"{'-'.join(word for word in words if word)}.{kind.suffix}"


def check_writable(path: Path, option: str) -> None:
    """Whether a file can be written there, before any work is done for it.

    Raises:
        UsageError: It cannot; ``option`` is what its name was given with.
    """
    folder = path.absolute().parent
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = f"files cannot be made in {folder}"
    elif path.exists() and not path.is_file():
        reason = "it is no file"
    else:
        return
    raise UsageError(f"{path} cannot be written: {reason}", f"Give another with {option}")


def write(path: Path, text: str) -> None:
    """Put a text into a file, in the place of what is there, whole or not at all.

    Raises:
        UsageError: It cannot be written.
    """
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def _as_table(content: Content, columns: int) -> str:
    stream = io.StringIO()
    print_report(Console(file=stream, width=columns, color_system=None, highlight=False), content)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


_WRITERS: dict[ReportFormat, Callable[[Content], str]] = {
    ReportFormat.MARKDOWN: as_markdown,
    ReportFormat.HTML: as_html,
    ReportFormat.CSV: as_csv,
    ReportFormat.JSON: as_json,
}
