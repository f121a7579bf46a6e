-- Pages of the dashboard that people saved by name, with what they had chosen.
CREATE TABLE saved_view (
    name TEXT NOT NULL PRIMARY KEY,
    address TEXT NOT NULL,                   -- path and query, /compare?s=…
    saved_ns BIGINT NOT NULL
);
