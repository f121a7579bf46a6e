-- One row per series that has points: what all of them come to, also those that were thinned. The
-- writer updates it in the transaction that writes the points (radt/store/summaries.py).
CREATE TABLE series_summary (
    run_id TEXT COLLATE "C" NOT NULL,
    series_no INTEGER NOT NULL,
    count BIGINT NOT NULL,
    stored_count BIGINT NOT NULL,    -- fewer than count if the run was thinned
    finite_count BIGINT NOT NULL,
    first_ns BIGINT NOT NULL,        -- earliest and latest time
    last_ns BIGINT NOT NULL,
    first DOUBLE PRECISION,          -- values at those times; NULL is NaN, as in SQLite
    last DOUBLE PRECISION,
    minimum DOUBLE PRECISION,        -- of finite values; NULL where there is none
    maximum DOUBLE PRECISION,
    total DOUBLE PRECISION,
    first_finite_ns BIGINT,          -- earliest and latest finite value
    last_finite_ns BIGINT,
    first_finite DOUBLE PRECISION,
    last_finite DOUBLE PRECISION,
    growth DOUBLE PRECISION,         -- increase of a counter over wraps and resets
    lowest_step BIGINT,
    highest_step BIGINT,
    PRIMARY KEY (run_id, series_no)
);
-- Rows are updated in place, which leaves room in their pages.
ALTER TABLE series_summary SET (fillfactor = 70);

-- The revision of the run up to which its summaries are complete; they have to be made again where
-- it is not the run's revision.
ALTER TABLE run ADD COLUMN summary_revision BIGINT NOT NULL DEFAULT 0;
UPDATE run SET summary_revision = -1;
CREATE INDEX run_unsummarised ON run (run_id) WHERE summary_revision <> revision;

-- Columns of a table of runs are the series of one metric.
CREATE INDEX series_of_metric ON series (metric);

-- Replaced, not made again, so that readers keep their right to it.
CREATE OR REPLACE VIEW summaries AS
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
    CASE WHEN ABS(stored.total) < double precision 'infinity'
        THEN stored.total / stored.finite_count END AS mean,
    stored.minimum AS min,
    stored.maximum AS max,
    stored.first,
    stored.last,
    to_timestamp(stored.first_ns / 1e9::double precision) AS started_at,
    to_timestamp(stored.last_ns / 1e9::double precision) AS ended_at,
    stored.series_no,
    stored.stored_count AS points_left,
    stored.growth
FROM series_summary AS stored
JOIN series ON series.run_id = stored.run_id AND series.series_no = stored.series_no
LEFT JOIN run ON run.run_id = stored.run_id;
