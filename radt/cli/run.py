"""``radt run``: run an experiment file, or one program.

The runner takes longest to load, and a collector to start: the latter begins first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from radt import settings
from radt.cli.options import setting_option
from radt.cli.original import WITH_VALUE, translated
from radt.cluster.opened import executor_of
from radt.cluster.settings import LOCAL, ClusterSettings
from radt.collector.client import CollectorClient
from radt.devices.machine import Machine
from radt.errors import UsageError
from radt.experiment.columns import Column
from radt.experiment.files import call
from radt.experiment.source import PROGRAM_COLUMNS, direct_plan, is_experiment
from radt.home import Home
from radt.listeners import registry
from radt.settings import Settings

#: Key in click's context for the original command line.
ARGUMENTS = "radt.cli.run.arguments"
_MODULE_OPTIONS = ("-m", "--module")
_HELP_ALL = "radt.cli.run.help_all"
#: Parameters shown in ``--help``; ``--help-all`` shows all.
_COMMON = frozenset(
    {"rerun", "only", "repeat", "on", "dry_run", "detach", "yes", "quiet", "home", "tracking_uri"}
    | {"module", "experiment", "workload", "name", "devices", "collocation", "listeners"}
    | {"environment", "timeout", "help", "help_all"}
)


def _show_all_help(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


class RunCommand(click.Command):
    """Options may follow an experiment file; what follows a program is the program's.

    ``-m package.module`` is a program, too, as it is for Python.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)
        before, file, after = self._split(ctx, args)
        before, notes = translated(before)
        if file is not None and is_experiment(file):
            after, more = translated(after)
            notes += more
        for note in notes:
            click.echo(f"radt: {note}", err=True)
        if file is None:
            args = before
            return super().parse_args(ctx, args)
        if is_experiment(file):
            ctx.allow_interspersed_args = True
            name = f"./{file}" if file.startswith("-") else file
            return super().parse_args(ctx, [*before, name, *after])
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, [*before, "--", file, *after])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that most calls need, or all after ``--help-all``."""
        everything = ctx.meta.get(_HELP_ALL, False)
        records = [
            record
            for parameter in self.get_params(ctx)
            if (everything or parameter.name in _COMMON)
            and (record := parameter.get_help_record(ctx)) is not None
        ]
        with formatter.section("Options"):
            formatter.write_dl(records)

    def _split(
        self, ctx: click.Context, args: Sequence[str]
    ) -> tuple[list[str], str | None, list[str]]:
        """Split into options, the file or ``-m package.module``, and the arguments after it."""
        takes_value = {
            name: not (parameter.is_flag or parameter.count)
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            for name in (*parameter.opts, *parameter.secondary_opts)
        } | dict.fromkeys(WITH_VALUE, True)
        position = 0
        while position < len(args):
            argument, rest = args[position], list(args[position + 1 :])
            before = list(args[:position])
            option, equals, value = argument.partition("=")
            if argument == "--":
                return before, rest[0] if rest else None, rest[1:]
            if argument in _MODULE_OPTIONS and rest:
                return before, f"-m {rest[0]}", rest[1:]
            if equals and option in _MODULE_OPTIONS:
                return before, f"-m {value}", rest
            if not argument.startswith("-") or argument == "-":
                return before, argument, rest
            if argument.startswith("--"):
                position += 1 + takes_value.get(argument, False)
            else:
                position += 1 + _takes_next(argument, takes_value)
        return list(args), None, []


def _takes_next(cluster: str, takes_value: Mapping[str, bool]) -> bool:
    """Return whether the last of combined short options (``-qd``) takes the next argument."""
    for index, letter in enumerate(cluster[1:], start=2):
        if takes_value.get(f"-{letter}", False):
            return index == len(cluster)
    return False


@click.command("run", cls=RunCommand)
@click.argument("file", type=click.Path(path_type=str))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-r", "--rerun", is_flag=True, help="Run FAILED, OOM and TIMEOUT rows again.")
@click.option(
    "--only",
    multiple=True,
    metavar="WORKLOAD,…",
    help="Only these workloads; may be repeated.",
)
@setting_option(settings.REPEAT)
@setting_option(settings.COOLDOWN)
@setting_option(settings.WAIT_FOR_FILE)
@setting_option(settings.MAX_TIME)
@setting_option(settings.MAX_EPOCH)
@setting_option(settings.SYNC)
@setting_option(settings.FAIL_FAST, "--fail-fast/--keep-going")
@setting_option(settings.BUSY)
@setting_option(settings.NOTIFY)
@setting_option(settings.ON)
@setting_option(settings.YES, "-y/ ", "--yes/--ask")
@click.option("--dry-run", is_flag=True, help="Check and print the plan without running it.")
@click.option("--detach", is_flag=True, help="Run in the background; see `radt attach`.")
@setting_option(settings.WAIT)
@setting_option(settings.QUIET, "-q/ ")
@setting_option(settings.HOME)
@setting_option(settings.TRACKING_URI)
@setting_option(settings.STORE_URI)
@click.option("-m", "--module", metavar="MODULE", help="Run a module, as python -m does.")
@click.option("-e", "--experiment", default="", help="Experiment (program only).")
@click.option("-w", "--workload", default="", help="Workload id (program only).")
@click.option("-n", "--name", default="", help="Name of the run (program only).")
@click.option("-d", "--devices", default="", help="GPUs such as 0 or 1+2, or cpu; for all rows.")
@click.option("-c", "--collocation", default="", help="-, MPS or a MIG profile (program only).")
@click.option("-l", "--listeners", default="", help="Listeners such as top+smi (program only).")
@click.option("--environment", default="", help="local, uv, conda or docker (program only).")
@click.option("--model", default="", help="Model (program only).")
@click.option("--data", default="", help="Data (program only).")
@click.option("--cpus", default="", help="CPUs such as 8 or 0-3+6 (program only).")
@click.option("--timeout", default="", help="End the run after this time (program only).")
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_help,
    help="Show all options and exit.",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    file: str,
    arguments: tuple[str, ...],
    rerun: bool,
    only: tuple[str, ...],
    dry_run: bool,
    detach: bool,
    module: str | None,  # noqa: ARG001 - only for --help; RunCommand turns it into a file
    **given: str | None,
) -> int:
    """Run an experiment FILE (.csv, .yaml), or one program with its ARGUMENTS.

    Rows of an experiment that share a workload start together. Finished rows are skipped; an
    interrupted experiment resumes. Ctrl-C stops gracefully, a second Ctrl-C kills.

    A program is a Python script, an executable, a folder with an MLproject file, or -m MODULE.
    """
    cells = {column: given.pop(column.lower()) or "" for column in PROGRAM_COLUMNS}
    by_setting = {
        setting: given.get(setting.name.replace("-", "_")) for setting in settings.OPTIONS
    }
    start = _Start(
        file=file,
        arguments=arguments,
        only=tuple(label for text in only for part in text.split(",") if (label := part.strip())),
        rerun=rerun,
        cells=cells,
        own_arguments=[
            "run",
            *(argument for argument in ctx.meta[ARGUMENTS] if argument != "--detach"),
        ],
    )
    if is_experiment(file):
        return start.of_experiment(by_setting, dry_run=dry_run, detach=detach)
    if detach:
        raise UsageError(
            "--detach is for experiment files",
            "Put the program into the File column of an experiment file",
        )
    return start.of_program(by_setting, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Start:
    """One call of the command."""

    file: str
    arguments: tuple[str, ...]
    only: tuple[str, ...]
    rerun: bool
    cells: Mapping[Column, str]
    own_arguments: Sequence[str]

    def of_experiment(
        self, given: Mapping[settings.Setting[Any], str | None], *, dry_run: bool, detach: bool
    ) -> int:
        """Run an experiment file; return the exit code."""
        if self.arguments:
            raise UsageError(
                f"Expected one experiment file, got {self.arguments[0]!r} after {self.file}",
                "Run one experiment file at a time, without arguments",
            )
        own = [column for column, cell in self.cells.items() if cell and column != Column.DEVICES]
        if own:
            named = ", ".join(f"--{column.lower()}" for column in own)
            raise UsageError(
                f"{named}: only for programs",
                f"Use the columns of {self.file} instead",
            )
        path = Path(self.file)
        values = Settings.of(path.absolute().parent, given)
        values.check()
        client = None
        if path.is_file() and not (dry_run or detach or ClusterSettings.chosen(values)):
            client = CollectorClient.for_runner()
        from radt.experiment.lock import ExperimentLock
        from radt.runner.options import StartOptions
        from radt.runner.start import ask_first, start

        options = StartOptions.of(
            values, rerun=self.rerun, only=self.only, devices=self.cells[Column.DEVICES]
        )
        executor = executor_of(values, None if dry_run else path)
        if dry_run:
            from radt.cli.start_plan import show_plan

            show_plan(path, options, executor)
            return 0
        if detach:
            with ExperimentLock(path):  # which may end the leftovers of a dead runner
                work = executor.begin(path, options, lambda text: click.echo(f"  {text}"))
            ask_first(work, confirm)
            if work.pending or work.source is None:  # otherwise there is nothing to run
                return self._in_background(path, options.home, work.plan.name)
        return start(path, options, executor, confirm=confirm, client=client).exit_code

    def _in_background(self, path: Path, home: Home, name: str) -> int:
        """Run this command in the background; return its exit code."""
        from rich.console import Console
        from rich.text import Text

        from radt.runner.console import shown_path
        from radt.runner.detach import start_detached
        from radt.runner.start import hint_lines

        detached = start_detached(path, self.own_arguments, home)
        console = Console(highlight=False)
        if detached.holder is None:
            console.out(detached.log.read_text(encoding="utf-8", errors="replace"), end="")
            return detached.exit_code or 0
        console.print(
            Text.assemble((name, "bold"), f" runs in the background, pid {detached.holder.pid}")
        )
        console.print(Text(f"  output in {shown_path(detached.log)}\n", "dim"), soft_wrap=True)
        hints = {
            call(path, "status"): "progress and estimated end",
            call(path, "attach"): "follow its output; Ctrl-C detaches",
            call(path, "stop"): "stop it",
        }
        for line in hint_lines(hints, console.width):
            console.print(line, soft_wrap=True)
        return 0

    def of_program(
        self, given: Mapping[settings.Setting[Any], str | None], *, dry_run: bool
    ) -> int:
        """Run one program; return the exit code."""
        if self.rerun or self.only:
            raise UsageError(
                "--rerun and --only are for experiment files", f"Leave them out for {self.file}"
            )
        values = Settings.of(Path.cwd(), given)
        values.check()
        if given.get(settings.ON) not in (None, "", LOCAL):
            raise UsageError(
                "--on is for experiment files",
                "Put the program into the File column of an experiment file",
            )
        machine = Machine.detect()
        plan = direct_plan(
            self.file,
            self.arguments,
            machine=machine,
            registry=registry.load(),
            cells=self.cells,
        )
        client = None if dry_run else CollectorClient.for_runner()
        from radt.runner.options import StartOptions
        from radt.runner.schedule import LocalExecutor
        from radt.runner.start import start_program

        options = StartOptions.of(values)
        if dry_run:
            from rich.console import Console

            from radt.cli.start_plan import show_work
            from radt.runner.options import Work

            show_work(Work(plan, options, ()), Console(highlight=False))
            return 0
        return start_program(
            plan, options, LocalExecutor(machine), confirm=confirm, client=client
        ).exit_code


def confirm(texts: Sequence[str]) -> bool:
    """Show what is about to happen and ask; return True if nobody can answer."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    for text in texts:
        click.echo(f"  {text}")
    return click.confirm("  Continue?", default=True)
