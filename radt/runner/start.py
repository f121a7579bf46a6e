"""One start of an experiment, from its file to its exit code; command line and Python share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from radt import units
from radt.collocation.cleanup import clean_up
from radt.collocation.ledger import Ledger
from radt.errors import DeclinedError, RadtError
from radt.experiment.devices import Machine
from radt.experiment.lock import ExperimentLock
from radt.experiment.plan import ExperimentPlan, RunPlan
from radt.experiment.source import open_source
from radt.experiment.status import StatusSink
from radt.home import Home
from radt.listeners import registry
from radt.runner.closing import print_closing, print_header
from radt.runner.console import RunConsole
from radt.runner.due import Due, due_workloads
from radt.runner.notify import Notice, Notifier
from radt.runner.options import ExperimentOptions
from radt.runner.outcome import ExperimentOutcome
from radt.runner.recovery import settle
from radt.runner.schedule import Schedule
from radt.runner.session import open_session
from radt.runner.stop import StopRequest

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
    confirm: Confirm | None = None,
) -> ExperimentOutcome:
    """Run what is due of an experiment file; statuses are written back into it.

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
        plan = source.plan(machine, registry.load())
        return start_plan(
            plan,
            machine=machine,
            home=home,
            options=options.with_repeat_of(source.repeat),
            console=console,
            tracking_uri=tracking_uri,
            store_uri=store_uri,
            statuses=source.writer(),
            confirm=confirm,
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
    confirm: Confirm | None = None,
) -> ExperimentOutcome:
    """Run a plan, from the first line on the console to the last.

    Args:
        statuses: Writes them back to where the plan came from; None for a script run directly.

    Raises:
        RadtError: It could not be prepared or recorded.
    """
    settled = settle(plan, home)
    plan = settled.plan
    due = due_workloads(plan, options)
    ask_first(due, options, confirm)
    stop = StopRequest()
    with (
        RunConsole(console, quiet=options.quiet) as output,
        _notifying(options, plan, output) as notifier,
        open_session(
            home,
            machine,
            output,
            explicit_tracking_uri=tracking_uri,
            explicit_store_uri=store_uri,
        ) as session,
        stop.listening(),
    ):
        print_header(session, plan, due)
        before = session.client.status()
        outcome = Schedule(session, settled, due, options, stop, statuses, notifier).run()
        try:
            print_closing(session, plan, outcome, before)
        except RadtError as error:
            if outcome.problem is None:  # else that is why, and more to the point
                output.say(f"  {error}", "red")
    if outcome.problem is not None:
        raise outcome.problem
    # Ctrl-C while the last lines were printed: whoever called may have more to run.
    return replace(outcome, interrupted_by=stop.number)


def ask_first(due: Sequence[Due], options: ExperimentOptions, confirm: Confirm | None) -> None:
    """Ask before what the user may not expect.

    Raises:
        DeclinedError: The answer was no.
    """
    if confirm is None or options.yes:
        return
    questions = [
        f"workload {one.plan.label}: {units.plural(len(one.again), 'row')} that would be done will "
        "run again with the rest"
        for one in due
        if one.again
    ]
    if mig := sorted({str(run.collocation.mig) for run in _runs(due) if run.collocation.mig}):
        questions.append(f"MIG instances will be made where there are none: {', '.join(mig)}")
    questions = list(dict.fromkeys(questions))  # a workload's repeats are one matter
    if questions and not confirm(questions):
        raise DeclinedError("nothing was started")


def _runs(due: Sequence[Due]) -> Iterator[RunPlan]:
    return (run for one in due for run in one.plan.runs)


def clean_up_after_the_dead() -> list[str]:
    """Remove the MIG instances, daemons and containers of runners that were killed; say so."""
    said: list[str] = []
    problems = clean_up(Ledger(), say=said.append)
    return said + problems


@contextmanager
def _notifying(
    options: ExperimentOptions, plan: ExperimentPlan, console: RunConsole
) -> Iterator[Notifier]:
    """Sends notices; also one if radt itself cannot go on."""
    notifier = Notifier(options.notify, lambda text: console.say(f"  {text}", "red"))
    try:
        yield notifier
    except RadtError as error:
        notifier.send(
            Notice.of_experiment(plan.name, ExperimentOutcome(), str(plan.path), problem=str(error))
        )
        raise
    finally:
        notifier.close()
