"""Common parts of file sources: change detection, complete reading, and start and end times.

A file that has changed is read from its start; the import skips the points that the store has. The
digest of a run covers the size and time of its files, and whether they are at rest: a file that may
still be written to is read once more when it is at rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import yaml

from radt.errors import RadtError, SourceError, cut
from radt.importers.below import SourceFile
from radt.importers.source import Media, RunFacts, SourcePiece, SourceRun, SourceSeries, Stored
from radt.model import NO_STEP
from radt.store.records import Samples

NS_PER_S = 1_000_000_000
#: Later times do not fit into the store's nanoseconds.
_LATEST_S = 9e9
#: Not valid text for any database: NUL, and bytes that are not UTF-8.
_NOT_TEXT = re.compile("[\0\ud800-\udfff\ufffd]")
#: Maximum number of listed problems per run; a damaged file may have a million.
_MAX_PROBLEMS = 200
#: Lightning's file of parameters.
PARAMS = "hparams.yaml"
#: Maximum nesting of names, and of values within a parameter.
MAX_DEPTH = 50
#: Maximum size of a parameter file, also after its aliases are expanded.
_MAX_CHARS = 2**18
T = TypeVar("T")
#: A file this old is no longer being written.
AT_REST_S = 300.0
#: Points of one series to read before they are yielded.
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
        """Return the time of the latest write to any of the files."""
        return max(file.stat().st_mtime_ns for file in self.files)


def file_run(key: str, experiment: str, title: str, files: Sequence[SourceFile]) -> FileRun:
    """Return a run; ``key`` identifies it and determines its id.

    Raises:
        OSError: A file no longer exists.
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
class ImportedPoint:
    """One value. Without ``has_time``, the time is that of the file."""

    series: SourceSeries
    time_ns: int
    value: float
    step: int = NO_STEP
    has_time: bool = True


def time_ns(seconds: float) -> int:
    """Convert seconds since 1970 to nanoseconds.

    Raises:
        ValueError: The store cannot represent the time.
    """
    if not abs(seconds) < _LATEST_S:
        raise ValueError(f"a time of {seconds} s since 1970")
    return int(seconds * NS_PER_S)


#: Yields the points of a run, each series in an order that does not change, and fills in the facts;
#: ``started_ns`` and ``ended_ns`` stay None if they follow from the points.
Reader = Callable[[FileRun, RunFacts], Iterator[ImportedPoint | Media]]


@dataclass(frozen=True, slots=True)
class FileSource:
    """Runs in files of one tracker.

    Attributes:
        where: The given location, for display.
        all_runs: All runs.
        read_run: Reads a run.
        left_out: Files and folders that were skipped, with the reason.
    """

    where: str
    all_runs: Sequence[FileRun]
    read_run: Reader
    left_out: Sequence[str]
    grows_only = True

    def runs(self) -> Sequence[FileRun]:
        """Return all runs."""
        return self.all_runs

    def prepare(self, runs: Sequence[SourceRun]) -> None:
        """Do nothing: files are read one by one."""

    def read(
        self,
        run: SourceRun,
        stored: Stored,
        facts: RunFacts,
        whole: Collection[SourceSeries] = (),  # noqa: ARG002 - everything is read anyway
    ) -> Iterator[SourcePiece | Media]:
        """Yield all points of a run.

        Raises:
            SourceError: No part of the run can be read, or points were removed.
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

    def _storable(self, run: FileRun, facts: RunFacts) -> Iterator[ImportedPoint | Media]:
        """Yield the parts that the store can hold; report others once per metric or file."""
        of_names: dict[str, str] = {}
        refused: set[tuple[str, str]] = set()
        for part in guarded(run.where, self.read_run(run, facts), facts):
            name = part.path if isinstance(part, Media) else part.series.metric
            if name not in of_names:
                of_names[name] = "the name is not text" if _NOT_TEXT.search(name) else ""
            cause = of_names[name]
            if isinstance(part, ImportedPoint) and not (_fits(part.time_ns) and _fits(part.step)):
                cause = "a time or step is too large"
            if not cause:
                yield part
            elif (name, cause) not in refused:
                refused.add((name, cause))
                facts.problems.append(f"{run.where}: {cut(repr(name), 80)}: {cause}; left out")


def guarded(where: str, parts: Iterator[T], facts: RunFacts) -> Iterator[T]:
    """Yield the parts that a reader takes from a file or record; turn its failures into problems.

    Untrusted files may contain anything: numbers of any size, endless nesting, invalid messages. No
    list of their parsers' exceptions would be complete, and the rest has to be imported.
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


class RecordFile(ABC):
    """The records of a file. After iteration, ``problems`` describe its unreadable parts.

    ``is_cut`` is True if the last record is incomplete.
    """

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self.problems: list[str] = []
        self.is_cut = False

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Yield the place of each record, for messages, and its content.

        Raises:
            SourceError: The file has another format.
            OSError: It cannot be read.
        """

    def parts(
        self, parts_of: Callable[[bytes], Iterator[T]], facts: RunFacts, *, at_rest: bool
    ) -> Iterator[T]:
        """Yield the parts of all records. Unless ``at_rest``, the last record may be incomplete."""
        for place, record in self:
            yield from guarded(f"{self._file}, {place}", parts_of(record), facts)
        facts.problems += self.problems
        if at_rest and self.is_cut:
            facts.problems.append(
                f"{self._file} ends within a record; what is before it was imported"
            )

    def _damaged(self, at: int, size_bytes: int) -> None:
        self.problems.append(
            f"{self._file} is damaged at byte {at:,}; {size_bytes:,} bytes are left out"
        )


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


class _Columns:
    """Points of one series that were not yielded yet, and the number that were."""

    def __init__(self) -> None:
        self.first = 0
        self.times, self.values, self.steps = array("q"), array("d"), array("q")
        self.has_times = True

    def add(self, point: ImportedPoint) -> None:
        self.times.append(point.time_ns)
        self.values.append(point.value)
        self.steps.append(point.step)
        self.has_times &= point.has_time

    def piece(self, series: SourceSeries) -> SourcePiece:
        """Return the collected points as a piece and start the next one."""
        steps = np.array(self.steps, dtype=np.int64)
        samples = Samples(
            np.array(self.times, dtype=np.int64),
            np.array(self.values, dtype=np.float64),
            steps if (steps != NO_STEP).any() else None,
        )
        piece = SourcePiece(series, self.first, samples, self.has_times)
        self.first += len(samples)
        self.times, self.values, self.steps = array("q"), array("d"), array("q")
        return piece


def rewritten(run: SourceRun, what: str) -> SourceError:
    """Return the error for a file that differs from the imported one."""
    return SourceError(
        f"{run.where} was rewritten since it was imported: {what}",
        "Give the new file another name to import it as a new run",
    )


# -- parameters ------------------------------------------------------------------------------------


def params_in(folder: Path, root: Path) -> list[SourceFile]:
    """Return the file of parameters that Lightning writes beside its logs, if it exists."""
    path = folder / PARAMS
    return [SourceFile(root, path.relative_to(root).as_posix())] if os.path.lexists(path) else []


def read_params(file: SourceFile, facts: RunFacts) -> None:
    """Read parameters that Lightning wrote."""
    for key, value in guarded(str(file), _params(file), facts):
        facts.params[key] = value


def _params(file: SourceFile) -> Iterator[tuple[str, str]]:
    """Yield the parameters in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not text, is too large, or is nested too deep.
        yaml.YAMLError: It is not YAML.
    """
    with file.open() as stream:
        text = stream.read(_MAX_CHARS + 1).decode()
    if len(text) > _MAX_CHARS:
        raise ValueError(f"parameters of more than {_MAX_CHARS:,} characters")
    loader = yaml.SafeLoader(text)
    if (node := loader.get_single_node()) is None:
        return
    _expanded_chars(node)
    data = loader.construct_document(node)
    if isinstance(data, dict):
        yield from ((key, str(value)) for key, value in flattened(data))


def _expanded_chars(node: yaml.Node, depth: int = 0) -> int:
    """Return the size of a text with its aliases expanded, before it is loaded.

    Raises:
        ValueError: Aliases expand to too much or refer to themselves, or it is nested too deep.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"parameters nested deeper than {MAX_DEPTH}")
    if isinstance(node, yaml.ScalarNode):
        return 1 + len(node.value)
    size = 1
    nested = chain(*node.value) if isinstance(node, yaml.MappingNode) else node.value
    for child in nested:
        size += _expanded_chars(child, depth + 1)
        if size > _MAX_CHARS:
            raise ValueError("aliases (*name) that stand for too much, or for themselves")
    return size


def flattened(data: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the leaves of nested dicts with their keys joined by dots.

    >>> dict(flattened({"a": {"b": 1}}))
    {'a.b': 1}
    """
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flattened(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, data
