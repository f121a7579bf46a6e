"""Metrics of all runs as columns, with one number per run (`radt.analysis.metric_columns`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from radt.analysis.metric_columns import MetricColumn, MetricName, read_columns, read_names
from radt.frontend.data.cached_store import CachedStore


def metric_names(source: CachedStore) -> Sequence[MetricName]:
    """Return all metrics of the store, those that scripts logged first.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember("metric names", read_names)


def metric_columns(source: CachedStore, metrics: Iterable[str]) -> Mapping[str, MetricColumn]:
    """Return the columns of metrics by name, without those that have no values in any run.

    They are read once per revision of the store, all missing ones with a single statement.

    Raises:
        StoreError: The store cannot be read.
    """
    known: dict[str, MetricColumn | None] = source.remember("metric columns", lambda _: {})
    wanted = list(dict.fromkeys(metrics))
    if missing := [metric for metric in wanted if metric not in known]:
        found = source.remember(
            ("metric columns", *missing), lambda reader: read_columns(reader, missing)
        )
        known |= {metric: found.get(metric) for metric in missing}
    return {metric: column for metric in wanted if (column := known[metric]) is not None}
