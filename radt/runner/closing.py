"""The first and the last lines that the runner prints."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.text import Text

from radt import units
from radt.collector.protocol import CollectorStatus
from radt.errors import CollectorError
from radt.experiment.decision import decide
from radt.experiment.plan import ExperimentPlan, RunPlan
from radt.masking import masked
from radt.model import RunStatus
from radt.replication.backlog import backlog as database_backlog
from radt.report.summary import left_out_text, profiled_count, summarise
from radt.report.tables import summary_table
from radt.runner.console import shown_path as shown
from radt.runner.due import Due
from radt.runner.outcome import ExperimentOutcome
from radt.runner.session import Session
from radt.store.address import StoreAddress
from radt.tracking.backlog import backlog


def print_header(session: Session, plan: ExperimentPlan, due: Sequence[Due]) -> None:
    """What is about to run, on what, and where it is recorded."""
    console = session.console
    everything = len(list(plan.runs))
    if not due:
        done = len(_done(plan, due))
        amount = units.plural(everything, "row")
        what = f"all {amount} done" if done == everything else f"{done} of {amount} done"
        console.say(Text.assemble((plan.name, "bold"), f" · {what}"))
        console.say(
            "  --rerun runs FAILED rows again, also OOM and TIMEOUT; "
            "empty a row's Status to run it again",
            "dim",
            indent=2,
        )
        return
    console.say(Text.assemble((plan.name, "bold"), f" · {_amount(plan, due)} · {session.machine}"))
    tracking = (
        "mlflow.db"
        if session.tracking_uri == session.home.default_tracking_uri
        else masked(session.tracking_uri)
    )
    console.say(
        f"  recorded in {shown(session.home.path)}/ · samples radt.db · MLflow {tracking}", "dim"
    )
    if session.store_uri:
        console.say(f"  brought to {StoreAddress.of(session.store_uri)}", "dim")
    for label, again in _again(due).items():
        console.say(
            f"  {label}: all rows run, also {units.plural(again, 'row')} that would be done, "
            "because what runs together is measured together",
            "dim",
            indent=2,
        )
    console.say("")


def _done(plan: ExperimentPlan, due: Sequence[Due]) -> list[RunPlan]:
    """Rows that are done and do not run again."""
    runs = {id(one.plan) for one in due}
    return [
        run
        for workload in plan.workloads
        if id(workload) not in runs
        for run in workload.runs
        if not decide(run).runs
    ]


def _amount(plan: ExperimentPlan, due: Sequence[Due]) -> str:
    """How many workloads and runs, how often, and how many rows are done already."""
    done = len(_done(plan, due))
    workloads = {(one.plan.experiment, one.plan.label) for one in due}
    repeats = max(one.repeats for one in due)
    parts = [
        units.plural(len(workloads), "workload"),
        units.plural(sum(len(one.plan.runs) for one in due), "run")
        + (f" ({done} done before)" if done else ""),
    ]
    return ", ".join(parts) + (f", {repeats} repeats" if repeats > 1 else "")


def _again(due: Sequence[Due]) -> dict[str, int]:
    """Numbers of rows that are done and run again, by workload."""
    return {one.plan.label: len(one.again) for one in due if one.again}


def print_closing(
    session: Session, plan: ExperimentPlan, outcome: ExperimentOutcome, before: CollectorStatus
) -> None:
    """How it went, the summary table, and what to do next."""
    console = session.console
    names = list(dict.fromkeys(workload.experiment for workload in plan.workloads))
    if outcome.runs:
        console.say("")
        console.say(_verdict(plan.name, outcome), indent=2)
        console.say(f"  {_recording(session, outcome, before)}", "dim")
        for one in backlog(session.reader):
            if one.problem is not None:
                console.say(f"  {one.sentence()}", "yellow", indent=2)
        for other in database_backlog(session.home.store_path, session.store_uri):
            if other.problem:
                console.say(f"  {other.sentence()}", "yellow", indent=2)
    for name in names:
        workloads = summarise(session.reader, name)
        if workloads:
            console.say("")
            console.print(summary_table(workloads))
        if left_out := profiled_count(session.reader, name):
            console.say(f"  {left_out_text(left_out)} (radt report --profiled)", "dim")
    home = "" if session.home.path == Path.cwd() / "radt-data" else f" --home {session.home.path}"
    program = _program()
    console.say("")
    hints = {f"{program} dashboard{home}": "compare at http://127.0.0.1:8050"}
    hints |= {f"{program} report {shlex.quote(name)}{home}": "this table again" for name in names}
    for line in hint_lines(hints, console.width):
        console.say(line)


def hint_lines(hints: Mapping[str, str], width: int) -> Iterator[Text]:
    """Commands and what they are for, in two columns or, where these do not fit, below each other.

    A command stays on one line: folded, its end would be lost where it is copied.
    """
    columns = max(cell_len(command) for command in hints)
    beside = columns + max(cell_len(purpose) for purpose in hints.values()) + 5 <= width
    for command, purpose in hints.items():
        if beside:
            padding = " " * (columns - cell_len(command))
            yield Text.assemble("  ", (command, "cyan"), (f"{padding}   {purpose}", "dim"))
        else:
            yield Text.assemble("  ", (command, "cyan"))
            yield Text(f"    {purpose}", "dim")


def _program() -> str:
    """How this radt is called from here: by name if that finds it, else by its path."""
    mine = Path(sys.argv[0])
    if mine.name != "radt":  # a script or notebook that called radt.run_experiment
        return "radt"
    found = shutil.which("radt")
    return "radt" if found and Path(found).samefile(mine) else shown(mine.absolute())


def _verdict(name: str, outcome: ExperimentOutcome) -> Text:
    verb = "interrupted after" if outcome.interrupted else "finished in"
    ordered = sorted(outcome.counts.items(), key=_finished_first)
    counts = ", ".join(
        f"{count if number else units.plural(count, 'run')} {status}"
        for number, (status, count) in enumerate(ordered)
    )
    failed = set(outcome.counts) - {RunStatus.FINISHED}
    text = f" {verb} {units.duration(outcome.elapsed_s)} · {counts}"
    return Text.assemble((name, "bold"), (text, "red" if failed else ""))


def _finished_first(counted: tuple[RunStatus, int]) -> bool:
    return counted[0] is not RunStatus.FINISHED


def _recording(session: Session, outcome: ExperimentOutcome, before: CollectorStatus) -> str:
    """What was sampled, and what that cost."""
    ledger = session.reader.ledger([run.run_id for run in outcome.runs])
    received, missed = sum(row.received for row in ledger), sum(row.missed for row in ledger)
    parts = [
        f"{units.plural(received, 'sample')}, {f'{missed:,} missed' if missed else 'none missed'}"
    ]
    try:
        spent_s = session.client.status().cpu_s - before.cpu_s
    except CollectorError:
        spent_s = -1.0  # it was restarted a moment ago; its cost is not known
    if spent_s >= 0 and outcome.elapsed_s > 0:
        parts.append(f"tracker {units.percent(spent_s / outcome.elapsed_s)} of a core")
    return " · ".join(parts)
