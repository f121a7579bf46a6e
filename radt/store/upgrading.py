"""Upgrade a store on request (``radt db upgrade``), and create the views of radT's first front-end.

``fe_experiments``, ``fe_runs``, ``fe_metrics`` and ``fe_metrics_available`` have the columns and
types they always had. A migration makes them on what the store itself has; where MLflow's tables
are in the same database they are put on these, which also have runs of before this version.

https://github.com/Resource-Aware-Data-systems-RAD/radt/tree/master/queries has the original.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, text

from radt.store.address import StoreAddress
from radt.store.backend import Backend, Dialect
from radt.store.database import backend_of
from radt.store.migrations import check_not_newer, current_version, latest_version, migrations
from radt.store.writer import StoreWriter

NAMES = ("fe_experiments", "fe_runs", "fe_metrics", "fe_metrics_available")
#: MLflow's tables that they read, and what a reader of the dashboard may read besides.
_NEEDED = ("experiments", "runs", "metrics", "latest_metrics", "params", "tags")
#: All of MLflow's tables that hold what was tracked, and no accounts or keys.
READABLE = (*_NEEDED, "experiment_tags", "inputs", "input_tags", "datasets", "logged_models")

_MLFLOW_SCHEMA = text(
    "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind IN ('r', 'p') AND c.relname = ANY(:names) "
    "AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') "
    "GROUP BY n.nspname HAVING COUNT(*) = :count ORDER BY n.nspname <> 'public', n.nspname LIMIT 1"
)
_GRANTS = text(
    "SELECT grantee FROM information_schema.role_table_grants "
    "WHERE table_schema = 'public' AND table_name = :name AND privilege_type = 'SELECT'"
)
_VIEW = re.compile(r"CREATE VIEW (fe_\w+) AS\n(.*?);\n", re.DOTALL)

#: Parameters were written in small letters once, and are named like columns of the CSV file now.
#: MLflow's runs that stand for workloads are none of training.
_ON_MLFLOW = {
    "fe_experiments": """
SELECT e.experiment_id::integer AS experiment_id,
    e.name::character varying COLLATE "default" AS name
FROM {mlflow}.experiments e
WHERE e.lifecycle_stage = 'active'""",
    "fe_runs": """
SELECT r.run_uuid::character varying COLLATE "default" AS run_uuid,
    r.experiment_id::integer AS experiment_id,
    COALESCE(p.workload, NULLIF(own.workload, ''))::character varying COLLATE "default" AS workload,
    r.status::character varying COLLATE "default" AS status,
    r.start_time::bigint AS start_time,
    (COALESCE(NULLIF(r.end_time, 0), (EXTRACT(epoch FROM CURRENT_TIMESTAMP) * 1000)::bigint)
        - r.start_time)::numeric AS duration,
    p.data::character varying COLLATE "default" AS data,
    COALESCE(p.letter, own.letter)::character varying COLLATE "default" AS letter,
    COALESCE(p.model, own.name)::character varying COLLATE "default" AS model,
    replace(replace(p.params, '"', ''), '''', '') COLLATE "default" AS params
FROM {mlflow}.runs r
LEFT JOIN radt.run own ON own.mlflow_run_id = r.run_uuid
LEFT JOIN LATERAL (
    SELECT MAX(value) FILTER (WHERE key IN ('data', 'Data')) AS data,
        MAX(value) FILTER (WHERE key IN ('letter', 'Letter')) AS letter,
        MAX(value) FILTER (WHERE key IN ('model', 'Model')) AS model,
        MAX(value) FILTER (WHERE key IN ('params', 'Params')) AS params,
        MAX(value) FILTER (WHERE key IN ('workload', 'Workload')) AS workload
    FROM {mlflow}.params
    WHERE params.run_uuid = r.run_uuid AND params.key IN ('data', 'Data', 'letter', 'Letter',
        'model', 'Model', 'params', 'Params', 'workload', 'Workload')
) p ON TRUE
WHERE r.lifecycle_stage = 'active' AND (
    NOT EXISTS (SELECT 1 FROM {mlflow}.tags t
        WHERE t.key = 'radt.workload_id' AND t.run_uuid = r.run_uuid)
    OR EXISTS (SELECT 1 FROM {mlflow}.tags t
        WHERE t.key = 'radt.run_id' AND t.run_uuid = r.run_uuid))""",
    "fe_metrics": """
SELECT m.run_uuid::character varying COLLATE "default" AS run_uuid,
    m.key::character varying COLLATE "default" AS key,
    (CASE WHEN NOT m.is_nan THEN m.value END)::double precision AS value,
    m.timestamp::bigint AS "timestamp",
    m.step::bigint AS step
FROM {mlflow}.metrics m""",
    "fe_metrics_available": """
SELECT DISTINCT l.key::character varying COLLATE "default" AS key,
    l.run_uuid::character varying COLLATE "default" AS run_uuid
FROM {mlflow}.latest_metrics l""",
}


class Source(StrEnum):
    """What the views read."""

    MLFLOW = "MLflow's tables"
    CHUNKS = "headers of chunks"


def mlflow_schema(connection: Connection) -> str | None:
    """The schema of this database that MLflow's tables are in and may be read; None for none."""
    row = {"names": list(_NEEDED), "count": len(_NEEDED)}
    found = connection.execute(_MLFLOW_SCHEMA, row).scalar()
    return None if found is None else str(found)


def put_views(connection: Connection, *, public: bool) -> Source:
    """Make the views, or make them anew; in the caller's transaction.

    Args:
        public: Also in schema ``public``, in the place of any of their names that are there.
    """
    schema = mlflow_schema(connection)
    for name in NAMES:
        query = _on_chunks(name) if schema is None else _ON_MLFLOW[name]
        select = query if schema is None else query.replace("{mlflow}", _quoted(schema))
        _execute(connection, f"CREATE OR REPLACE VIEW radt.{name} AS {select}")
        if public:
            _put_public(connection, name)
    return Source.CHUNKS if schema is None else Source.MLFLOW


def _put_public(connection: Connection, name: str) -> None:
    """Those who could read the one that was there can read the new one."""
    readers = connection.execute(_GRANTS, {"name": name}).scalars().all()
    _execute(connection, f"DROP VIEW IF EXISTS public.{name}")
    _execute(connection, f"CREATE VIEW public.{name} AS TABLE radt.{name}")
    for reader in readers:
        role = "PUBLIC" if reader == "PUBLIC" else _quoted(str(reader))
        _execute(connection, f"GRANT SELECT ON public.{name} TO {role}")


def _on_chunks(name: str) -> str:
    """The query of the view in the migration that made it."""
    for migration in reversed(migrations(Dialect.POSTGRES)):
        for found, query in _VIEW.findall(migration.sql):
            if found == name:
                return str(query)
    raise LookupError(name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _execute(connection: Connection, sql: str) -> None:
    # As the driver takes it: casts look like parameters to SQLAlchemy.
    connection.exec_driver_sql(sql.replace("%", "%%"))


@dataclass(frozen=True, slots=True)
class Upgraded:
    """From which schema version to which; 0 before there was any. ``source`` is what the views of
    the first front-end read, None in SQLite, which has none."""

    before: int
    after: int
    source: Source | None = None


def upgrade(address: StoreAddress, *, public_views: bool = False) -> Upgraded:
    """Apply the migrations that are missing; an empty Postgres database becomes a store.

    In Postgres the views of the first front-end are made anew as well.

    Args:
        public_views: Have these views in schema ``public``, too.

    Raises:
        StoreError: There is no such file, or it cannot be written.
        SchemaTooNewError: It was written by a later radt.
    """
    backend = backend_of(address)
    backend.check_there()
    before = _version(backend)
    check_not_newer(backend, before)
    StoreWriter(address, upgrade=True).close()
    source = None
    if backend.dialect is Dialect.POSTGRES:
        engine = backend.writer_engine()
        try:
            with backend.translated_errors(), engine.begin() as connection:
                backend.begin_migration(connection)
                source = put_views(connection, public=public_views)
        finally:
            engine.dispose()
    return Upgraded(before, latest_version(), source)


def _version(backend: Backend) -> int:
    reader = backend.reader_engine()
    try:
        with backend.translated_errors(), reader.begin() as connection:
            return current_version(backend, connection)
    finally:
        reader.dispose()
