"""The command and variables of a training process, and the profilers around it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radt import tags
from radt.devices.machine import Machine
from radt.environments.mlproject import read_project
from radt.experiment.plan import RunPlan
from radt.experiment.program import ProgramKind
from radt.home import (
    HOME_VARIABLE,
    MLFLOW_PENDING_VARIABLE,
    RUN_DIR_VARIABLE,
    RUN_ID_VARIABLE,
    VARIABLES_OF_A_RUN,
    Home,
    RunDir,
)
from radt.listeners.api import ProfiledRun, Profiler, Registry, options_of
from radt.model import ListenerChoice, RunStatus
from radt.runner import exit_recorder
from radt.runner.outcome import RunEnd
from radt.runner.process import Exit
from radt.units import seconds_text

#: Where `radt.Run` finds its limits.
MAX_TIME_VARIABLE = "RADT_MAX_TIME_S"
MAX_EPOCH_VARIABLE = "RADT_MAX_EPOCH"

#: Variables of the runner that must not reach a training process, which gets its own.
_OWN_VARIABLES = (
    *VARIABLES_OF_A_RUN,
    *("MLFLOW_EXPERIMENT_NAME", MAX_TIME_VARIABLE, MAX_EPOCH_VARIABLE),
)


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What a training process must know about the run it is."""

    run_id: str
    spool: Path
    tracking_uri: str
    mlflow_run_id: str | None = None
    mlflow_experiment_id: str | None = None
    mlflow_pending: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a script's ``with radt.Run()`` block before it ends by itself."""

    max_time_s: float | None = None
    max_epoch: int | None = None

    def variables(self) -> dict[str, str]:
        environment = {}
        if self.max_time_s is not None:
            environment[MAX_TIME_VARIABLE] = seconds_text(self.max_time_s)
        if self.max_epoch is not None:
            environment[MAX_EPOCH_VARIABLE] = str(self.max_epoch)
        return environment


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
        case ProgramKind.COMMAND:
            return [plan.program.command, *plan.params]
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
        "RADT_NAME": plan.label,
        "RADT_DEVICES": str(plan.devices),
        "RADT_PRESENT": "True",
        "CUDA_VISIBLE_DEVICES": plan.devices.cuda_visible_devices(machine),
        "PYTHONUNBUFFERED": env.get("PYTHONUNBUFFERED", "1"),
    }
    if identity.mlflow_pending:
        env["MLFLOW_TRACKING_URI"] = env[MLFLOW_PENDING_VARIABLE] = identity.tracking_uri
    if identity.mlflow_run_id is not None:
        env["MLFLOW_TRACKING_URI"] = identity.tracking_uri
        # MLflow removes the first as soon as it has used it.
        env["MLFLOW_RUN_ID"] = env["RADT_MLFLOW_RUN_ID"] = identity.mlflow_run_id
        if identity.mlflow_experiment_id is not None:
            env["MLFLOW_EXPERIMENT_ID"] = identity.mlflow_experiment_id
    return env


#: Where reports are, in the run's artifacts.
REPORTS = "profiles"
#: How the program itself ended, in the run's folder.
NOTE = "program-exit-code"
#: How much longer than others a profiled run may take to end: its report has to be written.
PATIENCE_S = 120.0
#: Of a name that goes into the names of reports; file names have 255 bytes.
_LABEL_PART = 60
_SHOWN_ERROR = 200

_ERROR = re.compile(r"^(?:==ERROR== |(?:FATAL )?ERROR: )(.+)|^(unrecogni[sz]ed option.+)")
_SHUT_DOWN = "Trying to shutdown target application"
_KNOWN_ERRORS = (
    (
        re.compile("ERR_NVGPUCTRPERM"),
        "only administrators may read the GPU's counters (ERR_NVGPUCTRPERM). Set the "
        "option NVreg_RestrictProfilingToAdminUsers=0 of the kernel module nvidia, or run as root",
    ),
    (
        re.compile("driver resource was unavailable"),
        "another profiler or DCGM is reading the GPU's counters. Stop it, or pause DCGM with "
        "dcgmi profile --pause",
    ),
    (re.compile("No kernels were profiled"), "no kernel ran while it recorded"),
)


@dataclass(frozen=True, slots=True)
class Profilers:
    """The profilers that a row names, with the user's options; ``sampled`` is all else it names."""

    chosen: Sequence[tuple[Profiler, ListenerChoice]]
    sampled: tuple[ListenerChoice, ...]

    @classmethod
    def of(cls, row: RunPlan, registry: Registry) -> Profilers:
        kinds = registry.profilers
        return cls(
            [
                (kinds[listener.name](), listener)
                for listener in row.listeners
                if listener.name in kinds
            ],
            tuple(choice for choice in row.listeners if choice.name not in kinds),
        )

    @property
    def disturbing(self) -> str:
        """Those that slow the run down, joined by ``+``; empty if none does."""
        return "+".join(profiler.name for profiler, _ in self.chosen if profiler.disturbs)

    @property
    def on_counters(self) -> str:
        """The one that takes the GPU's performance counters; empty if none does."""
        return next(
            (profiler.name for profiler, _ in self.chosen if profiler.takes_gpu_counters), ""
        )

    def make_folder(self, run_dir: RunDir) -> None:
        """Make the folder of reports, if there may be any."""
        if self.chosen:
            (run_dir.artifacts / REPORTS).mkdir(exist_ok=True)

    def attached(self, row: RunPlan, run_id: str, run_dir: RunDir) -> Profiling | None:
        """What they do to this run; None if there is none."""
        if not self.chosen:
            return None
        prefix: list[str] = []
        environment: dict[str, str] = {}
        notices: list[str] = []
        name = ""
        for profiler, choice in self.chosen:
            run = ProfiledRun(
                run_id=run_id,
                label=report_label(row),
                reports=run_dir.artifacts.absolute() / REPORTS,
                options=options_of(choice.options),
            )
            if words := profiler.prefix(run):
                prefix, name = [*prefix, *words], profiler.name
            environment |= profiler.environment(run)
            if notice := profiler.notice(run):
                notices.append(notice)
        return Profiling(
            name, tuple(prefix), environment, tuple(notices), run_dir.path.absolute() / NOTE
        )


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """What the program ended with (negative for a signal), and when (monotonic)."""

    code: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Profiling:
    """What profilers do to a run. ``name`` is that of the one that goes before its command."""

    name: str
    prefix: tuple[str, ...]
    environment: Mapping[str, str]
    notices: tuple[str, ...]
    note: Path

    def command(self, command: Sequence[str]) -> list[str]:
        """The command under the profiler, with an exit recorder."""
        if not self.prefix:
            return list(command)
        own = (sys.executable, "-I", "-S", exit_recorder.__file__, str(self.note))
        return [*self.prefix, *own, *command]

    @property
    def program_end(self) -> ProgramEnd | None:
        """How the program ended; None if it has not, or nobody saw it."""
        try:
            code, ended_ns = self.note.read_text(encoding="ascii").split()
        except (OSError, ValueError):
            return None
        return ProgramEnd(int(code), int(ended_ns))

    @property
    def reports(self) -> list[Path]:
        """The reports so far."""
        folder = self.note.parent / "artifacts" / REPORTS
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def ending(self, ending: RunEnd, how: Exit, tail: Sequence[str]) -> RunEnd:
        """How the run ended, which nobody asked to end.

        Args:
            ending: How it did going by the program's exit code, or else the profiler's.
            how: How the profiler ended.
            tail: The last lines of the output.
        """
        if not self.prefix:
            return ending
        error = profiler_error(tail)
        if self._is_first(how):
            message = f"{self.name} ended before the program did (exit code {how.code})"
            return RunEnd(RunStatus.FAILED, f"{message}: {error}" if error else message)
        ended = ending.status in (RunStatus.FAILED, RunStatus.KILLED)
        if ended and any(_SHUT_DOWN in line for line in tail):
            why = error or "no reason given"
            return RunEnd(RunStatus.FAILED, f"{self.name} ended it: {why}")
        return ending

    def problem(self, how: Exit, tail: Sequence[str]) -> str:
        """What the profiler has not done; empty if all is well."""
        if not self.prefix:
            return ""
        error = profiler_error(tail)
        if not self.reports:
            return f"{self.name} wrote no report" + (f": {error}" if error else "")
        end = self.program_end
        if error and how.code != 0 and (end is None or end.code == 0):
            return f"{self.name}: {error}"
        return ""

    def _is_first(self, how: Exit) -> bool:
        """Whether the profiler ended, of itself, before the program did."""
        end = self.program_end
        if end is None:
            return how.code >= 0
        return how.ended_ns is not None and how.ended_ns < end.ended_ns


def workload_tags(rows: Mapping[str, Profilers]) -> dict[str, dict[str, str]]:
    """Tags by letter: who is profiled, and who runs beside one who is and so is disturbed, too."""
    profiled = {letter: profilers.disturbing for letter, profilers in rows.items()}
    letters = [letter for letter, names in profiled.items() if names]
    tags_by_letter: dict[str, dict[str, str]] = {letter: {} for letter in profiled}
    for letter, names in profiled.items():
        if names:
            tags_by_letter[letter][tags.PROFILED] = names
        if others := [other for other in letters if other != letter]:
            tags_by_letter[letter][tags.PROFILED_BESIDE] = "+".join(others)
    return tags_by_letter


def report_label(row: RunPlan) -> str:
    """What reports of a run are called: experiment, workload, letter."""
    parts = (row.experiment, row.workload, row.letter)
    safe = (re.sub(r"[^A-Za-z0-9_.-]+", "-", part)[:_LABEL_PART].strip(".-") for part in parts)
    return "_".join(part for part in safe if part)


def profiler_error(tail: Sequence[str]) -> str:
    """Why a profiler failed, from the last lines of the output; empty if they do not say."""
    text = "\n".join(tail)
    for pattern, meaning in _KNOWN_ERRORS:
        if pattern.search(text):
            return meaning
    errors = [match[1] or match[2] for line in tail if (match := _ERROR.match(line.strip()))]
    own = [
        error for error in errors if not error.startswith("The application returned an error code")
    ]
    return own[0].rstrip(".")[:_SHOWN_ERROR] if own else ""
