"""Resource-aware experiment tracker and benchmark runner for deep learning.

Importing this takes some milliseconds and nothing but the standard library; what costs more comes
with its first use.
"""

from typing import TYPE_CHECKING

from radt.load import load, totals

if TYPE_CHECKING:
    from radt import run
    from radt.api import run_experiment
    from radt.integrations.autolog import autolog
    from radt.run import (
        Audio,
        Histogram,
        Html,
        Image,
        RADTBenchmark,
        Run,
        Table,
        Video,
        active_run,
        config,
        define_metric,
        finish,
        init,
        log,
        log_metric,
        log_metrics,
        login,
        save,
        shutdown,
        summary,
        watch,
    )

__version__ = "1.0.0.dev0"

__all__ = [
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
    "autolog",
    "config",
    "define_metric",
    "finish",
    "init",
    "load",
    "log",
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

#: Where names are that do not come from `radt.run`.
_MODULES = {"autolog": "radt.integrations.autolog", "run_experiment": "radt.api"}

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        package = importlib.import_module(_MODULES.get(name, "radt.run"))
        value = package if name == "run" else getattr(package, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
