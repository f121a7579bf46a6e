"""What is asked of MLflow's tables; values are bound, names are our own.

The tables: mlflow/store/tracking/dbmodels/models.py. Those parts that are used here have been the
same since MLflow 1.11.
"""

from __future__ import annotations

from sqlalchemy import TextClause, bindparam, text

from radt.frontend.foreign.points import LARGEST

_ACTIVE = (
    "FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id "
    "WHERE r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active'"
)

#: The newest runs: id, experiment, name, status, start and end in milliseconds.
RUNS = text(
    "SELECT r.run_uuid, e.name, r.name, r.status, r.start_time, r.end_time "
    f"{_ACTIVE} ORDER BY r.start_time DESC, r.run_uuid LIMIT :limit"
)


def _of(statement: str) -> TextClause:
    """A statement with a list of runs' ids."""
    return text(statement).bindparams(bindparam("ids", expanding=True))


#: Tags of all runs that say what a run is.
RUN_TAGS = text("SELECT run_uuid, key, value FROM tags WHERE key IN :keys").bindparams(
    bindparam("keys", expanding=True)
)
WITH_METRICS = _of("SELECT DISTINCT run_uuid FROM latest_metrics WHERE run_uuid IN :ids")
PARAMS = _of("SELECT run_uuid, key, value FROM params WHERE run_uuid IN :ids ORDER BY key")
TAGS = _of("SELECT run_uuid, key, value FROM tags WHERE run_uuid IN :ids ORDER BY key")
#: The last point of each metric: it changes with every one that is logged as usual.
LATEST = _of(
    "SELECT run_uuid, key, timestamp, step, value, is_nan FROM latest_metrics "
    "WHERE run_uuid IN :ids ORDER BY run_uuid, key"
)
LATEST_OF_ONE = text(
    "SELECT timestamp, step, value, is_nan FROM latest_metrics "
    "WHERE run_uuid = :run_id AND key = :key"
)

_POINTS = "SELECT timestamp, value, is_nan, step FROM metrics WHERE {run} = :run_id AND key = :key"
_FINITE = f"NOT is_nan AND ABS(value) < {LARGEST!r}"
_STATISTICS = (
    "COUNT(*), "
    f"SUM(CASE WHEN {_FINITE} THEN 1 ELSE 0 END), "
    # Where SQLite comes to infinity, Postgres would refuse to go on.
    f"SUM(CASE WHEN {_FINITE} AND ABS(value) < 1e300 THEN value END), "
    f"MIN(CASE WHEN {_FINITE} THEN value END), MAX(CASE WHEN {_FINITE} THEN value END), "
    "MIN(timestamp), MAX(timestamp) FROM metrics WHERE run_uuid = :run_id"
)

#: Of each metric of a run: key, points, finite points, sum, extremes, first and last time.
STATISTICS = text(f"SELECT key, {_STATISTICS} GROUP BY key")
#: The same of one metric before a time, without the key.
STATISTICS_BEFORE = text(f"SELECT {_STATISTICS} AND key = :key AND timestamp < :end")
#: The point of a metric at a time, the one with the smallest step.
AT_TIME = text(
    "SELECT value, is_nan FROM metrics WHERE key = :key AND timestamp = :at "
    "AND run_uuid = :run_id ORDER BY step LIMIT 1"
)
#: All points of one metric of a run, in no order.
ALL_POINTS = text(_POINTS.format(run="run_uuid"))


def points_between(run_column: str) -> TextClause:
    """The points from one time to another.

    Args:
        run_column: As `radt.frontend.foreign.connection.MlflowConnection.without_index` gives it:
            the primary key, which begins with key and time, has them together.
    """
    return text(f"{_POINTS.format(run=run_column)} AND timestamp >= :start AND timestamp <= :end")
