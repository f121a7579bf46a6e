"""Formats of reports, comparisons and advice."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from radt.errors import UsageError


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
        known = {name: kind for kind in cls for name in (kind.suffix, kind.value)}
        if kind := (known | {"htm": cls.HTML}).get(ending):
            return kind
        endings = ", ".join(f".{kind.suffix}" for kind in cls)
        raise UsageError(
            f"Expected a file name with one of {endings}, got {file.name!r}",
            "Rename the file, or set --format",
        )
