"""The growing end of a series: merge its loose chunks, and read only new points.

Every flush adds one small raw chunk per series. These are merged, 60 at a time, into a compressed
chunk that stays loose until it is full; the order of the points never changes. Sealed chunks do not
change, so a reader remembers its number of points and the last sealed chunk it has seen, and reads
no more as the series grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, text

from radt.model import NO_STEP
from radt.store import chunks
from radt.store.chunks import decoded
from radt.store.points import fetch
from radt.store.records import Samples
from radt.store.tables import Value

_COUNT_LOOSE = text(
    "SELECT series_no, COUNT(*), SUM(point_count) FROM chunk "
    "WHERE run_id = :run_id AND sealed = 0 GROUP BY series_no"
)
_READ_LOOSE = text(
    f"SELECT {chunks.DATA_COLUMNS} FROM chunk "  # noqa: S608 - our own names
    "WHERE run_id = :run_id AND series_no = :series_no AND sealed = 0 ORDER BY chunk_no"
)
_DELETE_LOOSE = text(
    "DELETE FROM chunk WHERE run_id = :run_id AND series_no = :series_no AND sealed = 0"
)
_NEXT_NUMBER = text(
    "SELECT COALESCE(MAX(chunk_no) + 1, 0) FROM chunk "
    "WHERE run_id = :run_id AND series_no = :series_no"
)


@dataclass(slots=True)
class Loose:
    """Loose chunks of one series."""

    chunks: int = 0
    points: int = 0

    @property
    def many(self) -> bool:
        """Return whether merging them is due."""
        return self.chunks >= chunks.MAX_LOOSE_CHUNKS or self.points >= chunks.POINTS_PER_CHUNK


def loose_series(connection: Connection, run_id: str) -> dict[int, Loose]:
    """Return the loose chunks of a run by series number."""
    rows = connection.execute(_COUNT_LOOSE, {"run_id": run_id})
    return {number: Loose(count, points) for number, count, points in rows}


def merge_loose(
    connection: Connection,
    run_id: str,
    series_no: int,
    times: chunks.SharedTimes,
    more: Samples | None = None,
    *,
    seal_rest: bool = False,
) -> None:
    """Replace the loose chunks of a series, and append ``more`` points.

    Full chunks are sealed; the rest stays loose unless ``seal_rest``. Calls for several series of a
    run share ``times`` within one transaction.

    Raises:
        CodecError: A loose chunk is damaged.
    """
    key = {"run_id": run_id, "series_no": series_no}
    loose = [chunks.ChunkData(*row) for row in connection.execute(_READ_LOOSE, key)]
    parts = [chunk.samples() for chunk in loose]
    if more is not None:
        parts.append(more)
    if loose:
        connection.execute(_DELETE_LOOSE, key)
    # Loose chunks are the last of their series, so their numbers can be reused from the first on.
    first_number = int(connection.execute(_NEXT_NUMBER, key).scalar_one())
    rows = chunks.compacted_rows(
        run_id, series_no, first_number, chunks.joined(parts), times, seal_rest=seal_rest
    )
    # A few at a time, so that a batch of many million points is not in memory twice.
    while group := list(islice(rows, 64)):
        chunks.insert(connection, group)


#: Points read at a time.
PAGE_POINTS = 500_000

_OF_SERIES = "FROM chunk WHERE run_id = :run_id AND series_no = :series_no"
_HEADERS = text(
    f"SELECT chunk_no, sealed, {chunks.STORED_COUNT}, point_count, finite_count, first_ns, "
    f"last_ns, value_min, value_max, value_sum {_OF_SERIES} AND chunk_no >= :first "
    "ORDER BY chunk_no"
)
_DATA = text(
    f"SELECT {chunks.DATA_COLUMNS} {_OF_SERIES} "
    "AND chunk_no BETWEEN :first AND :last ORDER BY chunk_no"
)


_FIRST = text(f"SELECT {chunks.DATA_COLUMNS} {_OF_SERIES} ORDER BY chunk_no LIMIT 1")
_NEWEST = text(
    "SELECT run_id, MAX(last_ns) FROM chunk WHERE sealed = 0 AND run_id IN :ids GROUP BY run_id"
).bindparams(bindparam("ids", expanding=True))


class Header(NamedTuple):
    """Header of a chunk; ``stored`` is the number of its stored points."""

    chunk_no: int
    sealed: int
    stored: int
    point_count: int
    finite_count: int
    first_ns: int
    last_ns: int
    value_min: float | None
    value_max: float | None
    value_sum: float | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Position up to which a series was read.

    ``seen`` points were read, ``before`` of them from sealed chunks up to ``chunk_no`` (-1 for
    none), whose last point is at ``last_ns``.
    """

    seen: int = 0
    before: int = 0
    chunk_no: int = -1
    last_ns: int = 0


@dataclass(frozen=True, slots=True)
class Growth:
    """New points: those of the chunks except the first ``skip``.

    ``anew``: all points from the first on, because earlier ones have changed. ``more``: there are
    more to read.
    """

    chunks: tuple[chunks.ChunkData, ...]
    skip: int
    mark: Mark
    anew: bool = False
    more: bool = False

    def decode(self) -> Samples:
        """Return the points, in the order they were written.

        Raises:
            CodecError: A chunk is damaged.
        """
        return chunks.sliced(decoded(self.chunks), self.skip)


def headers(connection: Connection, run_id: str, series_no: int, first: int = 0) -> list[Header]:
    """Return the headers of a series' chunks from number ``first`` on, in the order of writing."""
    row = {"run_id": run_id, "series_no": series_no, "first": first}
    return [Header._make(listed) for listed in connection.execute(_HEADERS, row)]


def has_steps(connection: Connection, run_id: str, series_no: int) -> bool:
    """Return whether a series has steps, judging by its first chunk.

    A script that gives no steps has a column of them all the same, without any.

    Raises:
        CodecError: The chunk is damaged.
    """
    row: dict[str, Value] = {"run_id": run_id, "series_no": series_no}
    for first in fetch(connection, _FIRST, row, chunks.DATA_KINDS):
        steps = chunks.ChunkData._make(first).samples().steps
        return steps is not None and bool((steps != NO_STEP).any())
    return False


def newest(connection: Connection, run_ids: Sequence[str]) -> dict[str, int]:
    """Return the time of each run's newest sample if it is in a loose chunk."""
    rows = connection.execute(_NEWEST, {"ids": list(run_ids)})
    return {str(run_id): int(last_ns) for run_id, last_ns in rows}


def grown(
    connection: Connection,
    run_id: str,
    series_no: int,
    mark: Mark,
    page_points: int = PAGE_POINTS,
) -> Growth:
    """Return the points after a mark, at most about ``page_points``."""
    listed = headers(connection, run_id, series_no, max(mark.chunk_no, 0))
    anew = False
    if mark.chunk_no >= 0:
        known = listed.pop(0) if listed and listed[0].chunk_no == mark.chunk_no else None
        anew = known is None or not known.sealed or known.last_ns != mark.last_ns
    if anew or mark.before + sum(header.stored for header in listed) < mark.seen:
        anew, mark = True, Mark()
        listed = headers(connection, run_id, series_no)
    return _read(connection, run_id, series_no, mark, listed, page_points, anew=anew)


def _read(
    connection: Connection,
    run_id: str,
    series_no: int,
    mark: Mark,
    listed: list[Header],
    page_points: int,
    *,
    anew: bool,
) -> Growth:
    before, start = mark.before, mark.before
    seen, chunk_no, last_ns = mark.seen, mark.chunk_no, mark.last_ns
    wanted: list[Header] = []
    more = False
    for header in listed:
        end = before + header.stored
        if end > mark.seen:
            if not wanted:
                start = before
            elif end - mark.seen > page_points:
                more = True
                break
            wanted.append(header)
            seen = end
        before = end
    sealed_before = mark.before
    for header in listed:
        if not header.sealed or (more and header.chunk_no > wanted[-1].chunk_no):
            break
        sealed_before += header.stored
        chunk_no, last_ns = header.chunk_no, header.last_ns
    if not wanted:
        return Growth((), 0, Mark(mark.seen, sealed_before, chunk_no, last_ns), anew)
    row: dict[str, Value] = {
        "run_id": run_id,
        "series_no": series_no,
        "first": wanted[0].chunk_no,
        "last": wanted[-1].chunk_no,
    }
    rows = fetch(connection, _DATA, row, chunks.DATA_KINDS)
    read = tuple(map(chunks.ChunkData._make, rows))
    return Growth(read, mark.seen - start, Mark(seen, sealed_before, chunk_no, last_ns), anew, more)
