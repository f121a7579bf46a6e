"""``radt stop``: stop an experiment that runs in the background or another terminal."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console

from radt import units
from radt.cli.status import watcher_of
from radt.errors import UsageError
from radt.experiment.files import call
from radt.runner.console import RunConsole, shown_path


@click.command("stop")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--now", is_flag=True, help="Kill the runs at once.")
def command(file: Path, now: bool) -> None:
    """Stop the running experiment FILE, as Ctrl-C in its terminal does, and wait for its end.

    Runs have ten seconds to end by themselves, then radt kills them. Stopped runs are KILLED; the
    next start runs them again. Jobs on a cluster are cancelled, from any of its logins.
    """
    if not file.exists():
        raise UsageError(f"file {file} not found", "Check the path")
    started_s = time.monotonic()
    with (
        watcher_of(file, None) as watcher,
        RunConsole(Console(highlight=False, stderr=True)) as console,
    ):
        if not watcher.stop(console, now=now):
            console.say(f"{shown_path(file)} is not running", "dim")
            return
        console.hide_live()
        took = units.duration(time.monotonic() - started_s)
        console.say(f"{shown_path(file)} was stopped in {took}")
        console.say(f"  {call(file, options=watcher.options)} resumes it", "dim")
