"""The command and variables of a training process, and the profilers around it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radt import tags
from radt.environments.mlproject import read_project
from radt.experiment.plan import RunPlan
from radt.experiment.program import ProgramKind
from radt.home import MAX_EPOCH_VARIABLE, MAX_TIME_VARIABLE, REPORTS, RunDir
from radt.listeners.api import ProfiledRun, Profiler, Registry, options_of
from radt.model import ListenerChoice, RunStatus
from radt.runner import exit_recorder
from radt.runner.options import StartOptions
from radt.runner.outcome import RunEnd
from radt.runner.process import Exit
from radt.units import seconds_text


def limit_variables(options: StartOptions) -> dict[str, str]:
    """Return the variables that make a script's ``with radt.Run()`` block end early."""
    environment = {}
    if options.max_time_s is not None:
        environment[MAX_TIME_VARIABLE] = seconds_text(options.max_time_s)
    if options.max_epoch is not None:
        environment[MAX_EPOCH_VARIABLE] = str(options.max_epoch)
    return environment


def program_command(plan: RunPlan, interpreter: Path) -> list[str]:
    """Return the argument list of a row: Python scripts get this interpreter, others run as is.

    Raises:
        UsageError: The MLproject file of a project, or its parameters, are wrong.
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
    """Return the arguments with which a Python interpreter runs a row."""
    if plan.program.kind is ProgramKind.MODULE:
        return ["-m", plan.program.module, *plan.params]
    return [str(plan.program.path), *plan.params]


#: File in the run's folder that records how the program itself ended.
NOTE = "program-exit-code"
#: Extra seconds that a profiled run gets to end, to write its report.
PATIENCE_S = 120.0
#: Characters of a name that are used in a report's file name; file names have 255 bytes.
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
    """The profilers that a row names, with the user's options; ``sampled`` are the listeners."""

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
        """Return the profilers that slow the run down, joined by ``+``; empty if none does."""
        return "+".join(profiler.name for profiler, _ in self.chosen if profiler.disturbs)

    @property
    def on_counters(self) -> str:
        """Return the profiler that uses the GPU's performance counters; empty if none does."""
        return next(
            (profiler.name for profiler, _ in self.chosen if profiler.takes_gpu_counters), ""
        )

    def attached(self, row: RunPlan, run_id: str, run_dir: RunDir) -> Profiling | None:
        """Return how the profilers apply to this run; None if there are none."""
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
class Profiling:
    """How profilers affect a run. ``name`` is the profiler that wraps its command."""

    name: str
    prefix: tuple[str, ...]
    environment: Mapping[str, str]
    notices: tuple[str, ...]
    note: Path

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command, wrapped by the profiler and an exit recorder."""
        if not self.prefix:
            return list(command)
        own = (sys.executable, "-I", "-S", exit_recorder.__file__, str(self.note))
        return [*self.prefix, *own, *command]

    @property
    def program_end(self) -> Exit | None:
        """Return how the program ended; None if it has not, or its end was not observed."""
        try:
            code, ended_ns = self.note.read_text(encoding="ascii").split()
        except (OSError, ValueError):
            return None
        return Exit(int(code), ended_ns=int(ended_ns))

    @property
    def reports(self) -> list[Path]:
        """Return the reports written so far."""
        folder = RunDir(self.note.parent).artifacts / REPORTS
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def ending(self, ending: RunEnd, how: Exit, tail: Sequence[str]) -> RunEnd:
        """Return how a run ended by itself, taking the profiler into account.

        Args:
            ending: The end judged by the program's exit code, or by the profiler's if unknown.
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
        """Return what the profiler failed to do; empty if all is well."""
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
        """Return True if the profiler ended by itself before the program did."""
        end = self.program_end
        if end is None or end.ended_ns is None:
            return how.code >= 0
        return how.ended_ns is not None and how.ended_ns < end.ended_ns


def workload_tags(rows: Mapping[str, Profilers]) -> dict[str, dict[str, str]]:
    """Return tags by letter: rows that are profiled, and rows disturbed by a profiled neighbour."""
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
    """Return the label of a run's reports: experiment, workload, letter."""
    parts = (row.experiment, row.workload, row.letter)
    safe = (re.sub(r"[^A-Za-z0-9_.-]+", "-", part)[:_LABEL_PART].strip(".-") for part in parts)
    return "_".join(part for part in safe if part)


def profiler_error(tail: Sequence[str]) -> str:
    """Return why a profiler failed, from the last lines of the output; empty if they do not say."""
    text = "\n".join(tail)
    for pattern, meaning in _KNOWN_ERRORS:
        if pattern.search(text):
            return meaning
    errors = [match[1] or match[2] for line in tail if (match := _ERROR.match(line.strip()))]
    own = [
        error for error in errors if not error.startswith("The application returned an error code")
    ]
    return own[0].rstrip(".")[:_SHOWN_ERROR] if own else ""
