-- One row per series that has points: what all of them come to, also those that were thinned. The
-- writer updates it in the transaction that writes the points (radt/store/summaries.py).
CREATE TABLE series_summary (
    run_id TEXT NOT NULL,
    series_no INTEGER NOT NULL,
    count INTEGER NOT NULL,
    stored_count INTEGER NOT NULL,   -- fewer than count if the run was thinned
    finite_count INTEGER NOT NULL,
    first_ns INTEGER NOT NULL,       -- earliest and latest time
    last_ns INTEGER NOT NULL,
    first REAL,                      -- values at those times; NULL is NaN, which SQLite cannot hold
    last REAL,
    minimum REAL,                    -- of finite values; NULL where there is none
    maximum REAL,
    total REAL,
    first_finite_ns INTEGER,         -- earliest and latest finite value
    last_finite_ns INTEGER,
    first_finite REAL,
    last_finite REAL,
    growth REAL,                     -- increase of a counter over wraps and resets
    lowest_step INTEGER,
    highest_step INTEGER,
    PRIMARY KEY (run_id, series_no)
) WITHOUT ROWID;

-- The revision of the run up to which its summaries are complete. Older versions of radt do not
-- raise it, so any other value than the run's revision means that they have to be made again.
ALTER TABLE run ADD COLUMN summary_revision INTEGER NOT NULL DEFAULT 0;
UPDATE run SET summary_revision = -1;
CREATE INDEX run_unsummarised ON run (run_id) WHERE summary_revision <> revision;

-- Columns of a table of runs are the series of one metric.
CREATE INDEX series_of_metric ON series (metric);

DROP VIEW summaries;
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
    CASE WHEN ABS(stored.total) < 9e999 THEN stored.total / stored.finite_count END AS mean,
    stored.minimum AS min,
    stored.maximum AS max,
    stored.first,
    stored.last,
    strftime('%Y-%m-%dT%H:%M:%fZ', stored.first_ns / 1e9, 'unixepoch') AS started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', stored.last_ns / 1e9, 'unixepoch') AS ended_at,
    stored.series_no,
    stored.stored_count AS points_left,
    stored.growth
FROM series_summary AS stored
JOIN series ON series.run_id = stored.run_id AND series.series_no = stored.series_no
LEFT JOIN run ON run.run_id = stored.run_id;
