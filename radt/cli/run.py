"""``radt run FILE``: run an experiment file, or one script."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from radt.cli.closing import print_closing, print_header
from radt.cli.options import home_option
from radt.cli.render import render_plan
from radt.errors import UsageError
from radt.experiment.devices import Machine
from radt.experiment.direct import direct_plan
from radt.experiment.file import ExperimentFile
from radt.experiment.lock import ExperimentLock
from radt.experiment.plan import ExperimentPlan
from radt.experiment.status import StatusWriter
from radt.home import Home
from radt.listeners import registry
from radt.model import RunStatus
from radt.runner.console import RunConsole
from radt.runner.outcome import ExperimentOutcome
from radt.runner.schedule import due_workloads, run_experiment
from radt.runner.session import open_session
from radt.runner.stop import StopRequest

EXPERIMENT_SUFFIX = ".csv"


class RunCommand(click.Command):
    """Options may follow an experiment file; what follows a script is the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        given, rest, _ = self.make_parser(ctx).parse_args(list(args))
        file, after = given.get("file"), given.get("arguments")
        # click has a marker of its own for what is absent, hence the questions about types.
        if isinstance(file, str) and is_experiment(file) and isinstance(after, tuple) and not rest:
            before = args[: len(args) - len(after) - 1]
            args = [*before, *after, "--", file]
        return super().parse_args(ctx, args)


def is_experiment(file: str) -> bool:
    """Whether the file is a list of runs, not a script."""
    return file.lower().endswith(EXPERIMENT_SUFFIX)


@click.command("run", cls=RunCommand, context_settings={"ignore_unknown_options": False})
@click.argument("file", type=click.Path(path_type=str))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--rerun", is_flag=True, help="Run FAILED rows again.")
@click.option("--dry-run", is_flag=True, help="Check and print the plan; start nothing.")
@home_option
@click.option("--tracking-uri", help="MLflow's address.  [default: SQLite in the data folder]")
@click.option("-e", "--experiment", default="", help="Experiment (script only).")
@click.option("-w", "--workload", default="", help="Workload id (script only).")
@click.option("-n", "--name", default="", help="Name of the run (script only).")
@click.option("-d", "--devices", default="", help="GPUs such as 0 or 1+2, or cpu (script only).")
@click.option("-c", "--collocation", default="", help="Collocation (script only).")
@click.option("-l", "--listeners", default="", help="Listeners such as top+smi (script only).")
@click.option("-q", "--quiet", is_flag=True, help="Do not show what the runs print.")
def command(
    file: str,
    arguments: tuple[str, ...],
    rerun: bool,
    dry_run: bool,
    home: Path | None,
    tracking_uri: str | None,
    experiment: str,
    workload: str,
    name: str,
    devices: str,
    collocation: str,
    listeners: str,
    quiet: bool,
) -> int:
    """Run an experiment FILE (.csv), or one script with its ARGUMENTS.

    The rows of an experiment that share a workload start together. Rows that are FINISHED are
    skipped, FAILED ones too unless --rerun; what a killed runner left is resumed. Ctrl-C stops
    gracefully, twice at once.
    """
    own = (experiment, workload, name, devices, collocation, listeners)
    machine = Machine.detect()
    if is_experiment(file):
        if any(own):
            raise UsageError(
                "-e, -w, -n, -d, -c and -l are for scripts",
                f"Write them into the columns of {file}",
            )
        path: Path | None = Path(file)
        plan = ExperimentFile.read(file).plan(machine, registry.load())
    else:
        path = None
        plan = direct_plan(
            Path(file),
            arguments,
            machine=machine,
            registry=registry.load(),
            experiment=experiment,
            workload=workload,
            name=name,
            devices=devices,
            collocation=collocation,
            listeners=listeners,
        )
    console = Console(highlight=False)
    if dry_run:
        render_plan(plan, rerun=rerun, console=console)
        return 0
    data = Home.resolve(home)
    if path is None:
        return execute(plan, data, machine, console, tracking_uri, rerun, quiet, statuses=None)
    with ExperimentLock(file):
        # Read again under the lock: a runner that has just ended may have written statuses.
        experiment_file = ExperimentFile.read(file)
        plan = experiment_file.plan(machine, registry.load())
        writer = experiment_file.writer()
        return execute(plan, data, machine, console, tracking_uri, rerun, quiet, statuses=writer)


def execute(
    plan: ExperimentPlan,
    home: Home,
    machine: Machine,
    console: Console,
    tracking_uri: str | None,
    rerun: bool,
    quiet: bool,
    *,
    statuses: StatusWriter | None,
) -> int:
    """Run the plan and print its beginning and end; returns the exit code."""
    stop = StopRequest()
    with (
        RunConsole(console, quiet=quiet) as output,
        open_session(home, machine, output, explicit_tracking_uri=tracking_uri) as session,
        stop.listening(),
    ):
        print_header(session, plan, due_workloads(plan, rerun=rerun))
        before = session.client.status()
        outcome = run_experiment(session, plan, rerun=rerun, statuses=statuses, stop=stop)
        print_closing(session, plan, outcome, before)
    return exit_code(outcome, stop)


def exit_code(outcome: ExperimentOutcome, stop: StopRequest) -> int:
    """0 if all went well, 1 if a run did not finish, 128 + signal if the user stopped it."""
    if outcome.interrupted:
        return stop.exit_code
    return 0 if set(outcome.counts) <= {RunStatus.FINISHED} else 1
