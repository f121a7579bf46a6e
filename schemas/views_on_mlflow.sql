-- The views of radT's first front-end where MLflow's tables are in the same database. {mlflow} stands
-- for their schema (radt/store/admin.py).
-- Early versions wrote parameters in lower case; today they are named like columns of the CSV file.

CREATE VIEW fe_experiments AS
SELECT e.experiment_id::integer AS experiment_id,
    e.name::character varying COLLATE "default" AS name
FROM {mlflow}.experiments e
WHERE e.lifecycle_stage = 'active';

CREATE VIEW fe_runs AS
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
        WHERE t.key = 'radt.run_id' AND t.run_uuid = r.run_uuid));

CREATE VIEW fe_metrics AS
SELECT m.run_uuid::character varying COLLATE "default" AS run_uuid,
    m.key::character varying COLLATE "default" AS key,
    (CASE WHEN NOT m.is_nan THEN m.value END)::double precision AS value,
    m.timestamp::bigint AS "timestamp",
    m.step::bigint AS step
FROM {mlflow}.metrics m;

CREATE VIEW fe_metrics_available AS
SELECT DISTINCT l.key::character varying COLLATE "default" AS key,
    l.run_uuid::character varying COLLATE "default" AS run_uuid
FROM {mlflow}.latest_metrics l;
