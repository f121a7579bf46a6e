"""``radt status FILE``: the progress of an experiment, from any terminal."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from radt import settings, units
from radt.cli.options import call, setting_option
from radt.cli.render import print_folded
from radt.cluster.opened import open_submission, open_submissions
from radt.delivery.backlog import Backlog, backlogs
from radt.experiment.lock import Holder
from radt.home import Home
from radt.model import RunStatus
from radt.render.model import printable
from radt.runner.console import shown_path
from radt.runner.live import label_width, live_table, progress_line, runs_text
from radt.runner.progress import ExperimentProgress, ProgressReader, WorkloadProgress, WorkloadState
from radt.settings import Settings

#: How many finished and how many waiting workloads are listed next to the running workload.
SHOWN_DONE = 8
SHOWN_WAITING = 8
_NO_LIMIT = 1_000_000


@click.command("status")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@setting_option(settings.HOME)
@click.option("--all", "everything", is_flag=True, help="List every workload.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path | None, home: str | None, everything: bool, as_json: bool) -> None:
    """Show the progress of the experiment FILE: what is done, what runs and what is next.

    Works from any terminal and changes nothing, except that statuses of jobs on a cluster are
    brought up to date. The exit code is 0 whether or not the experiment is running.

    Without FILE, shows everything that was submitted to a cluster and is not settled yet.
    """
    if file is None:
        from radt.cli.cluster_jobs import show_open

        listed = show_open(open_submissions(home_of(None, home)), as_json=as_json)
        if listed is not None:
            click.echo(json.dumps(listed, indent=2))
        return
    if (spool := open_submission(file)) is not None:
        from radt.cli.cluster_jobs import show_status

        document = show_status(file, spool, everything=everything, as_json=as_json)
        if document is not None:
            click.echo(json.dumps(document, indent=2))
        return
    data = home_of(file, home)
    with ProgressReader(file, data) as observer:
        look = observer.look()
    waiting = waiting_for_delivery(file, data)
    if as_json:
        document = as_document(file, look) | {
            "waiting": [backlog_document(backlog) for backlog in waiting]
        }
        click.echo(json.dumps(document, indent=2))
        return
    console = Console(highlight=False)
    for line in status_lines(file, look, console.width, everything=everything):
        console.print(line, soft_wrap=True)
    for backlog in waiting:
        style = "red" if backlog.problem else "dim"
        console.print()
        print_folded(Text(f"  {printable(backlog.sentence())}", style), console, 2)


def home_of(file: Path | None, given: str | None) -> Home:
    """Return the data folder of an experiment file, or of the working folder.

    Raises:
        UsageError: The settings do not name a usable folder.
    """
    beside = Path.cwd() if file is None else file.absolute().parent
    return Home(Settings.of(beside, {settings.HOME: given})[settings.HOME])


def waiting_for_delivery(file: Path, home: Home) -> list[Backlog]:
    """Return what is still to be uploaded to MLflow and Postgres, of the whole data folder.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The settings do not name a usable database.
    """
    if not home.store_path.exists():
        return []
    store_uri = Settings.of(file.absolute().parent)[settings.STORE_URI]
    return [backlog for backlog in backlogs(home.store_path, store_uri) if backlog.waiting]


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
    """Return the lines of `radt status` for a terminal of this width."""
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
    runs = runs_text(run.role for workload in look.workloads for run in workload.runs)
    parts = [
        f"{units.plural(len(look.workloads), 'workload')}, {runs}",
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
    ended = [n for n, workload in enumerate(look.workloads) if workload.state is WorkloadState.DONE]
    later = [
        n for n, workload in enumerate(look.workloads) if workload.state is WorkloadState.WAITING
    ]
    hidden = set() if everything else {*ended[:-SHOWN_DONE], *later[SHOWN_WAITING:]}
    lines: list[Text] = []
    skipped: list[WorkloadProgress] = []
    for index, workload in enumerate(look.workloads):
        if index in hidden:
            skipped.append(workload)
            continue
        lines += _hidden(skipped)
        skipped = []
        if workload.state is WorkloadState.RUNNING:
            lines += live_table(workload.view(index + 1, total), width, _NO_LIMIT).split("\n")
        else:
            lines.append(_workload_line(index + 1, total, workload, label_chars))
    return lines + _hidden(skipped)


def _hidden(workloads: list[WorkloadProgress]) -> list[Text]:
    if not workloads:
        return []
    counts = Counter(workload.status if _is_done(workload) else None for workload in workloads)
    parts = [f"{count} {status or 'waiting'}" for status, count in counts.items()]
    return [Text(f"       … {', '.join(parts)}   (--all lists them)", "dim")]


def _is_done(workload: WorkloadProgress) -> bool:
    return workload.state is WorkloadState.DONE


def _heading(workload: WorkloadProgress) -> str:
    repeats = f" {workload.repeats_done}/{workload.repeats}" if workload.repeats > 1 else ""
    return printable(workload.plan.label) + repeats


def _workload_line(position: int, total: int, workload: WorkloadProgress, label_chars: int) -> Text:
    line = Text.assemble(
        (f"  {position:>{len(str(total))}}/{total}  ", "dim"),
        (f"{_heading(workload):<{label_chars}} ", "bold"),
        f"{runs_text(run.role for run in workload.runs):<9} ",
    )
    if workload.state is not WorkloadState.DONE:
        waiting = workload.state in (
            WorkloadState.NEXT,
            WorkloadState.WAITING,
            WorkloadState.LEFT_OUT,
        )
        line.append(
            f"· {workload.state}" if waiting else f"✘ {workload.state}", "dim" if waiting else "red"
        )
        if waiting and workload.status not in (None, RunStatus.FINISHED):
            line.append(f"   before: {_ends(workload)}", "dim")
    elif workload.status in (None, RunStatus.FINISHED):
        line.append("✔", "green").append(f" {units.duration(workload.taken_s)}")
    else:
        line.append(f"✘ {_ends(workload)}", "red")
    return line


def _ends(workload: WorkloadProgress) -> str:
    """``1 FINISHED, 1 FAILED: exit code 3``; of a single row without the count."""
    reasons: dict[str, str] = {}
    for run, view in zip(workload.plan.runs, workload.runs, strict=True):
        if run.status is not None and view.detail:
            reasons.setdefault(str(run.status), view.detail)
    counts = Counter(str(run.status) for run in workload.plan.runs if run.status is not None)
    return ", ".join(
        (f"{count} " if len(workload.runs) > 1 else "")
        + status
        + (f": {printable(reasons[status])}" if status in reasons else "")
        for status, count in counts.items()
    )


def _next_step(file: Path, look: ExperimentProgress) -> str:
    left = [workload for workload in look.workloads if workload.state is not WorkloadState.DONE]
    if not look.workloads:
        return call(file, "validate")
    if not left:
        failed = {workload.status for workload in look.workloads} - {None, RunStatus.FINISHED}
        return "all done" + (f"; {call(file)} --rerun repeats the failed rows" if failed else "")
    verb = (
        "resumes" if any(workload.status is not None for workload in look.workloads) else "starts"
    )
    labels = [workload.plan.label for workload in left]
    words = shlex.split(look.start_options)
    only = _values(words, "--only")
    chosen = [label for label in labels if label in only] if only else labels
    # What the last start was limited to may be done.
    options = look.start_options if chosen else shlex.join(_without(words, "--only"))
    label = printable((chosen or labels)[0])
    return f"{call(file, options=options)} {verb} with workload {label}"


def _values(words: Sequence[str], option: str) -> list[str]:
    """Return the values of an option that takes several, with commas or given again."""
    pairs = zip(words, [*words, ""][1:], strict=True)
    texts = [
        word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == option
    ]
    return [value.strip() for text in texts for value in text.split(",")]


def _without(words: Sequence[str], option: str) -> list[str]:
    """Return a command line without an option and its values."""
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word.partition("=")[0] != option and before != option
    ]


def as_document(file: Path, look: ExperimentProgress) -> dict[str, Any]:
    """Return the progress for ``--json``; times in seconds, sizes in bytes."""
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
        "workloads": [_workload_document(workload) for workload in look.workloads],
        "problems": list(look.problems),
    }


def _workload_document(workload: WorkloadProgress) -> dict[str, Any]:
    return {
        "experiment": workload.plan.experiment,
        "workload": workload.plan.label,
        "state": str(workload.state),
        "repeats_done": workload.repeats_done,
        "repeats": workload.repeats,
        "runs": [
            {
                "letter": plan.letter,
                "name": plan.label,
                "role": str(plan.role),
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
            for plan, view in zip(workload.plan.runs, workload.runs, strict=True)
        ],
    }
