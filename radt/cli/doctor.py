"""``radt doctor``: check this machine's set-up, and clean up after dead runners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import click
from rich.console import Console

from radt import settings
from radt.cli import checks
from radt.cli.checks import Check, CheckState
from radt.cli.options import json_option, print_json, setting_option
from radt.cli.recovery import end_process, end_run, leftover_processes, lost_runs
from radt.cli.render import text_table
from radt.cli.server_checks import servers
from radt.collector.protocol import CollectorStatus
from radt.collocation.ledger import CreatedLedger
from radt.collocation.setup import clean_up
from radt.errors import RadtError
from radt.home import Home
from radt.render.model import Cell, Document, Note, Notes, Tone
from radt.render.terminal import print_document
from radt.store.reader import StoreReader
from radt.units import plural

_MARKS = {
    CheckState.GOOD: Cell("✔", tone=Tone.GOOD),
    CheckState.ABSENT: Cell("–", tone=Tone.DIM),
    CheckState.LOW: Cell("!", tone=Tone.WARNING),
    CheckState.WRONG: Cell("✘", tone=Tone.BAD),
}
EXIT_WRONG = 1


@click.command("doctor")
@click.option(
    "--clean",
    is_flag=True,
    help="Remove MIG instances, MPS daemons, containers and processes of dead runners.",
)
@json_option
@setting_option(settings.HOME)
def command(clean: bool, as_json: bool, home: str | None) -> int:
    """Check this machine's set-up and find what killed runs left behind.

    Exits with 1 on a problem. A missing tool that only some experiments need is not a problem.
    """
    place = Home.resolve(home)
    status, collector = checks.collector_status()
    done, failures = _clean(place, status) if clean else ([], [])
    results = list(_all(place, status, collector))
    wrong = sum(check.state is CheckState.WRONG for check in results)
    code = EXIT_WRONG if wrong or failures else 0
    if as_json:
        states = [asdict(check) for check in results]
        print_json("doctor", {"checks": states, "removed": done, "failures": failures})
        return code
    cleaned = [(_MARKS[CheckState.GOOD], text) for text in done]
    cleaned += [(_MARKS[CheckState.WRONG], text) for text in failures]
    if clean and not cleaned:
        cleaned.append((_MARKS[CheckState.ABSENT], "nothing to remove"))
    verdict = plural(wrong, "problem") if wrong else "no problems"
    document = Document(
        "",
        (),
        [
            text_table(cleaned),
            text_table(row for check in results for row in _rows(check)),
            Notes([Note(verdict, Tone.BAD if wrong else Tone.STRONG)]),
        ],
    )
    print_document(Console(highlight=False), document)
    return code


def _all(home: Home, status: CollectorStatus | None, collector: Check) -> Iterator[Check]:
    yield from checks.python()
    yield from checks.runtime_folder()
    yield from checks.data_folder(home)
    yield from checks.store(home, status)
    yield from checks.check_unrecorded(home, status)
    yield from servers(home)
    yield from checks.uploads(home)
    yield collector
    yield from checks.nvml()
    yield from checks.tools()
    yield from checks.leftovers()


def _rows(check: Check) -> Iterator[Sequence[Cell | str]]:
    """Yield mark, subject and text, and the remedy below that."""
    tone = Tone.DIM if check.state is CheckState.ABSENT else Tone.NORMAL
    yield _MARKS[check.state], check.subject, Cell(check.text, tone=tone)
    if check.remedy:
        yield "", "", Cell(check.remedy, tone=Tone.DIM)


def _clean(home: Home, status: CollectorStatus | None) -> tuple[list[str], list[str]]:
    """Remove leftovers; return what was done and what failed."""
    done: list[str] = []
    failures: list[str] = []

    @contextmanager
    def noting() -> Iterator[None]:
        try:
            yield
        except RadtError as error:
            failures.append(str(error))

    with noting():
        for process in leftover_processes():
            if end_process(process):
                done.append(f"{process}: ended")
            else:
                failures.append(f"{process} did not end")
    with noting():
        failures += clean_up(CreatedLedger(), say=done.append)
    if home.store_path.exists():
        with noting():
            with StoreReader(home.store_path) as reader:
                lost = lost_runs(reader, status.runs if status is not None else ())
            done.extend(f"run {run.run_id}: marked as KILLED" for run in lost if end_run(home, run))
    return done, failures
