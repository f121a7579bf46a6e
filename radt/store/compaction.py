"""Merge the loose chunks of a series into compressed ones.

Every flush adds one small raw chunk a series. They are merged, 60 at a time, into one compressed
chunk that stays loose until it is full; the order of the points never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection, text

from radt.store import chunks
from radt.store.records import Samples

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
        """Whether merging them is due."""
        return self.chunks >= chunks.MAX_LOOSE_CHUNKS or self.points >= chunks.POINTS_PER_CHUNK


def loose_series(connection: Connection, run_id: str) -> dict[int, Loose]:
    """The loose chunks of a run by series number."""
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

    Full chunks are sealed; the rest stays loose unless ``seal_rest``. Calls for several series of
    the run within one transaction share ``times``.

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
    # Loose chunks are the last of their series, so what is free begins where they began.
    first_number = int(connection.execute(_NEXT_NUMBER, key).scalar_one())
    rows = chunks.compacted_rows(
        run_id, series_no, first_number, chunks.joined(parts), times, seal_rest=seal_rest
    )
    # A few at a time, so that a batch of many million points is not in memory twice.
    while group := list(islice(rows, 64)):
        chunks.insert(connection, group)
