"""``radt status FILE``: what an experiment is at, from any terminal."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from radt import settings, units
from radt.cli.options import call, setting_option
from radt.cli.render import folded
from radt.delivery.backlog import Backlog, backlogs
from radt.experiment.lock import Holder
from radt.home import Home
from radt.model import RunStatus
from radt.render.model import printable
from radt.runner.console import shown_path
from radt.runner.live import label_width, live_table, progress_line
from radt.runner.progress import ExperimentProgress, ProgressReader, WorkloadProgress, WorkloadState
from radt.settings import Settings

#: Of workloads that are done, and of those that wait, so many are listed next to the running one.
SHOWN_DONE = 8
SHOWN_WAITING = 8
_NO_LIMIT = 1_000_000


@click.command("status")
@click.argument("file", type=click.Path(path_type=Path))
@setting_option(settings.HOME)
@click.option("--all", "everything", is_flag=True, help="List every workload.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def command(file: Path, home: str | None, everything: bool, as_json: bool) -> None:
    """Show what the runner of an experiment FILE is at, what is done and what is next.

    Nothing is disturbed, and it works from any terminal. The exit code is 0 whether or not the
    experiment is running.
    """
    place = home_of(file, home)
    with ProgressReader(file, place) as observer:
        look = observer.look()
    waiting = waiting_for_delivery(file, place)
    if as_json:
        document = as_document(file, look) | {"waiting": [backlog_document(one) for one in waiting]}
        click.echo(json.dumps(document, indent=2))
        return
    console = Console(highlight=False)
    for line in status_lines(file, look, console.width, everything=everything):
        console.print(line, soft_wrap=True)
    for one in waiting:
        style = "red" if one.problem else "dim"
        console.print()
        for line in folded(Text(f"  {printable(one.sentence())}", style), console, 2):
            console.print(line, soft_wrap=True)


def home_of(file: Path, given: str | None) -> Home:
    """The data folder of an experiment file.

    Raises:
        UsageError: The settings name none that can be used.
    """
    found = Settings.of(file.absolute().parent, {settings.HOME: given})
    return Home(found[settings.HOME])


def waiting_for_delivery(file: Path, home: Home) -> list[Backlog]:
    """Return what MLflow and Postgres should have by now; of all experiments in the data folder.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The settings name no database that can be used.
    """
    if not home.store_path.exists():
        return []
    store_uri = Settings.of(file.absolute().parent)[settings.STORE_URI]
    return [one for one in backlogs(home.store_path, store_uri) if one.waiting]


def backlog_document(backlog: Backlog) -> dict[str, Any]:
    """Return a backlog for ``--json``."""
    return {
        "place": backlog.address,
        "runs": backlog.ended,
        "since": None if backlog.since_ns is None else backlog.since_ns / 1e9,
        "problem": backlog.problem,
    }


def status_lines(
    file: Path, look: ExperimentProgress, width: int, *, everything: bool = False
) -> list[Text]:
    """All that is known, for a terminal of this width."""
    lines = [_headline(file, look)]
    if look.holder is not None:
        lines += _holder_lines(look.holder)
    lines += [Text(f"  {printable(problem)}", "red") for problem in look.problems]
    lines.append(Text())
    for text in _workload_lines(look, width, everything=everything):
        text.truncate(width, overflow="ellipsis")
        lines.append(text)
    if look.progress is not None and look.progress.total > 0:
        lines += [Text(), progress_line(look.progress, width)]
    elif look.holder is None:
        lines += [Text(), Text(f"  {_next_step(file, look)}", "dim")]
    return lines


def _headline(file: Path, look: ExperimentProgress) -> Text:
    runs = sum(len(one.runs) for one in look.workloads)
    parts = [
        f"{units.plural(len(look.workloads), 'workload')}, {units.plural(runs, 'run')}",
        "not running" if look.holder is None else f"running since {_since(look.holder)}",
    ]
    name = look.name if look.name == file.stem else f"{look.name} · {file.name}"
    return Text.assemble((printable(name), "bold"), *(f" · {part}" for part in parts))


def _since(holder: Holder) -> str:
    since = datetime.fromisoformat(holder.since).astimezone()
    today = since.date() == datetime.now().astimezone().date()
    return f"{since:%H:%M:%S}" if today else f"{since:%Y-%m-%d %H:%M}"


def _holder_lines(holder: Holder) -> list[Text]:
    where = "" if holder.is_here else f" on {holder.host}"
    lines = [Text(f"  process {holder.pid} of {printable(holder.user)}{printable(where)}", "dim")]
    if holder.log:
        lines.append(Text(f"  output in {printable(shown_path(Path(holder.log)))}", "dim"))
    return lines


def _workload_lines(look: ExperimentProgress, width: int, *, everything: bool) -> list[Text]:
    total = len(look.workloads)
    label_chars = label_width(map(_heading, look.workloads))
    ended = [n for n, one in enumerate(look.workloads) if one.state is WorkloadState.DONE]
    later = [n for n, one in enumerate(look.workloads) if one.state is WorkloadState.WAITING]
    hidden = set() if everything else {*ended[:-SHOWN_DONE], *later[SHOWN_WAITING:]}
    lines: list[Text] = []
    skipped: list[WorkloadProgress] = []
    for index, one in enumerate(look.workloads):
        if index in hidden:
            skipped.append(one)
            continue
        lines += _hidden(skipped)
        skipped = []
        if one.state is WorkloadState.RUNNING:
            lines += live_table(one.view(index + 1, total), width, _NO_LIMIT).split("\n")
        else:
            lines.append(_workload_line(index + 1, total, one, label_chars))
    return lines + _hidden(skipped)


def _hidden(workloads: list[WorkloadProgress]) -> list[Text]:
    if not workloads:
        return []
    counts = Counter(one.status if _is_done(one) else None for one in workloads)
    parts = [f"{count} {status or 'waiting'}" for status, count in counts.items()]
    return [Text(f"       … {', '.join(parts)}   (--all lists them)", "dim")]


def _is_done(one: WorkloadProgress) -> bool:
    return one.state is WorkloadState.DONE


def _heading(one: WorkloadProgress) -> str:
    repeats = f" {one.repeats_done}/{one.repeats}" if one.repeats > 1 else ""
    return printable(one.plan.label) + repeats


def _workload_line(position: int, total: int, one: WorkloadProgress, label_chars: int) -> Text:
    line = Text.assemble(
        (f"  {position:>{len(str(total))}}/{total}  ", "dim"),
        (f"{_heading(one):<{label_chars}} ", "bold"),
        f"{units.plural(len(one.runs), 'run'):<9} ",
    )
    if one.state is not WorkloadState.DONE:
        waiting = one.state in (WorkloadState.NEXT, WorkloadState.WAITING, WorkloadState.LEFT_OUT)
        line.append(f"· {one.state}" if waiting else f"✘ {one.state}", "dim" if waiting else "red")
        if waiting and one.status not in (None, RunStatus.FINISHED):
            line.append(f"   before: {_ends(one)}", "dim")
    elif one.status in (None, RunStatus.FINISHED):
        line.append("✔", "green").append(f" {units.duration(one.taken_s)}")
    else:
        line.append(f"✘ {_ends(one)}", "red")
    return line


def _ends(one: WorkloadProgress) -> str:
    """``1 FINISHED, 1 FAILED: exit code 3``; of a single row without the count."""
    reasons: dict[str, str] = {}
    for run, view in zip(one.plan.runs, one.runs, strict=True):
        if run.status is not None and view.detail:
            reasons.setdefault(str(run.status), view.detail)
    counts = Counter(str(run.status) for run in one.plan.runs if run.status is not None)
    return ", ".join(
        (f"{count} " if len(one.runs) > 1 else "")
        + status
        + (f": {printable(reasons[status])}" if status in reasons else "")
        for status, count in counts.items()
    )


def _next_step(file: Path, look: ExperimentProgress) -> str:
    left = [one for one in look.workloads if one.state is not WorkloadState.DONE]
    if not look.workloads:
        return call(file, "validate")
    if not left:
        failed = {one.status for one in look.workloads} - {None, RunStatus.FINISHED}
        return "all done" + (f"; {call(file)} --rerun runs what failed again" if failed else "")
    verb = "resumes" if any(one.status is not None for one in look.workloads) else "starts"
    return f"{call(file)} {verb} with workload {printable(left[0].plan.label)}"


def as_document(file: Path, look: ExperimentProgress) -> dict[str, Any]:
    """The same for programs; times in seconds, sizes in bytes."""
    progress = look.progress
    return {
        "file": str(file.absolute()),
        "experiment": look.name,
        "running": look.holder is not None,
        "holder": None if look.holder is None else asdict(look.holder),
        "progress": None
        if progress is None
        else {
            "workloads_done": progress.done,
            "workloads_total": progress.total,
            "elapsed_s": round(progress.elapsed_s, 3),
            "remaining_s": None if progress.remaining_s is None else round(progress.remaining_s, 3),
        },
        "workloads": [_workload_document(one) for one in look.workloads],
        "problems": list(look.problems),
    }


def _workload_document(one: WorkloadProgress) -> dict[str, Any]:
    return {
        "experiment": one.plan.experiment,
        "workload": one.plan.label,
        "state": str(one.state),
        "repeats_done": one.repeats_done,
        "repeats": one.repeats,
        "runs": [
            {
                "letter": plan.letter,
                "name": plan.label,
                "status": None if plan.status is None else str(plan.status),
                "reason": view.detail,
                "run": plan.run_id,
                "elapsed_s": None if view.elapsed_s is None else round(view.elapsed_s, 3),
                "epoch": view.epoch,
                "epochs": view.epochs_total,
                "metrics": view.metrics,
                "cpu_cores": view.cpu_cores,
                "rss_bytes": view.rss_bytes,
                "gpu_utilization": view.gpu_utilization,
                "gpu_memory_bytes": view.gpu_memory_bytes,
            }
            for plan, view in zip(one.plan.runs, one.runs, strict=True)
        ],
    }
