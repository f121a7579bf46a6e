"""Samples of runs as a pandas DataFrame.

Nothing but the standard library is imported here: ``import radt`` imports this module, and
training scripts must not pay for pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def load(
    run: str | Path | Sequence[str | Path],
    *,
    home: Path | str | None = None,
    store_uri: str | None = None,
    metrics: str | Sequence[str] | None = None,
    rates: bool = False,
) -> pd.DataFrame:
    """Everything that was measured in a run, one row a value, at full resolution.

    Args:
        run: Id of a run (radt's or MLflow's, or its first characters); or where its archive is: a
            folder, ``s3://bucket/prefix``, ``runs:/ID`` for the artifacts of an MLflow run; or
            several of these.
        home: The data folder to look for the run in; the usual one (``$RADT_HOME``, else
            ``./radt-data``), then ``$RADT_STORE_URI``, if None.
        store_uri: The Postgres store to look for it in.
        metrics: Only these metrics.
        rates: Counters as rates since the reading before, bytes as ``By/s``, joules as ``W``: they
            survive wraps and restarts of the counter.

    Returns:
        Columns ``time`` (UTC), ``elapsed_s`` (seconds since the run started), ``metric``,
        ``value``, ``unit``, ``scope``, ``entity``, ``listener``, ``step`` (missing for hardware),
        ``kind`` (``gauge``, or ``counter`` for what only grows), ``estimated``, ``method`` (how it
        was measured, or by which rule estimated), ``wraps_at`` (where a counter starts again from
        0), by series and time; with several runs also ``run_id``, first.

    Raises:
        RunNotFoundError: No run matches, or more than one.
        UsageError: A run has none of the metrics.
        StoreError: The store cannot be read.
        ArchiveError: An archive is not there, not whole, or damaged.
    """
    from radt.delivery.archive.locations import is_address
    from radt.home import Home
    from radt.store.export import RunSource, load_frame
    from radt.store.locate import Places, Readers

    several = not isinstance(run, str | Path)
    given: Sequence[str | Path] = [run] if isinstance(run, str | Path) else list(run)
    names = [metrics] if isinstance(metrics, str) else metrics
    sources = []
    with Readers(Places.of(home, store_uri)) as readers:
        for source in given:
            if is_address(source):
                from radt.delivery.archive.read import Archive

                archive = Archive.open(source, Home.resolve(home).tracking_uri())
                record = archive.manifest.run
                sources.append(RunSource(record, archive.manifest.series, archive.samples_of))
            else:
                sources.append(RunSource.of_store(*readers.find_run(str(source))))
        return load_frame(sources, names, with_run_id=several, rates=rates)
