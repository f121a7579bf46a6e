"""How plans and problems look on a terminal; without colour and at 80 columns, too."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from radt.environments.spec import LOCAL
from radt.errors import ExperimentError, Problem
from radt.experiment.plan import FAILURES, ExperimentPlan, RowAction, RunPlan, WorkloadPlan, actions
from radt.render.model import (
    Cell,
    ColumnHead,
    Document,
    Note,
    Notes,
    Role,
    Row,
    Table,
    Tone,
    printable,
)
from radt.render.terminal import print_document
from radt.units import duration_text, plural

#: Maximum widths of names and of differing columns; and the width of the columns before those.
_MAX_NAME, _MAX_COLUMN = 12, 16
_LEAD_COLUMNS = 49


def text_table(rows: Iterable[Sequence[Cell | str]], title: str = "") -> Table:
    """Return a table of words without a head; the last column has the room that is left."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    columns = [
        ColumnHead("", role=Role.LEAD, is_number=False, widest=200)
        for _ in (cells[0] if cells else ())
    ]
    return Table(columns, [Row(row) for row in cells], title)


def render_problems(error: ExperimentError, console: Console | None = None) -> None:
    """Print every problem: where, cause, remedy; to stderr unless a console is given."""
    console = console or Console(stderr=True, highlight=False)
    console.print(Text(printable(error.message), style="bold red"), soft_wrap=True)
    rows: list[Sequence[Cell | str]] = []
    for problem in error.problems:
        rows.append((_where(problem), problem.cause))
        if problem.remedy:
            rows.append(("", Cell(problem.remedy, tone=Tone.DIM)))
    if not any(where for where, _ in rows):
        rows = [row[1:] for row in rows]
    print_document(console, Document("", (), [text_table(rows)]))


def _where(problem: Problem) -> str:
    line = f"line {problem.line}" if problem.line is not None else ""
    return ", ".join(filter(None, (line, problem.column)))


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
    differing = _differing(_COLUMNS, rows)
    room = max(1, (console.width - _LEAD_COLUMNS) // (_MAX_COLUMN + 2))
    columns = differing[-room:]
    details = [*differing[:-room], *_differing(_DETAILS, rows)]
    parts = [f"{plural(len(plan.workloads), 'workload')}, {plural(len(rows), 'run')}"]
    if due < len(rows):
        parts.append(f"{due or 'none'} to run")
    shared = [column for column in (*_COLUMNS, *_DETAILS) if column not in (*columns, *details)]
    parts += _phrases(rows[0], shared)
    head = Text.assemble((printable(plan.name), "bold"), *(f" · {part}" for part in parts))
    console.print(head, soft_wrap=True)
    notes = list(plan.warnings)
    failed = list(dict.fromkeys(str(run.status) for run in plan.runs if run.status in FAILURES))
    if failed and not rerun:
        notes.append(f"--rerun runs {' and '.join(failed)} rows again")
    table = _plan_table(plan, rows, columns, details)
    dim = Notes([Note(note, Tone.DIM) for note in notes])
    print_document(console, Document("", (), [table, dim]))


@dataclass(frozen=True, slots=True)
class _Row:
    """A run, and the action of the next start on it."""

    workload: WorkloadPlan
    run: RunPlan
    action: RowAction


@dataclass(frozen=True, slots=True)
class _Column:
    """A property of runs; if all runs have the same value, it is printed once above the table.

    ``phrase`` is the format outside a column; if it is empty, the value is not printed there.
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
    text = "+".join(map(str, row.run.listeners)) or "none"
    return text if len(text) <= _MAX_COLUMN else text.replace("+", "+ ")  # allows folding there


def _environment(row: _Row) -> str:
    return "" if row.run.environment == LOCAL else str(row.run.environment)


def _model(row: _Row) -> str:
    """Return the model, unless the run's name or command contains it."""
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
#: Printed below the command, which needs the width beside it.
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
    several = any(row.workload.experiment != plan.name for row in rows)
    command = ColumnHead("command", role=Role.LEAD, is_number=False, widest=200)
    heads = [
        *([ColumnHead("", role=Role.HEADING, is_number=False)] if several else ()),
        ColumnHead("workload", role=Role.KEY, is_number=False, widest=_MAX_NAME),
        ColumnHead("", role=Role.LEAD, is_number=False),
        ColumnHead("run", role=Role.LEAD, is_number=False, widest=_MAX_NAME),
        command,
        *(
            ColumnHead(column.name, role=Role.LEAD, is_number=False, widest=_MAX_COLUMN)
            for column in columns
        ),
    ]
    table_rows = []
    for row in rows:
        is_first = row.run is row.workload.runs[0]
        texts = [
            *([row.workload.experiment] if several else ()),
            row.workload.label if is_first else "",
            row.run.letter,
            row.run.label,
            _command(row.run, plan),
            *(column.text(row) for column in columns),
        ]
        tone = Tone.NORMAL if row.action.runs else Tone.DIM
        cells = [Cell(text, tone=tone) for text in texts]
        table_rows.append(Row(cells))
        if phrases := _phrases(row, details):
            below = [cells[0] if several else Cell(), *[Cell()] * (len(heads) - 1)]
            below[heads.index(command)] = Cell(" · ".join(phrases), tone=Tone.DIM)
            table_rows.append(Row(below))
    return Table(heads, table_rows)


def _phrases(row: _Row, columns: Sequence[_Column]) -> list[str]:
    """Return the run's values in these columns, as phrases."""
    return [
        column.phrase.format(printable(column.text(row)))
        for column in columns
        if column.phrase and column.text(row)
    ]


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
    """Quote a word for a shell; with control characters as ``$'a\\nb'``, ready to be copied."""
    if word.isprintable():
        return shlex.quote(word)
    literal = word.replace("\\", r"\\").replace("'", r"\'")
    return "$'" + "".join(map(_escape, literal)) + "'"


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    # \x denotes a byte, which is a character only below 128.
    return repr(character)[1:-1] if character.isascii() else f"\\U{ord(character):08x}"
