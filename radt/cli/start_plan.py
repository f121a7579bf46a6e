"""What a start would run; on a cluster, its arrays, the first script, and what the engine says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.console import Console
from rich.text import Text

from radt.cli.render import print_folded, render_plan
from radt.experiment.plan import is_chosen
from radt.render.model import printable
from radt.runner.auto import preview
from radt.runner.console import shown_path
from radt.runner.executor import Executor
from radt.runner.options import StartOptions, Work
from radt.units import listed, plural

if TYPE_CHECKING:
    from radt.cluster.executor import SlurmExecutor

_MOST_JOBS_SHOWN = 6
_INDENT = 10


def show_plan(
    path: Path, options: StartOptions, executor: Executor, console: Console | None = None
) -> Work:
    """Print the plan of a file and what a start would submit for it; return it.

    Args:
        path: The experiment file.
        options: Of the start.
        executor: Where it is to run.
        console: Standard output unless given.

    Raises:
        ExperimentError: With every problem of the file, or every shape that does not fit.
        ClusterError: The engine is not there, or does not answer.
    """
    console = console or Console(highlight=False)
    work = executor.plan(path, options)
    show_work(work, console)
    if not executor.outlives_start:
        for text in preview(work.plan, work.options, executor.machine):
            print_folded(Text(f"  {printable(text)}", "dim"), console, 4)
    elif work.pending:
        cluster = cast("SlurmExecutor", executor)
        _show_arrays(cluster, options, console)
        _show_script(next(iter(cluster.requests.values())).script, console)
    return work


def show_work(work: Work, console: Console) -> None:
    """Print what a start would run."""
    plan, options = work.plan, work.options
    chosen = tuple(each for each in plan.workloads if is_chosen(each.label, options.only))
    plan = replace(plan, workloads=chosen)
    render_plan(plan, rerun=options.rerun, repeat=options.repeat, console=console)


def _show_arrays(executor: SlurmExecutor, options: StartOptions, console: Console) -> None:
    # Imported here: only clusters need it.
    from radt.cluster.shaping import shape_text

    cluster, arrays = executor.settings, executor.requests
    folder = cluster.submissions(options.home.path)
    jobs = sum(len(array.jobs) for array in arrays)
    amount = f"{plural(len(arrays), 'array')}, {plural(jobs, 'job')}"
    most = "" if cluster.max_jobs is None else f", at most {cluster.max_jobs:,} at a time"
    console.print()
    console.print(
        Text.assemble("  ", (f"on {cluster.name}", "bold"), f" · {amount}{most}"), soft_wrap=True
    )
    console.print(Text(f"  shared folder {shown_path(folder)}", "dim"), soft_wrap=True)
    for number, array in enumerate(arrays):
        head = f"array {number}"
        labels = [" then ".join(printable(key.label) for key in job) for job in array.jobs]
        lines = [
            Text(f"{plural(len(array.jobs), 'job')} with {shape_text(array.shape)}"),
            Text(listed(labels, _MOST_JOBS_SHOWN, " · "), "dim"),
            Text(f"{cluster.name}: {printable(executor.answers[array])}", "dim"),
        ]
        console.print()
        for line in lines:
            for part in line.wrap(console, max(24, console.width - _INDENT - 2)):
                part.rstrip()
                console.print(
                    Text.assemble("  ", (head.ljust(_INDENT), "bold"), part), soft_wrap=True
                )
                head = ""


def _show_script(script: str, console: Console) -> None:
    console.print()
    console.print(Text.assemble("  ", ("script of array 0", "bold")), soft_wrap=True)
    console.print()
    for line in script.splitlines():
        console.print(Text(f"    {printable(line)}".rstrip(), "dim"), soft_wrap=True)
