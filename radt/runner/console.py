"""The runner's console: output lines with a coloured prefix, and a live table on a terminal.

Lines come from many threads, maybe faster than a terminal can show them. One thread prints; lines
beyond its capacity are counted instead of slowing training down.
"""

from __future__ import annotations

import io
import queue
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from radt import units
from radt.model import RunStatus
from radt.runner.live import RUN_COLOURS, label_width, live_table, workload_line
from radt.runner.outcome import STOPPED
from radt.runner.progress import ProgressView, RowProgress, WorkloadProgress

WAITING_LINES = 5000
#: Number of last lines shown of a run that did not finish, and the maximum number of terminal lines
#: for each.
SHOWN_TAIL_LINES = 5
TERMINAL_LINES_OF_TAIL = 2
#: With fewer columns beside the indent, wrapping is left to the terminal.
_MIN_COLUMNS_TO_WRAP = 20
_OUTPUT_LINE = re.compile(r"  \w+ +│ ")


class RunConsole:
    """Prints for one runner. Use as a context manager; everything may be called from any thread.

    Only the printing thread touches the terminal, so lines and live table never mix.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._missed = 0
        self._live: Live | None = None
        self._printer = threading.Thread(target=self._work, name="console", daemon=True)
        self._prefix_width = 1
        self._activity = ""
        #: Progress of the experiment, shown below the live table.
        self.experiment: ProgressView | None = None
        #: Columns for the workloads' labels, so that their lines align.
        self.label_width = label_width([])

    def __enter__(self) -> Self:
        self._printer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hide_live()
        self._tasks.put(None)
        self._printer.join()

    def output(self, position: int, letter: str, line: str) -> None:
        """Show a line that a run printed; drop and count it if the terminal cannot keep up."""
        if self._quiet:
            return
        colour = RUN_COLOURS[position % len(RUN_COLOURS)]
        lead = Text(f"  {letter:<{self._prefix_width}} │ ", style=colour)
        then = Text(f"  {'':<{self._prefix_width}} │ ", style=colour)
        if self._behind:
            self._missed += 1
        else:
            self._put(lead, Text(line), then)

    def relay(self, line: str) -> None:
        """Print a line of another runner, wrapped with that runner's indent."""
        match = _OUTPUT_LINE.match(line)
        lead = match[0] if match else line[: len(line) - len(line.lstrip(" "))]
        then = re.sub(r"\w", " ", lead)
        self._put(Text(lead), Text(line[len(lead) :]), Text(then))

    @property
    def is_terminal(self) -> bool:
        """Return True if the output is a terminal, where lines can be redrawn."""
        return self._console.is_terminal

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return self._console.width

    def say(self, message: str | Text, style: str = "", *, indent: int | None = None) -> None:
        """Print a line of radt's own; it is never dropped, and the caller never blocks.

        Args:
            message: The line.
            style: The style, unless the message is styled itself.
            indent: Columns before the continuation lines on a terminal; None leaves folding to the
                terminal, so that a command can be copied in one piece.
        """
        text = Text(message, style=style) if isinstance(message, str) else message
        if indent is None:
            self._put(Text(), text)
        else:
            lead, rest = text.divide([indent])
            self._put(lead, rest, Text(" " * indent))

    def flush(self) -> None:
        """Wait until all lines so far have been printed."""
        self._tasks.join()

    def show_live(self, workload: WorkloadProgress) -> None:
        """Show or update a workload's live table; do nothing if the output is not a terminal."""
        self._prefix_width = max((len(run.letter) for run in workload.runs), default=1)
        position = 1 if self.experiment is None else self.experiment.done + 1
        total = position if self.experiment is None else max(self.experiment.total, position)
        self.show_text(
            lambda width, height: live_table(
                workload, position, width, height, total, self.experiment
            )
        )

    def show_activity(self, workload: WorkloadProgress, text: str) -> None:
        """Show what a workload is doing: in the live table, or as a line if there is none."""
        workload.activity = text
        if self._console.is_terminal:
            self.show_live(workload)
        elif text != self._activity:
            self.say(f"  {workload.heading}: {text}", style="dim")
        self._activity = text

    def show_wait(self, text: str) -> None:
        """Show a line about a wait; do nothing if the output is not a terminal."""
        self.show_text(lambda _width, _height: Text(f"  {text}", style="dim"))

    def show_text(self, draw: Callable[[int, int], Text]) -> None:
        """Show or update a live text below all lines; do nothing if the output is not a terminal.

        Args:
            draw: Returns the text for a number of columns and lines.
        """
        if self._console.is_terminal and not self._behind:
            self._tasks.put(partial(self._draw_live, draw(*self._console.size)))

    def hide_live(self) -> None:
        """Remove the live table."""
        self._tasks.put(partial(self._draw_live, None))

    def workload_ended(self, position: int, total: int, workload: WorkloadProgress) -> None:
        """Print the workload's line, and a line for each row that did not finish."""
        bad = [run for run in workload.runs if run.status is not RunStatus.FINISHED]
        mark = Text("✘" if bad else "✔", style="red" if bad else "green")
        skew = workload.start_skew_s if len(workload.runs) > 1 else None
        self.say(
            workload_line(
                position,
                total,
                workload.heading,
                (run.role for run in workload.runs),
                self.label_width,
                mark,
                Text(f" {units.duration(workload.taken_s)}"),
                Text(f"   skew {units.duration(skew)}" if skew is not None else "", "dim"),
            )
        )
        for run in bad:
            self._run_ended(run)

    def _run_ended(self, run: RowProgress) -> None:
        style = "dim" if run.status is RunStatus.SKIPPED else "red"
        lead = f"       {run.letter}  "
        reason, *more = run.reason.splitlines() or [""]
        name = f"{run.name} ({run.role})" if run.role else run.name
        self.say(f"{lead}{name}  {run.status}: {reason}", style, indent=len(lead))
        for line in more:  # a tool's output
            self.say(" " * (len(lead) + 2) + line, style, indent=len(lead) + 2)
        if run.reason == STOPPED:
            return  # the user stopped it, and its last lines would only say so
        indent = Text(" " * (len(lead) + 2))
        for line in run.tail[-SHOWN_TAIL_LINES:]:
            self._put(indent, Text(line, "dim"), indent, TERMINAL_LINES_OF_TAIL)
        if run.log is not None:
            self.say(f"{' ' * len(lead)}{shown_path(run.log)}", "dim")

    @property
    def _behind(self) -> bool:
        """Return True if the terminal does not keep up, or is paused (Ctrl-S)."""
        return self._tasks.qsize() >= WAITING_LINES

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
                if self._missed and self._tasks.empty():
                    missed, self._missed = self._missed, 0
                    text = f"  … {missed:,} lines not shown, see output.log"
                    self._console.print(Text(text, style="dim"))
            except (OSError, ValueError, SystemExit):
                # `radt … | head` (rich exits then), a closed terminal, a full disk: the runs go on,
                # and `flush` must not wait forever for this thread.
                self._console = Console(file=io.StringIO(), quiet=True)
            finally:
                self._tasks.task_done()

    def _put(
        self, lead: Text, text: Text, then: Text | None = None, most: int | None = None
    ) -> None:
        """Print a line. On a terminal, a long one is wrapped below ``then``, up to ``most`` lines.

        Without ``then`` the terminal folds it, so that a command can be copied in one piece.
        """
        self._tasks.put(partial(self._print_line, lead, text, then, most))

    def _print_line(self, lead: Text, text: Text, then: Text | None, most: int | None) -> None:
        columns = self._console.width - lead.cell_len
        parts = [text]
        if then is not None and self._console.is_terminal and columns >= _MIN_COLUMNS_TO_WRAP:
            parts = list(text.wrap(self._console, columns, overflow="fold")) or parts
        if most is not None and len(parts) > most:
            parts = parts[:most]
            parts[-1].truncate(columns - 2)
            parts[-1].append(" …")
        for number, part in enumerate(parts):
            line = (then if number and then is not None else lead) + part
            self._console.print(line, soft_wrap=True, highlight=False)

    def _draw_live(self, table: Text | None) -> None:
        if table is None:
            if self._live is not None:
                self._live.stop()
                self._live = None
            return
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(table, refresh=True)


def shown_path(path: Path) -> str:
    """Return the path relative to the current folder if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
