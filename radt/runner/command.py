"""The command and the environment variables of a training process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from radt.environments.mlproject import read_project
from radt.experiment.devices import Machine
from radt.experiment.plan import RunPlan
from radt.experiment.program import ProgramKind
from radt.home import HOME_VARIABLE, RUN_DIR_VARIABLE, RUN_ID_VARIABLE, Home
from radt.units import seconds_text

#: Where `radt.Run` finds its limits.
MAX_TIME_VARIABLE = "RADT_MAX_TIME_S"
MAX_EPOCH_VARIABLE = "RADT_MAX_EPOCH"

#: Variables of the runner that must not reach a training process, which gets its own.
_OWN_VARIABLES = (
    *("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"),
    *("RADT_BARRIER", MAX_TIME_VARIABLE, MAX_EPOCH_VARIABLE),
    *("RADT_TORCH", "RADT_TORCHPROF", "RADT_TORCHPROF_OPTIONS"),
)


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What a training process must know about the run it is."""

    run_id: str
    spool: Path
    tracking_uri: str
    mlflow_run_id: str | None = None
    mlflow_experiment_id: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a script's ``with radt.Run()`` block before it ends by itself."""

    max_time_s: float | None = None
    max_epoch: int | None = None

    def variables(self) -> dict[str, str]:
        found = {}
        if self.max_time_s is not None:
            found[MAX_TIME_VARIABLE] = seconds_text(self.max_time_s)
        if self.max_epoch is not None:
            found[MAX_EPOCH_VARIABLE] = str(self.max_epoch)
        return found


def program_command(plan: RunPlan, interpreter: Path) -> list[str]:
    """Argument list of a row: Python through this interpreter, the rest as it is.

    Raises:
        UsageError: The MLproject file of a project, or what it is given, is wrong.
    """
    match plan.program.kind:
        case ProgramKind.PROJECT:
            return read_project(plan.program.path).command(plan.params)
        case ProgramKind.EXECUTABLE:
            return [str(plan.program.path), *plan.params]
    return [str(interpreter), *program_arguments(plan)]


def program_arguments(plan: RunPlan) -> list[str]:
    """What a Python interpreter is given to run a row."""
    if plan.program.kind is ProgramKind.MODULE:
        return ["-m", plan.program.module, *plan.params]
    return [str(plan.program.path), *plan.params]


def environment_of(
    plan: RunPlan,
    identity: RunIdentity,
    home: Home,
    machine: Machine,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The runner's environment plus what `radt.Run` and MLflow need to join the run.

    ``CUDA_VISIBLE_DEVICES`` is set from the row's devices; empty for ``cpu``, so that a CPU run
    leaves the cards alone. ``RADT_PRESENT`` is what scripts written for the original radT ask for.
    """
    env = dict(os.environ if base is None else base)
    for name in _OWN_VARIABLES:
        env.pop(name, None)
    env |= {
        RUN_ID_VARIABLE: identity.run_id,
        RUN_DIR_VARIABLE: str(identity.spool),
        HOME_VARIABLE: str(home.path),
        "RADT_EXPERIMENT": plan.experiment,
        "RADT_WORKLOAD": plan.workload,
        "RADT_LETTER": plan.letter,
        "RADT_DEVICES": str(plan.devices),
        "RADT_PRESENT": "True",
        "CUDA_VISIBLE_DEVICES": plan.devices.cuda_visible_devices(machine),
        "PYTHONUNBUFFERED": env.get("PYTHONUNBUFFERED", "1"),
    }
    if identity.mlflow_run_id is not None:
        env["MLFLOW_TRACKING_URI"] = identity.tracking_uri
        env["MLFLOW_RUN_ID"] = identity.mlflow_run_id
        if identity.mlflow_experiment_id is not None:
            env["MLFLOW_EXPERIMENT_ID"] = identity.mlflow_experiment_id
    return env
