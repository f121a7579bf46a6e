"""Reads journals in tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from radt.journal.reader import JournalBatch, JournalReader
from radt.store.records import JournalCursor


@dataclass
class Found:
    """Everything that a reader has brought, batch after batch."""

    reader: JournalReader
    batches: list[JournalBatch] = field(default_factory=list)

    def read(self, *, final: bool = False, max_records: int = 200_000) -> JournalBatch:
        batch = self.reader.read(final=final, max_records=max_records)
        self.batches.append(batch)
        while batch.more:
            batch = self.reader.read(final=final, max_records=max_records)
            self.batches.append(batch)
        return batch

    def values(self, name: str, process: str = "") -> list[float]:
        return [
            float(value)
            for batch in self.batches
            for column in batch.scalars
            if (column.name, column.process) == (name, process)
            for value in column.values
        ]

    def steps(self, name: str, process: str = "") -> list[int]:
        return [
            int(step)
            for batch in self.batches
            for column in batch.scalars
            if (column.name, column.process) == (name, process)
            for step in column.steps
        ]

    @property
    def processes(self) -> set[str]:
        return {column.process for batch in self.batches for column in batch.scalars}

    @property
    def dropped(self) -> int:
        return sum(batch.dropped for batch in self.batches)

    @property
    def cursors(self) -> dict[str, JournalCursor]:
        return {cursor.journal: cursor for batch in self.batches for cursor in batch.cursors}
