"""Points of a store in the order they were written, some at a time: for whoever copies them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Row, TextClause, text

from radt.errors import StoreError
from radt.store import chunks
from radt.store.engine import reader_engine, translated_errors
from radt.store.records import Samples
from radt.store.tables import Value

_POINT_COUNTS = text(
    "SELECT series_no, SUM(point_count) FROM chunk WHERE run_id = :run_id GROUP BY series_no"
)
#: Chunks in the order they were written, from the one that holds point number ``skip`` on. One
#: statement, hence one snapshot: compaction may change the chunks meanwhile, never the order.
_CHUNKS_AFTER = text(
    f"SELECT {chunks.DATA_COLUMNS}, before FROM ("  # noqa: S608 - our own names
    "SELECT chunk_no AS no, SUM(point_count) OVER (ORDER BY chunk_no) - point_count AS before "
    "FROM chunk WHERE run_id = :run_id AND series_no = :series_no) AS counted "
    "JOIN chunk ON run_id = :run_id AND series_no = :series_no AND chunk_no = counted.no "
    "WHERE before + point_count > :skip AND before < :stop ORDER BY chunk_no"
)


class PointReader:
    """Reads points for delivery; what else delivery needs, `StoreReader` has. Thread-safe.

    Raises:
        StoreError: There is no store.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        if not self.path.exists():
            raise StoreError(
                f"there is no store {self.path}", "Give the folder of an experiment that has run"
            )
        self._engine = reader_engine(self.path)

    def close(self) -> None:
        self._engine.dispose()

    def point_counts(self, run_id: str) -> dict[int, int]:
        """Number of points by series number, from chunk headers alone."""
        rows = self._rows(_POINT_COUNTS, {"run_id": run_id})
        return {int(row[0]): int(row[1]) for row in rows}

    def points_after(self, run_id: str, series_no: int, skip: int, limit: int) -> Samples:
        """At most ``limit`` points in the order they were written, without the first ``skip``.

        That order never changes, unlike the order by time when a late point comes in between.

        Raises:
            CodecError: A chunk is damaged.
        """
        rows = self._rows(
            _CHUNKS_AFTER,
            {"run_id": run_id, "series_no": series_no, "skip": skip, "stop": skip + limit},
        )
        samples = chunks.joined([chunks.ChunkData._make(row[:-1]).samples() for row in rows])
        first = skip - int(rows[0][-1]) if rows else 0
        return chunks.sliced(samples, first, first + limit)

    def _rows(
        self, statement: TextClause, parameters: Mapping[str, Value]
    ) -> list[Row[*tuple[Any, ...]]]:
        with translated_errors(self.path), self._engine.connect() as connection:
            return list(connection.execute(statement, parameters))
