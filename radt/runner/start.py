"""One start of an experiment, from its file to its exit code; command line and Python share it."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from radt import units
from radt.collector.client import CollectorClient
from radt.collector.protocol import CollectorStatus
from radt.collocation.ledger import Ledger
from radt.collocation.setup import clean_up
from radt.devices.machine import Machine
from radt.errors import CollectorError, DeclinedError, RadtError
from radt.experiment.lock import ExperimentLock, shown_command, start_options
from radt.experiment.plan import FAILURES, ExperimentPlan, RunPlan, decide
from radt.experiment.source import open_source
from radt.experiment.status import StatusSink
from radt.home import Home
from radt.listeners import registry
from radt.masking import masked
from radt.model import RunStatus
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.runner.console import shown_path as shown
from radt.runner.notify import Notification, Notifier
from radt.runner.outcome import ExperimentOutcome
from radt.runner.pending import ExperimentOptions, PendingWorkload, pending_workloads, settle
from radt.runner.recording import Session, open_session
from radt.runner.schedule import Schedule


def print_header(
    session: Session, plan: ExperimentPlan, pending: Sequence[PendingWorkload], where: str = ""
) -> None:
    """What is about to run, on what (this machine unless given), and where it is recorded."""
    console = session.console
    everything = len(list(plan.runs))
    if not pending:
        rows = _done(plan, pending)
        failed = sum(row.status in FAILURES for row in rows)
        done = len(rows) - failed
        amount = units.plural(everything, "row")
        what = f"{amount} done" if done == everything else f"{done} of {amount} done"
        what += f", {failed} failed" if failed else ""
        console.say(Text.assemble((plan.name, "bold"), f" · {what}"))
        console.say(
            "  --rerun runs FAILED, OOM and TIMEOUT rows again; "
            "clear a row's Status to run it again",
            "dim",
            indent=2,
        )
        return
    console.say(
        Text.assemble(
            (plan.name, "bold"), f" · {_amount(plan, pending)} · {where or session.machine}"
        )
    )
    if not session.tracking_uri:
        mlflow = "no MLflow"
    elif session.tracking_uri == session.home.default_tracking_uri:
        mlflow = "MLflow mlflow.db"
    else:
        mlflow = f"MLflow {masked(session.tracking_uri)}"
    console.say(f"  recorded in {shown(session.home.path)}/ · samples radt.db · {mlflow}", "dim")
    if session.store_uri:
        from radt.store.backend import StoreAddress  # needs SQLAlchemy, see `radt.store.peek`

        console.say(f"  uploaded to {StoreAddress.of(session.store_uri)}", "dim")
    for label, again in _again(pending).items():
        console.say(
            f"  {label}: all rows run, including {units.plural(again, 'finished row')}, "
            "because the rows of a workload are measured together",
            "dim",
            indent=2,
        )
    console.say("")


def _done(plan: ExperimentPlan, pending: Sequence[PendingWorkload]) -> list[RunPlan]:
    """Rows that are done and do not run again."""
    runs = {id(workload.plan) for workload in pending}
    return [
        run
        for workload in plan.workloads
        if id(workload) not in runs
        for run in workload.runs
        if run.is_service or not decide(run).runs
    ]


def _amount(plan: ExperimentPlan, pending: Sequence[PendingWorkload]) -> str:
    """How many workloads and runs, how often, and how many rows are done already."""
    done = len(_done(plan, pending))
    workloads = {(workload.plan.experiment, workload.plan.label) for workload in pending}
    repeats = max(workload.repeats for workload in pending)
    parts = [
        units.plural(len(workloads), "workload"),
        units.plural(sum(len(workload.plan.runs) for workload in pending), "run")
        + (f" ({done} done before)" if done else ""),
    ]
    return ", ".join(parts) + (f", {repeats} repeats" if repeats > 1 else "")


def _again(pending: Sequence[PendingWorkload]) -> dict[str, int]:
    """Numbers of rows that are done and run again, by workload."""
    return {workload.plan.label: len(workload.again) for workload in pending if workload.again}


def print_closing(
    session: Session,
    plan: ExperimentPlan,
    outcome: ExperimentOutcome,
    before: CollectorStatus | None,
) -> None:
    """Print how the experiment went, the summary table, and what to do next.

    Args:
        before: The collector's status when the experiment began; None if it did not answer.
    """
    # Not at the start, which nobody should wait for; loaded while the rows run (`Recording`).
    from radt.analysis.report import left_out_text, read_report
    from radt.delivery.backlog import backlogs
    from radt.render.report import epochs_hint, summary_table
    from radt.render.terminal import table_lines

    console = session.console
    names = list(dict.fromkeys(workload.experiment for workload in plan.workloads))
    for row in outcome.failed_before:
        where = f"line {row.line}: " if row.line else ""
        text = f"  {where}{row.workload} {row.letter} {row.label} · {row.status}, not run again"
        console.say(text, "red", indent=2)
    if outcome.runs:
        console.say("")
        console.say(_verdict(plan.name, outcome), indent=2)
        console.say(f"  {_recording(session, outcome, before)}", "dim")
        for backlog in backlogs(session.home.store_path, session.store_uri):
            if backlog.problem:
                console.say(f"  {backlog.sentence()}", "yellow", indent=2)
    for name in names:
        report = read_report(session.reader, name)
        if report.workloads:
            console.say("")
            console.print_table(table_lines(summary_table(report.workloads), console.width))
            if hint := epochs_hint(report.workloads):
                console.say(f"  {hint}", "dim", indent=2)
        if report.left_out:
            console.say(f"  {left_out_text(report.left_out)} (radt report --profiled)", "dim")
    home = "" if session.home.path == Path.cwd() / "radt-data" else f" --home {session.home.path}"
    program = _program()
    console.say("")
    hints = {}
    if outcome.interrupted and Path(sys.argv[0]).name == "radt":
        detach = " --detach" if session.start_options.endswith("--detach") else ""
        hints[shown_command(sys.argv) + detach] = "resume it"
    hints |= {f"{program} dashboard{home}": "compare in the browser at http://127.0.0.1:8050"}
    hints |= {
        f"{program} report {shlex.quote(name)}{home}": "show this table again" for name in names
    }
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
    command = shutil.which("radt")
    return "radt" if command and Path(command).samefile(mine) else shown(mine.absolute())


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


def _status(session: Session) -> CollectorStatus | None:
    """Return the collector's status, None if it does not answer."""
    try:
        return session.client.status()
    except CollectorError:
        return None


def _recording(session: Session, outcome: ExperimentOutcome, before: CollectorStatus | None) -> str:
    """Return what was sampled and the tracker's CPU time for it, this process included."""
    ledger = session.reader.ledger([run.run_id for run in outcome.runs])
    received, missed = sum(row.received for row in ledger), sum(row.missed for row in ledger)
    parts = [
        f"{units.plural(received, 'sample')}, {f'{missed:,} missed' if missed else 'none missed'}"
    ]
    if session.client.away is not None:
        parts.append("what waits in the runs' folders is not counted yet")
    after = _status(session)
    if before is None or after is None:
        return " · ".join(parts)
    on_s = after.on_s - before.on_s
    on_cpu_s = after.on_cpu_s - before.on_cpu_s + outcome.on_cpu_s
    beside_s = after.cpu_s - before.cpu_s + time.process_time() - on_cpu_s
    if after.pid == before.pid and on_s > 0 and beside_s >= 0:
        parts.append(f"tracker {units.percent(on_cpu_s / on_s)} of a core while runs were on")
        parts.append(f"{units.duration(beside_s)} of CPU before and after")
    return " · ".join(parts)


def _cost_before(status: CollectorStatus | None, elapsed_s: float) -> CollectorStatus | None:
    """Return the status with what collector and this process had taken before this start."""
    if status is None:
        return None
    # A collector as young as that was started for it.
    taken_s = 0.0 if status.uptime_s < elapsed_s else status.cpu_s
    if Path(sys.argv[0]).name != "radt":  # else all of this process is for it
        taken_s += time.process_time()
    return replace(status, cpu_s=taken_s)


#: Asked before something is done that the user may not expect; the texts say what.
Confirm = Callable[[Sequence[str]], bool]


def start_experiment(
    path: Path,
    *,
    home: Home,
    options: ExperimentOptions,
    console: Console,
    tracking_uri: str | None = None,
    store_uri: str | None = None,
    devices: str = "",
    confirm: Confirm | None = None,
    client: CollectorClient | None = None,
) -> ExperimentOutcome:
    """Run what is pending of an experiment file; statuses are written back into it.

    Args:
        devices: Overrides the Devices column; see `radt.experiment.row.Place`.
        client: See `radt.runner.recording.open_session`.

    Raises:
        ExperimentError: The file has problems; nothing was started.
        HeldError: Another runner is at it.
        RadtError: It could not be prepared or recorded.
    """
    machine = Machine.detect()
    with ExperimentLock(path, home=home.path, options=options):
        # What dead runners have left is gone before rows are checked against what there is.
        for text in clean_up_after_the_dead():
            console.print(f"  {text}", style="dim", markup=False, highlight=False)
        # Read under the lock: a runner that has just ended may have written statuses.
        source = open_source(path)
        plan = source.plan(machine, registry.load(), devices)
        statuses = source.writer()
        if source.note:
            console.print(f"  {source.note}", style="dim", markup=False, highlight=False)
        return start_plan(
            plan,
            machine=machine,
            home=home,
            options=options.with_repeat_of(source.repeat, plan),
            console=console,
            tracking_uri=tracking_uri,
            store_uri=store_uri,
            statuses=statuses,
            resume_options=start_options(path, home.path),
            confirm=confirm,
            client=client,
        )


def start_plan(
    plan: ExperimentPlan,
    *,
    machine: Machine,
    home: Home,
    options: ExperimentOptions,
    console: Console,
    tracking_uri: str | None = None,
    store_uri: str | None = None,
    statuses: StatusSink | None = None,
    resume_options: str = "",
    confirm: Confirm | None = None,
    client: CollectorClient | None = None,
) -> ExperimentOutcome:
    """Run a plan, from the first line on the console to the last.

    Args:
        statuses: Writes them back to where the plan came from; None for a script run directly.
        resume_options: Those that a call that resumes it has.
        client: See `radt.runner.recording.open_session`.

    Raises:
        RadtError: It could not be prepared or recorded.
    """
    settled = settle(plan, home)
    plan = settled.plan
    pending = pending_workloads(plan, options)
    ask_first(pending, options, confirm)
    stop = StopRequest()
    began_s = time.monotonic()
    with (
        RunConsole(console, quiet=options.quiet) as output,
        notifying(options, plan, output) as notifier,
        open_session(
            home,
            machine,
            output,
            explicit_tracking_uri=tracking_uri,
            explicit_store_uri=store_uri,
            start_options=resume_options,
            client=client,
        ) as session,
        stop.listening(),
    ):
        print_header(session, plan, pending)
        before = _cost_before(_status(session), time.monotonic() - began_s)
        outcome = Schedule(session, settled, pending, options, stop, statuses, notifier).run()
        try:
            print_closing(session, plan, outcome, before)
        except RadtError as error:
            if outcome.problem is None:  # else that is why, and more to the point
                output.say(f"  {error}", "red")
    if outcome.problem is not None:
        raise outcome.problem
    # Ctrl-C while the last lines were printed: whoever called may have more to run.
    return replace(outcome, interrupted_by=stop.number)


def ask_first(
    pending: Sequence[PendingWorkload], options: ExperimentOptions, confirm: Confirm | None
) -> None:
    """Ask before what the user may not expect.

    Raises:
        DeclinedError: The answer was no.
    """
    if confirm is None or options.yes:
        return
    questions = [
        f"workload {workload.plan.label}: {units.plural(len(workload.again), 'finished row')} will "
        "run again with the rest"
        for workload in pending
        if workload.again
    ]
    if mig := sorted({str(run.collocation.mig) for run in _runs(pending) if run.collocation.mig}):
        questions.append(f"MIG instances will be created if missing: {', '.join(mig)}")
    questions = list(dict.fromkeys(questions))  # a workload's repeats are one matter
    if questions and not confirm(questions):
        raise DeclinedError("nothing was started")


def _runs(pending: Sequence[PendingWorkload]) -> Iterator[RunPlan]:
    return (run for workload in pending for run in workload.plan.runs)


def clean_up_after_the_dead() -> list[str]:
    """Remove the MIG instances, daemons and containers of runners that were killed; say so."""
    removed: list[str] = []
    problems = clean_up(Ledger(), say=removed.append)
    return removed + problems


@contextmanager
def notifying(
    options: ExperimentOptions, plan: ExperimentPlan, console: RunConsole
) -> Iterator[Notifier]:
    """Send notifications, also one if radt itself cannot go on."""
    notifier = Notifier(options.notify, lambda text: console.say(f"  {text}", "red"))
    try:
        yield notifier
    except RadtError as error:
        notifier.send(
            Notification.of_experiment(
                plan.name, ExperimentOutcome(), str(plan.path), problem=str(error)
            )
        )
        raise
    finally:
        notifier.close()
