"""What training scripts use of radt. Imports the standard library only."""

import sys
from types import ModuleType
from typing import Any

from radt.run.compat import RADTBenchmark, log_metric, log_metrics, shutdown
from radt.run.history import Audio, Histogram, Html, Image, Table, Video
from radt.run.recording import current
from radt.run.run import Run, active_run, run_of
from radt.run.session import (
    config,
    define_metric,
    finish,
    init,
    log,
    login,
    save,
    summary,
    watch,
)

__all__ = [
    "Audio",
    "Histogram",
    "Html",
    "Image",
    "RADTBenchmark",
    "Run",
    "Table",
    "Video",
    "active_run",
    "config",
    "define_metric",
    "finish",
    "init",
    "log",
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
        recording = current() if not name.startswith("_") and hasattr(Run, name) else None
        if recording is not None:
            return getattr(run_of(recording), name)
        why = ": no run is open" if hasattr(Run, name) else ""
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{why}")

    def __setattr__(self, name: str, value: object) -> None:
        recording = current()
        if recording is not None and isinstance(getattr(Run, name, None), property):
            setattr(run_of(recording), name, value)
        else:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _RunModule
