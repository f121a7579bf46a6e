"""The sample store: schema, codec, writer and reader, for SQLite and Postgres.

Both databases have the same tables and mostly the same statements; `sqlite` and `postgres` have the
differences, behind `backend`. `records` are the rows, `tables` their statements, `migrations` the
versions of the schema.

A *chunk* has up to 3,600 points of a series, compressed, with their count, extremes and sum in the
row, so that overviews decode few points (`chunks`, `codec`, `points`). Points are numbered in the
order of writing, which never changes: a destination only has to remember a count. Each transaction
that changes a run raises its ``revision``; a copy that has seen a revision has all changes up to
it.

A row of ``series_summary`` summarises all points of a series (`summaries`). It is updated in the
transaction that stores points, and `reader.StoreReader.summary` is the only source of one number
per series. ``radt db check`` compares summaries and chunks (`check`).

Moving a run has one mechanism (`copy`): what a target has is a `copy.Position`, and `copy.changes`
yields the rest in batches, of which `applying` adds each in one transaction. A bundle (`bundle`) is
a file with batches. Replication, archives, jobs of a cluster, ``radt export`` and importers use
these; tests/copy/test_contract.py holds all of them to one contract.

A series is reduced to fewer points by `cells` only.
"""
