-- How often anything of a run or workload was written: what a copy elsewhere compares with.
ALTER TABLE run ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;
ALTER TABLE workload ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;

-- Tells this store from all others; one row.
CREATE TABLE store_identity (
    store_id TEXT COLLATE "C" NOT NULL PRIMARY KEY
);
INSERT INTO store_identity (store_id) VALUES (replace(gen_random_uuid()::text, '-', ''));

-- Other stores that this one is brought to, by their identity, and what came of it last.
CREATE TABLE replica (
    target TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    label TEXT COLLATE "C" NOT NULL,           -- its address without passwords
    reached_ns BIGINT,            -- when everything that was here had been brought there
    problem TEXT COLLATE "C" NOT NULL DEFAULT '',
    problem_ns BIGINT
);

-- The revision at which such a store has a run or workload (``key``) completely.
CREATE TABLE replicated (
    target TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    revision BIGINT NOT NULL,
    PRIMARY KEY (target, key)
);
