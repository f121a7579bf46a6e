"""What a start on a cluster would submit: arrays, the first script, and what the engine says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from radt.cli.render import render_plan
from radt.cluster.engine import ArrayRequest
from radt.cluster.same_node import on_one_node
from radt.cluster.script import array_request
from radt.cluster.settings import ClusterSettings
from radt.cluster.shape import JobArray
from radt.cluster.shaping import arrays_for, ask_about, shape_text
from radt.cluster.slurm import Slurm
from radt.devices.machine import Machine
from radt.experiment.source import ExperimentFile
from radt.home import Home
from radt.listeners import registry
from radt.render.model import printable
from radt.runner.console import shown_path
from radt.runner.pending import ExperimentOptions, pending_workloads
from radt.units import listed, plural

#: Stands for the name that a submission will get.
_NO_ID = "DATE-TIME-ID"
_MOST_JOBS_SHOWN = 6
_INDENT = 10


def show_cluster_plan(
    source: ExperimentFile,
    cluster: ClusterSettings,
    options: ExperimentOptions,
    *,
    devices: str,
    home: Path,
    console: Console | None = None,
) -> None:
    """Print the plan of a file and what a start would submit for it.

    Args:
        source: The experiment file.
        cluster: Where it is to run.
        options: Of the start.
        devices: Overrides the Devices column.
        home: The data folder.
        console: Standard output unless given.

    Raises:
        ExperimentError: With every problem of the file, or every shape that does not fit.
        ClusterError: The engine is not there, or does not answer.
    """
    console = console or Console(highlight=False)
    plan = source.plan(Machine.of_cluster(), registry.load(), devices)
    options = options.with_repeat_of(source.repeat, plan)
    pending = pending_workloads(plan, options)
    arrays: Sequence[JobArray] = ()
    requests: dict[JobArray, ArrayRequest] = {}
    answers: Mapping[JobArray, str] = {}
    folder = cluster.submissions(home)
    if pending:
        engine = Slurm()
        size = engine.max_array_size
        arrays = arrays_for(source.shown, pending, cluster, max_array_size=size)
        if cluster.same_node:
            arrays = on_one_node(arrays, plan, cluster, engine, Home(home))
        for number, array in enumerate(arrays):
            requests[array] = array_request(
                *(folder / _NO_ID, number, array, cluster), name=plan.name, intent="radt: a test"
            )
        answers = ask_about(source.shown, plan, requests, engine)
    if options.only:
        chosen = tuple(workload for workload in plan.workloads if workload.label in options.only)
        plan = replace(plan, workloads=chosen)
    render_plan(plan, rerun=options.rerun, repeat=options.repeat, console=console)
    if not arrays:
        return
    _show_arrays(arrays, answers, cluster, folder, console)
    _show_script(requests[arrays[0]].script, console)


def _show_arrays(
    arrays: Sequence[JobArray],
    answers: Mapping[JobArray, str],
    cluster: ClusterSettings,
    folder: Path,
    console: Console,
) -> None:
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
            Text(f"{cluster.name}: {printable(answers[array])}", "dim"),
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
