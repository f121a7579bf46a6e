"""A store of which only some runs are seen, so that a report can be of these alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord


class NarrowedReader(StoreReader):
    """Lists no runs but some.

    Args:
        whole: The store; it is opened once more.
        run_ids: Those that are there.

    Raises:
        StoreError: The store cannot be read.
    """

    def __init__(self, whole: StoreReader, run_ids: Collection[str]) -> None:
        super().__init__(whole.address)
        self._run_ids = frozenset(run_ids)

    def runs(
        self,
        *,
        experiment: str | None = None,
        workload_id: str | None = None,
        status: RunStatus | None = None,
        run_ids: Sequence[str] | None = None,
    ) -> list[RunRecord]:
        """As that of `StoreReader`, without the others."""
        found = super().runs(
            experiment=experiment, workload_id=workload_id, status=status, run_ids=run_ids
        )
        return [run for run in found if run.run_id in self._run_ids]
