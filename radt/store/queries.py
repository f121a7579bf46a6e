"""The reader's longer statements."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import bindparam, text

from radt.store.records import SummaryRecord
from radt.store.tables import RUNS, SERIES

EXPERIMENTS = text(
    "SELECT name, created_ns, "
    "(SELECT COUNT(*) FROM workload WHERE workload.experiment = experiment.name) FROM experiment"
)

RUN_COUNTS = text(
    "SELECT experiment, status, COUNT(*), "
    "MAX(COALESCE(ended_ns, started_ns, created_ns)) FROM run GROUP BY experiment, status"
)

#: Two selects, because SQLite uses both indexes only so.
FIND_RUN = text(
    f"{RUNS.select} WHERE run_id >= :first AND run_id < :last "
    f"UNION {RUNS.select} WHERE mlflow_run_id >= :first AND mlflow_run_id < :last LIMIT 5"
)

TAGGED = text(
    "SELECT tag.run_id, tag.value FROM run JOIN tag ON tag.run_id = run.run_id AND tag.key = :key "
    "WHERE run.experiment = :experiment"
)

TO_DELIVER = "WHERE tracking_uri = :uri AND delivery_done_ns IS NULL ORDER BY created_ns"

_SERIES_COLUMNS = ", ".join(f"s.{name}" for name in SERIES.fields)
_SERIES_WIDTH = len(SERIES.fields)
_CHUNK_OF_SERIES = "c.run_id = s.run_id AND c.series_no = s.series_no"


def _end_value(column: str, time: str, order: str) -> str:
    """The value at the earliest or latest time of a series, found in the headers."""
    return (
        f"(SELECT c.{column} FROM chunk c WHERE {_CHUNK_OF_SERIES} "  # noqa: S608 - our own names
        f"AND c.{time} = t.{time} ORDER BY c.chunk_no {order} LIMIT 1)"
    )


#: Series that have points, with the sums of their chunks' headers.
SUMMARY = text(
    f"SELECT {_SERIES_COLUMNS}, t.points, t.finite, t.total, t.smallest, t.largest, "  # noqa: S608
    f"{_end_value('first_value', 'first_ns', 'ASC')}, "
    f"{_end_value('last_value', 'last_ns', 'DESC')}, "
    "t.first_ns, t.last_ns "
    "FROM (SELECT run_id, series_no, SUM(point_count) AS points, SUM(finite_count) AS finite, "
    # Where SQLite comes to infinity, Postgres would refuse to go on.
    "SUM(CASE WHEN ABS(value_sum) >= 1e300 THEN :infinity ELSE value_sum END) AS total, "
    "MIN(value_min) AS smallest, MAX(value_max) AS largest, "
    "MIN(first_ns) AS first_ns, MAX(last_ns) AS last_ns "
    "FROM chunk WHERE run_id IN :ids GROUP BY run_id, series_no) t "
    "JOIN series s ON s.run_id = t.run_id AND s.series_no = t.series_no "
    "ORDER BY s.run_id, s.series_no"
).bindparams(bindparam("ids", expanding=True), infinity=math.inf)


def summary_record(row: Any) -> SummaryRecord:
    """A row of `SUMMARY`."""
    series = SERIES.read(row[:_SERIES_WIDTH])
    points, finite, total, smallest, largest, first, last, first_ns, last_ns = row[_SERIES_WIDTH:]
    mean = _finite(total / finite) if finite else None
    return SummaryRecord(
        series, points, mean, smallest, largest, _finite(first), _finite(last), first_ns, last_ns
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
