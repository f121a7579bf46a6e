-- Names of columns are those of the dataclasses in radt/store/records.py. Times are wall-clock
-- nanoseconds. Keys are natural, so that rows can be copied between stores; there are no foreign
-- keys, because rows of one run may arrive in any order when they are replicated. Versions that were
-- released are never edited: a change is a new file with the next number.

PRAGMA application_id = 1918985300; -- "radT"

-- What the user calls an experiment; there as soon as a workload or run of it is.
CREATE TABLE experiment (
    name TEXT NOT NULL PRIMARY KEY,
    created_ns INTEGER NOT NULL
);

-- Runs that start together. One that is run again is a new row with the same label.
CREATE TABLE workload (
    workload_id TEXT NOT NULL PRIMARY KEY,
    experiment TEXT NOT NULL,
    label TEXT NOT NULL,
    created_ns INTEGER NOT NULL,
    status TEXT NOT NULL,
    tracking_uri TEXT NOT NULL,
    mlflow_experiment_id TEXT,
    mlflow_run_id TEXT,
    barrier_ns INTEGER,
    start_skew_ns INTEGER,
    ended_ns INTEGER,
    delivery_done_ns INTEGER,            -- when MLflow had all of it
    delivery_note TEXT NOT NULL DEFAULT '' -- why it will never have all of it, if so
);
CREATE INDEX workload_of_experiment ON workload (experiment, created_ns);
CREATE INDEX workload_to_deliver ON workload (tracking_uri) WHERE delivery_done_ns IS NULL;

-- One training process. Times are NULL until they have come.
CREATE TABLE run (
    run_id TEXT NOT NULL PRIMARY KEY,
    workload_id TEXT NOT NULL,
    experiment TEXT NOT NULL,
    workload TEXT NOT NULL,
    letter TEXT NOT NULL,
    name TEXT NOT NULL,
    created_ns INTEGER NOT NULL,
    status TEXT NOT NULL,
    devices TEXT NOT NULL,
    collocation TEXT NOT NULL,
    listeners TEXT NOT NULL,
    command TEXT NOT NULL,
    host TEXT NOT NULL,
    spool TEXT NOT NULL,
    tracking_uri TEXT NOT NULL,
    mlflow_run_id TEXT,
    pid INTEGER,
    started_ns INTEGER,
    ended_ns INTEGER,
    exit_code INTEGER,
    end_reason TEXT NOT NULL,
    delivery_done_ns INTEGER,
    delivery_note TEXT NOT NULL DEFAULT ''
);
CREATE INDEX run_of_workload ON run (workload_id);
CREATE INDEX run_of_experiment ON run (experiment, created_ns);
CREATE INDEX run_of_mlflow ON run (mlflow_run_id) WHERE mlflow_run_id IS NOT NULL;
CREATE INDEX run_unended ON run (created_ns) WHERE ended_ns IS NULL;
CREATE INDEX run_to_deliver ON run (tracking_uri) WHERE delivery_done_ns IS NULL;

-- Texts of a run; the last value of a key counts.
CREATE TABLE param (
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_id, key)
) WITHOUT ROWID;

CREATE TABLE tag (
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_id, key)
) WITHOUT ROWID;

-- One metric of one scope of one run, numbered from 0 in the order of appearance.
CREATE TABLE series (
    run_id TEXT NOT NULL,
    series_no INTEGER NOT NULL,
    listener TEXT NOT NULL,
    metric TEXT NOT NULL,
    unit TEXT NOT NULL,
    scope TEXT NOT NULL,
    kind TEXT NOT NULL,
    entity TEXT NOT NULL,
    interval_s REAL,
    PRIMARY KEY (run_id, series_no)
) WITHOUT ROWID;

-- A stretch of one series in the order it was written (chunk_no). Loose chunks (sealed = 0) are
-- always the last of their series; compaction replaces them. The data columns come last, so that
-- reading the header of a row does not read its blobs.
CREATE TABLE chunk (
    run_id TEXT NOT NULL,
    series_no INTEGER NOT NULL,
    chunk_no INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    codec INTEGER NOT NULL,
    point_count INTEGER NOT NULL,
    finite_count INTEGER NOT NULL,
    first_ns INTEGER NOT NULL,   -- earliest and latest time of the chunk
    last_ns INTEGER NOT NULL,
    first_value REAL,            -- values at those times; NULL is NaN, which SQLite cannot hold
    last_value REAL,
    value_min REAL,              -- of finite values; NULL where there is none
    value_max REAL,
    value_sum REAL,
    checksum INTEGER NOT NULL,   -- CRC-32 of time_data, value_data, step_data
    time_series_no INTEGER,      -- the chunk of this run whose time_data is this one's too:
    time_chunk_no INTEGER,       -- all series of a listener are read at the same instants
    time_data BLOB,              -- NULL: see time_series_no
    value_data BLOB NOT NULL,
    step_data BLOB,              -- NULL: no point of the chunk has a step
    PRIMARY KEY (run_id, series_no, chunk_no)
);
CREATE INDEX chunk_loose ON chunk (run_id, series_no, chunk_no) WHERE sealed = 0;

-- An instant, or a span if it has an end: epochs, the script's spans, what radt noticed.
CREATE TABLE marker (
    run_id TEXT NOT NULL,
    marker_no INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    start_ns INTEGER NOT NULL,
    end_ns INTEGER,
    step INTEGER,
    process TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (run_id, marker_no)
) WITHOUT ROWID;

-- Samples of a listener that were due in a run, and what became of them.
CREATE TABLE ledger (
    run_id TEXT NOT NULL,
    listener TEXT NOT NULL,
    interval_s REAL NOT NULL,
    expected INTEGER NOT NULL,
    received INTEGER NOT NULL,
    missed INTEGER NOT NULL,
    sampling_ns INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (run_id, listener)
) WITHOUT ROWID;

-- A stretch without values, and why; series_no -1 stands for all series of the listener.
CREATE TABLE gap (
    run_id TEXT NOT NULL,
    listener TEXT NOT NULL,
    series_no INTEGER NOT NULL,
    start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (run_id, listener, series_no, start_ns)
) WITHOUT ROWID;

-- How far a process's journal was read, written in the transaction that stores what was read.
CREATE TABLE journal_cursor (
    run_id TEXT NOT NULL,
    journal TEXT NOT NULL,
    segment INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    event_offset INTEGER NOT NULL,
    names TEXT NOT NULL,         -- JSON list
    PRIMARY KEY (run_id, journal)
) WITHOUT ROWID;

-- How far MLflow has a series: a number of points for what scripts log, a time in ns for hardware.
CREATE TABLE delivery (
    run_id TEXT NOT NULL,
    series_no INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    PRIMARY KEY (run_id, series_no)
) WITHOUT ROWID;

CREATE TABLE artifact_delivered (
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (run_id, path)
) WITHOUT ROWID;
