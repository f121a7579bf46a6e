"""Resource-aware experiment tracker and benchmark runner for deep learning.

Importing this package takes a few milliseconds and loads only the standard library. Everything else
is imported on first use.
"""

from typing import TYPE_CHECKING

from radt.load import load, totals

if TYPE_CHECKING:
    from radt import run
    from radt.api import run_experiment
    from radt.integrations.autolog import autolog
    from radt.integrations.wandb import Artifact, Audio, Histogram, Html, Image, Table, Video
    from radt.run.compat import RADTBenchmark, log_metric, log_metrics, shutdown
    from radt.run.run import Run, active_run
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

__version__ = "1.0.0.dev0"

__all__ = [
    "Artifact",
    "Audio",
    "Histogram",
    "Html",
    "Image",
    "RADTBenchmark",
    "Run",
    "Table",
    "Video",
    "__version__",
    "active_run",
    "alert",
    "autolog",
    "config",
    "define_metric",
    "finish",
    "init",
    "load",
    "log",
    "log_artifact",
    "log_metric",
    "log_metrics",
    "login",
    "run",
    "run_experiment",
    "save",
    "shutdown",
    "summary",
    "totals",
    "watch",
]

#: #: Modules of the names that `radt.run.session` does not define.
_WANDB = "radt.integrations.wandb"
_MODULES = {
    "autolog": "radt.integrations.autolog",
    "run": "radt.run",
    "run_experiment": "radt.api",
    **dict.fromkeys(("Artifact", "Audio", "Histogram", "Html", "Image", "Table", "Video"), _WANDB),
    **dict.fromkeys(("Run", "active_run"), "radt.run.run"),
    **dict.fromkeys(("RADTBenchmark", "log_metric", "log_metrics", "shutdown"), "radt.run.compat"),
}

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        import importlib.util

        if name not in __all__:
            is_module = name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}")
            if not is_module:
                return importlib.import_module(_WANDB).of_module(name)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        package = importlib.import_module(_MODULES.get(name, "radt.run.session"))
        value = package if name == "run" else getattr(package, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
