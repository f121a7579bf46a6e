"""What sources in files share: when a file changed, points from its start, when it began and ended.

A file is read from its start when it changed; what the store has is skipped by the import. The
digest of a run holds the size and time of its files, and whether they are at rest: what may still
be written to is read once more when it no longer is.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from radt.errors import RadtError, SourceError, cut
from radt.importers.below import SourceFile
from radt.importers.source import Media, Piece, RunFacts, SourceRun, SourceSeries, Stored
from radt.model import NO_STEP
from radt.store.records import Samples

NS_PER_S = 1_000_000_000
#: Later times do not fit the store's nanoseconds.
_LATEST_S = 9e9
#: What no database takes as text: NUL, and bytes that are not UTF-8.
_NOT_TEXT = re.compile("[\0\ud800-\udfff\ufffd]")
#: Problems of a run that are named; a damaged file may have a million.
_MAX_PROBLEMS = 200
T = TypeVar("T")
#: Nobody writes to a file that is as old as this.
AT_REST_S = 300.0
#: Points of one series that are read before they are handed on.
_POINTS_PER_PIECE = 20_000


@dataclass(frozen=True, slots=True)
class FileRun(SourceRun):
    """A run in files."""

    files: tuple[SourceFile, ...] = ()
    at_rest: bool = True

    @property
    def where(self) -> str:
        return str(self.files[0])

    @property
    def modified_ns(self) -> int:
        """When the last of them was written."""
        return max(file.stat().st_mtime_ns for file in self.files)


def file_run(key: str, experiment: str, title: str, files: Sequence[SourceFile]) -> FileRun:
    """Return a run; ``key`` identifies it and gives its id.

    Raises:
        OSError: A file is gone.
    """
    stats = [(str(file), file.stat()) for file in files]
    newest_ns = max(stat.st_mtime_ns for _, stat in stats)
    at_rest = time.time() - newest_ns / NS_PER_S > AT_REST_S
    content = [[(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats], at_rest]
    experiment, title = _NOT_TEXT.sub("�", experiment), _NOT_TEXT.sub("�", title)
    return FileRun(
        hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=16).hexdigest(),
        experiment,
        title,
        hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest(),
        name=title,
        files=tuple(files),
        at_rest=at_rest,
    )


@dataclass(slots=True)
class Point:
    """One value. Without ``has_time`` the time is that of the file."""

    series: SourceSeries
    time_ns: int
    value: float
    step: int = NO_STEP
    has_time: bool = True


def time_ns(seconds: float) -> int:
    """
    Raises:
        ValueError: It is no time that the store can hold.
    """
    if not abs(seconds) < _LATEST_S:
        raise ValueError(f"a time of {seconds} s since 1970")
    return int(seconds * NS_PER_S)


class Reader(Protocol):
    """Reads one run from its files."""

    def __call__(self, run: FileRun, facts: RunFacts) -> Iterator[Point | Media]:
        """Yield the points of a run, each series in an order that does not change.

        Fills in ``facts``; ``started_ns`` and ``ended_ns`` stay None where the points say it.

        Raises:
            SourceError: The run is unreadable.
        """
        ...


class FileSource:
    """Runs in files of one tracker.

    Args:
        where: What was given, for people.
        runs: All runs.
        read: Reads one.
        left_out: Files and folders that were not looked into, with the reason.
    """

    grows_only = True

    def __init__(
        self, where: str, runs: Sequence[FileRun], read: Reader, left_out: Sequence[str]
    ) -> None:
        self.where = where
        self.left_out = left_out
        self._runs = runs
        self._read = read

    def runs(self) -> Sequence[FileRun]:
        """Return all runs."""
        return self._runs

    def prepare(self, runs: Sequence[SourceRun]) -> None:
        """Do nothing: files are read one by one."""

    def read(
        self,
        run: SourceRun,
        stored: Stored,
        facts: RunFacts,
        whole: Collection[SourceSeries] = (),  # noqa: ARG002 - all is read anyway
    ) -> Iterator[Piece | Media]:
        """Yield all points of a run.

        Raises:
            SourceError: Nothing of it can be read, or points are gone.
        """
        assert isinstance(run, FileRun)
        columns: dict[SourceSeries, _Columns] = {}
        first_ns, last_ns = None, None
        has_media = False
        for part in self._storable(run, facts):
            if isinstance(part, Media):
                has_media = True
                yield part
                continue
            of_series = columns.setdefault(part.series, _Columns())
            of_series.add(part)
            first_ns = part.time_ns if first_ns is None else min(first_ns, part.time_ns)
            last_ns = part.time_ns if last_ns is None else max(last_ns, part.time_ns)
            if len(of_series.times) >= _POINTS_PER_PIECE:
                yield of_series.piece(part.series)
        for series, of_series in columns.items():
            if of_series.first + len(of_series.times) < stored.count(series):
                raise rewritten(run, f"{series.metric} has fewer values")
            yield of_series.piece(series)
        facts.is_empty = first_ns is None and not (has_media or facts.params or facts.tags)
        if facts.is_empty and facts.problems:
            raise SourceError("; ".join(facts.problems))
        if facts.started_ns is None:
            facts.started_ns = run.modified_ns if first_ns is None else first_ns
        if facts.ended_ns is None and facts.status.ended:
            facts.ended_ns = max(facts.started_ns, facts.started_ns if last_ns is None else last_ns)

    def _storable(self, run: FileRun, facts: RunFacts) -> Iterator[Point | Media]:
        """Yield what the store can hold; the rest is named once for each metric or file."""
        of_names: dict[str, str] = {}
        refused: set[tuple[str, str]] = set()
        for part in guarded(run.where, self._read(run, facts), facts):
            name = part.path if isinstance(part, Media) else part.series.metric
            if name not in of_names:
                of_names[name] = "the name is not text" if _NOT_TEXT.search(name) else ""
            cause = of_names[name]
            if isinstance(part, Point) and not (_fits(part.time_ns) and _fits(part.step)):
                cause = "a time or step is too large"
            if not cause:
                yield part
            elif (name, cause) not in refused:
                refused.add((name, cause))
                facts.problems.append(f"{run.where}: {cut(repr(name), 80)}: {cause}; left out")


def guarded(where: str, parts: Iterator[T], facts: RunFacts) -> Iterator[T]:
    """Yield what a reader takes from a file or record; what it fails at becomes a problem.

    Files of others may hold anything: numbers of any size, endless nesting, invalid messages. No
    list of what their parsers raise would be complete, and the rest has to be imported.
    """
    try:
        yield from parts
    except Exception as error:  # noqa: BLE001 - see above
        if isinstance(error, RadtError):
            facts.problems.append(error.message)
            return
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        shown = cut(cause.strip().partition("\n")[0] or type(error).__name__, 200)
        if len(facts.problems) < _MAX_PROBLEMS:
            facts.problems.append(f"{where}: {shown}; left out")
        elif len(facts.problems) == _MAX_PROBLEMS:
            facts.problems.append(f"{where}: more is left out")


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


class _Columns:
    """Points of one series that were not handed on, and how many were."""

    def __init__(self) -> None:
        self.first = 0
        self.times, self.values, self.steps = array("q"), array("d"), array("q")
        self.has_times = True

    def add(self, point: Point) -> None:
        self.times.append(point.time_ns)
        self.values.append(point.value)
        self.steps.append(point.step)
        self.has_times &= point.has_time

    def piece(self, series: SourceSeries) -> Piece:
        """Hand the points on."""
        steps = np.array(self.steps, dtype=np.int64)
        samples = Samples(
            np.array(self.times, dtype=np.int64),
            np.array(self.values, dtype=np.float64),
            steps if (steps != NO_STEP).any() else None,
        )
        piece = Piece(series, self.first, samples, self.has_times)
        self.first += len(samples)
        self.times, self.values, self.steps = array("q"), array("d"), array("q")
        return piece


def rewritten(run: SourceRun, what: str) -> SourceError:
    """Return the error of a run that is not the one that was imported."""
    return SourceError(
        f"{run.where} was rewritten since it was imported: {what}",
        "Give the new file another name to import it as a new run",
    )
