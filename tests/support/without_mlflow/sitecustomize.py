"""Puts a stand-in into the place of the process that uploads to MLflow.

Python imports this first where the folder is in ``PYTHONPATH``. Every collector that a test starts
would have MLflow loaded, two seconds of a core and most of what a short experiment takes. The
stand-in gives each run an id at once, calls ended runs uploaded, and sends nothing.
"""

from __future__ import annotations

import sys


def _main() -> int:
    from radt.delivery.mlflow.__main__ import _parse
    from radt.delivery.problems import destination_name
    from radt.delivery.process import run_alone

    order = _parse(None)
    name = f"deliver-{destination_name(order.store, order.tracking_uri)}"
    return run_alone(name, lambda: _deliver(order.store, order.tracking_uri))


def _deliver(store: object, uri: str) -> int:
    from radt.parent_watch import ParentMessage, wait_for_parent

    message = ParentMessage.NEWS
    while True:
        _note(store, uri)
        if message is ParentMessage.CLOSED:
            return 0
        message = wait_for_parent(0.5)


def _note(store: object, uri: str) -> None:
    """What the uploader notes in the store; a store that is locked or full is tried again."""
    import sqlite3
    import time
    from contextlib import closing

    waiting = "WHERE tracking_uri = :uri AND delivery_done_ns IS NULL AND "
    new_id = "SET mlflow_run_id = lower(hex(randomblob(16)))"
    changes = (
        ("workload", new_id, "mlflow_run_id IS NULL AND label <> ''"),
        ("run", new_id, "mlflow_run_id IS NULL"),
        ("run", "SET delivery_done_ns = :now_ns", "ended_ns IS NOT NULL"),
        ("workload", "SET delivery_done_ns = :now_ns", "ended_ns IS NOT NULL"),
    )
    values = {"uri": uri, "now_ns": time.time_ns()}
    try:
        with closing(sqlite3.connect(str(store), timeout=60.0)) as connection:
            for table, change, which in changes:
                if connection.execute(f"SELECT 1 FROM {table} {waiting}{which}", values).fetchone():
                    with connection:
                        connection.execute(f"UPDATE {table} {change} {waiting}{which}", values)
    except sqlite3.Error:
        pass


if "radt.delivery.mlflow" in sys.orig_argv[1:4]:
    sys.argv = sys.orig_argv[3:]
    raise SystemExit(_main())
