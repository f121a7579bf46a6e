"""What training scripts use of radt. Imports the standard library only."""

import sys
from types import ModuleType
from typing import Any

from radt.run.child import ChildRun
from radt.run.compat import RADTBenchmark, log_metric, log_metrics, shutdown
from radt.run.history import Audio, Histogram, Html, Image, Table, Video
from radt.run.lifecycle import current
from radt.run.run import Run, active_run
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
    "ChildRun",
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
        active = current()
        if not name.startswith("_") and active is not None and hasattr(type(active.run), name):
            return getattr(active.run, name)
        why = "" if active is not None or not hasattr(Run, name) else ": no run is open"
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{why}")

    def __setattr__(self, name: str, value: object) -> None:
        active = current()
        if active is not None and isinstance(getattr(type(active.run), name, None), property):
            setattr(active.run, name, value)
        else:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _RunModule
