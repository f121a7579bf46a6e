"""Benchmarks of the store against its alternatives, in SQLite and in Postgres."""
