"""Find the chunks of a series that hold what was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from radt.store import chunks
from radt.store.records import Samples

_POINT_COUNTS = text(
    "SELECT chunk_no, point_count FROM chunk "
    "WHERE run_id = :run_id AND series_no = :series_no ORDER BY chunk_no"
)


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """Chunks of one series in the order they were written.

    ``skip`` points of chunk ``skip_in`` are left out. Decoding is apart from reading, so that no
    transaction is open meanwhile.
    """

    chunks: tuple[chunks.ChunkData, ...]
    skip_in: int = -1
    skip: int = 0

    def decode(self) -> Samples:
        """The points, in the order they were written.

        Raises:
            CodecError: A chunk is damaged.
        """
        return chunks.joined(
            [
                chunks.sliced(chunk.samples(), self.skip if chunk.chunk_no == self.skip_in else 0)
                for chunk in self.chunks
            ]
        )


def read_chunks(
    connection: Connection,
    run_id: str,
    series_no: int,
    start_ns: int | None,
    end_ns: int | None,
    skip: int,
) -> StoredChunks:
    """Read the chunks that have points in a time range, without the ``skip`` first points.

    Args:
        connection: One that sees a snapshot: this may take two statements.
        run_id: The run.
        series_no: The series' number in it.
        start_ns: Chunks that end before this time are not read.
        end_ns: Chunks that begin after this time are not read.
        skip: How many of the points that were written first are left out.
    """
    parameters = {"run_id": run_id, "series_no": series_no}
    conditions = ["run_id = :run_id AND series_no = :series_no"]
    if start_ns is not None:
        conditions.append("last_ns >= :start")
        parameters["start"] = start_ns
    if end_ns is not None:
        conditions.append("first_ns <= :end")
        parameters["end"] = end_ns
    first, rest = -1, 0
    if skip > 0:
        first, rest = _chunk_after(connection, run_id, series_no, skip)
        conditions.append("chunk_no >= :first")
        parameters["first"] = first
    statement = text(
        f"SELECT {chunks.DATA_COLUMNS} FROM chunk "  # noqa: S608 - our own names
        f"WHERE {' AND '.join(conditions)} ORDER BY chunk_no"
    )
    rows = connection.execute(statement, parameters).all()
    return StoredChunks(tuple(chunks.ChunkData(*row) for row in rows), first, rest)


def _chunk_after(connection: Connection, run_id: str, series_no: int, skip: int) -> tuple[int, int]:
    """The number of the chunk where reading begins, and how many of its points to leave out."""
    rest, number = skip, -1
    for number, count in connection.execute(
        _POINT_COUNTS, {"run_id": run_id, "series_no": series_no}
    ):
        if rest < count:
            return number, rest
        rest -= count
    return number + 1, 0
