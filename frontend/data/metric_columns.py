"""Metrics of all runs as columns, one number a run (`radt.store.metric_columns`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from radt.frontend.data.source import Source
from radt.store.metric_columns import MetricColumn, MetricName, read_columns, read_names
from radt.store.reader import StoreReader


def metric_names(source: Source) -> Sequence[MetricName]:
    """Return all metrics of the store, those that scripts logged first.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> Sequence[MetricName]:
        with reader.snapshot() as connection:
            return read_names(connection)

    return source.remember("metric names", read)


def metric_columns(source: Source, metrics: Iterable[str]) -> Mapping[str, MetricColumn]:
    """Return the columns of metrics by name; metrics without values in any run are left out.

    They are read once a revision of the store, those that are missing with one statement.

    Raises:
        StoreError: The store cannot be read.
    """
    known: dict[str, MetricColumn | None] = source.remember("metric columns", lambda _: {})
    wanted = list(dict.fromkeys(metrics))
    if missing := [metric for metric in wanted if metric not in known]:

        def read(reader: StoreReader) -> Mapping[str, MetricColumn]:
            with reader.snapshot() as connection:
                return {column.metric: column for column in read_columns(connection, missing)}

        found = source.remember(("metric columns", *missing), read)
        known |= {metric: found.get(metric) for metric in missing}
    return {metric: column for metric in wanted if (column := known[metric]) is not None}
