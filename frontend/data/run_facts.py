"""Times per epoch of all runs, those of the same runs alone, and stars, for the table of runs.

The times are those of a report with its default window (`radt.analysis.windows`). All are read for
the whole store with a few statements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from sqlalchemy import text

from radt.analysis.baselines import BaselineKey, keys_of
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.source import Source
from radt.model import MarkerKind, RunStatus
from radt.store.reader import StoreReader
from radt.tags import STARRED, YES

#: The mean of the ended epochs after the first; of the first if it is the only one.
_TIMES = text(
    "SELECT m.run_id, AVG(m.end_ns - m.start_ns) FROM marker m JOIN ("
    "SELECT run_id, MIN(start_ns) AS first_ns, COUNT(*) AS epochs FROM marker "
    "WHERE kind = :kind AND process = '' AND end_ns IS NOT NULL GROUP BY run_id"
    ") f ON f.run_id = m.run_id "
    "WHERE m.kind = :kind AND m.process = '' AND m.end_ns IS NOT NULL "
    "AND (m.start_ns > f.first_ns OR f.epochs = 1) GROUP BY m.run_id"
).bindparams(kind=MarkerKind.EPOCH.value)


def time_per_epoch_s(source: Source) -> Mapping[str, float]:
    """Return the time per epoch of each run that ended one.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> Mapping[str, float]:
        with reader.snapshot() as connection:
            return {run_id: float(mean) / 1e9 for run_id, mean in connection.execute(_TIMES)}

    return source.remember("times per epoch", read)


_STARRED = text("SELECT run_id FROM tag WHERE key = :key AND value = :yes").bindparams(
    key=STARRED, yes=YES
)


def starred(source: Source) -> frozenset[str]:
    """Return the ids of runs with a star.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> frozenset[str]:
        with reader.snapshot() as connection:
            return frozenset(run_id for (run_id,) in connection.execute(_STARRED))

    return source.remember("starred", read)


def times_alone_s(
    source: Source, runs: Sequence[RunEntry], params: Mapping[str, Mapping[str, str]]
) -> Mapping[str, float]:
    """Return for each run the time per epoch of the same run alone, if there is another one.

    It is the mean of the finished runs without neighbours that did the same work on the same
    hardware (`radt.analysis.baselines`), of those on an undivided device if there are any.

    Raises:
        StoreError: The store cannot be read.
    """
    times_s = time_per_epoch_s(source)
    by_experiment: dict[str, list[RunEntry]] = {}
    for run in runs:
        by_experiment.setdefault(run.record.experiment, []).append(run)
    found: dict[str, float] = {}
    for of_experiment in by_experiment.values():
        records = [run.record for run in of_experiment]
        keys = source.remember(
            ("baseline keys", records[0].experiment),
            lambda reader, records=records: keys_of(reader, records, params),  # type: ignore[misc]
        )
        alone: dict[tuple[BaselineKey, bool], dict[str, float]] = {}
        for run in of_experiment:
            is_baseline = run.alone and not run.profiled and run.parent is None
            if is_baseline and run.record.status is RunStatus.FINISHED and run.run_id in times_s:
                place = keys[run.run_id], bool(run.record.collocation.strip("-"))
                alone.setdefault(place, {})[run.run_id] = times_s[run.run_id]
        for run in of_experiment:
            key = keys[run.run_id]
            same = alone.get((key, False)) or alone.get((key, True)) or {}
            if same and run.run_id not in same:
                found[run.run_id] = fmean(same.values())
    return found
