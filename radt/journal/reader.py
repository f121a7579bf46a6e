"""Read the journals of all processes of a run, live or afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from radt.errors import JournalError
from radt.journal.format import LABELS_FOLDER, EventKind, JournalMeta, RecordKind
from radt.journal.segments import Records
from radt.journal.source import JournalSource
from radt.journal.unwritten import UNWRITTEN, forget_unwritten, unwritten
from radt.journal.values import JournalSeries
from radt.model import NO_STEP, MarkerKind, RunStatus
from radt.store.records import Float64Array, Int64Array, JournalCursor


@dataclass(frozen=True, slots=True)
class ScalarColumn:
    """New values of one metric of one process: three arrays of equal length, in slot order.

    ``process`` is empty for the run's first process, else ``rank 1``, ``child 2``. ``times_ns`` are
    monotonic; ``steps`` hold `radt.model.NO_STEP` for missing steps. ``series`` describes a value
    that radt itself reads inside the process, and ``name`` is then its metric; it is None for the
    script's own metrics.
    """

    process: str
    name: str
    times_ns: Int64Array
    steps: Int64Array
    values: Float64Array
    series: JournalSeries | None = None


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Beginning or end of an epoch or span; both have the same ``token``, unique in a process.

    ``step`` is the epoch's number, None for spans.
    """

    process: str
    kind: MarkerKind
    name: str
    step: int | None
    monotonic_ns: int
    begin: bool
    token: int


@dataclass(frozen=True, slots=True)
class Finish:
    """End of the run as reported by its first process; ``reason`` is empty on success.

    ``ended_ns`` is its monotonic time; None if another process ends the run.
    """

    status: RunStatus
    reason: str = ""
    ended_ns: int | None = None


@dataclass(slots=True)
class JournalBatch:
    """New data in all journals of a run.

    ``pids`` are all processes that have a journal. ``dropped`` counts records that could not be
    written, usually because the disk was full; ``lost`` those lost in damaged files;
    ``lost_events`` damaged lines of events files (params, tags, names). ``cursors`` must be stored
    in the transaction that stores the rest. ``more``: the limit was reached.
    """

    scalars: list[ScalarColumn] = field(default_factory=list)
    spans: list[SpanEvent] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    epochs_total: int | None = None
    pids: set[int] = field(default_factory=set)
    cursors: list[JournalCursor] = field(default_factory=list)
    dropped: int = 0
    lost: int = 0
    lost_events: int = 0
    more: bool = False


log = logging.getLogger(__name__)

_MARKS = {
    RecordKind.EPOCH_BEGIN: (MarkerKind.EPOCH, True),
    RecordKind.EPOCH_END: (MarkerKind.EPOCH, False),
    RecordKind.SPAN_BEGIN: (MarkerKind.SPAN, True),
    RecordKind.SPAN_END: (MarkerKind.SPAN, False),
}


class JournalReader:
    """Reads new data since the last read, exactly once.

    Args:
        journal_dir: The run's journal folder; may not exist yet.
        cursors: Positions up to which earlier readers' batches were stored, by journal.
    """

    def __init__(self, journal_dir: Path, cursors: Mapping[str, JournalCursor]) -> None:
        self._folder = journal_dir
        self._cursors = dict(cursors)
        self._sources: dict[str, JournalSource] = {}
        self._unreadable: set[str] = set()
        self._turn = 0
        self._run_id = journal_dir.parent.name
        #: Number of values missing from all journals that was already reported.
        self._unwritten = _counted(cursors)

    def read(self, *, final: bool = False, max_records: int = 200_000) -> JournalBatch:
        """Return the new data of all processes.

        The reader then continues after this data: keep the batch until it is stored, or create a
        new reader from the stored cursors.

        Args:
            final: The processes have ended: do not wait for unwritten slots, take everything.
            max_records: Stop after about this many; ``more`` of the batch is then True.

        Raises:
            JournalError, OSError: Reading failed; the next call reads the same data again.
        """
        before = {name: source.cursor for name, source in self._sources.items()}
        try:
            return self._read(final=final, max_records=max_records)
        except BaseException:
            self._cursors |= before
            self._sources.clear()
            raise

    def _read(self, *, final: bool, max_records: int) -> JournalBatch:
        self._find_sources()
        batch = JournalBatch(pids={source.meta.pid for source in self._sources.values()})
        left = max_records
        for source in self._in_turn():
            if source.exhausted:
                continue
            if left <= 0:
                batch.more = True
                break
            before = source.cursor
            records = source.read(left, final=final)
            left -= len(records)
            batch.more = batch.more or left <= 0
            for event in source.read_events():
                try:
                    _take(event, batch)
                except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                    source.miss_event()
            _sort(source, records, batch)
            batch.lost, source.lost = batch.lost + source.lost, 0
            batch.lost_events, source.lost_events = batch.lost_events + source.lost_events, 0
            if source.cursor != before:
                batch.cursors.append(source.cursor)
        unwritten_now = unwritten(self._run_id)
        if unwritten_now > self._unwritten:
            batch.dropped += unwritten_now - self._unwritten
            batch.cursors.append(JournalCursor(UNWRITTEN, event_offset=unwritten_now))
            self._unwritten = unwritten_now
        return batch

    def finish(self) -> Finish | None:
        """Return the end reported by the run's first process; None if there is none.

        It is also returned if it was read before: that reader may have died before acting on it.
        """
        self._find_sources()
        ending = None
        # A script that replaced itself (exec) has several journals; the last one counts.
        for source in sorted(self._sources.values(), key=lambda source: source.meta.created_ns):
            event = None if source.meta.label else source.last_event(EventKind.FINISH)
            if event is not None:
                with suppress(LookupError, TypeError, ValueError):  # it is damaged
                    ended_ns = event.get("ended_ns")
                    ending = Finish(
                        RunStatus(event["status"]),
                        str(event["reason"]),
                        None if ended_ns is None else int(ended_ns),
                    )
        return ending

    def metas(self) -> list[JournalMeta]:
        """Return the metadata of all readable journals."""
        self._find_sources()
        return [source.meta for source in self._sources.values()]

    @property
    def being_written(self) -> bool:
        """Return whether a live process has not closed its journal."""
        self._find_sources()
        return any(source.is_being_written for source in self._sources.values())

    @property
    def unreadable(self) -> frozenset[str]:
        """Return the journals that are damaged or of a later version."""
        return frozenset(self._unreadable)

    def delete_consumed(
        self, cursors: Iterable[JournalCursor], *, before: Callable[[], None] = lambda: None
    ) -> None:
        """Remove segments completely before the cursors, which were stored.

        Args:
            cursors: The stored positions.
            before: Called before the first removal.
        """
        behind = [
            path
            for cursor in cursors
            if (source := self._sources.get(cursor.journal)) is not None
            for path in source.segments_before(cursor)
        ]
        if behind:
            before()
        for path in behind:
            path.unlink(missing_ok=True)

    def remove_finished(self) -> None:
        """Remove the journals that were read to their end and whose processes have exited.

        Call it for a run that has ended and is stored: a journal takes at least half a megabyte,
        which adds up over thousands of runs.
        """
        for source in self._sources.values():
            try:
                source.remove()
            except OSError as error:
                log.warning("the journal %s stays: %s", source.name, error)
        forget_unwritten(self._run_id)

    def _find_sources(self) -> None:
        try:
            folders = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return
        for folder in folders:
            name = folder.name
            if name in self._sources or name in self._unreadable or name == LABELS_FOLDER:
                continue
            if name.startswith(".") or not folder.is_dir():
                continue  # being created
            try:
                self._sources[name] = JournalSource(folder, self._cursors.get(name))
            except JournalError as error:
                # An unreadable journal of one process must not affect those of the others.
                log.error("%s", error)  # noqa: TRY400 - the message suffices
                self._unreadable.add(name)

    def _in_turn(self) -> list[JournalSource]:
        """Return all sources, starting with a different one each time, so that none starves."""
        sources = list(self._sources.values())
        if not sources:
            return []
        self._turn = (self._turn + 1) % len(sources)
        return sources[self._turn :] + sources[: self._turn]


def _counted(cursors: Mapping[str, JournalCursor]) -> int:
    return cursors[UNWRITTEN].event_offset if UNWRITTEN in cursors else 0


def _texts(event: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in event["values"].items()}


def _take(event: Mapping[str, Any], batch: JournalBatch) -> None:
    match event["event"]:
        case EventKind.PARAMS:
            batch.params |= _texts(event)
        case EventKind.TAGS:
            batch.tags |= _texts(event)
        case EventKind.EPOCHS:
            batch.epochs_total = int(event["total"])
        case EventKind.DROPPED:
            batch.dropped += int(event["count"])


def _sort(source: JournalSource, records: Records, batch: JournalBatch) -> None:
    """Sort records into columns and marks; add up the drops that they report."""
    process = source.meta.label
    scalars = records[records["kind"] == RecordKind.SCALAR]
    order = np.argsort(scalars["name_id"], kind="stable")
    scalars = scalars[order]
    edges = np.flatnonzero(np.diff(scalars["name_id"])) + 1
    for part in np.split(scalars, edges) if len(scalars) else []:
        name = source.name_of(int(part["name_id"][0]))
        if name is None:
            source.lost += len(part)
            continue
        series = JournalSeries.from_name(name)
        batch.scalars.append(
            ScalarColumn(
                process,
                name if series is None else series.metric,
                np.ascontiguousarray(part["time_ns"]),
                np.ascontiguousarray(part["step"]),
                np.ascontiguousarray(part["value"]),
                series,
            )
        )
    for kind in _MARKS:
        marker, begin = _MARKS[kind]
        for record in records[records["kind"] == kind]:
            step = int(record["step"])
            name = source.name_of(int(record["name_id"]))
            if name is None:
                source.lost += 1
                continue
            batch.spans.append(
                SpanEvent(
                    process,
                    marker,
                    name,
                    None if step == NO_STEP else step,
                    int(record["time_ns"]),
                    begin,
                    int(record["value"]),
                )
            )
    batch.spans.sort(key=lambda event: event.monotonic_ns)
    batch.dropped += int(records["value"][records["kind"] == RecordKind.DROPPED].sum())
