"""Compare a store with MLflow: runs that one has and the other lacks."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import bindparam, text

from radt.delivery.mlflow.variables import FOR_COMMANDS, set_client_defaults
from radt.errors import TrackingError
from radt.home import Home
from radt.masking import masked, with_driver
from radt.paths import sqlite_file
from radt.store.check import Defect, Trouble
from radt.store.reader import StoreReader
from radt.tags import HOST, RUN_ID

_RUNS_AT_A_TIME = 1000
_EXPERIMENTS_AT_A_TIME = 100

_PRUNED = text("SELECT run_id FROM pruned WHERE run_id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)
_WITH_MLFLOW_RUN = text(
    "SELECT run_id, mlflow_run_id, tracking_uri FROM run WHERE mlflow_run_id IS NOT NULL "
    "AND run_id > :after ORDER BY run_id LIMIT :some"
)


def check_mlflow(reader: StoreReader, tracking_uri: str, home: Home | None) -> Iterator[Defect]:
    """Yield runs of MLflow whose samples are not in the store, and the reverse.

    In a shared MLflow, a data folder (`home`, None for a shared store) is only expected to have the
    runs of its own machine.

    Raises:
        TrackingError: MLflow does not answer.
        StoreError: The store cannot be read.
    """
    file = sqlite_file(tracking_uri)
    if file is not None and not file.exists():
        return  # creating a client would create the database
    own = home is not None and tracking_uri == home.default_tracking_uri
    known: set[str] = set()
    for page in _runs_of(tracking_uri):
        known.update(str(run.info.run_id) for run in page)
        missing = _missing(reader, page)
        for run_id, run in missing.items():
            host = run.data.tags.get(HOST, "")
            if home is not None and not own and host not in ("", platform.node()):
                continue
            yield Defect(
                Trouble.MLFLOW,
                f"run {run_id}",
                f"is {run.info.run_id} in MLflow; its samples are not in this store",
                f"`radt import {run.info.run_id}` reads them from the archive; "
                + (f"`radt sync` on {host} uploads them" if host else "`radt sync` uploads them"),
                run_id,
            )
    yield from _gone(reader, tracking_uri, known)


def _missing(reader: StoreReader, page: Sequence[Any]) -> dict[str, Any]:
    """Return radt's runs, by their id, that are neither in the store nor pruned."""
    ours = {
        run.data.tags[RUN_ID]: run
        for run in page
        if RUN_ID in run.data.tags and run.info.lifecycle_stage == "active"
    }
    if not ours:
        return {}
    known = {run.run_id for run in reader.runs(run_ids=sorted(ours))}
    with reader.snapshot() as connection:
        known.update(connection.execute(_PRUNED, {"ids": sorted(ours)}).scalars())
    return {run_id: run for run_id, run in ours.items() if run_id not in known}


def _gone(reader: StoreReader, tracking_uri: str, known: set[str]) -> Iterator[Defect]:
    asked = masked(with_driver(tracking_uri))
    after = ""
    while True:
        with reader.snapshot() as connection:
            row = {"after": after, "some": _RUNS_AT_A_TIME}
            rows = connection.execute(_WITH_MLFLOW_RUN, row).all()
        for run_id, mlflow_id, uri in rows:
            if mlflow_id not in known and masked(with_driver(uri)) == asked:
                yield Defect(
                    Trouble.MLFLOW,
                    f"run {run_id}",
                    f"MLflow no longer has its run {mlflow_id}; its samples are in this store",
                    "Ignore this if you deleted it on purpose",
                    run_id,
                )
        if not rows:
            return
        after = str(rows[-1].run_id)


def _runs_of(tracking_uri: str) -> Iterator[Sequence[Any]]:
    """Yield pages of all runs that radt created in MLflow, deleted ones included."""
    set_client_defaults(FOR_COMMANDS)
    try:
        from mlflow.entities import ViewType
        from mlflow.tracking import MlflowClient

        from radt.delivery.mlflow.limits import pages
        from radt.delivery.mlflow.target import DeliveryError, translated_errors
    except ImportError as error:
        raise TrackingError(
            f"the store was not compared with MLflow, which cannot be loaded: {error}",
            "Install it, or use --no-mlflow",
        ) from error

    try:
        with translated_errors():
            client = MlflowClient(tracking_uri)
            search = partial(
                client.search_experiments, ViewType.ALL, max_results=_EXPERIMENTS_AT_A_TIME
            )
            search_runs = partial(
                client.search_runs,
                filter_string=f"tags.`{RUN_ID}` LIKE '%'",
                run_view_type=ViewType.ALL,
                max_results=_RUNS_AT_A_TIME,
            )
            for experiments in pages(search):
                if ids := [experiment.experiment_id for experiment in experiments]:
                    yield from pages(partial(search_runs, ids))
    except DeliveryError as error:
        raise TrackingError(
            f"MLflow at {masked(tracking_uri)} cannot be reached: {masked(error.message)}",
            "Check that it is running, or use --no-mlflow",
        ) from error
