"""CSV logs: a file is a run, a row is a step, a column is a metric.

Lightning's ``CSVLogger`` leaves cells empty and writes ``hparams.yaml`` beside its file; Keras'
``CSVLogger`` has an ``epoch`` column. Without a column of times, all points have the file's
modification time.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from radt.errors import SourceError, UsageError
from radt.importers.files import NS_PER_S, Facts, FileRun, Point, flattened
from radt.model import NO_STEP

_STEPS = ("step", "global_step", "_step", "iteration", "iter")
_EPOCHS = ("epoch",)
_TIMES = ("time", "timestamp", "wall_time", "created_at", "_timestamp", "date", "datetime")
#: Smaller numbers (before September 2001) are not a time of day but seconds since the run's start.
_EARLIEST_S = 1e9
_LATEST_S = 9e9
#: A last line without a line end may be incomplete, unless the file is at least this old.
_AT_REST_S = 60.0


class CsvSource:
    """A CSV file, or all CSV files of a folder.

    Args:
        place: File or folder.
    """

    def __init__(self, place: Path) -> None:
        self._place = place.absolute()
        self.where = str(place)

    def runs(self) -> Sequence[FileRun]:
        """Return a run for each file."""
        if self._place.is_file():
            files, root = [self._place], self._place.parent
        else:
            files, root = sorted(self._place.rglob("*.csv")), self._place
        if not files:
            raise UsageError(f"no CSV file in {self.where}", "Give a CSV file, or a folder of some")
        return [
            FileRun(f"csv:{path}", root.name or "csv", _name(path, root), _with_params(path))
            for path in files
        ]

    def points(self, run: FileRun, facts: Facts) -> Iterator[Point]:
        """Yield the numbers of a file, row by row."""
        path = run.files[0]
        for other in run.files[1:]:
            _read_params(other, facts)
        modified_ns = path.stat().st_mtime_ns
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            ended = _Ended(file, at_rest=time.time() - modified_ns / NS_PER_S > _AT_REST_S)
            rows = csv.reader(ended)
            header = [cell.strip() for cell in next(rows, [])]
            step_at, time_at = _column(header, _STEPS + _EPOCHS), _column(header, _TIMES)
            if not any(header):
                raise SourceError(f"{path} is empty", "Delete it, or import it when it has rows")
            try:
                for row in rows:
                    if not ended.is_whole:
                        facts.problems.append(
                            f"{path}, line {rows.line_num} has no end yet; the next import takes it"
                        )
                        continue
                    if len(row) != len(header):
                        if row:
                            facts.problems.append(
                                f"{path}, line {rows.line_num}: expected a whole row of "
                                f"{len(header)} cells, got {len(row)}; it was left out"
                            )
                        continue
                    step = _number(row[step_at]) if step_at is not None else None
                    time_ns = _time_ns(row[time_at]) if time_at is not None else None
                    for place, cell in enumerate(row):
                        if place in (step_at, time_at) or not header[place]:
                            continue
                        if (value := _number(cell)) is not None:
                            yield (
                                header[place],
                                modified_ns if time_ns is None else time_ns,
                                value,
                                _step(step),
                            )
            except csv.Error as error:
                facts.problems.append(
                    f"{path}, line {rows.line_num}: {error}; the rest is left out"
                )


class _Ended:
    """Lines of a file; ``is_whole`` is False after a line that is still being written."""

    def __init__(self, lines: Iterator[str], *, at_rest: bool) -> None:
        self._lines = lines
        self._at_rest = at_rest
        self.is_whole = True

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.is_whole = self._at_rest or line.endswith(("\n", "\r"))
            yield line


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    # Lightning gives all its files the same name.
    return "/".join(parts[:-1] if parts[-1] == "metrics" and len(parts) > 1 else parts)


def _with_params(path: Path) -> tuple[Path, ...]:
    params = path.with_name("hparams.yaml")
    return (path, params) if params.is_file() else (path,)


def _read_params(path: Path, facts: Facts) -> None:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        facts.problems.append(f"{path}: {str(error).splitlines()[0]}; its parameters are left out")
        return
    if isinstance(data, dict):
        facts.params |= {key: str(value) for key, value in flattened(data)}


def _column(header: Sequence[str], names: Sequence[str]) -> int | None:
    lower = [name.lower() for name in header]
    return next((lower.index(name) for name in names if name in lower), None)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _step(value: float | None) -> int:
    # Steps are 64-bit integers; infinity and NaN are not valid.
    return NO_STEP if value is None or not abs(value) < 2**62 else int(value)


def _time_ns(cell: str) -> int | None:
    """Return a time of day in ns, from seconds since the epoch or ISO 8601, else None."""
    seconds = _number(cell)
    if seconds is None:
        try:
            moment = datetime.fromisoformat(cell.strip())
        except ValueError:
            return None
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return int(seconds * NS_PER_S) if _EARLIEST_S <= seconds < _LATEST_S else None
