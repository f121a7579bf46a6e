"""Progress and result of an import, reported by its process to the dashboard and users."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Self

from radt.errors import RadtError
from radt.units import plural


@dataclass(slots=True)
class ImportResult:
    """Number of runs imported for the first time, updated, and unchanged.

    ``without_archive`` are runs that radt recorded and that have no archive yet; ``empty`` hold
    nothing yet; ``failed`` are names and errors of single runs; ``damaged`` names what could not
    be read of runs that were imported, ``left_out`` what radt does not import.
    """

    imported: int = 0
    updated: int = 0
    unchanged: int = 0
    without_archive: int = 0
    empty: int = 0
    failed: list[tuple[str, RadtError]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Return the number of checked runs."""
        counts = (self.imported, self.updated, self.unchanged, self.without_archive, self.empty)
        return sum(counts) + len(self.failed)

    def __str__(self) -> str:
        parts = [
            f"imported {plural(self.imported, 'run')}, {self.updated:,} updated, "
            f"{self.unchanged:,} unchanged"
        ]
        if self.without_archive:
            parts.append(f"{self.without_archive:,} without an archive yet")
        if self.empty:
            parts.append(f"{self.empty:,} empty")
        if self.failed:
            parts.append(f"{len(self.failed):,} failed")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ImportStatus:
    """One line from the process that imports for a dashboard.

    ``summary`` is empty during an import and after an error; ``error`` is empty without an error.
    """

    done: int = 0
    total: int = 0
    summary: str = ""
    error: str = ""
    remedy: str = ""

    @classmethod
    def of_result(cls, result: ImportResult) -> Self:
        return cls(result.done, result.done, str(result), *_first_error(result.failed))

    @classmethod
    def of_error(cls, error: RadtError) -> Self:
        return cls(error=error.message, remedy=error.remedy or "")

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, line: str) -> Self:
        """Raises:
        ValueError: The line is not a status.
        """
        try:
            return cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(f"expected the status of an import, got {line[:200]!r}") from error


def _first_error(failed: Sequence[tuple[str, RadtError]]) -> tuple[str, str]:
    if not failed:
        return "", ""
    where, error = failed[0]
    more = f" (and {len(failed) - 1:,} more)" if len(failed) > 1 else ""
    return f"{where}{more}: {error.message}", error.remedy or ""
