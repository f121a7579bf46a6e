"""What MLflow loads of radt when it is imported: within a run, its client is followed.

MLflow loads the entry points of ``mlflow.default_experiment_provider`` once its own client is
there. Outside of a run nothing happens here, and nothing else of radt is imported.
"""

from __future__ import annotations

import os
import sys


class RunFollower:
    """A provider of default experiments: that of the run, for what a script opens in MLflow.

    Making it, as MLflow does when it is imported, starts `radt.run.mlflow_calls` within a run.
    """

    def __init__(self) -> None:
        is_inside = os.environ.get("RADT_RUN_ID") or "radt.run.recording" in sys.modules
        if not is_inside or os.environ.get("RADT_MODE", "").lower() == "off":
            return
        try:
            from radt.run.mlflow_calls import install

            install()
        except Exception as error:  # noqa: BLE001 - `import mlflow` must work whatever happens here
            from radt.run.notices import warn_once

            warn_once(f"what the script logs through MLflow is not followed: {error!r}")

    def in_context(self) -> bool:
        """Return whether there is a default experiment."""
        return self.get_experiment_id() is not None

    def get_experiment_id(self) -> str | None:
        """Return the id of the run's experiment; None outside of a run."""
        calls = sys.modules.get("radt.run.mlflow_calls")
        return None if calls is None else calls.default_experiment()
