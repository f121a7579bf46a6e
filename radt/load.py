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
    run: str | Sequence[str],
    *,
    home: Path | str | None = None,
    metrics: str | Sequence[str] | None = None,
    rates: bool = False,
) -> pd.DataFrame:
    """Everything that was measured in a run, one row a value, at full resolution.

    Args:
        run: Id of a run (radt's or MLflow's, or its first characters), or several.
        home: The data folder; ``$RADT_HOME``, else ``./radt-data``, if None.
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
    """
    from radt.home import Home
    from radt.store.frames import load_frame
    from radt.store.reader import StoreReader

    ids = [run] if isinstance(run, str) else list(run)
    names = [metrics] if isinstance(metrics, str) else metrics
    with StoreReader(Home.resolve(home).store_path) as reader:
        runs = [reader.find_run(one) for one in ids]
        return load_frame(reader, runs, names, with_run_id=not isinstance(run, str), rates=rates)
