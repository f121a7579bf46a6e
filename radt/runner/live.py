"""The live table: progress of a workload and its runs, and when the experiment will end."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import fmean
from typing import TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from radt import units
from radt.collector.protocol import LiveView
from radt.model import Role, RunStatus

#: Columns of the bar; it is omitted if the terminal has fewer.
_BAR_COLUMNS = 20
_MIN_COLUMNS_WITH_BAR = 72

K = TypeVar("K", bound=Hashable)


def remaining_s(
    left: Sequence[K],
    ended_s: Mapping[K, Sequence[float]],
    *,
    running_s: float = 0.0,
    cooldown_s: float = 0.0,
) -> float | None:
    """Return the estimated seconds until all is done; None as long as nothing has ended.

    A workload is expected to take the mean time of its earlier repeats, or without any, the mean of
    the other workloads' means.

    Args:
        left: The workloads still to be done, in order; a repeated one occurs several times.
        ended_s: The times that ended workloads took.
        running_s: How long the first of ``left`` has been running.
        cooldown_s: Pause before each workload but the first of ``left``.
    """
    means_s = {key: fmean(taken) for key, taken in ended_s.items() if taken}
    if not left:
        return 0.0
    if not means_s:
        return None
    usual_s = fmean(means_s.values())
    first_s, *others_s = (means_s.get(key, usual_s) for key in left)
    return max(0.0, first_s - running_s) + sum(others_s) + cooldown_s * len(others_s)


@dataclass(frozen=True, slots=True)
class ProgressView:
    """The progress of an experiment at one instant; ``done`` and ``total`` count workloads.

    ``remaining_s`` is None if it cannot be estimated.
    """

    done: int
    total: int
    elapsed_s: float
    remaining_s: float | None = None
    at_monotonic_s: float = field(default_factory=time.monotonic)

    def later(self, monotonic_s: float) -> ProgressView:
        """Return the progress at another instant, if nothing has ended in between."""
        passed_s = max(0.0, monotonic_s - self.at_monotonic_s)
        return replace(
            self,
            elapsed_s=self.elapsed_s + passed_s,
            remaining_s=None if self.remaining_s is None else max(0.0, self.remaining_s - passed_s),
            at_monotonic_s=monotonic_s,
        )

    @property
    def fraction(self) -> float:
        """Return the fraction done: of the time if its end can be estimated, else of workloads."""
        if self.remaining_s is not None and self.elapsed_s + self.remaining_s > 0:
            by_time = self.elapsed_s / (self.elapsed_s + self.remaining_s)
            return by_time if self.done < self.total else 1.0
        return self.done / self.total if self.total else 1.0


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
#: Metrics that `radt.run.steps` logs.
_OF_STEPS = frozenset({"step.time", "samples_per_s", "data_wait"})


@dataclass(slots=True)
class RunView:
    """The line of one run in the live table."""

    letter: str
    name: str
    status: RunStatus = RunStatus.SCHEDULED
    detail: str = ""
    started_monotonic_s: float | None = None
    ended_monotonic_s: float | None = None
    epoch: int | None = None
    epochs_total: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    cpu_cores: float | None = None
    rss_bytes: float | None = None
    gpu_utilization: float | None = None
    gpu_memory_bytes: float | None = None
    role: Role = Role.TRAINING
    run_id: str = ""

    def update(self, live: LiveView) -> None:
        """Update from the collector's current values."""
        self.epoch = live.epoch
        self.epochs_total = live.epochs_total or self.epochs_total
        self.metrics = dict(live.metrics)
        self.cpu_cores, self.rss_bytes = live.cpu_cores, live.rss_bytes
        self.gpu_utilization = live.gpu_utilization
        self.gpu_memory_bytes = live.gpu_memory_bytes

    @property
    def elapsed_s(self) -> float | None:
        """Return the seconds since the barrier, or the duration of an ended run."""
        if self.started_monotonic_s is None:
            return None
        return (self.ended_monotonic_s or time.monotonic()) - self.started_monotonic_s


@dataclass(slots=True)
class WorkloadView:
    """One workload as the live table shows it."""

    position: int
    total: int
    label: str
    runs: Sequence[RunView]
    state: str = "preparing"
    started_monotonic_s: float | None = None
    repeat: int = 1
    repeats: int = 1

    @property
    def heading(self) -> str:
        """Return the label, with the repeat if there are several: ``three 2/3``."""
        return repeated(self.label, self.repeat, self.repeats)


def repeated(label: str, repeat: int, repeats: int) -> str:
    """Return a workload's label, with the repeat if there are several: ``three 2/3``."""
    return f"{label} {repeat}/{repeats}" if repeats > 1 else label


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
    view: WorkloadView, width: int, height: int, experiment: ProgressView | None = None
) -> Text:
    """Return the workload's heading and a line for each of its runs, within width and height.

    A table higher than the terminal could not be erased again; ended runs are dropped first.
    """
    elapsed = (
        f"▶ {units.stopwatch(time.monotonic() - view.started_monotonic_s)}  "
        if view.started_monotonic_s is not None
        else ""
    )
    lines = [
        workload_line(
            view.position,
            view.total,
            view.heading,
            (run.role for run in view.runs),
            _LABEL_CHARS,
            Text(elapsed, "cyan"),
            Text(view.state, "dim"),
        )
    ]
    letters = max(len(run.letter) for run in view.runs)
    names = min(max(NAME_COLUMNS, width // 5), max(cell_len(run.name) for run in view.runs))
    states = max(len(status_text(run)) for run in view.runs)
    # Reserve lines for the cursor and the experiment's progress.
    room = height - 1 - len(lines) - (2 if experiment is not None else 0)
    numbered = list(enumerate(view.runs))
    if len(numbered) > room:
        numbered = sorted(numbered, key=lambda item: item[1].status.ended)[: max(0, room - 1)]
    for position, run in sorted(numbered, key=lambda item: item[0]):
        colour = RUN_COLOURS[position % len(RUN_COLOURS)]
        load = "" if run.status.ended else load_text(run)
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
    if hidden := len(view.runs) - len(numbered):
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


def status_text(run: RunView) -> Text:
    """Return ``▶ 00:18`` while it runs, ``✔ 21.4 s`` after, in red if it failed."""
    match run.status:
        case RunStatus.SCHEDULED:
            return Text("· waiting", style="dim")
        case RunStatus.RUNNING:
            return Text(f"▶ {units.stopwatch(run.elapsed_s or 0)}", style="cyan")
        case RunStatus.FINISHED:
            return Text(f"✔ {units.duration(run.elapsed_s)}")
    return Text(f"✘ {run.detail or run.status.value.lower()}", style="red")


def progress_text(run: RunView, width: int) -> str:
    """Return epoch and newest metrics, as many as fit; the script's own metrics come first."""
    parts = [str(run.role)] if run.role else []
    if run.epoch is not None:
        parts.append(f"epoch {run.epoch}{f'/{run.epochs_total}' if run.epochs_total else ''}")
    parts += [f"{name} {units.significant(value)}" for name, value in own_first(run.metrics)]
    shown = ""
    for part in parts:
        longer = f"{shown}  {part}" if shown else part
        if cell_len(longer) <= width:
            shown = longer
    return shown


def own_first(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Order metrics: the script's own, then those that `radt.Run.batches` and `step` log."""
    return sorted(metrics.items(), key=lambda metric: metric[0] in _OF_STEPS)


def load_text(run: RunView) -> str:
    """Return CPU, memory and GPU load, as far as known."""
    parts = []
    if run.cpu_cores is not None:
        parts.append(f"{units.percent(run.cpu_cores)} cpu")
    if run.gpu_utilization is not None:
        parts.append(f"{units.percent(run.gpu_utilization)} gpu")
    if run.gpu_memory_bytes is not None:
        parts.append(units.size(run.gpu_memory_bytes))
    elif run.rss_bytes is not None:
        parts.append(units.size(run.rss_bytes))
    return "  ".join(parts)
