"""Find the chunks of a series that hold what was asked for: a range of time, or the next points.

Reading is apart from decoding, so that no transaction is open meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from radt.store import chunks
from radt.store.decoding import decoded
from radt.store.fetching import fetch
from radt.store.records import Samples
from radt.store.tables import Value

_COUNTS = text(
    f"SELECT series_no, SUM({chunks.STORED_COUNT}) "  # noqa: S608 - our own names
    "FROM chunk WHERE run_id = :run_id GROUP BY series_no"
)
#: Chunks in the order they were written, from the one that holds point number ``skip`` on.
_AFTER = text(
    f"SELECT {chunks.DATA_COLUMNS}, before FROM ("  # noqa: S608 - our own names
    f"SELECT chunk_no AS no, SUM({chunks.STORED_COUNT}) OVER (ORDER BY chunk_no) "
    f"- {chunks.STORED_COUNT} AS before, {chunks.STORED_COUNT} AS stored "
    "FROM chunk WHERE run_id = :run_id AND series_no = :series_no) AS counted "
    "JOIN chunk ON run_id = :run_id AND series_no = :series_no AND chunk_no = counted.no "
    "WHERE before + stored > :skip AND before < :stop ORDER BY chunk_no"
)


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """Chunks of one series in the order they were written; ``before`` points precede them."""

    chunks: tuple[chunks.ChunkData, ...]
    before: int = 0

    def decode(self) -> Samples:
        """The points, in the order they were written.

        Raises:
            CodecError: A chunk is damaged.
        """
        return decoded(self.chunks)


def point_counts(connection: Connection, run_id: str) -> dict[int, int]:
    """Number of points by series number, from chunk headers alone."""
    rows = connection.execute(_COUNTS, {"run_id": run_id})
    return {int(number): int(count) for number, count in rows}


def chunks_between(
    connection: Connection, run_id: str, series_no: int, start_ns: int | None, end_ns: int | None
) -> StoredChunks:
    """The chunks that have points from ``start_ns`` to ``end_ns``; None sets no limit."""
    parameters: dict[str, Value] = {"run_id": run_id, "series_no": series_no}
    conditions = ["run_id = :run_id AND series_no = :series_no"]
    if start_ns is not None:
        conditions.append("last_ns >= :start")
        parameters["start"] = start_ns
    if end_ns is not None:
        conditions.append("first_ns <= :end")
        parameters["end"] = end_ns
    statement = text(
        f"SELECT {chunks.DATA_COLUMNS} FROM chunk "  # noqa: S608 - our own names
        f"WHERE {' AND '.join(conditions)} ORDER BY chunk_no"
    )
    rows = fetch(connection, statement, parameters, chunks.DATA_KINDS)
    return StoredChunks(tuple(map(chunks.ChunkData._make, rows)))


def chunks_after(
    connection: Connection, run_id: str, series_no: int, skip: int, limit: int
) -> StoredChunks:
    """The chunks that hold ``limit`` points behind the ``skip`` ones that were written first."""
    parameters: dict[str, Value] = {
        "run_id": run_id,
        "series_no": series_no,
        "skip": skip,
        "stop": skip + limit,
    }
    rows = fetch(connection, _AFTER, parameters, (*chunks.DATA_KINDS, int))
    found = tuple(chunks.ChunkData._make(row[:-1]) for row in rows)
    return StoredChunks(found, int(rows[0][-1] or 0) if rows else 0)
