"""The manifest of an archive: the file ``run.json``.

It holds all data of a run except samples and markers, and lists the files with those: their SHA-256
sums and numbers of points per series.
"""

from __future__ import annotations

import hashlib
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from radt import __version__
from radt.errors import ArchiveError
from radt.masking import masked
from radt.store.records import (
    GapRecord,
    JournalCursor,
    LedgerRecord,
    RunRecord,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.tables import CURSORS, GAPS, LEDGERS, RUNS, SERIES, WORKLOADS, Table

#: Increased when older versions of radt could not read the new format. Fields that an older version
#: may ignore need no new number.
FORMAT = 1
MANIFEST_FILE = "run.json"
#: Folder of the archive in a run's artifacts.
ARCHIVE_FOLDER = "radt"

_SAFE_PATH = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Exceptions from reading anything but a manifest.
_WRONG = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
RecordT = TypeVar("RecordT")

#: Ids are names of runs' folders, so their characters are limited.
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_IDS = ("run_id", "workload_id")
_LARGEST = 2**63


class PartKind(StrEnum):
    """Content of a file of an archive."""

    SAMPLES = "samples"
    MARKERS = "markers"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Points of one series in a file: ``count`` from number ``first`` on, in the order of writing.

    ``steps``: some were written with a column of steps, even if all steps are missing. In
    ``run.json``, a stretch is a list of these four values.
    """

    series_no: int
    first: int
    count: int
    steps: bool

    @property
    def stop(self) -> int:
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file. ``path`` is relative to the folder of ``run.json``.

    If several files have a marker of the same number, the last file counts.
    """

    path: str
    kind: PartKind
    rows: int
    size_bytes: int
    sha256: str
    listener: str = ""
    stretches: tuple[Stretch, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything in an archive except the contents of its `parts`.

    ``complete``: the run had ended and is in the archive completely; otherwise more may follow.
    ``tracking_uri`` of run and workload are without passwords. ``revision`` is the run's revision
    in the source store, -1 if unknown: at the same revision there is nothing to add. ``journals``
    are the positions up to which the journals of its processes had been read; later data is
    missing.
    """

    run: RunRecord
    workload: WorkloadRecord | None = None
    params: Mapping[str, str] | None = None
    tags: Mapping[str, str] | None = None
    series: Sequence[SeriesRecord] = ()
    ledger: Sequence[LedgerRecord] = ()
    gaps: Sequence[GapRecord] = ()
    journals: Sequence[JournalCursor] = ()
    parts: Sequence[Part] = ()
    complete: bool = False
    revision: int = -1
    written_ns: int = 0
    written_by: str = f"radt {__version__}"

    @property
    def points(self) -> int:
        """Return the total number of points."""
        return sum(part.rows for part in self.parts if part.kind is PartKind.SAMPLES)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def point_counts(self) -> dict[int, int]:
        """Return the number of points of each series, by its number."""
        counts: dict[int, int] = {}
        for part in self.parts:
            for stretch in part.stretches:
                counts[stretch.series_no] = max(counts.get(stretch.series_no, 0), stretch.stop)
        return counts

    def to_json(self) -> str:
        """Return the text of ``run.json``, without the credentials of tracking servers."""
        workload = self.workload
        data: dict[str, Any] = {
            "format": FORMAT,
            "written_by": self.written_by,
            "written_ns": self.written_ns,
            "complete": self.complete,
            "revision": self.revision,
            "run": without_passwords(RUNS.row(self.run)),
            "workload": None if workload is None else without_passwords(WORKLOADS.row(workload)),
            "params": dict(self.params or {}),
            "tags": dict(self.tags or {}),
            "series": [without_run(SERIES.row(record)) for record in self.series],
            "ledger": [without_run(LEDGERS.row(entry)) for entry in self.ledger],
            "gaps": [without_run(GAPS.row(gap)) for gap in self.gaps],
            "journals": [CURSORS.row(cursor) for cursor in self.journals],
            "parts": [_part_data(part) for part in self.parts],
        }
        return _lines(data)

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Manifest:
        """Parse ``run.json``; `where` names the file in messages.

        Raises:
            ArchiveError: The manifest has a newer format or is damaged.
        """
        try:
            data = json.loads(text)
            number = int(data["format"])
            writer = str(data.get("written_by", "a newer radt"))
        except _WRONG as error:
            raise _damaged(where, f"it is not the {MANIFEST_FILE} of an archive") from error
        if number > FORMAT:
            raise ArchiveError(
                f"{where} has format {number}, written by {writer}; this radt {__version__} reads "
                f"archives up to format {FORMAT}",
                "Upgrade radt",
            )
        try:
            return cls._read(data)
        except _WRONG as error:
            raise _damaged(where, f"{type(error).__name__}: {error}") from error

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Manifest:
        run = record_of(RUNS, data["run"])
        key = {"run_id": run.run_id}
        manifest = cls(
            run=run,
            workload=None if data["workload"] is None else record_of(WORKLOADS, data["workload"]),
            params=texts_of(data["params"]),
            tags=texts_of(data["tags"]),
            series=tuple(record_of(SERIES, record | key) for record in data["series"]),
            ledger=tuple(record_of(LEDGERS, entry | key) for entry in data["ledger"]),
            gaps=tuple(record_of(GAPS, gap | key) for gap in data["gaps"]),
            journals=tuple(record_of(CURSORS, cursor) for cursor in data.get("journals", ())),
            parts=tuple(_part(part) for part in data["parts"]),
            complete=bool(data["complete"]),
            revision=int(data.get("revision", -1)),
            written_ns=int(data["written_ns"]),
            written_by=str(data["written_by"]),
        )
        manifest._check()
        return manifest

    def _check(self) -> None:
        if self.workload is not None and self.workload.workload_id != self.run.workload_id:
            raise ValueError(f"the run is of another workload than {self.workload.workload_id}")
        known = {record.series_no for record in self.series}
        counts: dict[int, int] = {}
        for part in self.parts:
            for stretch in part.stretches:
                if stretch.series_no not in known:
                    raise ValueError(f"{part.path} has an unknown series {stretch.series_no}")
                if stretch.first != counts.get(stretch.series_no, 0) or stretch.count < 1:
                    raise ValueError(f"{part.path} does not follow the file before it")
                counts[stretch.series_no] = stretch.stop
            points = sum(stretch.count for stretch in part.stretches)
            if part.kind is PartKind.SAMPLES and points != part.rows:
                raise ValueError(f"{part.path} has {part.rows} rows for {points} points")


def _damaged(where: str, detail: str) -> ArchiveError:
    return ArchiveError(
        f"{where} is damaged: {detail}", "Download it again from the run's artifacts"
    )


def _lines(data: Mapping[str, Any]) -> str:
    """Return JSON with one list element per line: readable, yet small."""
    fields = []
    for name, value in data.items():
        if isinstance(value, list) and value:
            inner = ",\n  ".join(json.dumps(item, ensure_ascii=False) for item in value)
            fields.append(f' "{name}": [\n  {inner}\n ]')
        else:
            fields.append(f' "{name}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _part_data(part: Part) -> dict[str, Any]:
    return {
        "path": part.path,
        "kind": part.kind.value,
        "rows": part.rows,
        "size_bytes": part.size_bytes,
        "sha256": part.sha256,
        "listener": part.listener,
        # One list each: there is one for each series every quarter of an hour.
        "stretches": [astuple(stretch) for stretch in part.stretches],
    }


def _part(data: Mapping[str, Any]) -> Part:
    path, sha256 = str(data["path"]), str(data["sha256"])
    if not _SAFE_PATH.fullmatch(path):
        raise ValueError(f"{path!r} is not a valid file name in an archive")
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256 sum")
    return Part(
        path=path,
        kind=PartKind(data["kind"]),
        rows=int(data["rows"]),
        size_bytes=int(data["size_bytes"]),
        sha256=sha256,
        listener=str(data["listener"]),
        stretches=tuple(
            Stretch(int(number), int(first), int(count), bool(steps))
            for number, first, count, steps in data["stretches"]
        ),
    )


def without_passwords(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "tracking_uri": masked(str(row["tracking_uri"]))}


def without_run(row: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the run's id, which would be repeated in thousands of lines."""
    return {name: value for name, value in row.items() if name != "run_id"}


def record_of(table: Table[RecordT], data: Mapping[str, Any]) -> RecordT:
    """Return a record of the known fields: older archives have fewer fields, newer ones more.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: The data is not a record.
    """
    decoders: Mapping[str, Callable[[Any], Any]] = table.decoders
    return table.record(
        **{
            name: decoders[name](data[name])
            if name in decoders
            else _checked(name, data[name], hint)
            for name, hint in _hints(table.record).items()
            if name in data
        }
    )


def texts_of(data: Mapping[str, Any]) -> dict[str, str]:
    """Return params or tags."""
    return {_text(str(key)): _text(str(value)) for key, value in data.items()}


@cache
def _hints(record: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _checked(name: str, value: Any, hint: Any) -> Any:
    kinds = typing.get_args(hint) or (hint,)
    if isinstance(value, bool) or not (
        isinstance(value, kinds) or (float in kinds and isinstance(value, int))
    ):
        raise TypeError(f"{name} cannot be {value!r:.100}")
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"{name} cannot be {value!r:.100}")
    if isinstance(value, str):
        _text(value)
        if name in _IDS and not _ID.fullmatch(value):
            raise ValueError(f"{name} cannot be {value!r:.100}")
    return value


def _text(value: str) -> str:
    value.encode()  # a lone surrogate is not valid text: UnicodeEncodeError is a ValueError
    return value


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits; raise OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
