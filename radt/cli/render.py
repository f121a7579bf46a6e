"""How plans and problems look on a terminal; without colour and at 80 columns, too."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from radt.environments.spec import LOCAL
from radt.errors import ExperimentError, Problem
from radt.experiment.plan import Action, ExperimentPlan, RunPlan, WorkloadPlan, actions
from radt.model import RunStatus
from radt.render.model import printable
from radt.units import duration_text, plural

_GAP = "   "
#: Below this, text in columns side by side is harder to read than one under the other.
_MIN_COLUMN = 24
_MAX_COLUMN = 16


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


def folded(text: Text, console: Console, indent: int) -> Iterator[Text]:
    """Fold a line by words on a terminal, with a hanging indent; programs get it whole.

    Print the lines with ``soft_wrap``.
    """
    if not console.is_terminal:
        yield text
        return
    lead, rest = text.divide([indent])
    for part in rest.wrap(console, max(20, console.width - indent)):
        part.rstrip()
        yield Text.assemble(lead, part)
        lead = Text(" " * indent)


def print_folded(text: Text, console: Console, indent: int) -> None:
    """Print a line that is `folded`."""
    for line in folded(text, console, indent):
        console.print(line, soft_wrap=True)


def render_plan(
    plan: ExperimentPlan,
    *,
    rerun: bool = False,
    repeat: int = 1,
    console: Console | None = None,
) -> None:
    """Print what a start would do: each workload with its runs; to stdout unless given.

    What all runs have in common stands above the table, so that commands have room in it.
    """
    console = console or Console(highlight=False)
    rows = [
        _Row(workload, run, decided[run.letter])
        for workload in plan.workloads
        for decided in [actions(workload, rerun=rerun, repeat=repeat)]
        for run in workload.runs
    ]
    due = sum(row.action.runs for row in rows)
    columns = _differing(_COLUMNS, rows)
    details = _differing(_DETAILS, rows)
    parts = [f"{plural(len(plan.workloads), 'workload')}, {plural(len(rows), 'run')}"]
    if due < len(rows):
        parts.append(f"{due or 'none'} to run")
    shared = [column for column in (*_COLUMNS, *_DETAILS) if column not in (*columns, *details)]
    parts += _phrases(rows[0], shared)
    head = Text.assemble((printable(plan.name), "bold"), *(f" · {part}" for part in parts))
    console.print(head, soft_wrap=True)
    for experiment, group in groupby(rows, lambda row: row.workload.experiment):
        console.print()
        if experiment != plan.name:
            console.print(Text(f"  {printable(experiment)}", style="bold"), soft_wrap=True)
        console.print(Padding.indent(_plan_table(plan, list(group), columns, details), 2))
    notes = [printable(warning) for warning in plan.warnings]
    failed = list(dict.fromkeys(str(run.status) for run in plan.runs if run.status in _RERUN))
    if failed and not rerun:
        notes.append(f"--rerun runs {' and '.join(failed)} rows again")
    if notes:
        console.print()
    for note in notes:
        for line in _wrapped(note, max(console.width - 2, _MIN_COLUMN)):
            console.print(Text(f"  {line}", style="dim"), soft_wrap=True)


#: What ``--rerun`` is about.
_RERUN = (RunStatus.FAILED, RunStatus.OOM, RunStatus.TIMEOUT)


@dataclass(frozen=True, slots=True)
class _Row:
    """A run, and what the next start does with it."""

    workload: WorkloadPlan
    run: RunPlan
    action: Action


@dataclass(frozen=True, slots=True)
class _Column:
    """Something to say of a run; where all runs say the same it stands above the table once.

    ``phrase`` is how to say it outside a column, empty for not at all.
    """

    name: str
    text: Callable[[_Row], str]
    phrase: str = ""


def _differing(columns: Sequence[_Column], rows: Sequence[_Row]) -> list[_Column]:
    return [column for column in columns if len({column.text(row) for row in rows}) > 1]


def _devices(row: _Row) -> str:
    run = row.run
    return str(run.devices) if run.collocation.is_naive else f"{run.devices} {run.collocation}"


def _listeners(row: _Row) -> str:
    return "+".join(map(str, row.run.listeners)) or "none"


def _environment(row: _Row) -> str:
    return "" if row.run.environment == LOCAL else str(row.run.environment)


def _model(row: _Row) -> str:
    """Return the model, unless it is seen in the run's name or its command."""
    run = row.run
    return "" if run.model == run.label or run.model in run.arguments else run.model


def _cpus(row: _Row) -> str:
    request = row.run.cpus
    if request.count is not None:
        return plural(request.count, "CPU")
    return f"CPUs {request}" if request.cpus else ""


def _timeout(row: _Row) -> str:
    return "" if row.run.timeout_s is None else duration_text(row.run.timeout_s)


def _next_start(row: _Row) -> str:
    status = row.run.status
    return str(row.action) if status is None else f"{row.action}, {status}"


_COLUMNS = (
    _Column("devices", _devices, "on {}"),
    _Column("listeners", _listeners, "listeners {}"),
    _Column("next start", _next_start),
)
#: Stand below the command, which needs the room beside it.
_DETAILS = (
    _Column("role", lambda row: str(row.run.role), "{}"),
    _Column("environment", _environment, "in {}"),
    _Column("model", _model, "model {}"),
    _Column("cpus", _cpus, "{}"),
    _Column("timeout", _timeout, "at most {}"),
)


def _plan_table(
    plan: ExperimentPlan,
    rows: Sequence[_Row],
    columns: Sequence[_Column],
    details: Sequence[_Column],
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
    table.add_column("command", overflow="fold")
    for column in columns:
        table.add_column(column.name, overflow="fold", max_width=_MAX_COLUMN)
    for row in rows:
        is_first = row.run is row.workload.runs[0]
        table.add_row(
            Text(printable(row.workload.label) if is_first else "", style="bold"),
            Text(row.run.letter),
            Text(printable(row.run.label)),
            _command_text(row, plan, details),
            *(_cell(column.text(row)) for column in columns),
            style=None if row.action.runs else "dim",
        )
    return table


def _cell(text: str) -> Text:
    """Broken behind a plus where it has to be, not within a name."""
    lines = [""]
    for word in re.findall(r"[^+]*\+|[^+]+", printable(text)):
        if lines[-1] and len(lines[-1]) + len(word) > _MAX_COLUMN:
            lines.append("")
        lines[-1] += word
    return Text("\n".join(lines))


def _phrases(row: _Row, columns: Sequence[_Column]) -> list[str]:
    """Return what these columns hold for the run, as phrases."""
    return [
        column.phrase.format(printable(column.text(row)))
        for column in columns
        if column.phrase and column.text(row)
    ]


def _command_text(row: _Row, plan: ExperimentPlan, details: Sequence[_Column]) -> Text:
    text = Text(printable(_command(row.run, plan)))
    if phrases := _phrases(row, details):
        text.append("\n" + " · ".join(phrases), style="dim")
    return text


def _command(run: RunPlan, plan: ExperimentPlan) -> str:
    """Return the script, relative to the experiment file's folder if possible, and arguments."""
    folder = plan.path.parent.resolve()
    arguments = run.arguments
    if not arguments.isprintable():
        arguments = " ".join(map(_shell_word, run.params))
    if run.program.command:
        return f"{run.program.command} {arguments}".rstrip()
    path = run.program.path
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    start = f"-m {run.program.module}" if run.program.module else str(shown)
    return f"{start} {arguments}".rstrip()


def _shell_word(word: str) -> str:
    """Quote a word for a shell; one with control characters as ``$'a\\nb'``, to be copied."""
    if word.isprintable():
        return shlex.quote(word)
    literal = word.replace("\\", r"\\").replace("'", r"\'")
    return "$'" + "".join(map(_escape, literal)) + "'"


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    # \x would be a byte, which is a character only below 128.
    return repr(character)[1:-1] if character.isascii() else f"\\U{ord(character):08x}"
