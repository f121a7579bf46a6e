"""A pandas table of runs as an experiment file of its own, and files as tables.

What is special about a table is only that it has no file: it gets one, named after its content, so
that locks, statuses and recovery are those of any experiment, and a call that was interrupted goes
on where it was. pandas is imported by those who have a table, not by this module's importers.
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

from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.columns import WRITTEN, Column
from radt.experiment.devices import Machine
from radt.experiment.file import ExperimentFile
from radt.experiment.lock import ExperimentLock
from radt.experiment.source import open_source
from radt.experiment.sweep import SweepFile
from radt.experiment.sweep_space import Value
from radt.experiment.sweep_writer import joined
from radt.experiment.table import Table, parse_table
from radt.listeners.api import Registry

if TYPE_CHECKING:
    import pandas as pd

#: What to call a table in messages.
SHOWN = "the table"

_NAME = "table"
_DIGITS = 12
_IN_EVERY_TABLE = (
    *(Column.EXPERIMENT, Column.WORKLOAD, Column.NAME, Column.STATUS, Column.RUN),
    *(Column.DEVICES, Column.COLLOCATION, Column.LISTENERS, Column.FILE, Column.PARAMS),
)


@dataclass(frozen=True, slots=True)
class FrameExperiment:
    """A table as text: ``header``, ``rows`` of cells, ``labels`` of rows as its index has them."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, frame: pd.DataFrame) -> FrameExperiment:
        """Write down every cell as a file has it.

        Raises:
            ExperimentError: A column or cell cannot be written down.
        """
        problems: list[Problem] = []
        header = tuple(_heading(label, problems) for label in frame.columns)
        columns = [Column.named(name) for name in header]
        labels = tuple(f"row {label}" for label in frame.index)
        rows: list[tuple[str, ...]] = []
        # By position: labels may be there twice, and a column of its own keeps its type.
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
                problems.append(Problem("it is empty", "Fill File, or drop it", column=label))
            rows.append(tuple(cells))
        if problems:
            raise ExperimentError(SHOWN, problems)
        return cls(header, tuple(rows), labels)

    @property
    def text(self) -> str:
        """The table as CSV; every cell in quotes, so that none is a comment."""
        stream = io.StringIO()
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([self.header, *self.rows])
        return stream.getvalue()

    @property
    def name(self) -> str:
        """The experiment's, as a file may be called, and a hash of what is to be run."""
        names = {row[index].strip() for index in self._of(Column.EXPERIMENT) for row in self.rows}
        name = re.sub(r"[^\w.-]+", "-", names.pop()).strip("-.")[:40] if len(names) == 1 else ""
        return f"{name or _NAME}-{self._digest()}"

    def check(self, path: Path, machine: Machine, registry: Registry) -> None:
        """See whether it can be run.

        Raises:
            ExperimentError: With every problem; rows are named, as there are no lines to go by.
        """
        text = self.text
        table = parse_table(text)
        file = ExperimentFile(path, SHOWN, text.encode(errors="surrogateescape"), table)
        try:
            file.plan(machine, registry)
        except ExperimentError as error:
            raise ExperimentError(SHOWN, [*self._placed(error.problems, table)]) from None

    def store(self, folder: Path, *, fresh: bool = False) -> Path:
        """The table's file in this folder, made if it is not there yet.

        Args:
            folder: Where such files are kept.
            fresh: Make it anew, and forget what an earlier call has run.

        Raises:
            UsageError: It cannot be written, or somebody has changed it.
            HeldError: It is being run.
        """
        path = folder / f"{self.name}.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with ExperimentLock(path):
                if fresh or not path.exists():
                    temporary = path.with_name(f".{path.name}.radt-new")
                    temporary.write_text(self.text, encoding="utf-8", newline="")
                    temporary.replace(path)
                elif not self._is_in(path):
                    raise UsageError(
                        f"{path}, which radt keeps for this table, was changed",
                        f"Remove it, or run it by itself: radt {shlex.quote(str(path))}",
                    )
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be written: {error.strerror}", "Choose another home"
            ) from error
        return path

    def _is_in(self, path: Path) -> bool:
        table = parse_table(path.read_bytes().decode(errors="replace"))
        return _core(_cells(table)) == _core([self.header, *self.rows])

    def _digest(self) -> str:
        text = repr(_core([self.header, *self.rows]))
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    def _of(self, column: Column) -> list[int]:
        return [index for index, name in enumerate(self.header) if Column.named(name) is column]

    def _placed(self, problems: Sequence[Problem], table: Table) -> Iterator[Problem]:
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
    """A copy of a table with the statuses and run ids that its file has.

    Index, columns and their types are the frame's; Status and Run are texts, and come last if the
    frame has none.
    """
    import pandas as pd

    result = frame.copy()
    for column, values in _statuses(path).items():
        own = next((name for name in frame.columns if Column.named(str(name)) is column), column)
        result[str(own)] = pd.array(values, dtype="str")
    return result


def read_table(path: Path) -> pd.DataFrame:
    """The table of an experiment file, as text; of a sweep one row a run, parameters as they are.

    Raises:
        ExperimentError: The file cannot be read.
    """
    import pandas as pd

    source = open_source(path)
    if isinstance(source, ExperimentFile):
        cells = _cells(source.table)
        return pd.DataFrame(cells[1:], columns=cells[0], dtype="str")
    assert isinstance(source, SweepFile)
    return pd.DataFrame(list(_sweep_rows(source)))


def _sweep_rows(sweep: SweepFile) -> Iterator[dict[str, Value]]:
    spec = sweep.spec
    runs = sorted((run for group in sweep.workloads for run in group), key=lambda r: r.position)
    for run in runs:
        row: dict[str, Value] = {str(column): spec.values.get(column, "") for column in Column}
        row[Column.EXPERIMENT] = row[Column.EXPERIMENT] or sweep.path.stem
        row[Column.WORKLOAD] = run.number.label
        row[Column.PARAMS] = joined(spec.fixed, run)
        if run.entry is not None:
            row |= {Column.STATUS: run.entry.status, Column.RUN: run.entry.run_id}
        # A column that only some sweeps have says nothing where it is empty.
        row = {name: row[name] for name in Column if row[name] != "" or name in _IN_EVERY_TABLE}
        row |= spec.columns
        for name, value in run.combination.values:
            row[name if name not in row else f"--{name}"] = value
        yield row


def _statuses(path: Path) -> dict[Column, list[str]]:
    """The Status and Run cells of an experiment file, row by row."""
    cells = _cells(ExperimentFile.read(path).table)
    columns = [Column.named(name) for name in cells[0]]
    return {
        column: [row[columns.index(column)] if column in columns else "" for row in cells[1:]]
        for column in (Column.STATUS, Column.RUN)
    }


def _cells(table: Table) -> list[list[str]]:
    """The header and the rows, each as wide as the named part of the header."""
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
    """All that the user wrote: the cells without what radt writes."""
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
    """What a file would have: nothing for missing values, a whole number without its ``.0``."""
    import pandas as pd

    if isinstance(value, list | tuple):
        if column is not Column.PARAMS:
            raise UsageError(f"it holds a {type(value).__name__}", "Write it as text")
        return shlex.join(map(str, value))
    if not pd.api.types.is_scalar(value) and not isinstance(value, os.PathLike):
        raise UsageError(f"it holds a {type(value).__name__}", "Write it as text")
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    # Missing values make floats of a column of whole numbers; radt's own columns have no others.
    if isinstance(value, float) and column is not None and float(value).is_integer():
        return str(int(value))
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "it has characters that UTF-8 does not have", "Write it without them"
        ) from None
    return str(Path.cwd() / text) if column is Column.FILE and _is_relative_file(text) else text


def _is_relative_file(text: str) -> bool:
    """Whether it is found from the current folder; the table's own file stands elsewhere."""
    try:
        return bool(text.strip()) and Path(text).exists() and not Path(text).is_absolute()
    except (OSError, ValueError):  # too long for a path, or a NUL in it: the check says so
        return False
