"""Samples of runs as a pandas DataFrame, and their totals.

Imports only the standard library: ``import radt`` imports this module, and training scripts must
not pay for pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
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
    """Return all samples of a run at full resolution, one row per value.

    Args:
        run: Id of a run (radt's or MLflow's, or its first characters); or where its archive is: a
            folder, a file ``RUN.radt``, ``s3://bucket/prefix``, ``runs:/ID`` for the artifacts of
            an MLflow run; or several of these.
        home: Data folder with the run; if None, the default one (``$RADT_HOME``, else
            ``./radt-data``), then ``$RADT_STORE_URI``.
        store_uri: Postgres store with the run.
        metrics: Return only these metrics.
        rates: Convert counters to rates since the previous reading, bytes to ``By/s``, joules to
            ``W``, across wraps and resets of the counter.

    Returns:
        Columns ``time`` (UTC), ``elapsed_s`` (seconds since the run started), ``metric``,
        ``value``, ``unit``, ``scope``, ``entity``, ``listener``, ``step`` (missing for hardware),
        ``kind`` (``gauge``, or ``counter`` for values that only grow), ``estimated``, ``method``
        (of measurement or estimation), ``wraps_at`` (value at which a counter wraps to 0), sorted
        by series and time; with several runs also ``run_id``, first.

    Raises:
        RunNotFoundError: No run matches, or more than one.
        UsageError: A run has none of the metrics.
        StoreError: The store cannot be read.
        ArchiveError: An archive is missing, incomplete or damaged.
    """
    from radt.store.export import load_frame
    from radt.store.locate import Places, Readers

    several = not isinstance(run, str | Path)
    given: Sequence[str | Path] = [run] if isinstance(run, str | Path) else list(run)
    names = [metrics] if isinstance(metrics, str) else metrics
    with Readers(Places.of(home, store_uri)) as readers, ExitStack() as archives:
        sources = [_source(readers, archives, source, home) for source in given]
        return load_frame(sources, names, with_run_id=several, rates=rates)


def totals(
    run: str | Path, *, home: Path | str | None = None, store_uri: str | None = None
) -> dict[str, float]:
    """Return the exact totals of a run, in contrast to the samples of `load`.

    Args:
        run: One run, as in `load`.
        home: As in `load`.
        store_uri: As in `load`.

    Returns:
        From the kernel's counters of the run's processes: ``cpu_time_s``, ``rss_peak_bytes`` (of
        the largest process), ``io_read_bytes`` and ``io_written_bytes`` (by system calls),
        ``context_switches_voluntary`` and ``_involuntary``, ``page_faults_minor`` and ``_major``.
        From counters of whole devices, including other users: ``gpu_energy_j`` (of the run's
        GPUs), ``cpu_energy_j`` (processors and their memory). Also ``duration_s``. Unknown totals
        are missing; those of the kernel are known when the run has ended. A standalone script that
        was killed has ``cpu_time_s_at_least`` and so on instead, from its last reading; energy that
        was not counted for the whole run is ``gpu_energy_j_at_least`` or ``cpu_energy_j_at_least``.

    Raises:
        RunNotFoundError: No run matches, or more than one.
        StoreError: The store cannot be read.
        ArchiveError: The archive is missing, incomplete or damaged.
    """
    from radt.store.locate import Places, Readers
    from radt.store.totals import read_totals

    with Readers(Places.of(home, store_uri)) as readers, ExitStack() as archives:
        source = _source(readers, archives, run, home)
        return read_totals(source.reader, [source.run])[source.run.run_id]


def _source(
    readers: Readers, archives: ExitStack, run: str | Path, home: Path | str | None
) -> RunSource:
    """Find a run in a store or in an archive."""
    from radt.delivery.archive.locations import is_address
    from radt.home import Home
    from radt.store.export import RunSource

    if is_address(run):
        from radt.delivery.archive.read import as_store

        reader = archives.enter_context(as_store(run, Home.resolve(home).tracking_uri()))
        return RunSource(reader, reader.runs()[0])
    return RunSource(*readers.find_run(str(run)))
