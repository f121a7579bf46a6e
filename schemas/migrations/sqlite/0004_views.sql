-- What is left of runs that were pruned, and views for people (docs/sql.md). Views are part of what
-- others build on: columns are added at the end, never renamed. A migration that changes a column
-- below one has to drop the view and make it again. Times are ISO 8601 in UTC.

-- Points that the data columns hold, where that are fewer than point_count: all other columns then
-- describe what was here before it was thinned. NULL: all.
ALTER TABLE chunk ADD COLUMN kept_count INTEGER;

-- Runs that were pruned, here: a copy of them elsewhere must not bring back what was taken away.
CREATE TABLE pruned (
    run_id TEXT NOT NULL PRIMARY KEY,
    kept TEXT NOT NULL,                      -- summaries, nothing
    pruned_ns INTEGER NOT NULL,
    point_count INTEGER NOT NULL,            -- points before
    kept_count INTEGER NOT NULL              -- points left
) WITHOUT ROWID;

CREATE VIEW runs AS
SELECT run.run_id,
    run.experiment,
    run.workload,
    run.letter,
    run.name,
    run.status,
    strftime('%Y-%m-%dT%H:%M:%fZ', run.created_ns / 1e9, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', run.started_ns / 1e9, 'unixepoch') AS started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', run.ended_ns / 1e9, 'unixepoch') AS ended_at,
    (run.ended_ns - run.started_ns) / 1e9 AS duration_s,
    run.exit_code,
    run.end_reason,
    run.devices,
    run.collocation,
    run.listeners,
    run.host,
    run.command,
    run.workload_id,
    run.mlflow_run_id,
    COALESCE((SELECT json_group_object(param.key, param.value) FROM param
        WHERE param.run_id = run.run_id), '{}') AS params,
    COALESCE((SELECT json_group_object(tag.key, tag.value) FROM tag
        WHERE tag.run_id = run.run_id), '{}') AS tags,
    (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', pruned.pruned_ns / 1e9, 'unixepoch') FROM pruned
        WHERE pruned.run_id = run.run_id) AS pruned_at
FROM run;

CREATE VIEW workloads AS
SELECT workload.workload_id,
    workload.experiment,
    workload.label,
    workload.status,
    strftime('%Y-%m-%dT%H:%M:%fZ', workload.created_ns / 1e9, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', workload.barrier_ns / 1e9, 'unixepoch') AS started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', workload.ended_ns / 1e9, 'unixepoch') AS ended_at,
    (workload.ended_ns - workload.barrier_ns) / 1e9 AS duration_s,
    workload.start_skew_ns / 1e9 AS start_skew_s,
    (SELECT COUNT(*) FROM run WHERE run.workload_id = workload.workload_id) AS runs,
    workload.mlflow_experiment_id,
    workload.mlflow_run_id
FROM workload;

CREATE VIEW experiments AS
SELECT experiment.name,
    strftime('%Y-%m-%dT%H:%M:%fZ', experiment.created_ns / 1e9, 'unixepoch') AS created_at,
    (SELECT COUNT(*) FROM workload WHERE workload.experiment = experiment.name) AS workloads,
    (SELECT COUNT(*) FROM run WHERE run.experiment = experiment.name) AS runs,
    (SELECT COUNT(*) FROM run WHERE run.experiment = experiment.name
        AND run.status = 'FINISHED') AS finished,
    (SELECT strftime('%Y-%m-%dT%H:%M:%fZ',
        MAX(COALESCE(run.ended_ns, run.started_ns, run.created_ns)) / 1e9, 'unixepoch')
        FROM run WHERE run.experiment = experiment.name) AS last_activity_at
FROM experiment;

CREATE VIEW markers AS
SELECT marker.run_id,
    run.experiment,
    run.workload,
    run.letter,
    marker.kind,
    marker.name,
    marker.step,
    strftime('%Y-%m-%dT%H:%M:%fZ', marker.start_ns / 1e9, 'unixepoch') AS started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', marker.end_ns / 1e9, 'unixepoch') AS ended_at,
    (marker.end_ns - marker.start_ns) / 1e9 AS duration_s,
    marker.process,
    marker.detail,
    marker.marker_no
FROM marker
LEFT JOIN run ON run.run_id = marker.run_id;

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
    strftime('%Y-%m-%dT%H:%M:%fZ', stored.first_ns / 1e9, 'unixepoch') AS started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', stored.last_ns / 1e9, 'unixepoch') AS ended_at,
    stored.series_no,
    stored.kept AS points_left
FROM (
    SELECT chunk.run_id, chunk.series_no,
        SUM(chunk.point_count) AS count,
        SUM(chunk.finite_count) AS finite,
        SUM(COALESCE(chunk.kept_count, chunk.point_count)) AS kept,
        SUM(CASE WHEN ABS(chunk.value_sum) >= 1e300 THEN 9e999
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
    strftime('%Y-%m-%dT%H:%M:%fZ', chunk.first_ns / 1e9, 'unixepoch') AS started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', chunk.last_ns / 1e9, 'unixepoch') AS ended_at,
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
