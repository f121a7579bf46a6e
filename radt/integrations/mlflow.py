"""MLflow's autologging: whether it logs a library, and switching it on for those without ours."""

from __future__ import annotations

import sys

from radt.run.mlflow_calls import copies


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
