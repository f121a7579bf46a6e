"""``radt selftest``: what tracking costs on this machine."""

from __future__ import annotations

import io
import json
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from radt.cli.options import home_option
from radt.cli.selftest_lines import closing_lines, finding_lines, opening_lines, warning_lines
from radt.errors import UsageError
from radt.selftest.machine import Machine
from radt.selftest.measure import Options, chosen_listeners, run_selftest
from radt.selftest.results import Selftest

EXIT_MISSED = 1
_MAX_SEED = 10_000
_WIDTH = 100


@click.command("selftest")
@click.option(
    "--pairs",
    type=click.IntRange(0, 1000),
    default=6,
    show_default=True,
    help="Pairs of runs with radt and without; 0 leaves them out.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="How long each of these runs computes.",
)
@click.option(
    "-l",
    "--listeners",
    default="default",
    show_default=True,
    help="What the runs are recorded with, as in an experiment file.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=None,
    help="Draws which run of a pair goes first.  [default: drawn, and shown]",
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the result to this file; - for standard output.",
)
@home_option
def command(
    pairs: int,
    seconds: float,
    listeners: str,
    seed: int | None,
    form: str,
    output: Path | None,
    home: Path,
) -> int:
    """Measure what tracking costs on this machine, in about a minute.

    The same work runs in pairs, with radt and without. Beside that: what a logged value costs,
    sampling at 1 and 10 Hz, whether each listener works, how together a workload starts, and the
    disk of the data folder. All of it in folders and with a collector of its own, which are gone
    afterwards. Exits with 1 if a bar is missed for certain, or something does not work.
    """
    options = Options(
        pairs,
        seconds,
        chosen_listeners(listeners),
        secrets.randbelow(_MAX_SEED) if seed is None else seed,
    )
    file = None if output is None or str(output) == "-" else output
    if file is not None:
        _check_writable(file)
    found = _measured(options, home, shown=form == "table" and file is None)
    if form == "json":
        _put(json.dumps(found.document(), indent=2) + "\n", file)
    elif file is not None:
        _put(plain(found), file)
    return 0 if found.passed else EXIT_MISSED


def _measured(options: Options, home: Path, *, shown: bool) -> Selftest:
    """The result; each line is shown as soon as it is known, else a word on standard error."""
    console = Console(highlight=False)
    progress = Console(stderr=True, highlight=False)

    def show(lines: Iterable[Text]) -> None:
        for line in lines if shown else ():
            console.print(line, soft_wrap=True)

    show(opening_lines(str(Machine.detect()), options.listeners_text, options.seed))
    with progress.status("looking at the machine") as status:
        found = run_selftest(
            options,
            home,
            tell=lambda one: show(finding_lines(one, console.width)),
            say=lambda text: status.update(f"measuring: {text}"),
            warn=lambda text: show(warning_lines(text, console.width)),
        )
    show(closing_lines(found, console.width))
    return found


def plain(found: Selftest) -> str:
    """All lines, as for a terminal without colour."""
    console = Console(
        file=io.StringIO(), width=_WIDTH, highlight=False, no_color=True, force_terminal=False
    )
    machine = Machine(**{**found.machine, "gpus": tuple(found.machine["gpus"])})
    lines = [
        *opening_lines(str(machine), found.options["listeners"], found.options["seed"]),
        *(line for text in found.warnings for line in warning_lines(text, _WIDTH)),
        *(line for one in found.findings for line in finding_lines(one, _WIDTH)),
        *closing_lines(found, _WIDTH),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _check_writable(file: Path) -> None:
    """Before a minute is spent.

    Raises:
        UsageError: The folder is not there, or cannot be written.
    """
    if not file.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {file.absolute().parent}", "Make it, or name another")


def _put(text: str, file: Path | None) -> None:
    if file is None:
        sys.stdout.write(text)
        return
    temporary = file.with_name(f".{file.name}.radt-new")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    click.echo(f"written to {file}")
