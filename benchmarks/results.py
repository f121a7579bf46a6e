"""Tables of results, for terminals of 80 columns and for docs/measurements.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_WIDTH = 80
_GAP = 2


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts; the first column names the measured thing, the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    note: str = ""

    def plain(self) -> str:
        """Return the table aligned with spaces."""
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]
        first = _WIDTH - sum(widths[1:]) - _GAP * len(widths[1:])
        widths[0] = min(widths[0], first)
        lines = [_aligned(cells, widths) for cells in ([self.columns, *self.rows])]
        return "\n".join([self.title, *lines, *([self.note] if self.note else [])])

    def markdown(self) -> str:
        """Return the table as Markdown, for the documentation."""
        lines = [
            f"**{self.title}**",
            "",
            _piped(self.columns),
            _piped(["---", *["---:"] * (len(self.columns) - 1)]),
            *map(_piped, self.rows),
            *(["", self.note] if self.note else []),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise, the measured value, and whether the value meets the promise."""

    promise: str
    measured: str
    held: bool

    def row(self) -> tuple[str, str, str]:
        """Return a row of a table."""
        return self.promise, self.measured, "held" if self.held else "MISSED"


@dataclass(slots=True)
class Findings:
    """All results of one part of the benchmark."""

    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)


def bar_table(bars: Sequence[Bar]) -> Table:
    """Return the promises in one table."""
    return Table("Bars", ("promise", "measured", ""), [bar.row() for bar in bars])


def ratio(more: float, less: float) -> str:
    """Return a factor such as ``12×``, with one decimal below ten."""
    value = more / less
    return f"{value:.1f}×" if value < 10 else f"{value:,.0f}×"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return (" " * _GAP).join([first, *rest]).rstrip()


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
