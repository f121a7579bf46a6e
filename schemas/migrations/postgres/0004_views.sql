-- What is left of runs that were pruned, and views for people (docs/sql.md). Views are part of what
-- others build on: columns are added at the end, never renamed. A migration that changes a column
-- below one has to drop the view and make it again.

-- Points that the data columns hold, where that are fewer than point_count: all other columns then
-- describe what was here before it was thinned. NULL: all.
ALTER TABLE chunk ADD COLUMN kept_count INTEGER;

-- Runs that were pruned, here: a copy of them elsewhere must not bring back what was taken away.
CREATE TABLE pruned (
    run_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    kept TEXT COLLATE "C" NOT NULL,          -- summaries, nothing
    pruned_ns BIGINT NOT NULL,
    point_count BIGINT NOT NULL,             -- points before
    kept_count BIGINT NOT NULL               -- points left
);

CREATE VIEW runs AS
SELECT run.run_id,
    run.experiment,
    run.workload,
    run.letter,
    run.name,
    run.status,
    to_timestamp(run.created_ns / 1e9::double precision) AS created_at,
    to_timestamp(run.started_ns / 1e9::double precision) AS started_at,
    to_timestamp(run.ended_ns / 1e9::double precision) AS ended_at,
    (run.ended_ns - run.started_ns) / 1e9::double precision AS duration_s,
    run.exit_code,
    run.end_reason,
    run.devices,
    run.collocation,
    run.listeners,
    run.host,
    run.command,
    run.workload_id,
    run.mlflow_run_id,
    COALESCE((SELECT jsonb_object_agg(param.key, param.value) FROM param
        WHERE param.run_id = run.run_id), '{}') AS params,
    COALESCE((SELECT jsonb_object_agg(tag.key, tag.value) FROM tag
        WHERE tag.run_id = run.run_id), '{}') AS tags,
    (SELECT to_timestamp(pruned.pruned_ns / 1e9::double precision) FROM pruned
        WHERE pruned.run_id = run.run_id) AS pruned_at
FROM run;
COMMENT ON VIEW runs IS 'Training processes, with their parameters and tags';

CREATE VIEW workloads AS
SELECT workload.workload_id,
    workload.experiment,
    workload.label,
    workload.status,
    to_timestamp(workload.created_ns / 1e9::double precision) AS created_at,
    to_timestamp(workload.barrier_ns / 1e9::double precision) AS started_at,
    to_timestamp(workload.ended_ns / 1e9::double precision) AS ended_at,
    (workload.ended_ns - workload.barrier_ns) / 1e9::double precision AS duration_s,
    workload.start_skew_ns / 1e9::double precision AS start_skew_s,
    (SELECT COUNT(*) FROM run WHERE run.workload_id = workload.workload_id) AS runs,
    workload.mlflow_experiment_id,
    workload.mlflow_run_id
FROM workload;
COMMENT ON VIEW workloads IS 'Runs that started together and shared the hardware';

CREATE VIEW experiments AS
SELECT experiment.name,
    to_timestamp(experiment.created_ns / 1e9::double precision) AS created_at,
    (SELECT COUNT(*) FROM workload WHERE workload.experiment = experiment.name) AS workloads,
    (SELECT COUNT(*) FROM run WHERE run.experiment = experiment.name) AS runs,
    (SELECT COUNT(*) FROM run WHERE run.experiment = experiment.name
        AND run.status = 'FINISHED') AS finished,
    (SELECT to_timestamp(MAX(COALESCE(run.ended_ns, run.started_ns, run.created_ns))
        / 1e9::double precision)
        FROM run WHERE run.experiment = experiment.name) AS last_activity_at
FROM experiment;
COMMENT ON VIEW experiments IS 'Experiments with numbers of workloads and runs';

CREATE VIEW markers AS
SELECT marker.run_id,
    run.experiment,
    run.workload,
    run.letter,
    marker.kind,
    marker.name,
    marker.step,
    to_timestamp(marker.start_ns / 1e9::double precision) AS started_at,
    to_timestamp(marker.end_ns / 1e9::double precision) AS ended_at,
    (marker.end_ns - marker.start_ns) / 1e9::double precision AS duration_s,
    marker.process,
    marker.detail,
    marker.marker_no
FROM marker
LEFT JOIN run ON run.run_id = marker.run_id;
COMMENT ON VIEW markers IS 'Epochs, phases, spans and events; ended_at is NULL for instants';

-- A sum at the edge of what a double holds counts as infinite, and then there is no mean.
CREATE VIEW summaries AS
SELECT stored.run_id,
    run.experiment,
    run.workload,
    run.letter,
    series.listener,
    series.metric,
    series.entity,
    series.unit,
    series.scope,
    series.kind,
    stored.count,
    CASE WHEN ABS(stored.total) < 1e300 THEN stored.total / stored.finite END AS mean,
    stored.min,
    stored.max,
    (SELECT chunk.first_value FROM chunk WHERE chunk.run_id = stored.run_id
        AND chunk.series_no = stored.series_no AND chunk.first_ns = stored.first_ns
        ORDER BY chunk.chunk_no LIMIT 1) AS first,
    (SELECT chunk.last_value FROM chunk WHERE chunk.run_id = stored.run_id
        AND chunk.series_no = stored.series_no AND chunk.last_ns = stored.last_ns
        ORDER BY chunk.chunk_no DESC LIMIT 1) AS last,
    to_timestamp(stored.first_ns / 1e9::double precision) AS started_at,
    to_timestamp(stored.last_ns / 1e9::double precision) AS ended_at,
    stored.series_no,
    stored.kept AS points_left
FROM (
    SELECT chunk.run_id, chunk.series_no,
        SUM(chunk.point_count) AS count,
        SUM(chunk.finite_count) AS finite,
        SUM(COALESCE(chunk.kept_count, chunk.point_count)) AS kept,
        SUM(CASE WHEN ABS(chunk.value_sum) >= 1e300 THEN double precision 'infinity'
            ELSE chunk.value_sum END) AS total,
        MIN(chunk.value_min) AS min,
        MAX(chunk.value_max) AS max,
        MIN(chunk.first_ns) AS first_ns,
        MAX(chunk.last_ns) AS last_ns
    FROM chunk
    GROUP BY chunk.run_id, chunk.series_no
) AS stored
JOIN series ON series.run_id = stored.run_id AND series.series_no = stored.series_no
LEFT JOIN run ON run.run_id = stored.run_id;
COMMENT ON VIEW summaries IS 'Series with points in a few numbers; counters as they were read';

CREATE VIEW overview AS
SELECT chunk.run_id,
    run.experiment,
    run.workload,
    run.letter,
    series.listener,
    series.metric,
    series.entity,
    series.unit,
    series.kind,
    to_timestamp(chunk.first_ns / 1e9::double precision) AS started_at,
    to_timestamp(chunk.last_ns / 1e9::double precision) AS ended_at,
    chunk.point_count AS count,
    CASE WHEN ABS(chunk.value_sum) < 1e300 THEN chunk.value_sum / chunk.finite_count END AS mean,
    chunk.value_min AS min,
    chunk.value_max AS max,
    chunk.first_value AS first,
    chunk.last_value AS last,
    chunk.series_no,
    chunk.chunk_no
FROM chunk
JOIN series ON series.run_id = chunk.run_id AND series.series_no = chunk.series_no
LEFT JOIN run ON run.run_id = chunk.run_id;
COMMENT ON VIEW overview IS 'Stretches of series, up to 3600 points each, in a few numbers';

-- What radT's first front-end reads. These stand on the headers of chunks; `radt db upgrade` puts
-- them on MLflow's own tables where those are in the same database (same columns, same types).
CREATE VIEW fe_experiments AS
SELECT ('x' || substr(md5(experiment.name), 1, 7))::bit(28)::integer AS experiment_id,
    experiment.name::character varying COLLATE "default" AS name
FROM experiment;

CREATE VIEW fe_runs AS
SELECT COALESCE(run.mlflow_run_id, run.run_id)::character varying COLLATE "default" AS run_uuid,
    ('x' || substr(md5(run.experiment), 1, 7))::bit(28)::integer AS experiment_id,
    NULLIF(run.workload, '')::character varying COLLATE "default" AS workload,
    run.status::character varying COLLATE "default" AS status,
    (COALESCE(run.started_ns, run.created_ns) / 1000000)::bigint AS start_time,
    (COALESCE(run.ended_ns / 1000000, (EXTRACT(epoch FROM CURRENT_TIMESTAMP) * 1000)::bigint)
        - COALESCE(run.started_ns, run.created_ns) / 1000000)::numeric AS duration,
    (SELECT MAX(param.value) FROM param WHERE param.run_id = run.run_id
        AND param.key IN ('Data', 'data'))::character varying COLLATE "default" AS data,
    run.letter::character varying COLLATE "default" AS letter,
    COALESCE((SELECT MAX(param.value) FROM param WHERE param.run_id = run.run_id
        AND param.key IN ('Model', 'model')),
        run.name)::character varying COLLATE "default" AS model,
    (SELECT replace(replace(MAX(param.value), '"', ''), '''', '') FROM param
        WHERE param.run_id = run.run_id AND param.key IN ('Params', 'params'))
        COLLATE "default" AS params
FROM run;

CREATE VIEW fe_metrics AS
SELECT COALESCE(run.mlflow_run_id, run.run_id)::character varying COLLATE "default" AS run_uuid,
    ((CASE WHEN series.listener = 'run' THEN '' ELSE 'system/' END) || series.metric
        || (CASE WHEN series.kind = 'counter' AND series.listener <> 'run'
            THEN (CASE WHEN series.unit = 'g' THEN '_per_h' ELSE '_per_s' END) ELSE '' END)
        || (CASE WHEN series.entity = '' THEN '' ELSE '/' || series.entity END)
    )::character varying COLLATE "default" AS key,
    (CASE WHEN series.kind = 'counter' AND series.listener <> 'run'
        THEN (CASE WHEN series.unit = 'g' THEN 3600 ELSE 1 END)
            * (chunk.last_value - chunk.first_value)
            / NULLIF((chunk.last_ns - chunk.first_ns) / 1e9::double precision, 0)
        WHEN ABS(chunk.value_sum) < 1e300 THEN chunk.value_sum / chunk.finite_count
    END)::double precision AS value,
    (chunk.last_ns / 1000000)::bigint AS "timestamp",
    (CASE WHEN series.listener = 'run' THEN chunk.chunk_no
        ELSE (chunk.last_ns - COALESCE(run.started_ns, run.created_ns)) / 1000000000
    END)::bigint AS step
FROM run
JOIN series ON series.run_id = run.run_id
JOIN chunk ON chunk.run_id = series.run_id AND chunk.series_no = series.series_no;

CREATE VIEW fe_metrics_available AS
SELECT DISTINCT ((CASE WHEN series.listener = 'run' THEN '' ELSE 'system/' END) || series.metric
        || (CASE WHEN series.kind = 'counter' AND series.listener <> 'run'
            THEN (CASE WHEN series.unit = 'g' THEN '_per_h' ELSE '_per_s' END) ELSE '' END)
        || (CASE WHEN series.entity = '' THEN '' ELSE '/' || series.entity END)
    )::character varying COLLATE "default" AS key,
    COALESCE(run.mlflow_run_id, run.run_id)::character varying COLLATE "default" AS run_uuid
FROM run
JOIN series ON series.run_id = run.run_id;
