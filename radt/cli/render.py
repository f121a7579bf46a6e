"""How plans and problems look on a terminal; without colour and at 80 columns, too."""

from __future__ import annotations

import textwrap

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from radt.errors import ExperimentError, Problem
from radt.experiment.decision import Action, decide
from radt.experiment.plan import NAIVE, ExperimentPlan, RunPlan, WorkloadPlan
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
    rows = [(_where(p), printable(p.cause), printable(p.remedy)) for p in problems]
    where_width = max(len(where) for where, _, _ in rows)
    cause_width = max(len(cause) for _, cause, _ in rows)
    remedy_width = max(len(remedy) for _, _, remedy in rows)
    indent = 2 + (where_width + len(_GAP) if where_width else 0)
    beside = indent + cause_width + len(_GAP) + remedy_width <= width
    room = max(width - indent, _MIN_COLUMN)
    lines: list[Text] = []
    for where, cause, remedy in rows:
        head = "  " + (where.ljust(where_width) + _GAP if where_width else "")
        if beside:
            line = Text(head, style="bold").append(cause.ljust(cause_width + len(_GAP)), "none")
            lines.append(line.append(remedy, "dim"))
            lines[-1].rstrip()
            continue
        text = [(part, "none") for part in _wrapped(cause, room)]
        text += [(part, "dim") for part in _wrapped(remedy, room)]
        for number, (part, style) in enumerate(text):
            start = head if number == 0 else " " * indent
            lines.append(Text(start, style="bold").append(part, style))
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
    """Print what a start would do: each workload with its runs; to stdout unless given."""
    console = console or Console(highlight=False)
    runs = list(plan.runs)
    due = sum(decide(run.status, rerun).runs for run in runs)
    head = Text(printable(plan.name), style="bold")
    head.append(f" · {plural(len(plan.workloads), 'workload')}, {plural(len(runs), 'run')}", "none")
    if due < len(runs):
        head.append(f" · {due or 'none'} to do", "none")
    console.print(head, soft_wrap=True)
    several = len({workload.experiment for workload in plan.workloads}) > 1
    shown: str | None = None
    table = _plan_table()
    for workload in plan.workloads:
        if several and workload.experiment != shown:
            if table.row_count:
                console.print(Padding(table, (0, 0, 0, 2)))
                table = _plan_table()
            shown = workload.experiment
            console.print()
            console.print(Text(f"  {printable(workload.experiment)}", style="bold"))
        _add_workload(table, workload, rerun)
    console.print(Padding(table, (1 if not several else 0, 0, 1, 2)))


def _plan_table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    table.add_column("workload", no_wrap=True, max_width=16, overflow="ellipsis")
    table.add_column("", no_wrap=True)
    table.add_column("run", overflow="fold", max_width=20)
    table.add_column("devices", overflow="fold")
    table.add_column("listeners", overflow="fold")
    table.add_column("command", overflow="fold", ratio=1)
    table.add_column("next start", overflow="fold", max_width=18)
    return table


def _add_workload(table: Table, workload: WorkloadPlan, rerun: bool) -> None:
    for number, run in enumerate(workload.runs):
        last = number == len(workload.runs) - 1
        table.add_row(
            Text(printable(workload.label), style="bold") if number == 0 else "",
            run.letter,
            Text(printable(run.label)),
            _devices(run),
            "+".join(map(str, run.listeners)) or "none",
            Text(printable(f"{run.file.name} {run.params_text}".rstrip())),
            _next(run, rerun),
            end_section=last,
        )


def _devices(run: RunPlan) -> str:
    return str(run.devices) if run.collocation == NAIVE else f"{run.devices} {run.collocation}"


def _next(run: RunPlan, rerun: bool) -> Text:
    decision = decide(run.status, rerun)
    return Text(str(decision), style="dim" if decision.action is Action.SKIP else "none")


def printable(text: str) -> str:
    """The text with what a terminal would obey, not show, spelled out: ``\\n``, ``\\x1b``."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
