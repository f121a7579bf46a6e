"""The names of `radt` that training scripts use. Imports only the standard library.

A `radt.Run` (`run`; its values and files in `logged_run`, W&B's names in `wandb_run`) is a handle
of an `OpenRun` (`open_runs`): a run that is open in this process, over one of three back ends
(`backends`): joined from a runner or a parent process, standalone, or off. `target` finds out which
one. `session` offers the same by the names of W&B and Trackio, `compat` by those of radT 0.2, and
`mlflow_calls` maps each MLflow run of a script to an open run.

A *child* is a run within a run: one of several trainings of a process, or a further block of a row.
It describes itself in a folder of its own as a bare script does, with the tag `radt.tags.PARENT`
and without listeners; the collector records it from there and ends it with its parent. Its letter
is ``a.NAME`` (`radt.run_name`). A child is not a neighbour of the other runs, so analysis keeps it
apart (`radt.analysis.selection.Attempt.children`).

Imports within this package have no cycle.
"""

import sys
from types import ModuleType
from typing import Any

from radt.run.compat import RADTBenchmark
from radt.run.open_runs import current
from radt.run.run import Run, run_of
from radt.run.wandb_names import OF_RUN

__all__ = ["RADTBenchmark", "Run"]


class _RunModule(ModuleType):
    """This module, which also stands for the open run: W&B scripts read ``wandb.run.id``.

    Only names of `Run` are looked up on the run, so that submodules are never looked up in mlflow.
    """

    def __bool__(self) -> bool:
        return current() is not None

    def __getattr__(self, name: str) -> Any:
        is_runs = not name.startswith("_") and (hasattr(Run, name) or name in OF_RUN)
        open_run = current() if is_runs else None
        if open_run is not None:
            return getattr(run_of(open_run), name)
        why = ": no run is open" if is_runs else ""
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{why}")

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(getattr(Run, name, None), property):
            super().__setattr__(name, value)
        elif (open_run := current()) is not None:
            setattr(run_of(open_run), name, value)
        else:
            raise AttributeError(f"{self.__name__}.{name} cannot be set: no run is open")


sys.modules[__name__].__class__ = _RunModule
