"""CSV logs in any dialect: a file is a run, a row is a step, a column is a metric.

Peculiarities of some programs:

* Lightning's ``CSVLogger`` leaves cells empty and writes ``hparams.yaml`` beside its file.
* Keras' ``CSVLogger`` writes ``NA`` for a metric that an epoch lacks.
* TensorBoard's page exports one metric of one run per file, ``run-RUN-tag-TAG.csv``.
* stable-baselines3's ``Monitor`` writes a JSON comment above its header. A row is an episode
  with its reward ``r``, its length ``l`` and its end ``t`` in seconds. As in the plots of
  stable-baselines3, the step is the number of steps in the environment so far.

Without a column of times, all points have the file's modification time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Hashable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from radt.errors import SourceError, UsageError, cut
from radt.experiment.table import TableRow, TableStream
from radt.importers.below import SourceFile, find_files
from radt.importers.files import (
    NS_PER_S,
    PARAMS,
    FileRun,
    FileSource,
    ImportedPoint,
    file_run,
    guarded,
    params_in,
    read_params,
)
from radt.importers.source import RunFacts, SourceSeries
from radt.model import NO_STEP

_STEPS = ("step", "global_step", "_step", "iteration", "iter", "epoch")
_TIMES = ("time", "timestamp", "wall_time", "created_at", "_timestamp", "date", "datetime")
#: Smaller numbers (before September 2001) are seconds since the run's start instead of times of
#: day.
_EARLIEST_S = 1e9
_LATEST_S = 9e9
#: File names that browsers give to exports of TensorBoard's page, and the columns of these files.
_EXPORTED = re.compile(r"run-(?P<run>.+)-tag-(?P<tag>.+)\.csv")
_EXPORTED_COLUMNS = ["wall_time", "step", "value"]
#: Cells without a value, and truth values.
_WORDS = {"": None, "na": None, "n/a": None, "null": None, "none": None, "true": 1.0, "false": 0.0}
_LINES_SHOWN = 5


def source(place: Path) -> FileSource:
    """Return a CSV file, or all CSV files of a folder, as a source.

    Raises:
        UsageError: There is none.
    """
    found = find_files(place, "*.csv")
    if not found.files:
        raise UsageError(f"no CSV file in {place}", "Give a CSV file, or a folder of some")
    by_run: dict[Path, list[SourceFile]] = {}
    for file in found.files:
        exported = _EXPORTED.fullmatch(file.full.name)
        own = file.full.with_name(exported["run"]) if exported else file.full
        by_run.setdefault(own, []).append(file)
    root = found.files[0].root
    runs = [
        file_run(
            f"csv:{own}",
            root.name or "csv",
            _name(own, root),
            [*of_run, *params_in(own.parent, root)],
        )
        for own, of_run in by_run.items()
    ]
    return FileSource(str(place), runs, _read, found.left_out)


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).parts
    *folders, name = (*parts[:-1], parts[-1].removesuffix(".csv"))
    # Lightning and stable-baselines3 give all of their files the same name.
    return "/".join(folders if name in ("metrics", "monitor") and folders else [*folders, name])


def _read(run: FileRun, facts: RunFacts) -> Iterator[ImportedPoint]:
    """Yield the numbers of a run's files, row by row."""
    taken: set[str] = set()
    for file in run.files:
        if file.full.name == PARAMS:
            read_params(file, facts)
            continue
        yield from guarded(str(file), _points(file, taken, facts, at_rest=run.at_rest), facts)


def _points(
    file: SourceFile, taken: set[str], facts: RunFacts, *, at_rest: bool
) -> Iterator[ImportedPoint]:
    with file.open() as stream:
        table = TableStream(stream, at_rest=at_rest)
        if table.header is not None:
            log = _Log(file, table, table.header, taken, facts)
            yield from log.points(os.fstat(stream.fileno()).st_mtime_ns)


class _LeftOut:
    """Collects the unreadable parts of a file: each kind of problem once, with its lines."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._kinds: dict[Hashable, tuple[str, list[int], int]] = {}

    def add(self, kind: Hashable, line: int, text: str) -> None:
        """Record a problem; for several of a kind, the first one's text is shown."""
        first, lines, count = self._kinds.get(kind, (text, [], 0))
        self._kinds[kind] = (first, [*lines, line][:_LINES_SHOWN], count + 1)

    def problems(self) -> Iterator[tuple[Hashable, str]]:
        for kind, (text, lines, count) in self._kinds.items():
            more = f" and {count - len(lines):,} more" if count > len(lines) else ""
            where = f"line{'s' if count > 1 else ''} {', '.join(map(str, lines))}{more}"
            yield kind, f"{self._file}, {where}: {text}; left out"


class _Log:
    """One file of a run.

    Args:
        file: The file.
        table: Its content.
        header: The first record.
        taken: Metrics of the run's other files; those of this file are added.
        facts: Receives the file's other information.
    """

    def __init__(
        self,
        file: SourceFile,
        table: TableStream,
        header: TableRow,
        taken: set[str],
        facts: RunFacts,
    ) -> None:
        self._file, self._table, self._facts = file, table, facts
        self._left_out = _LeftOut(file)
        self._names = header.cells
        if _has_only_numbers(self._names):
            raise SourceError(
                f"{file}, line {header.line}: expected the names of columns, got numbers",
                "Put a line with names above it",
            )
        keys = [name.lower().replace(" ", "_") for name in self._names]
        if keys == _EXPORTED_COLUMNS and (exported := _EXPORTED.fullmatch(file.full.name)):
            self._names[-1] = exported["tag"]
        self._start_s = _monitor_start(table.comments, keys, facts)
        is_monitor = self._start_s is not None
        self._step_at = _column(keys, _STEPS)
        self._time_at = _column(keys, ("t",) if is_monitor else _TIMES)
        self._length_at = _column(keys, ("l",) if is_monitor else ())
        self._steps_so_far = 0
        self._has_odd_times = False
        named = [place for place, name in enumerate(self._names) if name]
        self._width = max(named, default=-1) + 1
        # pandas writes its index as a first column without a name.
        self._nameless = [place for place, name in enumerate(self._names) if place and not name]
        self._series = dict(self._metrics(header, taken))
        #: Columns with at least one number.
        self._numeric: set[int] = set()
        #: The decimal mark, once a number has revealed it.
        self._mark = "." if table.separator == "," else ""

    def points(self, modified_ns: int) -> Iterator[ImportedPoint]:
        """Yield the numbers, row by row."""
        is_empty = True
        for row in self._table.rows():
            is_empty = False
            if self._is_whole(row):
                step, time_ns = self._step(row), self._time_ns(row)
                at_ns, has_time = (modified_ns, False) if time_ns is None else (time_ns, True)
                for place, series in self._series.items():
                    if (value := self._number(row, place)) is not None:
                        yield ImportedPoint(series, at_ns, value, step, has_time)
        for defect in self._table.defects:
            self._left_out.add(defect.cause, defect.line, defect.cause)
        for kind, problem in self._left_out.problems():
            if isinstance(kind, int) and kind in self._series and kind not in self._numeric:
                self._facts.left_out.append(f"{self._file}: column {self._names[kind]!r} is text")
            else:
                self._facts.problems.append(problem)
        if self._has_odd_times and self._time_at is not None:
            name = self._names[self._time_at]
            text = f"{self._file}: numbers in column {name!r} that are not seconds since 1970"
            self._facts.left_out.append(text)
        if not (is_empty or self._numeric):
            self._facts.problems.append(f"{self._file}: expected columns of numbers, got none")

    def _metrics(self, header: TableRow, taken: set[str]) -> Iterator[tuple[int, SourceSeries]]:
        """Yield the metrics by column."""
        for place, name in enumerate(self._names):
            if place in (self._step_at, self._time_at) or not name:
                continue
            if name in taken:
                self._left_out.add(name, header.line, f"the metric {name!r} appears twice")
                continue
            taken.add(name)
            yield place, SourceSeries(name)

    def _is_whole(self, row: TableRow) -> bool:
        """Return whether a row has a cell for each column and no others."""
        if len(row.cells) < self._width:
            text = f"expected {len(self._names)} cells, got {len(row.cells)}"
        elif beside := [cell for cell in row.cells[len(self._names) :] if cell] or [
            row.cells[place] for place in self._nameless if row.cells[place:] and row.cells[place]
        ]:
            text = f"{beside[0]!r} has no header"
        else:
            return True
        self._left_out.add(("row", len(row.cells)), row.line, text)
        return False

    def _number(self, row: TableRow, place: int) -> float | None:
        """Return a cell's number or None; report a cell that is neither empty nor a number."""
        cell = row.cells[place]
        try:
            number = self._parsed(cell)
        except ValueError:
            text = f"expected a number in column {self._names[place]!r}, got {cut(cell, 40)!r}"
            self._left_out.add(place, row.line, text)
            return None
        if number is not None:
            self._numeric.add(place)
        return number

    def _parsed(self, cell: str) -> float | None:
        """Parse a number with a decimal point, or with a comma if all other numbers have one, too.

        Raises:
            ValueError: The cell is not a number.
        """
        try:
            number = float(cell)
        except ValueError:
            if (word := cell.lower()) in _WORDS:
                return _WORDS[word]
            if self._mark == ".":
                raise
            number = float(cell.replace(",", "."))
            self._mark = ","
        else:
            if "." in cell and self._mark != ".":
                if self._mark:
                    raise ValueError
                self._mark = "."
        return number

    def _step(self, row: TableRow) -> int:
        if self._length_at is not None:
            self._steps_so_far += max(0, _whole(self._number(row, self._length_at)))
            return self._steps_so_far
        return NO_STEP if self._step_at is None else _whole(self._number(row, self._step_at))

    def _time_ns(self, row: TableRow) -> int | None:
        """Return a time of day in ns: from seconds since the epoch or the start, or ISO 8601."""
        if self._time_at is None:
            return None
        cell = row.cells[self._time_at]
        try:
            seconds = self._parsed(cell)
        except ValueError:
            try:
                moment = datetime.fromisoformat(cell)
            except ValueError:
                seconds = self._number(row, self._time_at)  # records the problem
            else:
                seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if seconds is None:
            return None
        seconds += self._start_s or 0.0
        if _EARLIEST_S <= seconds < _LATEST_S:
            return int(seconds * NS_PER_S)
        self._has_odd_times = True
        return None


def _column(keys: Sequence[str], names: Sequence[str]) -> int | None:
    return next((keys.index(name) for name in names if name in keys), None)


def _has_only_numbers(names: Sequence[str]) -> bool:
    """Return whether a header is a row of values; integers alone may be names."""
    try:
        return any(not float(name).is_integer() for name in names if name)
    except ValueError:
        return False


def _monitor_start(comments: Sequence[str], keys: Sequence[str], facts: RunFacts) -> float | None:
    """Return the start time of a stable-baselines3 environment and record its name; else None."""
    if not comments or list(keys[:3]) != ["r", "l", "t"]:
        return None
    try:
        about = json.loads(comments[0].removeprefix("#"))
        start_s = float(about["t_start"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    facts.params["env_id"] = str(about.get("env_id"))
    return start_s


def _whole(value: float | None) -> int:
    # Steps are 64-bit integers; infinity and NaN are not valid.
    return NO_STEP if value is None or not abs(value) < 2**62 else int(value)
