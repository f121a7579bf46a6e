"""Runs pandas tables as experiment files, and reads experiment files as tables.

A table has no file, so it gets one, named after its content. Locks, statuses and recovery are then
those of any experiment, and an interrupted call resumes where it was. pandas is imported only by
callers that have a table, not with this module.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radt.devices.machine import Machine
from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.columns import WRITTEN, Column
from radt.experiment.files import create_file
from radt.experiment.lock import ExperimentLock
from radt.experiment.source import ExperimentFile, open_source
from radt.experiment.sweep import SweepFile
from radt.experiment.table import CsvTable, parse_table
from radt.listeners.api import Registry

if TYPE_CHECKING:
    import pandas as pd

#: The name of a table in messages.
SHOWN = "the table"


@dataclass(frozen=True, slots=True)
class FrameExperiment:
    """A table as text: ``header``, ``rows`` of cells, and ``labels`` of rows from its index."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, frame: pd.DataFrame) -> FrameExperiment:
        """Convert every cell to text.

        Raises:
            ExperimentError: A column or cell cannot be converted.
        """
        problems: list[Problem] = []
        header = tuple(_heading(label, problems) for label in frame.columns)
        columns = [Column.named(name) for name in header]
        labels = tuple(f"row {label}" for label in frame.index)
        rows: list[tuple[str, ...]] = []
        # By position: column labels may repeat, and each column keeps its own type.
        series = [frame.iloc[:, index].tolist() for index in range(len(header))]
        for position, label in enumerate(labels):
            cells: list[str] = []
            for name, column, values in zip(header, columns, series, strict=True):
                try:
                    cells.append(_cell(values[position], column))
                except UsageError as error:
                    where = f"{label}, {name}"
                    problems.append(Problem(error.message, error.remedy or "", column=where))
            if not any(cell.strip() for cell in cells):
                problems.append(Problem("the row is empty", "Fill File, or drop it", column=label))
            rows.append(tuple(cells))
        if problems:
            raise ExperimentError(SHOWN, problems)
        return cls(header, tuple(rows), labels)

    @property
    def text(self) -> str:
        """Return the table as CSV, with every cell quoted, so that none is a comment."""
        stream = io.StringIO()
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([self.header, *self.rows])
        return stream.getvalue()

    @property
    def name(self) -> str:
        """Return a file name: the name of the experiment, and a hash of the rows."""
        columns = [Column.named(name) for name in self.header]
        cells = [cell for row in self.rows for cell in zip(columns, row, strict=True)]
        names = {text.strip() for column, text in cells if column is Column.EXPERIMENT}
        name = re.sub(r"[^\w.-]+", "-", names.pop()).strip("-.")[:40] if len(names) == 1 else ""
        digest = hashlib.sha256(repr(self._core).encode()).hexdigest()[:12]
        return f"{name or 'table'}-{digest}"

    def check(self, path: Path, machine: Machine, registry: Registry) -> None:
        """Check whether it can run.

        Raises:
            ExperimentError: Lists every problem, by row labels rather than lines.
        """
        table = parse_table(self.text)
        try:
            ExperimentFile(path, SHOWN, table).plan(machine, registry)
        except ExperimentError as error:
            raise ExperimentError(SHOWN, [*self._placed(error.problems, table)]) from None

    def store(self, folder: Path, *, fresh: bool = False) -> Path:
        """Return the table's file in this folder; write it if it is missing.

        Args:
            folder: The folder of such files.
            fresh: Write it anew, without the statuses of earlier calls.

        Raises:
            UsageError: It cannot be written, or was edited.
            HeldError: It is being run.
        """
        path = folder / f"{self.name}.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with ExperimentLock(path):
                if fresh or not path.exists():
                    create_file(path, self.text.encode())
                elif _core(_cells(ExperimentFile.read(path).table)) != self._core:
                    raise UsageError(
                        f"{path}, where radt keeps this table, was changed",
                        f"Remove it, or run it by itself: radt {shlex.quote(str(path))}",
                    )
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be written: {error.strerror}", "Choose another data folder (home)"
            ) from error
        return path

    @property
    def _core(self) -> list[list[str]]:
        return _core([self.header, *self.rows])

    def _placed(self, problems: Sequence[Problem], table: CsvTable) -> Iterator[Problem]:
        by_line = {
            cell.line: label
            for label, record in zip(self.labels, table.rows, strict=False)
            for cell in record.cells
        }
        for problem in problems:
            label = by_line.get(problem.line or 0)
            where = ", ".join(part for part in (label, problem.column) if part)
            yield replace(problem, line=None, column=where or None)


def with_statuses(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return a copy of a table with the statuses and run ids of its file.

    Index, columns and their types are the frame's; Status and Run are text columns, appended if the
    frame lacks them.
    """
    import pandas as pd

    result = frame.copy()
    stored = read_table(path).rename(columns=lambda name: Column.named(name) or name)
    own = {Column.named(str(name)): str(name) for name in frame.columns}
    for column in (Column.STATUS, Column.RUN):
        cells = stored[column].tolist() if column in stored else [""] * len(frame)
        result[own.get(column, column.value)] = pd.array(cells, dtype="str")
    return result


def read_table(path: Path) -> pd.DataFrame:
    """Return an experiment file as a table of texts; a sweep's has a column for each parameter.

    Raises:
        ExperimentError: The file cannot be read.
    """
    import pandas as pd

    source = open_source(path)
    cells = _cells(source.table)
    frame = pd.DataFrame(cells[1:], columns=cells[0], dtype="str")
    if isinstance(source, SweepFile):
        swept = source.swept_values(frame[Column.PARAMS])
        for name in dict.fromkeys(name for values in swept for name in values):
            own = name if name not in frame else f"--{name}"
            frame[own] = pd.Series([values.get(name) for values in swept], dtype=object)
            frame[own] = frame[own].infer_objects()
    return frame


def _cells(table: CsvTable) -> list[list[str]]:
    """Return the header and the rows, each as wide as the named part of the header."""
    if table.header is None:
        return [[]]
    header = [cell.value.strip() for cell in table.header.cells]
    named = [index for index, name in enumerate(header) if name]
    rows = [
        [record.cells[index].value if index < len(record.cells) else "" for index in named]
        for record in table.rows
    ]
    return [[header[index] for index in named], *rows]


def _core(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return all that the user wrote: the cells without those that radt writes."""
    kept = [index for index, name in enumerate(cells[0]) if Column.named(name) not in WRITTEN]
    return [[row[index].strip() for index in kept] for row in cells]


def _heading(label: object, problems: list[Problem]) -> str:
    if isinstance(label, str) and label.strip():
        return label.strip()
    problems.append(
        Problem(
            f"the column {label!r} has no name",
            "Name columns as in an experiment file: File, Params",
        )
    )
    return ""


def _cell(value: Any, column: Column | None) -> str:
    """Return the text of a cell: "" for missing values, a whole number without its ``.0``."""
    import pandas as pd

    if isinstance(value, list | tuple):
        if column is not Column.PARAMS:
            raise UsageError(f"it holds a {type(value).__name__}", "Write it as text")
        return shlex.join(map(str, value))
    if not pd.api.types.is_scalar(value) and not isinstance(value, os.PathLike):
        raise UsageError(f"it holds a {type(value).__name__}", "Write it as text")
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    # pandas converts whole numbers with missing values to floats; radt's columns have no fractions.
    if isinstance(value, float) and column is not None and float(value).is_integer():
        return str(int(value))
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("it has characters that UTF-8 cannot encode", "Remove them") from None
    return str(Path.cwd() / text) if column is Column.FILE and _is_relative_file(text) else text


def _is_relative_file(text: str) -> bool:
    """Return whether a path is relative to the current folder, unlike to the table's file."""
    try:
        return bool(text.strip()) and Path(text).exists() and not Path(text).is_absolute()
    except (OSError, ValueError):  # too long for a path, or with a NUL: the check reports that
        return False
