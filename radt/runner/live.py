"""The live table: progress of a workload and its runs, and when the experiment will end."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from radt import units
from radt.collector.protocol import LiveView
from radt.model import Role, RunStatus
from radt.runner.progress import ProgressView, RowProgress, WorkloadProgress

#: Columns of the bar; it is omitted if the terminal has fewer.
_BAR_COLUMNS = 20
_MIN_COLUMNS_WITH_BAR = 72


def progress_line(view: ProgressView, width: int, now: datetime | None = None) -> Text:
    """Return ``━━━━╺━━━━  3/12 workloads  01:12:30  about 2 h left, until 16:42``."""
    if now is None:
        view = view.later(time.monotonic())
    line = Text("  ")
    if width >= _MIN_COLUMNS_WITH_BAR:
        filled = math.floor(view.fraction * _BAR_COLUMNS)
        line.append("━" * filled, "cyan").append("─" * (_BAR_COLUMNS - filled), "dim").append("  ")
    line.append(f"{view.done}/{view.total} workloads  {units.stopwatch(view.elapsed_s)}")
    if (text := ending_text(view.remaining_s, now or datetime.now().astimezone())) is not None:
        line.append(f"  {text}", "dim")
    line.truncate(width, overflow="ellipsis")
    return line


def ending_text(remaining_s: float | None, now: datetime) -> str | None:
    """Return ``about 35 min left, until 16:42``, with the date unless today; None if unknown."""
    if remaining_s is None:
        return None
    end = now + timedelta(seconds=remaining_s)
    until = ""
    if remaining_s >= 3600 or end.date() != now.date():
        days = (end.date() - now.date()).days
        day = "" if days == 0 else f"{end:%a} " if days < 7 else f"{end:%Y-%m-%d} "
        until = f", until {day}{end:%H:%M}"
    return f"about {roughly(remaining_s)} left{until}"


def roughly(seconds: float) -> str:
    """Return a duration, rounded to the precision of an estimate.

    >>> roughly(3), roughly(47), roughly(400), roughly(9000), roughly(400000)
    ('5 s', '45 s', '7 min', '2.5 h', '4.6 days')
    """
    if seconds < 57.5:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 59.5 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 47.5 * 3600:
        return f"{seconds / 3600:.2g} h" if seconds < 9.95 * 3600 else f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.2g} days"


#: Okabe-Ito colours in the order of the dashboard, as the nearest of the 256 terminal colours.
RUN_COLOURS = ("color(32)", "color(172)", "color(36)", "color(174)", "color(74)", "color(166)")
NAME_COLUMNS = 14
_LABEL_CHARS, _MOST_LABEL_CHARS = 10, 24
#: Metrics that `radt.run.steps` logs, for `radt.Run.batches` and `step`.
_OF_STEPS = frozenset({"step.time", "samples_per_s", "data_wait"})


def runs_text(roles: Iterable[Role]) -> str:
    """Count runs, and services apart: ``2 runs``, ``2 runs + 1 service``."""
    counts = Counter(roles)
    services = counts.pop(Role.SERVICE, 0)
    runs = units.plural(counts.total(), "run")
    return f"{runs} + {units.plural(services, 'service')}" if services else runs


def label_width(labels: Iterable[str]) -> int:
    """Return the width of the labels' column, so that the columns after it align."""
    widest = max(map(len, labels), default=0)
    return min(max(_LABEL_CHARS, widest), _MOST_LABEL_CHARS)


def workload_line(
    position: int, total: int, heading: str, roles: Iterable[Role], columns: int, *rest: Text
) -> Text:
    """Return ``  2/3  three      2 runs    ✔ 21.4 s``; ``columns`` is the heading's width."""
    return Text.assemble(
        (f"  {position:>{len(str(total))}}/{total}  ", "dim"),
        (f"{heading:<{columns}} ", "bold"),
        f"{runs_text(roles):<9} ",
        *rest,
    )


def live_table(
    workload: WorkloadProgress,
    position: int,
    width: int,
    height: int,
    total: int = 1,
    experiment: ProgressView | None = None,
) -> Text:
    """Return the workload's heading and a line for each of its runs, within width and height.

    A table higher than the terminal could not be erased again; ended runs are dropped first.
    """
    runs = workload.runs
    elapsed = (
        f"▶ {units.stopwatch(time.monotonic() - workload.started_monotonic_s)}  "
        if workload.started_monotonic_s is not None
        else ""
    )
    lines = [
        workload_line(
            position,
            total,
            workload.heading,
            (run.role for run in runs),
            _LABEL_CHARS,
            Text(elapsed, "cyan"),
            Text(workload.activity, "dim"),
        )
    ]
    letters = max(len(run.letter) for run in runs)
    names = min(max(NAME_COLUMNS, width // 5), max(cell_len(run.name) for run in runs))
    states = max(len(status_text(run)) for run in runs)
    # Reserve lines for the cursor and the experiment's progress.
    room = height - 1 - len(lines) - (2 if experiment is not None else 0)
    numbered = list(enumerate(runs))
    if len(numbered) > room:
        numbered = sorted(numbered, key=lambda item: item[1].status.ended)[: max(0, room - 1)]
    for number, run in sorted(numbered, key=lambda item: item[0]):
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        load = "" if run.status.ended else load_text(run.live)
        line = Text.assemble(
            (f"       {run.letter:<{letters}}  ", colour), _name(run.name, names), "  "
        )
        status = status_text(run)
        status.pad_right(states - len(status))
        line.append_text(status).append("  ")
        space = max(0, width - line.cell_len - cell_len(load) - 2)
        progress = progress_text(run, space)
        line.append(set_cell_size(progress, space), "dim" if run.status.ended else "")
        line.append(f"  {load}", "dim")
        lines.append(line)
    if hidden := len(runs) - len(numbered):
        lines.append(Text(f"       … {hidden} more", style="dim"))
    if experiment is not None and experiment.total > 1:
        lines += [Text(), progress_line(experiment, width)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def _name(name: str, columns: int) -> str:
    """Pad or cut a name to exactly `columns`."""
    if cell_len(name) <= columns:
        return set_cell_size(name, columns)
    return set_cell_size(name, columns - 1) + "…"


def status_text(run: RowProgress) -> Text:
    """Return ``▶ 00:18`` while it runs, ``✔ 21.4 s`` after, in red if it failed."""
    match run.status:
        case RunStatus.SCHEDULED:
            return Text("· waiting", style="dim")
        case RunStatus.RUNNING:
            return Text(f"▶ {units.stopwatch(run.elapsed_s or 0)}", style="cyan")
        case RunStatus.FINISHED:
            return Text(f"✔ {units.duration(run.elapsed_s)}")
    return Text(f"✘ {run.reason or run.status.value.lower()}", style="red")


def progress_text(run: RowProgress, width: int) -> str:
    """Return epoch and newest metrics, as many as fit; the script's own metrics come first."""
    live = run.live
    parts = [str(run.role)] if run.role else []
    if live.epoch is not None:
        parts.append(f"epoch {live.epoch}{f'/{live.epochs_total}' if live.epochs_total else ''}")
    metrics = sorted(live.metrics.items(), key=lambda metric: metric[0] in _OF_STEPS)
    parts += [f"{name} {units.significant(value)}" for name, value in metrics]
    shown = ""
    for part in parts:
        longer = f"{shown}  {part}" if shown else part
        if cell_len(longer) <= width:
            shown = longer
    return shown


def load_text(live: LiveView) -> str:
    """Return CPU, memory and GPU load, as far as known."""
    parts = []
    if live.cpu_cores is not None:
        parts.append(f"{units.percent(live.cpu_cores)} cpu")
    if live.gpu_utilization is not None:
        parts.append(f"{units.percent(live.gpu_utilization)} gpu")
    if live.gpu_memory_bytes is not None:
        parts.append(units.size(live.gpu_memory_bytes))
    elif live.rss_bytes is not None:
        parts.append(units.size(live.rss_bytes))
    return "  ".join(parts)
