-- How often anything of a run or workload was written: what a copy elsewhere compares with.
ALTER TABLE run ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workload ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;

-- Tells this store from all others; one row.
CREATE TABLE store_identity (
    store_id TEXT NOT NULL PRIMARY KEY
) WITHOUT ROWID;
INSERT INTO store_identity (store_id) VALUES (lower(hex(randomblob(16))));

-- Other stores that this one is brought to, by their identity, and what came of it last.
CREATE TABLE replica (
    target TEXT NOT NULL PRIMARY KEY,
    label TEXT NOT NULL,           -- its address without passwords
    reached_ns INTEGER,            -- when everything that was here had been brought there
    problem TEXT NOT NULL DEFAULT '',
    problem_ns INTEGER
) WITHOUT ROWID;

-- The revision at which such a store has a run or workload (``key``) completely.
CREATE TABLE replicated (
    target TEXT NOT NULL,
    key TEXT NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (target, key)
) WITHOUT ROWID;
