"""What sources in files share: when a file changed, points from its start, when it began and ended.

A file is read from its start when it changed; what the store has is skipped by the import. The
digest of a run holds the size and time of its files, and whether they are at rest: what may still
be written to is read once more when it no longer is.
"""

from __future__ import annotations

import hashlib
import json
import time
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import yaml

from radt.errors import SourceError
from radt.importers.source import Media, Piece, RunFacts, SourceRun, SourceSeries, Stored
from radt.model import NO_STEP
from radt.store.records import Samples

NS_PER_S = 1_000_000_000
#: Nobody writes to a file that is as old as this.
AT_REST_S = 300.0
#: Points of one series that are read before they are handed on.
_POINTS_PER_PIECE = 20_000


@dataclass(frozen=True, slots=True)
class FileRun(SourceRun):
    """A run in files."""

    files: tuple[Path, ...] = ()
    at_rest: bool = True

    @property
    def where(self) -> str:
        return str(self.files[0])

    @property
    def modified_ns(self) -> int:
        """When the last of them was written."""
        return max(path.stat().st_mtime_ns for path in self.files)


def file_run(key: str, experiment: str, title: str, files: Sequence[Path]) -> FileRun:
    """Return a run; ``key`` identifies it and gives its id.

    Raises:
        OSError: A file is gone.
    """
    stats = [(str(path), path.stat()) for path in files]
    newest_ns = max(stat.st_mtime_ns for _, stat in stats)
    at_rest = time.time() - newest_ns / NS_PER_S > AT_REST_S
    content = [[(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats], at_rest]
    return FileRun(
        hashlib.blake2b(key.encode(), digest_size=16).hexdigest(),
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
    """

    grows_only = True

    def __init__(self, where: str, runs: Sequence[FileRun], read: Reader) -> None:
        self.where = where
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
        for part in self._read(run, facts):
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


def params_in(folder: Path) -> list[Path]:
    """Return the file with parameters that Lightning writes beside its logs, if it is there."""
    path = folder / "hparams.yaml"
    return [path] if path.is_file() else []


def read_params(path: Path, facts: RunFacts) -> None:
    """Read parameters that Lightning wrote."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        facts.problems.append(f"{path}: {str(error).splitlines()[0]}; its parameters are left out")
        return
    if isinstance(data, dict):
        facts.params |= {key: str(value) for key, value in flattened(data)}


def flattened(data: object, prefix: str = "") -> Iterable[tuple[str, object]]:
    """Yield the leaves of nested dicts with their keys joined by dots.

    >>> dict(flattened({"a": {"b": 1}}))
    {'a.b': 1}
    """
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flattened(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, data
