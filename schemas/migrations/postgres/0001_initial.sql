-- The same tables as in SQLite (schemas/migrations/sqlite), in the schema radt. Texts sort as bytes
-- there, so they do here.
--
-- Names of columns are those of the dataclasses in radt/store/records.py. Times are wall-clock
-- nanoseconds. Keys are natural, so that rows can be copied between stores; there are no foreign
-- keys, because rows of one run may arrive in any order when they are replicated. Versions that were
-- released are never edited: a change is a new file with the next number.

-- What the user calls an experiment; there as soon as a workload or run of it is.
CREATE TABLE experiment (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    created_ns BIGINT NOT NULL
);

-- Runs that start together. One that is run again is a new row with the same label.
CREATE TABLE workload (
    workload_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    experiment TEXT COLLATE "C" NOT NULL,
    label TEXT COLLATE "C" NOT NULL,
    created_ns BIGINT NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    tracking_uri TEXT COLLATE "C" NOT NULL,
    mlflow_experiment_id TEXT COLLATE "C",
    mlflow_run_id TEXT COLLATE "C",
    barrier_ns BIGINT,
    start_skew_ns BIGINT,
    ended_ns BIGINT,
    delivery_done_ns BIGINT,            -- when MLflow had all of it
    delivery_note TEXT COLLATE "C" NOT NULL DEFAULT '' -- why it will never have all of it, if so
);
CREATE INDEX workload_of_experiment ON workload (experiment, created_ns);
CREATE INDEX workload_to_deliver ON workload (tracking_uri) WHERE delivery_done_ns IS NULL;

-- One training process. Times are NULL until they have come.
CREATE TABLE run (
    run_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    workload_id TEXT COLLATE "C" NOT NULL,
    experiment TEXT COLLATE "C" NOT NULL,
    workload TEXT COLLATE "C" NOT NULL,
    letter TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    created_ns BIGINT NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    devices TEXT COLLATE "C" NOT NULL,
    collocation TEXT COLLATE "C" NOT NULL,
    listeners TEXT COLLATE "C" NOT NULL,
    command TEXT COLLATE "C" NOT NULL,
    host TEXT COLLATE "C" NOT NULL,
    spool TEXT COLLATE "C" NOT NULL,
    tracking_uri TEXT COLLATE "C" NOT NULL,
    mlflow_run_id TEXT COLLATE "C",
    pid BIGINT,
    started_ns BIGINT,
    ended_ns BIGINT,
    exit_code BIGINT,
    end_reason TEXT COLLATE "C" NOT NULL,
    delivery_done_ns BIGINT,
    delivery_note TEXT COLLATE "C" NOT NULL DEFAULT ''
);
CREATE INDEX run_of_workload ON run (workload_id);
CREATE INDEX run_of_experiment ON run (experiment, created_ns);
CREATE INDEX run_of_mlflow ON run (mlflow_run_id) WHERE mlflow_run_id IS NOT NULL;
CREATE INDEX run_unended ON run (created_ns) WHERE ended_ns IS NULL;
CREATE INDEX run_to_deliver ON run (tracking_uri) WHERE delivery_done_ns IS NULL;

-- Texts of a run; the last value of a key counts.
CREATE TABLE param (
    run_id TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, key)
);

CREATE TABLE tag (
    run_id TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, key)
);

-- One metric of one scope of one run, numbered from 0 in the order of appearance.
CREATE TABLE series (
    run_id TEXT COLLATE "C" NOT NULL,
    series_no INTEGER NOT NULL,
    listener TEXT COLLATE "C" NOT NULL,
    metric TEXT COLLATE "C" NOT NULL,
    unit TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    entity TEXT COLLATE "C" NOT NULL,
    interval_s DOUBLE PRECISION,
    PRIMARY KEY (run_id, series_no)
);

-- A stretch of one series in the order it was written (chunk_no). Loose chunks (sealed = 0) are
-- always the last of their series; compaction replaces them. The data columns come last, so that
-- reading the header of a row does not read its blobs.
CREATE TABLE chunk (
    run_id TEXT COLLATE "C" NOT NULL,
    series_no INTEGER NOT NULL,
    chunk_no INTEGER NOT NULL,
    sealed SMALLINT NOT NULL,
    codec SMALLINT NOT NULL,
    point_count INTEGER NOT NULL,
    finite_count INTEGER NOT NULL,
    first_ns BIGINT NOT NULL,   -- earliest and latest time of the chunk
    last_ns BIGINT NOT NULL,
    first_value DOUBLE PRECISION,            -- values at those times; NULL is NaN, as in SQLite
    last_value DOUBLE PRECISION,
    value_min DOUBLE PRECISION,              -- of finite values; NULL where there is none
    value_max DOUBLE PRECISION,
    value_sum DOUBLE PRECISION,
    checksum BIGINT NOT NULL,   -- CRC-32 of time_data, value_data, step_data
    time_series_no INTEGER,      -- the chunk of this run whose time_data is this one's too:
    time_chunk_no INTEGER,       -- all series of a listener are read at the same instants
    time_data BYTEA,              -- NULL: see time_series_no
    value_data BYTEA NOT NULL,
    step_data BYTEA,              -- NULL: no point of the chunk has a step
    PRIMARY KEY (run_id, series_no, chunk_no)
);
-- They are compressed already; out of line they keep the headers dense.
ALTER TABLE chunk ALTER COLUMN time_data SET STORAGE EXTERNAL;
ALTER TABLE chunk ALTER COLUMN value_data SET STORAGE EXTERNAL;
ALTER TABLE chunk ALTER COLUMN step_data SET STORAGE EXTERNAL;
CREATE INDEX chunk_loose ON chunk (run_id, series_no, chunk_no) WHERE sealed = 0;

-- An instant, or a span if it has an end: epochs, the script's spans, what radt noticed.
CREATE TABLE marker (
    run_id TEXT COLLATE "C" NOT NULL,
    marker_no BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    start_ns BIGINT NOT NULL,
    end_ns BIGINT,
    step BIGINT,
    process TEXT COLLATE "C" NOT NULL,
    detail TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, marker_no)
);

-- Samples of a listener that were due in a run, and what became of them.
CREATE TABLE ledger (
    run_id TEXT COLLATE "C" NOT NULL,
    listener TEXT COLLATE "C" NOT NULL,
    interval_s DOUBLE PRECISION NOT NULL,
    expected BIGINT NOT NULL,
    received BIGINT NOT NULL,
    missed BIGINT NOT NULL,
    sampling_ns BIGINT NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, listener)
);

-- A stretch without values, and why; series_no -1 stands for all series of the listener.
CREATE TABLE gap (
    run_id TEXT COLLATE "C" NOT NULL,
    listener TEXT COLLATE "C" NOT NULL,
    series_no INTEGER NOT NULL,
    start_ns BIGINT NOT NULL,
    end_ns BIGINT NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    detail TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, listener, series_no, start_ns)
);

-- How far a process's journal was read, written in the transaction that stores what was read.
CREATE TABLE journal_cursor (
    run_id TEXT COLLATE "C" NOT NULL,
    journal TEXT COLLATE "C" NOT NULL,
    segment INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    event_offset BIGINT NOT NULL,
    names TEXT COLLATE "C" NOT NULL,         -- JSON list
    PRIMARY KEY (run_id, journal)
);

-- How far MLflow has a series: a number of points for what scripts log, a time in ns for hardware.
CREATE TABLE delivery (
    run_id TEXT COLLATE "C" NOT NULL,
    series_no INTEGER NOT NULL,
    delivered BIGINT NOT NULL,
    PRIMARY KEY (run_id, series_no)
);

CREATE TABLE artifact_delivered (
    run_id TEXT COLLATE "C" NOT NULL,
    path TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, path)
);
