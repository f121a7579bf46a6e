"""What a report can be written as."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from radt.errors import UsageError


class ReportFormat(StrEnum):
    """A kind of report; the value is what ``--format`` takes."""

    TABLE = "table"  # for terminals
    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"
    JSON = "json"

    @property
    def suffix(self) -> str:
        """What the name of such a file ends with, without the point."""
        return {ReportFormat.TABLE: "txt", ReportFormat.MARKDOWN: "md"}.get(self, self.value)

    @property
    def mime(self) -> str:
        """As servers say it."""
        return _MIME[self]

    @classmethod
    def choose(cls, given: str | None, file: Path | None) -> ReportFormat:
        """What was asked for, else what the name of the file ends with, else a table.

        Raises:
            UsageError: The name says nothing, and nothing else does.
        """
        if given is not None:
            return cls(given)
        if file is None or str(file) == "-":
            return cls.TABLE
        ending = file.suffix.lower().removeprefix(".")
        for one in cls:
            if ending in (one.suffix, one.value):
                return one
        if ending == "htm":
            return cls.HTML
        endings = ", ".join(f".{one.suffix}" for one in cls)
        raise UsageError(
            f"{file.name!r} does not say which format it is to have",
            f"Give --format, or a name that ends with one of {endings}",
        )


_MIME = {
    ReportFormat.TABLE: "text/plain; charset=utf-8",
    ReportFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.CSV: "text/csv; charset=utf-8",
    ReportFormat.JSON: "application/json; charset=utf-8",
}
