"""``radt attach``: follow an experiment that runs in the background or another terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click
from rich.console import Console
from rich.text import Text

from radt import settings
from radt.cli.options import call, setting_option
from radt.cli.status import home_of
from radt.cluster.opened import open_submission
from radt.errors import UsageError
from radt.experiment.lock import Holder
from radt.model import RunStatus
from radt.runner.console import RunConsole
from radt.runner.detach import last_log
from radt.runner.progress import ExperimentProgress, ProgressReader
from radt.runner.supervisor import exit_code

#: Lines of earlier output that are shown.
SHOWN_LINES = 20
_TAIL_BYTES = 64_000
_POLL_S = 0.1
_LOOK_S = 1.0
#: How long after the runner its supervisor may take to write the last line.
_LAST_LINE_S = 5.0


@click.command("attach")
@click.argument("file", type=click.Path(path_type=Path))
@setting_option(settings.HOME)
def command(file: Path, home: str | None) -> int:
    """Follow the running experiment FILE: its output and a live table.

    Ctrl-C detaches; the experiment continues. Ends with the experiment, with the same exit code.
    """
    if (spool := open_submission(file)) is not None:
        from radt.cli.cluster_jobs import attach

        return attach(file, spool)
    data = home_of(file, home)
    with ProgressReader(file, data) as observer:
        holder = observer.holder()
        if holder is None:
            if not file.exists():
                raise UsageError(
                    f"Expected an experiment file, got {file}, which does not exist",
                    "Name the file that was started; `radt ls` lists runs",
                )
            log = last_log(file, data)
            raise UsageError(
                f"{file} is not running",
                f"Its last output is in {log}"
                if log
                else f"{call(file, 'status')} shows its progress",
            )
        with RunConsole(Console(highlight=False)) as console:
            try:
                return _follow(file, observer, holder, console)
            except KeyboardInterrupt:
                console.hide_live()
                console.say(
                    f"detached; the experiment continues: {call(file, 'attach')}, "
                    f"{call(file, 'stop')}",
                    "dim",
                )
                return 0


def _follow(file: Path, observer: ProgressReader, holder: Holder, console: RunConsole) -> int:
    log = _Log(holder, console)
    next_look_s = 0.0
    while observer.holder() == holder:
        for line in log.lines():
            console.relay(line)
        if time.monotonic() >= next_look_s:
            next_look_s = time.monotonic() + _LOOK_S
            _show(observer.look(), console)
        time.sleep(_POLL_S)
    console.hide_live()
    deadline_s = time.monotonic() + _LAST_LINE_S
    while True:
        for line in log.lines():
            console.relay(line)
            if (code := exit_code(line)) is not None:
                return code
        if log.missing or time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    console.say(f"ended; exit code unknown; {call(file, options=holder.options)} resumes it", "dim")
    statuses = {workload.status for workload in observer.look().workloads}
    return 0 if statuses <= {RunStatus.FINISHED} else 1


def _show(look: ExperimentProgress, console: RunConsole) -> None:
    running = look.running
    if running is None:
        console.hide_live()
        return
    console.experiment = look.progress
    done, total = (look.progress.done, look.progress.total) if look.progress else (0, 1)
    console.show_live(running.view(done + 1, max(total, done + 1)))


class _Log:
    """Whole lines of a file that grows, from its last ones on."""

    def __init__(self, holder: Holder, console: RunConsole) -> None:
        self._file: BinaryIO | None = None
        self._rest = b""
        if not holder.log:
            console.say(f"{holder} prints to its own terminal", "dim")
            return
        try:
            self._file = Path(holder.log).open("rb")  # noqa: SIM115 - for as long as it grows
        except OSError as error:
            console.say(Text(f"{holder.log} cannot be read: {error.strerror}", "red"))
            return
        size = self._file.seek(0, 2)
        self._file.seek(max(0, size - _TAIL_BYTES))
        *lines, self._rest = self._file.read().split(b"\n")
        if size > _TAIL_BYTES:
            lines = lines[1:]  # the first is cut
        if len(lines) > SHOWN_LINES:
            console.say(f"  … see {holder.log} for earlier output", "dim")
        self._first = lines[-SHOWN_LINES:]

    @property
    def missing(self) -> bool:
        return self._file is None

    def lines(self) -> Iterator[str]:
        """Yield the lines written since the last call."""
        if self._file is None:
            return
        waiting, self._first = self._first, []
        *more, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in (*waiting, *more):
            yield line.decode(errors="replace")
