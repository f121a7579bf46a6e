"""Deliver the store's contents to MLflow, to Postgres and into archives.

The store is the queue, and each destination has a position in it, so a delivery can be killed at
any time and continues later. The collector starts one process per store and destination
(`radt.collector.delivery`). To wait for uploads, ask the collector to flush and follow what is left
in the store (`backlog`, `radt.runner.delivering`).

Files of a run are uploaded from its folder, ``runs/RUN_ID``. The column ``delivery_note`` says why
a run will never be complete in MLflow.
"""
