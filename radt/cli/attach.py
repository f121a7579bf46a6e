"""``radt attach``: follow an experiment that runs in the background or another terminal."""

from __future__ import annotations

import signal
from pathlib import Path

import click
from rich.console import Console

from radt import settings
from radt.cli.options import setting_option
from radt.cli.status import watcher_of
from radt.experiment.files import call
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole


@click.command("attach")
@click.argument("file", type=click.Path(path_type=Path))
@setting_option(settings.HOME)
def command(file: Path, home: str | None) -> int:
    """Follow the running experiment FILE: its output and a live table.

    Ctrl-C detaches; the experiment continues. Ends with the experiment, with the same exit code.
    """
    stop = StopRequest()

    def leave_now() -> None:
        if stop.is_hurried:  # asked again to stop
            raise KeyboardInterrupt

    stop.on_request = leave_now
    with (
        watcher_of(file, home) as watcher,
        RunConsole(Console(highlight=False)) as console,
        stop.listening(),
    ):
        code = watcher.follow(console, stop)
        if stop:
            commands = f"{call(file, 'attach')}, {call(file, 'stop')}"
            console.say(f"detached; {watcher.subject}: {commands}", "dim")
            return 0 if stop.number is signal.SIGINT else stop.exit_code
    return code
