"""What training scripts use of radt. Imports the standard library only."""

import sys
from types import ModuleType
from typing import Any

from radt.run.compat import RADTBenchmark, log_metric, log_metrics, shutdown
from radt.run.recording import current
from radt.run.run import Run, active_run, run_of
from radt.run.session import (
    alert,
    config,
    define_metric,
    finish,
    init,
    log,
    log_artifact,
    login,
    save,
    summary,
    watch,
)
from radt.run.wandb_names import OF_RUN

__all__ = [
    "RADTBenchmark",
    "Run",
    "active_run",
    "alert",
    "config",
    "define_metric",
    "finish",
    "init",
    "log",
    "log_artifact",
    "log_metric",
    "log_metrics",
    "login",
    "save",
    "shutdown",
    "summary",
    "watch",
]


class _RunModule(ModuleType):
    """This module, which is the open run as well: W&B's scripts ask ``wandb.run`` for its id.

    Only names of `Run` are the run's, so that no submodule is looked for in mlflow.
    """

    def __bool__(self) -> bool:
        return current() is not None

    def __getattr__(self, name: str) -> Any:
        is_runs = not name.startswith("_") and (hasattr(Run, name) or name in OF_RUN)
        recording = current() if is_runs else None
        if recording is not None:
            return getattr(run_of(recording), name)
        why = ": no run is open" if is_runs else ""
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{why}")

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(getattr(Run, name, None), property):
            super().__setattr__(name, value)
        elif (recording := current()) is not None:
            setattr(run_of(recording), name, value)
        else:
            raise AttributeError(f"{self.__name__}.{name} cannot be set: no run is open")


sys.modules[__name__].__class__ = _RunModule
