"""The command and the environment variables of a training process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from radt.experiment.devices import Machine
from radt.experiment.plan import RunPlan
from radt.experiment.program import ProgramKind
from radt.home import HOME_VARIABLE, RUN_DIR_VARIABLE, RUN_ID_VARIABLE, Home

#: Variables of the runner that must not reach a training process, which gets its own.
_OWN_VARIABLES = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What a training process must know about the run it is."""

    run_id: str
    spool: Path
    tracking_uri: str
    mlflow_run_id: str | None = None
    mlflow_experiment_id: str | None = None


def command_of(plan: RunPlan) -> list[str]:
    """Argument list of a row: Python runs in radt's own interpreter, the rest as it is."""
    match plan.program.kind:
        case ProgramKind.SCRIPT:
            start = [sys.executable, str(plan.program.path)]
        case ProgramKind.MODULE:
            start = [sys.executable, "-m", plan.program.module]
        case _:
            start = [str(plan.program.path)]
    return [*start, *plan.params]


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
