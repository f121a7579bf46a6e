"""MLflow's autologging: check if it is on, or enable it for libraries without integration."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from radt.home import Home
from radt.run.mlflow_calls import copies
from radt.run.notices import warn_once
from radt.run.standalone import experiment_of_script

if TYPE_CHECKING:
    from radt.delivery.mlflow.target import MlflowTarget


def autologs(flavor: str) -> bool:
    """Return True if MLflow autologs a library and the run receives its values."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is None:
        return False
    from mlflow.utils.autologging_utils import autologging_is_disabled

    if autologging_is_disabled(flavor):  # type: ignore[no-untyped-call]
        return False
    run = mlflow.active_run()
    return run is not None and copies(run.info.run_id)


def autolog_library(name: str) -> None:
    """Enable MLflow's autologging of a library, without models, unless the script did so.

    Applies only if the script has imported both mlflow and the library.
    """
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or name not in sys.modules:
        return
    from mlflow.utils.autologging_utils import AUTOLOGGING_INTEGRATIONS

    if name not in AUTOLOGGING_INTEGRATIONS or not AUTOLOGGING_INTEGRATIONS[name]:
        getattr(mlflow, name).autolog(log_models=False)


class HomeServer:
    """The data folder's MLflow, for MLflow runs that a script opens before any run of radt."""

    def prepare(self, tracking_uri: str) -> None:
        """Create or migrate its database, as the uploader does, before a client connects to it."""
        if tracking_uri == Home.resolve(warn=warn_once).tracking_uri(warn=warn_once):
            _connected(tracking_uri)

    def experiment(self, tracking_uri: str) -> str | None:
        """Return the id of the script's experiment, created if needed; None for other servers."""
        if tracking_uri != Home.resolve(warn=warn_once).tracking_uri(warn=warn_once):
            return None
        from radt.delivery.mlflow.runs import ensure_experiment

        return ensure_experiment(_connected(tracking_uri), experiment_of_script())


@cache
def _connected(tracking_uri: str) -> MlflowTarget:
    from radt.delivery.mlflow.target import MlflowTarget

    home = Home.resolve(warn=warn_once)
    is_own = tracking_uri == home.default_tracking_uri
    if is_own:
        home.create()
    target = MlflowTarget(tracking_uri, home.artifacts if is_own else None)
    target.connect()
    return target
