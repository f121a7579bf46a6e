"""Entry point that MLflow loads on import: within a run, follow calls of MLflow's client.

MLflow loads the entry points of ``mlflow.default_experiment_provider`` once its own client is
imported. Outside a run this module does nothing and imports nothing else of radt.
"""

from __future__ import annotations

import os
import sys


class RunFollower:
    """Default-experiment provider: returns the run's experiment for runs that a script opens.

    Within a run, the constructor, which MLflow calls on import, installs `radt.run.mlflow_calls`.
    """

    def __init__(self) -> None:
        is_inside = os.environ.get("RADT_RUN_ID") or "radt.run.open_runs" in sys.modules
        if not is_inside or os.environ.get("RADT_MODE", "").lower() == "off":
            return
        try:
            from radt.run.mlflow_calls import install

            install()
        except Exception as error:  # noqa: BLE001 - `import mlflow` must work whatever happens here
            from radt.run.notices import warn_once

            warn_once(f"what the script logs through MLflow is not followed: {error!r}")

    def in_context(self) -> bool:
        """Return True if there is a default experiment."""
        return self.get_experiment_id() is not None

    def get_experiment_id(self) -> str | None:
        """Return the id of the run's experiment, or None outside a run."""
        calls = sys.modules.get("radt.run.mlflow_calls")
        return None if calls is None else calls.default_experiment()
