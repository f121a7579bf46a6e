"""CSV logs: a file is a run, a row is a step, a column is a metric.

Lightning's ``CSVLogger`` leaves cells empty and writes ``hparams.yaml`` beside its file; Keras'
``CSVLogger`` has an ``epoch`` column. Without a column of times, all points have the file's
modification time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from radt.errors import UsageError
from radt.importers.files import (
    NS_PER_S,
    FileRun,
    FileSource,
    Point,
    file_run,
    params_in,
    read_params,
)
from radt.importers.source import RunFacts, SourceSeries
from radt.model import NO_STEP

_STEPS = ("step", "global_step", "_step", "iteration", "iter")
_EPOCHS = ("epoch",)
_TIMES = ("time", "timestamp", "wall_time", "created_at", "_timestamp", "date", "datetime")
#: Smaller numbers (before September 2001) are not a time of day but seconds since the run's start.
_EARLIEST_S = 1e9
_LATEST_S = 9e9


def source(place: Path) -> FileSource:
    """Return a CSV file, or all of a folder, as a source.

    Raises:
        UsageError: There is none.
    """
    if place.is_file():
        files, root = [place.absolute()], place.absolute().parent
    else:
        files, root = sorted(place.absolute().rglob("*.csv")), place.absolute()
    if not files:
        raise UsageError(f"no CSV file in {place}", "Give a CSV file, or a folder of some")
    runs = [
        file_run(
            f"csv:{path}", root.name or "csv", _name(path, root), [path, *params_in(path.parent)]
        )
        for path in files
    ]
    return FileSource(str(place), runs, _read)


def _read(run: FileRun, facts: RunFacts) -> Iterator[Point]:
    """Yield the numbers of a file, row by row."""
    path, *others = run.files
    for other in others:
        read_params(other, facts)
    modified_ns = path.stat().st_mtime_ns
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        ended = _Ended(file, at_rest=run.at_rest)
        rows = csv.reader(ended)
        header = [cell.strip() for cell in next(rows, [])]
        step_at, time_at = _column(header, _STEPS + _EPOCHS), _column(header, _TIMES)
        series = {
            place: SourceSeries(name)
            for place, name in enumerate(header)
            if name and place not in (step_at, time_at)
        }
        try:
            for row in rows:
                if not ended.is_whole:
                    continue  # the next import takes it
                if len(row) != len(header):
                    if row:
                        facts.problems.append(
                            f"{path}, line {rows.line_num}: expected a whole row of "
                            f"{len(header)} cells, got {len(row)}; it was left out"
                        )
                    continue
                step = _step(_number(row[step_at]) if step_at is not None else None)
                time_ns = _time_ns(row[time_at]) if time_at is not None else None
                at_ns, has_time = (time_ns, True) if time_ns is not None else (modified_ns, False)
                for place, of_column in series.items():
                    if (value := _number(row[place])) is not None:
                        yield Point(of_column, at_ns, value, step, has_time)
        except csv.Error as error:
            facts.problems.append(f"{path}, line {rows.line_num}: {error}; the rest is left out")


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
