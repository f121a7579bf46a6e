"""How plans and problems look on a terminal; without colour and at 80 columns, too."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from radt.errors import ExperimentError, Problem
from radt.experiment.decision import decide
from radt.experiment.plan import ExperimentPlan, RunPlan, WorkloadPlan
from radt.model import RunStatus
from radt.units import plural

_GAP = "   "
#: Below this, text in columns side by side is harder to read than one under the other.
_MIN_COLUMN = 24


def render_problems(error: ExperimentError, console: Console | None = None) -> None:
    """Print every problem: where, cause, remedy; to stderr unless a console is given."""
    console = console or Console(stderr=True, highlight=False)
    console.print(Text(printable(error.message), style="bold red"), soft_wrap=True)
    if not error.problems:
        return
    console.print()
    for line in _problem_lines(error.problems, console.width):
        console.print(line, soft_wrap=True)
    console.print()


def _problem_lines(problems: tuple[Problem, ...], width: int) -> list[Text]:
    """Cause and remedy side by side if all of them fit so, else one under the other."""
    rows = [(_where(p), printable(p.cause), printable(p.remedy)) for p in problems]
    where_width = max(len(where) for where, _, _ in rows)
    cause_width = max(len(cause) for _, cause, _ in rows)
    remedy_width = max(len(remedy) for _, _, remedy in rows)
    indent = 2 + (where_width + len(_GAP) if where_width else 0)
    beside = indent + cause_width + len(_GAP) + remedy_width <= width
    room = max(width - indent, _MIN_COLUMN)
    lines: list[Text] = []
    for where, cause, remedy in rows:
        head = ("  " + where).ljust(indent)
        if beside:
            parts = (head, cause.ljust(cause_width) + _GAP if remedy else cause, (remedy, "dim"))
            lines.append(Text.assemble(*parts))
            continue
        text = [(part, "") for part in _wrapped(cause, room)]
        text += [(part, "dim") for part in _wrapped(remedy, room)]
        for number, part in enumerate(text):
            lines.append(Text.assemble(head if number == 0 else " " * indent, part))
    return lines


def _where(problem: Problem) -> str:
    column = printable(problem.column) if problem.column else ""
    if problem.line is None:
        return column
    return f"line {problem.line}, {column}" if column else f"line {problem.line}"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def render_plan(
    plan: ExperimentPlan, *, rerun: bool = False, console: Console | None = None
) -> None:
    """Print what a start would do: each workload with its runs; to stdout unless given.

    What all runs have in common stands above the table, so that commands have room in it.
    """
    console = console or Console(highlight=False)
    runs = list(plan.runs)
    due = sum(decide(run.status, rerun=rerun).runs for run in runs)
    columns = [column for column in _COLUMNS if len({column.text(run, rerun) for run in runs}) > 1]
    parts = [f"{plural(len(plan.workloads), 'workload')}, {plural(len(runs), 'run')}"]
    if due < len(runs):
        parts.append(f"{due or 'none'} to run")
    if _DEVICES not in columns:
        parts.append(f"on {_DEVICES.text(runs[0], rerun)}")
    if _LISTENERS not in columns:
        parts.append(f"listeners {_LISTENERS.text(runs[0], rerun)}")
    head = Text.assemble((printable(plan.name), "bold"), *(f" · {part}" for part in parts))
    console.print(head, soft_wrap=True)
    for experiment, workloads in groupby(plan.workloads, lambda workload: workload.experiment):
        console.print()
        if experiment != plan.name:
            console.print(Text(f"  {printable(experiment)}", style="bold"), soft_wrap=True)
        console.print(Padding(_plan_table(plan, list(workloads), columns, rerun), (0, 0, 0, 2)))
    if not rerun and any(run.status is RunStatus.FAILED for run in runs):
        console.print(Text("\n  --rerun runs FAILED rows again", style="dim"))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that is left out where all runs say the same."""

    name: str
    text: Callable[[RunPlan, bool], str]


def _devices(run: RunPlan, _rerun: bool) -> str:
    return str(run.devices) if run.collocation.is_naive else f"{run.devices} {run.collocation}"


def _listeners(run: RunPlan, _rerun: bool) -> str:
    return "+".join(map(str, run.listeners)) or "none"


def _next_start(run: RunPlan, rerun: bool) -> str:
    action = decide(run.status, rerun=rerun)
    return str(action) if run.status is None else f"{action}, {run.status}"


_DEVICES = _Column("devices", _devices)
_LISTENERS = _Column("listeners", _listeners)
_COLUMNS = (_DEVICES, _LISTENERS, _Column("next start", _next_start))


def _plan_table(
    plan: ExperimentPlan, workloads: Sequence[WorkloadPlan], columns: Sequence[_Column], rerun: bool
) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="dim",
        border_style="dim",
    )
    table.add_column("workload", overflow="fold", max_width=16)
    table.add_column("")
    table.add_column("run", overflow="fold", max_width=20)
    table.add_column("command", overflow="fold", ratio=1)
    for column in columns:
        table.add_column(column.name, overflow="fold", max_width=16)
    for workload in workloads:
        for number, run in enumerate(workload.runs):
            skipped = not decide(run.status, rerun=rerun).runs
            table.add_row(
                Text(printable(workload.label) if number == 0 else "", style="bold"),
                Text(run.letter),
                Text(printable(run.label)),
                Text(printable(_command(run, plan))),
                *(Text(column.text(run, rerun)) for column in columns),
                style="dim" if skipped else None,
            )
    return table


def _command(run: RunPlan, plan: ExperimentPlan) -> str:
    """The script, as seen from the experiment file's folder if it is in it, and its arguments."""
    folder = plan.path.parent.resolve()
    path = run.program.path
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    start = f"-m {run.program.module}" if run.program.module else str(shown)
    return f"{start} {run.params_text}".rstrip()


def printable(text: str) -> str:
    """The text with what a terminal would obey, not show, spelled out: ``\\n``, ``\\x1b``."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
