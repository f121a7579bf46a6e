"""Runs one start of an experiment, from its file to its exit code, for command line and Python."""

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
from radt.errors import CollectorError, DeclinedError, RadtError
from radt.experiment.files import call
from radt.experiment.lock import ExperimentLock, shown_command, start_options
from radt.experiment.plan import FAILURES, ExperimentPlan
from radt.lifetime import Wait
from radt.masking import masked
from radt.model import RunStatus
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.runner.console import shown_path as shown
from radt.runner.context import RunnerContext
from radt.runner.executor import Executor
from radt.runner.notify import Notification, Notifier
from radt.runner.options import StartOptions, Work, pending_workloads
from radt.runner.outcome import ExperimentOutcome


def print_header(context: RunnerContext, work: Work, where: str) -> None:
    """Print the pending work, its devices, and the destinations of its records."""
    console, plan = context.console, work.plan
    if not work.pending:
        everything = len(list(plan.runs))
        failed = sum(row.status in FAILURES for row in work.done)
        done = len(work.done) - failed
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
    console.say(Text.assemble((plan.name, "bold"), f" · {_amount(work)} · {where}"))
    if not context.tracking_uri:
        mlflow = "no MLflow"
    elif context.tracking_uri == context.home.default_tracking_uri:
        mlflow = "MLflow mlflow.db"
    else:
        mlflow = f"MLflow {masked(context.tracking_uri)}"
    console.say(f"  recorded in {shown(context.home.path)}/ · samples radt.db · {mlflow}", "dim")
    if context.store_uri:
        from radt.store.backend import StoreAddress  # needs SQLAlchemy, see `radt.store.peek`

        console.say(f"  uploaded to {StoreAddress.of(context.store_uri)}", "dim")
    again_by_label = {one.plan.label: len(one.again) for one in work.pending if one.again}
    for label, again in again_by_label.items():
        console.say(
            f"  {label}: all rows run, including {units.plural(again, 'finished row')}, "
            "because the rows of a workload are measured together",
            "dim",
            indent=2,
        )
    console.say("")


def _amount(work: Work) -> str:
    """Return the numbers of workloads, runs and repeats, and of rows that are already done."""
    workloads = {each.plan.key for each in work.pending if not each.plan.is_auto}
    rows = {each.plan.key for each in work.pending if each.plan.is_auto}
    repeats = max(workload.repeats for workload in work.pending)
    parts = [
        *([units.plural(len(workloads), "workload")] if workloads else ()),
        *([f"{units.plural(len(rows), 'row')} to group"] if rows else ()),
        units.plural(sum(len(workload.plan.runs) for workload in work.pending), "run")
        + (f" ({len(work.done)} done before)" if work.done else ""),
    ]
    return ", ".join(parts) + (f", {repeats} repeats" if repeats > 1 else "")


def print_closing(
    context: RunnerContext,
    plan: ExperimentPlan,
    outcome: ExperimentOutcome,
    before: CollectorStatus | None,
) -> None:
    """Print how the experiment went, the summary table, and what to do next.

    Args:
        before: The collector's status when the experiment began; None if it did not answer.
    """
    # Imported here so that no start waits for it; `RecordingThread` loads it while the rows run.
    from radt.analysis.report import read_report
    from radt.analysis.selection import counts_text
    from radt.delivery.backlog import backlogs
    from radt.render.report import epochs_hint, summary_table
    from radt.render.terminal import table_lines

    console = context.console
    names = list(dict.fromkeys(workload.experiment for workload in plan.workloads))
    for row in outcome.failed_before:
        where = f"line {row.line}: " if row.line else ""
        text = f"  {where}{row.workload} {row.letter} {row.label} · {row.status}, not run again"
        console.say(text, "red", indent=2)
    if outcome.runs:
        console.say("")
        console.say(_verdict(plan.name, outcome), indent=2)
        console.say(f"  {_recording(context, outcome, before)}", "dim", indent=2)
        for backlog in backlogs(context.home.store_path, context.store_uri):
            if backlog.problem:
                console.say(f"  {backlog.sentence()}", "yellow", indent=2)
    for name in names:
        report = read_report(context.reader, name)
        if report.workloads:
            console.say("")
            lines = table_lines(summary_table(report.workloads), console.width)
            console.say(Text("\n").join(lines))
            if hint := epochs_hint(report.workloads):
                console.say(f"  {hint}", "dim", indent=2)
        for loss in report.losses:
            console.say(f"  {loss}", "yellow", indent=2)
        if report.selection.reasons:
            console.say(f"  {counts_text([report.selection])}", "dim")
    path = context.home.path
    home = "" if path == Path.cwd() / "radt-data" else f" --home {shlex.quote(str(path))}"
    program = _program()
    console.say("")
    hints = {}
    if outcome.interrupted and Path(sys.argv[0]).name == "radt":
        detach = " --detach" if context.resume_options.endswith("--detach") else ""
        hints[shown_command(sys.argv) + detach] = "resume it"
    hints |= {f"{program} dashboard{home}": "compare in the browser"}
    hints |= {
        f"{program} report {shlex.quote(name)}{home}": "show this table again" for name in names
    }
    for line in hint_lines(hints, console.width):
        console.say(line)


def hint_lines(hints: Mapping[str, str], width: int) -> Iterator[Text]:
    """Yield commands and their descriptions, in two columns or, if too wide, one below the other.

    A command stays on one line: folded, it would be cut when copied from the terminal.
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
    """Return how to call this radt: by name if PATH finds it, else by its path."""
    mine = Path(sys.argv[0])
    if mine.name != "radt":  # a script or notebook that called radt.run_experiment
        return "radt"
    command = shutil.which("radt")
    return "radt" if command and Path(command).samefile(mine) else shown(mine.absolute())


def _verdict(name: str, outcome: ExperimentOutcome) -> Text:
    verb = "interrupted after" if outcome.interrupted else "finished in"
    ordered = sorted(outcome.counts.items(), key=lambda item: item[0] is not RunStatus.FINISHED)
    counts = ", ".join(
        f"{count if number else units.plural(count, 'run')} {status}"
        for number, (status, count) in enumerate(ordered)
    )
    failed = set(outcome.counts) - {RunStatus.FINISHED}
    text = f" {verb} {units.duration(outcome.elapsed_s)} · {counts}"
    return Text.assemble((name, "bold"), (text, "red" if failed else ""))


def _status(context: RunnerContext) -> CollectorStatus | None:
    """Return the collector's status, None if it does not answer."""
    try:
        return context.client.status()
    except CollectorError:
        return None


def _recording(
    context: RunnerContext, outcome: ExperimentOutcome, before: CollectorStatus | None
) -> str:
    """Return the number of samples, and the tracker's CPU time during the runs and outside them."""
    from radt.analysis.recording import read_overhead

    ledger = context.reader.ledger([run.run_id for run in outcome.runs])
    received, missed = sum(row.received for row in ledger), sum(row.missed for row in ledger)
    parts = [
        f"{units.plural(received, 'sample')}, {f'{missed:,} missed' if missed else 'none missed'}"
    ]
    if context.client.away is not None:
        parts.append("values still in the runs' folders are not counted yet")
    overhead = read_overhead(context.reader, [run.run_id for run in outcome.runs])
    if overhead.cpu_share is not None:
        parts.append(f"tracker {units.percent(overhead.cpu_share)} of a core during runs")
        after = _status(context)
        if before is not None and after is not None and after.pid == before.pid:
            besides_s = after.cpu_s - before.cpu_s + time.process_time() - overhead.cpu_s
            parts[-1] += f", {units.duration(max(0.0, besides_s))} outside runs"
    return " · ".join(parts)


def _cost_before(status: CollectorStatus | None, elapsed_s: float) -> CollectorStatus | None:
    """Return the status with the CPU time that collector and this process used before the start."""
    if status is None:
        return None
    # A collector younger than this start was started for it.
    taken_s = 0.0 if status.uptime_s < elapsed_s else status.cpu_s
    if Path(sys.argv[0]).name != "radt":  # as `radt`, the whole process serves this start
        taken_s += time.process_time()
    return replace(status, cpu_s=taken_s)


#: Called before radt does something unexpected; the texts describe it.
Confirm = Callable[[Sequence[str]], bool]


def start(
    path: Path,
    options: StartOptions,
    executor: Executor,
    *,
    confirm: Confirm | None = None,
    client: CollectorClient | None = None,
    console: Console | None = None,
) -> ExperimentOutcome:
    """Run the pending rows of an experiment file, and write their statuses back into it.

    Args:
        path: The experiment file.
        options: The options of this start.
        executor: Where to run.
        confirm: Asked before radt does something that the user may not expect.
        client: See `radt.runner.context.RunnerContext`.
        console: Standard output unless given.

    Raises:
        ExperimentError: The file has problems; nothing was started.
        HeldError: Another runner is running it.
        RadtError: It could not be prepared or recorded.
    """
    console = console or Console(highlight=False)

    def say(text: str) -> None:
        console.print(f"  {text}", style="dim", markup=False, highlight=False)

    work_options = {"rerun": options.rerun, "only": options.only, "repeat": options.repeat}
    with ExperimentLock(path, home=options.home.path, **work_options):
        # Read under the lock: a runner that has just ended may have written statuses.
        work = executor.begin(path, options, say)
        resume_options = start_options(path, options.home.path)
        return _start(work, executor, console, resume_options, confirm, client)


def start_program(
    plan: ExperimentPlan,
    options: StartOptions,
    executor: Executor,
    *,
    confirm: Confirm | None = None,
    client: CollectorClient | None = None,
) -> ExperimentOutcome:
    """Run the plan of a single program; see `start`."""
    work = Work(plan, options, pending_workloads(plan, options))
    return _start(work, executor, Console(highlight=False), "", confirm, client)


def _start(
    work: Work,
    executor: Executor,
    console: Console,
    resume_options: str,
    confirm: Confirm | None,
    client: CollectorClient | None,
) -> ExperimentOutcome:
    """Run the pending rows, and print everything from the header to the closing lines."""
    options = work.options
    ask_first(work, confirm)
    stop = StopRequest()
    began_s = time.monotonic()
    with (
        RunConsole(console, quiet=options.quiet) as output,
        notifying(work, output) as notifier,
        RunnerContext(
            options,
            executor.machine,
            output,
            notifier,
            stop,
            resume_options=resume_options,
            client=client,
        ) as context,
        stop.listening(),
    ):
        work = executor.resume(context, work)
        statuses = None if work.source is None else work.source.writer()
        if work.source is not None and work.source.note:
            output.say(f"  {work.source.note}", "dim")
        if work.pending or work.source is not None:
            print_header(context, work, executor.where(work))
        before = None
        if not executor.outlives_start:
            before = _cost_before(_status(context), time.monotonic() - began_s)
        outcome = executor.run(context, work, statuses)
        if stop and executor.outlives_start:
            _print_how_to_return(context, work.plan.path)
        else:
            outcome = _close(context, work, outcome, before)
    if outcome.problem is not None:
        raise outcome.problem
    # Report Ctrl-C during the last lines, too: the caller may have more to run.
    return replace(outcome, interrupted_by=stop.number)


def _close(
    context: RunnerContext, work: Work, outcome: ExperimentOutcome, before: CollectorStatus | None
) -> ExperimentOutcome:
    """Print the last lines, and wait for uploads if the options say so."""
    context.notifier.send(
        Notification.of_experiment(
            work.plan.name, outcome, str(work.plan.path), problem=str(outcome.problem or "")
        )
    )
    try:
        print_closing(context, work.plan, outcome, before)
    except RadtError as error:
        if outcome.problem is None:  # otherwise the earlier problem is the cause, and clearer
            context.console.say(f"  {error}", "red")
    return wait_for_uploads(context, outcome)


def _print_how_to_return(context: RunnerContext, path: Path) -> None:
    context.console.say("")
    context.console.say("  detached; the jobs continue")
    hints = {
        call(Path(shown(path)), "status"): "progress, queue and estimated start",
        call(Path(shown(path)), "attach"): "follow the jobs, with the output of the runs",
        call(Path(shown(path)), "stop"): "cancel the jobs",
    }
    for line in hint_lines(hints, context.console.width):
        context.console.say(line)


def wait_for_uploads(context: RunnerContext, outcome: ExperimentOutcome) -> ExperimentOutcome:
    """Wait for uploads if the options say so; add a warning or a problem if some are left."""
    wait = context.options.wait
    if wait is Wait.NO:
        return outcome
    from radt.runner.delivering import deliver_before_exit  # needs SQLAlchemy

    console = context.console
    console.say("")
    try:
        deliver_before_exit(
            context.home, context.tracking_uri, context.store_uri, console, context.stop
        )
    except RadtError as error:
        if outcome.problem is None and wait is Wait.MUST:
            return replace(outcome, problem=error)
        console.say(f"  {error}", "red")
    return outcome


def ask_first(work: Work, confirm: Confirm | None) -> None:
    """Ask the user to confirm unexpected actions.

    Raises:
        DeclinedError: The answer was no.
    """
    if confirm is None or work.options.yes:
        return
    questions = [
        f"workload {workload.plan.label}: {units.plural(len(workload.again), 'finished row')} will "
        "run again with the rest"
        for workload in work.pending
        if workload.again
    ]
    migs = {run.collocation.mig for workload in work.pending for run in workload.plan.runs}
    if mig := sorted(str(profile) for profile in migs if profile):
        questions.append(f"MIG instances will be created if missing: {', '.join(mig)}")
    questions = list(dict.fromkeys(questions))  # repeats of a workload raise the same question
    if questions and not confirm(questions):
        raise DeclinedError("nothing was started")


@contextmanager
def notifying(work: Work, console: RunConsole) -> Iterator[Notifier]:
    """Send notifications, including one if radt itself fails."""
    notifier = Notifier(work.options.notify, lambda text: console.say(f"  {text}", "red"))
    try:
        yield notifier
    except RadtError as error:
        notifier.send(
            Notification.of_experiment(
                work.plan.name, ExperimentOutcome(), str(work.plan.path), problem=str(error)
            )
        )
        raise
    finally:
        notifier.close()
