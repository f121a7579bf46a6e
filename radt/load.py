"""Samples of runs as a pandas DataFrame, and their totals.

Nothing but the standard library is imported here: ``import radt`` imports this module, and
training scripts must not pay for pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from radt.store.export import RunSource
    from radt.store.locate import Readers


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
    from radt.store.export import load_frame
    from radt.store.locate import Places, Readers

    several = not isinstance(run, str | Path)
    given: Sequence[str | Path] = [run] if isinstance(run, str | Path) else list(run)
    names = [metrics] if isinstance(metrics, str) else metrics
    with Readers(Places.of(home, store_uri)) as readers:
        sources = [_source(readers, source, home) for source in given]
        return load_frame(sources, names, with_run_id=several, rates=rates)


def totals(
    run: str | Path, *, home: Path | str | None = None, store_uri: str | None = None
) -> dict[str, float]:
    """What a run used in all: exact, where the curves of `load` are sampled.

    Args:
        run: One run, as in `load`.
        home: As in `load`.
        store_uri: As in `load`.

    Returns:
        From the kernel's accounts of the run's processes: ``cpu_time_s``, ``rss_peak_bytes`` (of
        the largest process), ``io_read_bytes`` and ``io_written_bytes`` (by system calls),
        ``context_switches_voluntary`` and ``_involuntary``, ``page_faults_minor`` and ``_major``.
        From counters of whole devices, whoever used them meanwhile: ``gpu_energy_j`` (of the run's
        GPUs), ``cpu_energy_j`` (processors and their memory). And ``duration_s``. What is not
        known is missing: what the kernel counted is known once the run has ended. A script of its
        own that was killed has ``cpu_time_s_at_least`` and the like instead: the last reading.

    Raises:
        RunNotFoundError: No run matches, or more than one.
        StoreError: The store cannot be read.
        ArchiveError: The archive is not there, not whole, or damaged.
    """
    from radt.store.locate import Places, Readers
    from radt.store.totals import is_of_totals, totals_of

    with Readers(Places.of(home, store_uri)) as readers:
        source = _source(readers, run, home)
        series = [record for record in source.series if is_of_totals(record)]
        return totals_of(source.run, zip(series, source.read(series), strict=True))


def _source(readers: Readers, run: str | Path, home: Path | str | None) -> RunSource:
    """Find a run in a store or in an archive."""
    from radt.delivery.archive.locations import is_address
    from radt.home import Home
    from radt.store.export import RunSource

    if is_address(run):
        from radt.delivery.archive.read import Archive

        archive = Archive.open(run, Home.resolve(home).tracking_uri())
        return RunSource(archive.manifest.run, archive.manifest.series, archive.samples_of)
    return RunSource.of_store(*readers.find_run(str(run)))
