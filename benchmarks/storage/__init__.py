"""The store against what people would use instead, in SQLite and in Postgres."""
