"""MLflow's autologging: whether it logs a library, and switching it on for those without ours."""

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
    """Return whether MLflow's autologging of a library is on, and the run gets what it logs."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is None:
        return False
    from mlflow.utils.autologging_utils import autologging_is_disabled

    if autologging_is_disabled(flavor):  # type: ignore[no-untyped-call]
        return False
    run = mlflow.active_run()
    return run is not None and copies(run.info.run_id)


def autolog_library(name: str) -> None:
    """Switch on MLflow's autologging of a library, without its models, unless the script did so.

    Only where the script has imported both.
    """
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or name not in sys.modules:
        return
    from mlflow.utils.autologging_utils import AUTOLOGGING_INTEGRATIONS

    if name not in AUTOLOGGING_INTEGRATIONS or not AUTOLOGGING_INTEGRATIONS[name]:
        getattr(mlflow, name).autolog(log_models=False)


class HomeServer:
    """The MLflow of the data folder, for runs that a script opens there before any of radt's."""

    def prepare(self, tracking_uri: str) -> None:
        """Make its database whole, as the uploader does, before a client connects to it."""
        if tracking_uri == Home.resolve(warn=warn_once).tracking_uri(warn=warn_once):
            _connected(tracking_uri)

    def experiment(self, tracking_uri: str) -> str | None:
        """Return the id of the script's experiment, made if it is not there; None elsewhere."""
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
