"""Facts of all runs for the pages, each read once per revision of the store."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import text

from radt.analysis.baselines import Slowdown, read_slowdowns
from radt.analysis.windows import read_times_per_epoch
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import Catalog
from radt.store.reader import StoreReader
from radt.tags import STARRED, YES


def time_per_epoch_s(source: CachedStore) -> Mapping[str, float]:
    """Return the time per epoch of each run that ended one.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember("times per epoch", read_times_per_epoch)


def slowdowns(
    source: CachedStore, catalog: Catalog, params: Mapping[str, Mapping[str, str]]
) -> Mapping[str, Slowdown]:
    """Return the slowdowns of an experiment's runs by id. ``params`` are those of all runs.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> Mapping[str, Slowdown]:
        selection, times_s = catalog.selection, time_per_epoch_s(source)
        return read_slowdowns(reader, selection, selection.starts, times_s, params)

    return source.remember(("slowdowns", catalog.experiment), read)


def slowdowns_of(source: CachedStore, catalog: Catalog, workload_id: str) -> Mapping[str, Slowdown]:
    """Return the slowdowns of a workload's runs by id, reading only the runs required.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> Mapping[str, Slowdown]:
        starts = [
            repeats
            for repeats in catalog.selection.starts
            if any(attempt.runs[0].workload_id == workload_id for attempt in repeats)
        ]
        slowed = read_slowdowns(reader, catalog.selection, starts)
        mine = {
            run_id for run_id, run in catalog.runs.items() if run.record.workload_id == workload_id
        }
        return {run_id: slowdown for run_id, slowdown in slowed.items() if run_id in mine}

    return source.remember(("slowdowns", catalog.experiment, workload_id), read)


_STARRED = text("SELECT run_id FROM tag WHERE key = :key AND value = :yes").bindparams(
    key=STARRED, yes=YES
)


def starred(source: CachedStore) -> frozenset[str]:
    """Return the ids of runs with a star.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> frozenset[str]:
        with reader.snapshot() as connection:
            return frozenset(run_id for (run_id,) in connection.execute(_STARRED))

    return source.remember("starred", read)
