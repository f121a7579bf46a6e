"""Copy a run from one store to another: everything after a position, in batches.

The points of a series are numbered in the order of writing, which never changes, and all other rows
have natural keys. The data of a run in a target is therefore described by a `Position`, and adding
everything after it (`changes`) is idempotent: a copy may be interrupted anywhere and continues from
the target's position. Copying a run of any length needs the memory of one batch.

Targets: a store (`radt.store.applying`), a file that travels (`radt.store.bundle`), and the store
in Postgres (`radt.delivery.postgres`), whose code is separate because it is written for slow links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self, TypeAlias, TypeVar

from sqlalchemy import Connection, bindparam, text

from radt.errors import CodecError, RunNotFoundError, StoreError
from radt.model import SOFTWARE, MarkerKind
from radt.store import chunks
from radt.store.points import chunks_after
from radt.store.reader import StoreReader
from radt.store.records import (
    MARKERS_OF_A_NODE,
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.tables import (
    CURSORS,
    GAPS,
    LEDGERS,
    MARKERS,
    RUNS,
    SERIES,
    WORKLOADS,
    RecordTable,
    find,
    of_runs,
)

#: Approximate number of points in a batch; a point takes 24 bytes.
BATCH_POINTS = 500_000
_SERIES_AT_A_TIME = 200
#: Number of markers or gaps in a block.
ROWS_AT_A_TIME = 5000
#: Approximate number of points that take as much memory as such a row.
_POINTS_PER_ROW = 20
#: Databases limit the parameters of one statement.
_NUMBERS_PER_STATEMENT = 500

_REVISION = text(
    "SELECT revision, (SELECT COUNT(*) FROM pruned WHERE pruned.run_id = run.run_id) "
    "FROM run WHERE run_id = :run_id"
)
_COUNTS = text("SELECT series_no, stored_count FROM series_summary WHERE run_id = :run_id")
_TEXTS = {
    name: text(f"SELECT key, value FROM {name} WHERE run_id = :run_id")  # noqa: S608 - our own
    for name in ("param", "tag")
}
_NEW_MARKERS = text(
    f"{MARKERS.select} WHERE run_id = :run_id AND marker_no >= :first AND marker_no < :stop "
    "ORDER BY marker_no LIMIT :limit"
)
_SOME_MARKERS = text(
    f"{MARKERS.select} WHERE run_id = :run_id AND marker_no IN :numbers"
).bindparams(bindparam("numbers", expanding=True))
_NEXT_MARKER = text(
    "SELECT MIN(marker_no) FROM marker WHERE run_id = :run_id AND marker_no >= :first"
)
_NODES = of_runs(
    "SELECT run_id, marker_no / :size, MAX(marker_no) + 1 FROM marker "
    "WHERE run_id IN :ids GROUP BY 1, 2",
    size=MARKERS_OF_A_NODE,
)
_OPEN = of_runs(
    "SELECT run_id, marker_no FROM marker "
    "WHERE run_id IN :ids AND end_ns IS NULL AND kind <> 'event'"
)
RecordT = TypeVar("RecordT")


class PrunedError(StoreError):
    """The source no longer has all of the run, so the run cannot be copied."""


@dataclass(frozen=True, slots=True)
class Position:
    """The part of a run that a target has.

    Attributes:
        points: Number of points by series number.
        markers: The number after the last marker, by the number of the node that set them
            (`radt.store.records.MARKERS_OF_A_NODE`).
        open_markers: Spans without an end, which will change.
        revision: The run's revision in the source up to which the target has everything else: at
            the same revision there is nothing to add. -1 if unknown.
    """

    points: Mapping[int, int] = field(default_factory=dict)
    markers: Mapping[int, int] = field(default_factory=dict)
    open_markers: frozenset[int] = frozenset()
    revision: int = -1

    def covers(self, other: Position) -> bool:
        """Return whether a target at this position has everything up to the other one."""
        return (
            all(self.points.get(number, 0) >= count for number, count in other.points.items())
            and all(self.markers.get(node, 0) >= last for node, last in other.markers.items())
            # A marker may have ended without any new point or marker.
            and all(
                number in other.open_markers
                or number >= other.markers.get(number // MARKERS_OF_A_NODE, 0)
                for number in self.open_markers
            )
        )

    def after(self, pieces: Iterable[Piece], markers: Iterable[MarkerRecord]) -> Position:
        """Return the position after further points and markers."""
        points = {**self.points, **{piece.series_no: piece.stop for piece in pieces}}
        next_markers, opened = dict(self.markers), set(self.open_markers)
        for marker in markers:
            number, node = marker.marker_no, marker.marker_no // MARKERS_OF_A_NODE
            next_markers[node] = max(next_markers.get(node, 0), number + 1)
            opened.discard(number)
            if is_open(marker):
                opened.add(number)
        return Position(points, next_markers, frozenset(opened))

    def to_json(self) -> dict[str, Any]:
        """Return the position as a JSON value."""
        return {
            "points": {str(number): count for number, count in self.points.items()},
            "markers": {str(node): number for node, number in self.markers.items()},
            "open_markers": sorted(self.open_markers),
            "revision": self.revision,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Parse the value of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: The value is invalid.
        """
        return cls(
            {int(number): int(count) for number, count in data["points"].items()},
            {int(node): int(number) for node, number in data["markers"].items()},
            frozenset(int(number) for number in data["open_markers"]),
            int(data["revision"]),
        )


@dataclass(frozen=True, slots=True)
class RunRows:
    """All rows of a run except points, markers and gaps, as of one moment.

    Attributes:
        journals: Positions up to which the journals of its processes had been read; points before
            them are included in `points`.
        points: Number of points by series number that the source had at that moment.
        revision: The run's revision in the source.
    """

    run: RunRecord
    workload: WorkloadRecord | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    series: Sequence[SeriesRecord] = ()
    ledgers: Sequence[LedgerRecord] = ()
    journals: Sequence[JournalCursor] = ()
    points: Mapping[int, int] = field(default_factory=dict)
    revision: int = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """Points of one series from number ``first`` on, in the order of writing."""

    series_no: int
    first: int
    samples: Samples

    @property
    def stop(self) -> int:
        """Return the number after its last point."""
        return self.first + len(self.samples)


CopiedItem: TypeAlias = Piece | MarkerRecord | GapRecord


@dataclass(frozen=True, slots=True)
class Batch:
    """Data that is written to a target in one transaction.

    Attributes:
        rows: The same in all batches of one call of `changes`.
        until: The target's position afterwards.
        pieces: New points.
        markers: Markers that are new, or were open.
        gaps: Gaps; each call of `changes` yields all of them.
        is_first: Whether this is the first batch of the call.
        is_last: Whether this is the last batch, after which the target has all of `rows`.
        damaged: Reasons why series cannot be read in the source, by number. They are left out.
    """

    rows: RunRows
    until: Position
    pieces: Sequence[Piece] = ()
    markers: Sequence[MarkerRecord] = ()
    gaps: Sequence[GapRecord] = ()
    is_first: bool = True
    is_last: bool = True
    damaged: Mapping[int, str] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """Return the id of the batch's run."""
        return self.rows.run.run_id

    @property
    def is_complete(self) -> bool:
        """Return whether the target has all of an ended run after this batch."""
        return self.is_last and self.rows.run.status.ended and not self.damaged


def changes(
    source: StoreReader, run_id: str, since: Position, *, samples: bool = True
) -> Iterator[Batch]:
    """Yield the data of a run after a position; nothing if the source has the same revision.

    If a target has more points of a series than the source, it keeps them.

    Args:
        source: The store that has the run.
        run_id: The run.
        since: The target's position.
        samples: Whether to include the points and ledgers of listeners.

    Raises:
        RunNotFoundError: The source does not have the run.
        PrunedError: The run was pruned in the source.
        StoreError: The source cannot be read.
    """
    with source.snapshot() as connection:
        rows = _rows(connection, run_id)
    if rows.revision == since.revision:
        return
    if not samples:
        rows = replace(rows, ledgers=(), revision=-1)  # not everything is copied
    damaged: dict[int, str] = {}
    gaps = source.blocks(GAPS, run_id, ROWS_AT_A_TIME)
    blocks: Iterator[Sequence[CopiedItem]] = chain(
        _markers(source, run_id, since),
        gaps,
        _points(source, rows, since, damaged, samples=samples),
    )
    yield from batched(rows, since, blocks, damaged)


def batched(
    rows: RunRows,
    since: Position,
    blocks: Iterable[Sequence[CopiedItem]],
    damaged: Mapping[int, str],
) -> Iterator[Batch]:
    """Group blocks after a position into batches; ``damaged`` may grow meanwhile."""
    items: list[CopiedItem] = []
    weight, is_first = 0, True
    for block in blocks:
        if weight >= BATCH_POINTS:
            batch = _batch(rows, since, items, damaged, is_first=is_first, is_last=False)
            since, items, weight, is_first = batch.until, [], 0, False
            yield batch
            del batch  # not in memory while the next one grows
        items += block
        weight += sum(len(i.samples) if isinstance(i, Piece) else _POINTS_PER_ROW for i in block)
    yield _batch(rows, since, items, damaged, is_first=is_first, is_last=True)


def _batch(
    rows: RunRows,
    since: Position,
    items: Sequence[CopiedItem],
    damaged: Mapping[int, str],
    *,
    is_first: bool,
    is_last: bool,
) -> Batch:
    pieces = [item for item in items if isinstance(item, Piece)]
    markers = [item for item in items if isinstance(item, MarkerRecord)]
    gaps = [item for item in items if isinstance(item, GapRecord)]
    revision = rows.revision if is_last and not damaged else -1
    until = replace(since.after(pieces, markers), revision=revision)
    return Batch(rows, until, pieces, markers, gaps, is_first, is_last, dict(damaged))


def position_of(store: StoreReader, run_id: str) -> Position:
    """Return the position of a run in a store; the empty position for an unknown run.

    Raises:
        StoreError: The store cannot be read.
    """
    with store.snapshot() as connection:
        return positions_in(connection, {run_id: counts_in(connection, run_id)})[run_id]


def positions_in(
    connection: Connection, points: Mapping[str, Mapping[int, int]]
) -> dict[str, Position]:
    """Return the positions of runs with these numbers of points, within a transaction."""
    ids = {"ids": list(points)}
    markers: dict[str, dict[int, int]] = {run_id: {} for run_id in points}
    opened: dict[str, set[int]] = {run_id: set() for run_id in points}
    for run_id, node, number in connection.execute(_NODES, ids):
        markers[run_id][int(node)] = int(number)
    for run_id, number in connection.execute(_OPEN, ids):
        opened[run_id].add(int(number))
    return {
        run_id: Position(counts, markers[run_id], frozenset(opened[run_id]))
        for run_id, counts in points.items()
    }


def counts_in(connection: Connection, run_id: str) -> dict[int, int]:
    """Return the number of points of a run by series number."""
    rows = connection.execute(_COUNTS, {"run_id": run_id})
    return {int(number): int(count) for number, count in rows}


def is_open(marker: MarkerRecord) -> bool:
    """Return whether the marker is a span that has not ended."""
    return marker.end_ns is None and marker.kind is not MarkerKind.EVENT


# -- reading the source ----------------------------------------------------------------------------


def _rows(connection: Connection, run_id: str) -> RunRows:
    key = {"run_id": run_id}

    def records(table: RecordTable[RecordT], order: str) -> list[RecordT]:
        statement = text(f"{table.select} WHERE run_id = :run_id ORDER BY {order}")
        return [table.read(row) for row in connection.execute(statement, key)]

    def texts(name: str) -> dict[str, str]:
        return {str(k): str(value) for k, value in connection.execute(_TEXTS[name], key)}

    run = find(connection, RUNS, run_id)
    if run is None:
        raise RunNotFoundError(f"there is no run {run_id} in the store")
    revision, is_pruned = connection.execute(_REVISION, key).one()
    if is_pruned:
        raise _pruned(run_id)
    return RunRows(
        run=run,
        workload=find(connection, WORKLOADS, run.workload_id),
        params=texts("param"),
        tags=texts("tag"),
        series=records(SERIES, "series_no"),
        ledgers=records(LEDGERS, "listener"),
        journals=records(CURSORS, "journal"),
        points=counts_in(connection, run_id),
        revision=int(revision),
    )


def _markers(source: StoreReader, run_id: str, since: Position) -> Iterator[list[MarkerRecord]]:
    """Yield, in blocks, open markers that have ended since, then new ones."""
    opened = sorted(since.open_markers)
    for start in range(0, len(opened), _NUMBERS_PER_STATEMENT):
        some = opened[start : start + _NUMBERS_PER_STATEMENT]
        with source.snapshot() as connection:
            rows = connection.execute(_SOME_MARKERS, {"run_id": run_id, "numbers": some}).all()
        yield [marker for marker in map(MARKERS.read, rows) if not is_open(marker)]
    node: int | None = 0
    while node is not None:
        first = since.markers.get(node, node * MARKERS_OF_A_NODE)
        following = (node + 1) * MARKERS_OF_A_NODE
        row = {"run_id": run_id, "stop": following, "limit": ROWS_AT_A_TIME}
        while True:
            with source.snapshot() as connection:
                rows = connection.execute(_NEW_MARKERS, row | {"first": first}).all()
            if rows:
                block = [MARKERS.read(each) for each in rows]
                yield block
                first = block[-1].marker_no + 1
            if len(rows) < ROWS_AT_A_TIME:
                break
        with source.snapshot() as connection:
            number = connection.execute(_NEXT_MARKER, row | {"first": following}).scalar()
        node = None if number is None else int(number) // MARKERS_OF_A_NODE


def _points(
    source: StoreReader, rows: RunRows, since: Position, damaged: dict[int, str], *, samples: bool
) -> Iterator[list[Piece]]:
    """Yield points in blocks; the series of a listener, which share their times, come together."""
    groups: dict[str, dict[int, int]] = {}
    for record in rows.series:
        number = record.series_no
        count = since.points.get(number, 0)
        if count < rows.points.get(number, 0) and (samples or record.listener == SOFTWARE):
            groups.setdefault(record.listener, {})[number] = count
    for group in groups.values():
        for start in range(0, len(group), _SERIES_AT_A_TIME):
            done = dict(list(group.items())[start : start + _SERIES_AT_A_TIME])
            limit = _limit(len(done))
            while done:
                block = list(_block(source, rows, done, limit, damaged))
                yield block
                done = {p.series_no: p.stop for p in block if p.stop < rows.points[p.series_no]}


def _block(
    source: StoreReader, rows: RunRows, done: Mapping[int, int], limit: int, damaged: dict[int, str]
) -> Iterator[Piece]:
    run_id = rows.run.run_id
    # One snapshot, so that series of a listener have equally many points.
    with source.snapshot() as connection:
        stored = {n: chunks_after(connection, run_id, n, count, limit) for n, count in done.items()}
    for number, first in done.items():
        try:
            samples = stored[number].decode()
        except CodecError as error:
            damaged[number] = error.message
            continue
        samples = samples[: min(limit, rows.points[number] - first)]
        if not len(samples):
            raise _pruned(run_id)  # during the copy
        yield Piece(number, first, samples)


def _limit(series_count: int) -> int:
    """Return the number of points to read of each of ``series_count`` series: whole chunks."""
    full = chunks.POINTS_PER_CHUNK
    return full * max(1, BATCH_POINTS // series_count // full)


def _pruned(run_id: str) -> PrunedError:
    return PrunedError(
        f"run {run_id} was pruned; the store no longer has all of it",
        "Restore it first: import its archive (`radt import`)",
    )
