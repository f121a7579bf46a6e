-- How the values of a series come about, whether they were apportioned rather than measured, and at
-- which value a counter starts again from 0.
ALTER TABLE series ADD COLUMN method TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE series ADD COLUMN estimated SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE series ADD COLUMN wraps_at DOUBLE PRECISION;

-- The longest reading, and how long after their due time readings began: in sum, and the longest.
ALTER TABLE ledger ADD COLUMN sampling_max_ns BIGINT NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN late_ns BIGINT NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN late_max_ns BIGINT NOT NULL DEFAULT 0;
