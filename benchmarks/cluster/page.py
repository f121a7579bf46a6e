"""The dashboard's start page with the runs of an experiment on a cluster."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.dashboard import stores
from benchmarks.dashboard.browser import start_page
from benchmarks.dashboard.stores import Size
from benchmarks.dashboard.visiting import CHROMIUM, has_chromium
from benchmarks.results import Findings, Table
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import (
    CLUSTER_ATTEMPT,
    CLUSTER_HARDWARE,
    CLUSTER_JOB,
    CLUSTER_NODE,
    CLUSTER_SUBMISSION,
)


def measure(rows: int, nodes: int) -> Findings:
    """Time the start page with so many runs from so many nodes; nothing without a browser."""
    found = Findings()
    if not has_chromium():
        found.tables.append(Table(f"Not measured: there is no {CHROMIUM}", ("start page",)))
        return found
    with tempfile.TemporaryDirectory() as folder:
        store = stores.many(Path(folder) / "radt.db", Size(runs=rows))
        _place(store, nodes)
        start_page(found, store, rows)
    return found


def _place(store: Path, nodes: int) -> None:
    """Tag all runs as a cluster's."""
    with StoreReader(store) as reader:
        run_ids = [run.run_id for run in reader.runs()]
    with StoreWriter(store) as writer, writer.transaction():
        for number, run_id in enumerate(run_ids):
            tags = {
                CLUSTER_SUBMISSION: "20261125-120000-abcd",
                CLUSTER_JOB: f"0-{number}",
                CLUSTER_ATTEMPT: "1",
                CLUSTER_NODE: f"node{number % nodes}",
                CLUSTER_HARDWARE: "one kind",
            }
            writer.put_tags(run_id, tags)
