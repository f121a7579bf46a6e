"""``radt doctor``: check this machine's set-up, and clean up after dead runners."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from radt.cli import checks
from radt.cli.checks import Check, State
from radt.cli.leftovers import end_process, end_run, leftover_processes, lost_runs
from radt.cli.options import home_option
from radt.collector.protocol import CollectorStatus
from radt.collocation.ledger import Ledger
from radt.collocation.setup import clean_up
from radt.errors import RadtError
from radt.home import Home
from radt.render.model import printable
from radt.store.reader import StoreReader
from radt.units import plural

_MARKS = {
    State.GOOD: ("✔", "green"),
    State.ABSENT: ("–", "dim"),
    State.LOW: ("!", "yellow"),
    State.WRONG: ("✘", "red"),
}
EXIT_WRONG = 1
_MIN_COLUMN = 24


@click.command("doctor")
@click.option(
    "--clean",
    is_flag=True,
    help="Remove MIG instances, MPS daemons, containers and processes of dead runners.",
)
@home_option
def command(clean: bool, home: Path | None) -> int:
    """Check this machine's set-up and find what killed runs left behind.

    Exits with 1 on a problem. A missing tool that only some experiments need is not a problem.
    """
    console = Console(highlight=False)
    place = Home.resolve(home)
    status, collector = checks.collector_status()
    console.print()
    failures = _clean(console, place, status) if clean else 0
    results = list(_all(place, status, collector))
    _print(results, console)
    wrong = sum(check.state is State.WRONG for check in results)
    console.print()
    if wrong:
        console.print(Text(f"{plural(wrong, 'problem')}", style="bold red"))
    else:
        console.print(Text("no problems", style="bold"))
    console.print()
    return EXIT_WRONG if wrong or failures else 0


def _all(home: Home, status: CollectorStatus | None, collector: Check) -> Iterator[Check]:
    yield from checks.python()
    yield from checks.runtime_folder()
    yield from checks.data_folder(home)
    yield from checks.store(home, status)
    yield from checks.unrecorded(home, status)
    yield from checks.database(home)
    yield collector
    yield from checks.nvml()
    yield from checks.tools()
    yield from checks.leftovers()


def _print(results: list[Check], console: Console) -> None:
    """Print mark, subject and text, wrapped in its own column."""
    indent = 3 + max(len(check.subject) for check in results) + 2
    room = max(console.width - indent, _MIN_COLUMN)
    for check in results:
        mark, mark_style = _MARKS[check.state]
        style = "dim" if check.state is State.ABSENT else ""
        lines = [(line, style) for line in _wrapped(check.text, room)]
        lines += [(line, "dim") for line in _wrapped(check.remedy, room)]
        for number, line in enumerate(lines or [("", "")]):
            head = (f"  {check.subject}" if number == 0 else "").ljust(indent - 1)
            first = (mark, mark_style) if number == 0 else " "
            console.print(Text.assemble(first, head, line), soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, break_on_hyphens=False)


def _clean(console: Console, home: Home, status: CollectorStatus | None) -> int:
    """Remove leftovers and print them; return the number of failures."""
    done: list[str] = []
    failures: list[str] = []
    for step in (_clean_processes, _clean_ledger, _end_lost_runs):
        try:
            failures += step(home, status, done.append)
        except RadtError as error:
            failures.append(str(error))
    for text in done:
        console.print(Text.assemble(("✔", "green"), f"  {printable(text)}"), soft_wrap=True)
    for text in failures:
        console.print(Text.assemble(("✘", "red"), f"  {printable(text)}"), soft_wrap=True)
    if not done and not failures:
        console.print(Text("nothing to remove", style="dim"))
    console.print()
    return len(failures)


def _clean_processes(
    _home: Home, _status: CollectorStatus | None, say: Callable[[str], None]
) -> list[str]:
    failures = []
    for process in leftover_processes():
        if end_process(process):
            say(f"{process}: ended")
        else:
            failures.append(f"{process} did not end")
    return failures


def _clean_ledger(
    _home: Home, _status: CollectorStatus | None, say: Callable[[str], None]
) -> list[str]:
    return clean_up(Ledger(), say=say)


def _end_lost_runs(
    home: Home, status: CollectorStatus | None, say: Callable[[str], None]
) -> list[str]:
    if not home.store_path.exists():
        return []
    with StoreReader(home.store_path) as reader:
        lost = lost_runs(reader, status.runs if status is not None else ())
    for run in lost:
        if end_run(home, run):
            say(f"run {run.run_id}: marked as KILLED")
    return []
