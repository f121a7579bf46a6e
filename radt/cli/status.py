"""``radt status FILE``: the progress of an experiment, from any terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from radt import settings, units
from radt.cli.options import json_option, print_json, setting_option
from radt.cli.render import print_folded
from radt.cluster.opened import open_submission, open_submissions
from radt.delivery.backlog import Backlog, backlogs
from radt.errors import ClusterError, RadtError
from radt.home import NO_POSTGRES, Home
from radt.model import RunStatus
from radt.render.json_text import attributes
from radt.render.model import printable
from radt.runner.console import shown_path
from radt.runner.live import label_width, live_table, progress_line, runs_text, workload_line
from radt.runner.local_watch import LocalWatcher
from radt.runner.progress import (
    ExperimentProgress,
    RowProgress,
    WorkloadProgress,
    WorkloadState,
    repeated,
)
from radt.runner.watch import Watcher
from radt.settings import Settings

#: Number of finished and of waiting workloads that are listed around the running one.
SHOWN_DONE = 8
SHOWN_WAITING = 8
_NO_LIMIT = 1_000_000
_ABSENT = (WorkloadState.NEXT, WorkloadState.WAITING, WorkloadState.LEFT_OUT)


@click.command("status")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@setting_option(settings.HOME)
@click.option("--all", "everything", is_flag=True, help="List every workload.")
@json_option
def command(file: Path | None, home: str | None, everything: bool, as_json: bool) -> None:
    """Show the progress of the experiment FILE: what is done, what runs and what is next.

    Works from any terminal and changes nothing, except that statuses of jobs on a cluster are
    brought up to date. The exit code is 0 whether or not the experiment is running.

    Without FILE, shows everything that was submitted to a cluster and is not settled yet.
    """
    console = Console(highlight=False)
    if file is None:
        _show_open(home_of(None, home), console, as_json=as_json)
        return
    with watcher_of(file, home) as watcher:
        progress = watcher.look()
        waiting: Sequence[Backlog] = ()
        try:
            waiting = waiting_for_delivery(file, watcher.home)
        except RadtError as error:
            if str(error) not in progress.problems:
                progress = replace(progress, problems=[*progress.problems, str(error)])
    if as_json:
        backlog_documents = [backlog_document(backlog) for backlog in waiting]
        print_json("status", as_document(progress) | {"waiting": backlog_documents})
        return
    for line in status_lines(progress, console.width, everything=everything):
        console.print(line, soft_wrap=True)
    for backlog in waiting:
        style = "red" if backlog.problem else "dim"
        console.print()
        print_folded(Text(f"  {printable(backlog.sentence())}", style), console, 2)


def watcher_of(file: Path, home: str | None) -> Watcher:
    """Return what watches an experiment, wherever its runs are.

    Raises:
        ClusterError: Its submission cannot be read.
    """
    if (spool := open_submission(file)) is not None:
        from radt.cluster.watch import ClusterWatcher

        return ClusterWatcher(file, spool)
    return LocalWatcher(file, lambda: home_of(file, home))


def home_of(file: Path | None, given: str | None) -> Home:
    """Return the data folder of an experiment file, or of the working folder.

    Raises:
        UsageError: The settings do not name a usable folder.
    """
    beside = Path.cwd() if file is None else file.absolute().parent
    return Home(Settings.of(beside, {settings.HOME: given})[settings.HOME])


def _show_open(home: Home, console: Console, *, as_json: bool) -> None:
    """Show the open submissions of all files; the files stay as they are."""
    from radt.cluster.watch import ANSWER_AGAIN_S, ANSWER_S, ClusterWatcher

    documents: list[dict[str, Any]] = []
    patience_s = ANSWER_S
    for spool in open_submissions(home):
        file = Path(spool.submission.file)
        try:
            watcher = ClusterWatcher(file, spool, patience_s=patience_s, observes_only=True)
            progress = watcher.look()
        except RadtError as error:  # the others can still be shown
            if isinstance(error, ClusterError):
                patience_s = ANSWER_AGAIN_S
            documents.append({"file": str(file), "error": error.message, "remedy": error.remedy})
            lines = [Text(f"{printable(str(file))}: {printable(str(error))}", "red")]
        else:
            documents.append(as_document(progress))
            patience_s = ANSWER_AGAIN_S if documents[-1]["submission"]["away"] else ANSWER_S
            lines = [*status_lines(progress, console.width)]
        for line in () if as_json else [*lines, Text()]:  # at once: the next may take a while
            console.print(line, soft_wrap=True)
    if as_json:
        print_json("status", {"files": documents})
    elif not documents:
        console.print(Text("no open submissions to a cluster", "dim"))


def waiting_for_delivery(file: Path, home: Home) -> list[Backlog]:
    """Return what is still to be uploaded to MLflow and Postgres, of the whole data folder.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The settings do not name a usable database.
    """
    if not home.store_path.exists():
        return []
    store_uri = Settings.of(file.absolute().parent)[settings.STORE_URI]
    uri = "" if store_uri == NO_POSTGRES else store_uri
    return [backlog for backlog in backlogs(home.store_path, uri) if backlog.waiting]


def backlog_document(backlog: Backlog) -> dict[str, Any]:
    """Return a backlog for ``--json``."""
    return {
        "place": backlog.address,
        "runs": backlog.ended,
        "since": None if backlog.since_ns is None else backlog.since_ns / 1e9,
        "problem": backlog.problem,
    }


def status_lines(
    progress: ExperimentProgress, width: int, *, everything: bool = False
) -> Iterator[Text]:
    """Yield the lines of `radt status` for a terminal of this width."""
    runs = runs_text(run.role for workload in progress.workloads for run in workload.runs)
    file, name = progress.file, progress.name
    yield Text.assemble(
        (printable(name if name == file.stem else f"{name} · {file.name}"), "bold"),
        f" · {units.plural(len(progress.workloads), 'workload')}, {runs} · {progress.place}",
    )
    if (holder := progress.holder) is not None:
        where = "" if holder.is_here else f" on {holder.host}"
        follows = "" if progress.jobs is None else "followed by "
        yield Text(printable(f"  {follows}process {holder.pid} of {holder.user}{where}"), "dim")
        if holder.log:
            yield Text(f"  output in {printable(shown_path(Path(holder.log)))}", "dim")
    for problem in progress.problems:
        yield Text(f"  {printable(problem)}", "red")
    if progress.jobs is not None:
        yield from progress.jobs.lines(width)
    yield Text()
    for text in _workload_lines(progress, width, everything=everything):
        text.truncate(width, overflow="ellipsis")
        yield text
    if progress.progress is not None and progress.progress.total > 0:
        yield Text()
        yield progress_line(progress.progress, width)
    elif progress.hint:
        yield Text()
        yield Text(f"  {printable(progress.hint)}", "dim")


def _workload_lines(
    progress: ExperimentProgress, width: int, *, everything: bool
) -> Iterator[Text]:
    total = len(progress.workloads)
    label_chars = label_width(map(_heading, progress.workloads))
    states = [workload.state for workload in progress.workloads]
    done = [n for n, state in enumerate(states) if state is WorkloadState.DONE]
    later = [n for n, state in enumerate(states) if state is WorkloadState.WAITING]
    hidden = set() if everything else {*done[:-SHOWN_DONE], *later[SHOWN_WAITING:]}
    skipped: Counter[str] = Counter()
    for index, workload in enumerate(progress.workloads):
        if index in hidden:
            is_done = workload.state is WorkloadState.DONE
            skipped[workload.status or "done" if is_done else "waiting"] += 1
            continue
        yield from _hidden(skipped)
        skipped.clear()
        if workload.state is WorkloadState.RUNNING and progress.jobs is None:
            yield from live_table(workload, index + 1, width, _NO_LIMIT, total).split("\n")
        else:
            roles = (run.role for run in workload.runs)
            state = _state_text(workload)
            yield workload_line(index + 1, total, _heading(workload), roles, label_chars, state)
    yield from _hidden(skipped)


def _hidden(skipped: Counter[str]) -> Iterator[Text]:
    if skipped:
        parts = ", ".join(f"{count:,} {state}" for state, count in skipped.items())
        yield Text(f"       … {parts}   (--all lists them)", "dim")


def _heading(workload: WorkloadProgress) -> str:
    return repeated(printable(workload.label), workload.repeats_done, workload.repeats)


def _state_text(workload: WorkloadProgress) -> Text:
    has_finished = workload.status in (None, RunStatus.FINISHED)
    if workload.state is WorkloadState.RUNNING:
        return Text(f"▶ {printable(workload.place)}", "cyan")
    if workload.state is WorkloadState.INTERRUPTED:
        return Text(f"✘ {workload.state}", "red")
    if workload.state in _ABSENT:
        before = "" if has_finished else f"   before: {_ends(workload.runs)}"
        return Text(f"· {printable(workload.place) or workload.state}{before}", "dim")
    if has_finished:
        taken = "" if workload.taken_s is None else f" {units.duration(workload.taken_s)}"
        return Text.assemble(("✔", "green"), taken)
    return Text(f"✘ {_ends(workload.runs)}", "red")


def _ends(runs: Sequence[RowProgress]) -> str:
    """Return ``1 FINISHED, 1 FAILED: exit code 3``; for a single row without the count."""
    ended = [run for run in runs if run.status is not RunStatus.SCHEDULED]
    reasons = {run.status: run.reason for run in reversed(ended) if run.reason}
    counts = Counter(run.status for run in ended)
    return ", ".join(
        (f"{count} " if len(runs) > 1 else "")
        + status
        + (f": {printable(reasons[status])}" if status in reasons else "")
        for status, count in counts.items()
    )


def as_document(progress: ExperimentProgress) -> dict[str, Any]:
    """Return the progress for ``--json``; times in seconds, sizes in bytes."""
    view = progress.progress
    document = {
        "file": str(progress.file.absolute()),
        "experiment": progress.name,
        "running": progress.is_running,
        "holder": None if progress.holder is None else asdict(progress.holder),
        "progress": view
        and {
            "workloads_done": view.done,
            "workloads_total": view.total,
            "elapsed_s": _rounded(view.elapsed_s),
            "remaining_s": _rounded(view.remaining_s),
        },
        "workloads": [
            {
                "workload": workload.label,
                "state": str(workload.state),
                **attributes(workload, "experiment", "place", "repeats_done", "repeats"),
                "runs": [_run_document(run) for run in workload.runs],
            }
            for workload in progress.workloads
        ],
        "problems": list(progress.problems),
    }
    if progress.jobs is not None:
        document["submission"] = progress.jobs.document()
    return document


def _run_document(run: RowProgress) -> dict[str, Any]:
    return {
        **attributes(run, "letter", "name", "reason"),
        "role": str(run.role),
        "status": None if run.status is RunStatus.SCHEDULED else str(run.status),
        "run": run.run_id,
        "elapsed_s": _rounded(run.elapsed_s),
        "epochs": run.live.epochs_total,
        **attributes(run.live, "epoch", "metrics", "cpu_cores", "rss_bytes"),
        **attributes(run.live, "gpu_utilization", "gpu_memory_bytes"),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
