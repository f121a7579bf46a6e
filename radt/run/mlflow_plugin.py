"""MLflow's plug-in: a script that uses MLflow waits for its MLflow run, at the first use only.

The runner starts rows before MLflow has answered. MLflow loads this module as soon as a script
imports it, by the entry point ``mlflow.run_context_provider`` (https://mlflow.org/docs/latest/ml/
plugins/). All that MLflow does goes through a store, and the first one of the run's own address is
made when the run is there.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from radt.home import MLFLOW_PENDING_VARIABLE
from radt.run.notices import warn_once
from radt.run.passthrough import RUN_VARIABLE, wait_for_mlflow
from radt.run.target import find_target, inside_a_run

EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_ID"


class WaitForRun:
    """A provider of tags for new MLflow runs that has none; to be loaded is all it is for."""

    def __init__(self) -> None:
        uri = os.environ.get(MLFLOW_PENDING_VARIABLE)
        if uri and inside_a_run():
            try:
                _wait_at_first_use(uri)
            except Exception as error:  # noqa: BLE001 - another MLflow; the script goes on
                warn_once(f"mlflow may not know this run yet: {type(error).__name__}: {error}")

    def in_context(self) -> bool:
        """Return whether there are tags."""
        return False

    def tags(self) -> dict[str, str]:
        """Return none."""
        return {}


def _wait_at_first_use(uri: str) -> None:
    # Untyped, all of it.
    stores: Any = import_module("mlflow.tracking._tracking_service.utils")._tracking_store_registry  # noqa: SLF001
    scheme_of: Any = import_module("mlflow.utils.uri").get_uri_scheme
    build = stores.get_store_builder(uri)

    def build_when_there(store_uri: str, artifact_uri: str | None = None) -> Any:
        if store_uri == uri:
            _join()
        return build(store_uri=store_uri, artifact_uri=artifact_uri)

    stores.register(scheme_of(uri), build_when_there)


def _join() -> None:
    """Wait for the run, and set what MLflow reads to join it."""
    if os.environ.pop(MLFLOW_PENDING_VARIABLE, None) is None:
        return
    from radt.store.reader import StoreReader

    target = find_target(None, 0)
    record = wait_for_mlflow(target)
    if record is None:
        os.environ.pop(RUN_VARIABLE, None)  # it would be looked for in vain, which is an error
        return
    os.environ[RUN_VARIABLE] = str(record.mlflow_run_id)
    with StoreReader(target.home.store_path) as reader:
        experiment_id = reader.workload(record.workload_id).mlflow_experiment_id
    if experiment_id is not None:
        os.environ[EXPERIMENT_VARIABLE] = experiment_id
