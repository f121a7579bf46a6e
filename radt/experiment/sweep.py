"""Sweeps: YAML files with the values of parameters, expanded into a CSV file beside them.

::

    experiment: digits
    file: train.py
    method: random
    trials: 20
    parameters:
      lr: {min: 0.001, max: 0.1, distribution: log_uniform}
      batch-size: {values: [32, 64, 128]}

``radt sweep.yaml`` writes ``sweep.csv`` and runs that. From then on the CSV is the state: it has
the statuses, and may be edited. A comment in it contains a hash of the expansion. As long as the
hash matches, the CSV is not changed. When the YAML changes, rows with parameters that are not in
the CSV are appended. No row is ever changed or removed.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from radt.errors import ExperimentError, Problem, StatusError
from radt.experiment.columns import IN_EVERY_TABLE, Column, ColumnPositions
from radt.experiment.files import RawFile, SharedFile, create_file, table_path
from radt.experiment.plan import ExperimentPlan
from radt.experiment.row import RowTarget
from radt.experiment.source import ExperimentFile
from radt.experiment.status import StatusWriter, encoded, with_columns
from radt.experiment.sweep_expand import Combination
from radt.experiment.sweep_spec import PARAMETERS, SweepSpec, parse_spec
from radt.experiment.sweep_yaml import parse_yaml
from radt.experiment.table import CsvTable, parse_table
from radt.params import param_words
from radt.units import plural

#: The comment that marks a CSV as an expansion.
_MARK = re.compile(
    r'^\ufeff?"?# *Expanded from [^\r\n]*? by radt(?P<hash> \([0-9a-f]+\))?', re.MULTILINE
)
_OTHER_LINES = re.compile(r" \(with line [\d, ]+\)$")


@dataclass(frozen=True)
class SweepFile(ExperimentFile):
    """A sweep and its CSV: ``path``, ``shown`` and ``table`` are those of the expanded CSV.

    ``content`` are the bytes of the CSV as read (None if it does not exist yet), ``first_added`` is
    the line of the first row that is not in it, ``orphans`` the number of its rows that have not
    run and are not part of the changed sweep.
    """

    sweep: str = ""
    spec: SweepSpec = field(default_factory=SweepSpec)
    combinations: tuple[Combination, ...] = ()
    problems: tuple[Problem, ...] = ()
    content: bytes | None = None
    first_added: int = 0
    orphans: int = 0

    @classmethod
    def read(cls, path: Path | str) -> SweepFile:
        """Read and expand a sweep; problems of its keys are reported by `plan`.

        Raises:
            ExperimentError: It cannot be read or is not YAML, or the CSV beside it cannot be read
                or is not an expansion.
        """
        raw = RawFile.read(path, "YAML")
        problems: list[Problem] = []
        spec = parse_spec(parse_yaml(raw.shown, raw.text), problems)
        combinations = () if problems else spec.combinations(problems)
        csv, csv_shown = table_path(raw.path), str(table_path(raw.shown))
        if not spec.cells.get(Column.EXPERIMENT):
            spec.cells[Column.EXPERIMENT] = csv.stem
        rows = spec.rows(combinations)
        content = RawFile.read(csv, "CSV").content if csv.exists() else None
        old = None if content is None else content.decode(errors="surrogateescape")
        if old is not None and _MARK.search(old) is None:
            raise _foreign(csv_shown, raw.path.name, old)
        if problems:  # check the cells with a single row, so that all problems are reported
            old, rows = None, spec.rows([Combination(())])
        text = _expanded(old, rows, spec.at_once, raw.path.name)
        table = parse_table(text)
        added = len(table.rows) - (0 if old is None else len(parse_table(old).rows))
        return cls(
            path=csv,
            shown=csv_shown,
            table=table,
            repeat=spec.repeat,
            sweep=raw.shown,
            spec=spec,
            combinations=combinations,
            problems=tuple(problems),
            content=content,
            first_added=table.rows[-added].line if added else len(text),
            added=added,
            orphans=0 if old is None or old == text else _orphans(table, rows),
        )

    @property
    def note(self) -> str:
        """Return a note on what `writer` adds to the CSV; "" for nothing."""
        if self.content == self._new_content:
            return ""
        parts = [f"added {plural(self.added, 'row')} to {self.shown}"]
        parts += self.spec.notes
        if not self.added:
            parts = [f"{self.sweep} has changed, but adds no row; {self.shown} keeps its rows"]
        if self.orphans:
            parts.append(
                f"{plural(self.orphans, 'row')} of {self.shown} will run that {self.sweep} no "
                "longer asks for: delete them there to drop them"
            )
        return "; ".join(parts)

    def _checked(
        self, place: RowTarget, only: Collection[tuple[str, str]] | None
    ) -> ExperimentPlan:
        """Return the plan of the CSV; all problems are those of rows in it, or of the sweep."""
        problems = list(self.problems)
        try:
            plan = super()._checked(place, only)
        except ExperimentError as error:
            in_csv = [each for each in error.problems if (each.line or 0) < self.first_added]
            if in_csv:
                raise ExperimentError(self.shown, in_csv) from error
            problems += [self._in_sweep(problem) for problem in error.problems]
        if problems:
            unique = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
            raise ExperimentError(self.sweep, unique)
        return replace(plan, warnings=(*self.spec.notes, *plan.warnings))

    def writer(self) -> StatusWriter:
        """Write the added rows, and return the writer of statuses; the caller holds the lock.

        Raises:
            StatusError: The CSV cannot be written, or has changed since it was read.
        """
        if self.content is None:
            try:
                create_file(self.path, self._new_content)
            except OSError as error:
                raise StatusError(
                    f"{self.path} cannot be written: {error.strerror}",
                    f"Check the mode and the disk of {self.path.parent}",
                ) from error
        elif self.content != self._new_content:
            SharedFile(self.path).rewrite(self._replaced)
        return StatusWriter(self.path, self.table)

    def swept_values(self, params: Iterable[str]) -> list[Mapping[str, object]]:
        """Return the swept values of rows by their Params; empty for other rows."""
        rows = self.spec.rows(self.combinations)
        by_key = {
            _key(row[Column.PARAMS]): combination.values
            for row, combination in zip(rows, self.combinations, strict=True)
        }
        return [by_key.get(_key(text), {}) for text in params]

    @property
    def _new_content(self) -> bytes:
        return self.table.text.encode(errors="surrogateescape")

    def _replaced(self, content: bytes) -> bytes:
        if content != self.content:
            raise StatusError(f"{self.path} changed while radt read it", "Run the command again")
        return self._new_content

    def _in_sweep(self, problem: Problem) -> Problem:
        """Convert a problem of an expanded row to one of the key that its cell comes from."""
        key = (problem.column or "").lower()
        if key == Column.PARAMS.lower() and key not in self.spec.lines:
            key = PARAMETERS
        cause = _OTHER_LINES.sub("", problem.cause)
        return Problem(cause, problem.remedy, self.spec.lines.get(key), key or None)


def _expanded(
    old: str | None, rows: Sequence[Mapping[str, str]], at_once: int | None, sweep: str
) -> str:
    """Return the text of the CSV with its missing rows appended.

    Args:
        old: Its current text; None for a new file.
        rows: The cells of the sweep's rows.
        at_once: The number of rows in a workload; None for all.
        sweep: The name of the YAML file.
    """
    digest = hashlib.sha256(repr([sorted(row.items()) for row in rows]).encode()).hexdigest()[:8]
    names = list(dict.fromkeys([*IN_EVERY_TABLE, *(name for row in rows for name in row)]))
    names = [name for name in names if name in IN_EVERY_TABLE or any(r.get(name) for r in rows)]
    if old is None:
        # The user's own columns are quoted, so that none is taken for a misspelling.
        first_line = ",".join(name if Column.named(name) else f'"{name}"' for name in names)
        old = (
            f"# Expanded from {sweep} by radt. Statuses go here; rows may be edited.\n"
            f"{first_line}\n"
        )
    mark = _MARK.search(old)
    assert mark is not None  # checked by the caller, or written above
    table = parse_table(old)
    if mark["hash"] == f" ({digest})" or table.header is None or table.defects:
        return old  # unchanged, or damaged, which the check of the table reports
    end = mark.end() - len(mark["hash"] or "")
    table = parse_table(f"{old[:end]} ({digest}){old[mark.end() :]}")
    assert table.header is not None
    present = {cell.value.strip().lower() for cell in table.header.cells}
    new_columns = [name for name in names if name.lower() not in present]
    table = parse_table(with_columns(table, new_columns))
    assert table.header is not None
    header = ColumnPositions.of(table.header)
    keys = {_key(header.value(record, Column.PARAMS)) for record in table.rows}
    labels = [header.value(record, Column.WORKLOAD).strip() for record in table.rows]
    first = max((int(label) + 1 for label in labels if label.isdecimal()), default=0)
    missing = [row for row in rows if _key(row[Column.PARAMS]) not in keys]
    lines: list[str] = []
    for index, row in enumerate(missing):
        number = first + index // (at_once or len(missing))
        cells = {name.lower(): text for name, text in row.items()}
        cells[Column.WORKLOAD.lower()] = f"{number:03}"
        values = [cells.get(cell.value.strip().lower(), "") for cell in table.header.cells]
        lines.append(",".join(encoded(value, place) for place, value in enumerate(values)))
    newline = "\r\n" if "\r\n" in table.text else "\n"
    gap = newline if lines and not table.text.endswith(("\n", "\r")) else ""
    return table.text + gap + "".join(f"{line}{newline}" for line in lines)


def _key(params: str) -> frozenset[tuple[str, tuple[str, ...]]] | None:
    """Return a key that equal runs share, whatever the order of Params; None if unparsable."""
    try:
        return frozenset(param_words(shlex.split(params)).items())
    except ValueError:
        return None


def _orphans(table: CsvTable, rows: Sequence[Mapping[str, str]]) -> int:
    """Return the number of rows without a status that are not among these."""
    assert table.header is not None
    header = ColumnPositions.of(table.header)
    keys = {_key(row[Column.PARAMS]) for row in rows}
    return sum(
        not header.value(record, Column.STATUS).strip()
        and _key(header.value(record, Column.PARAMS)) not in keys
        for record in table.rows
    )


def _foreign(shown: str, sweep: str, text: str) -> ExperimentError:
    first = text.partition("\n")[0].strip()[:60]
    mark = f"# Expanded from {sweep} by radt"
    problem = Problem(
        f"expected a comment {mark!r}, got {first!r}: this file is not from {sweep}",
        "Rename it, or write the comment at its top: radt then adds the rows it lacks",
        1,
    )
    return ExperimentError(shown, [problem])
