"""The command line.

``radt FILE`` is short for ``radt run FILE``. A command is imported when it is called, so that it
does not pay for what others need.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import io
import keyword
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from radt.errors import ExperimentError, RadtError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Each command with its help, by purpose. They are listed here so that ``radt --help`` imports no
#: command. ``NAME`` is ``command`` in ``radt/cli/NAME.py``.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Run": {
        "run": "Run an experiment file, or one script.",
        "validate": "Check an experiment file and show its plan.",
        "status": "Show the progress of an experiment.",
        "attach": "Follow an experiment in the background.",
        "stop": "Stop a running experiment.",
    },
    "Analyse": {
        "ls": "List runs: id, state, parameters, last metrics.",
        "report": "Report the results of an experiment.",
        "compare": "Compare two experiments, workloads or runs.",
        "advise": "Predict which runs could share a device.",
        "dashboard": "Compare runs in the browser.",
        "export": "Export the samples of a run to a file.",
        "trace": "Write the trace of a run for ui.perfetto.dev.",
        "note": "Name, describe, tag, star or archive runs.",
    },
    "Data": {
        "import": "Import runs of MLflow, W&B, TensorBoard.",
        "sync": "Upload pending data to MLflow and Postgres.",
        "db": "Upgrade or check the store; manage readers.",
        "prune": "Delete or compact old runs.",
        "init-stack": "Write compose.yaml and its passwords.",
    },
    "Machine": {
        "listeners": "List listeners and their metrics.",
        "devices": "Show GPUs, CPUs and memory, and their users.",
        "doctor": "Check the installation; remove leftovers.",
        "selftest": "Measure the tracking overhead on this machine.",
        "config": "Show every setting and where it comes from.",
    },
}
COMMANDS: Mapping[str, str] = {
    name: text for commands in GROUPS.values() for name, text in commands.items()
}
DEFAULT_COMMAND = "run"
EXIT_INTERRUPTED = 130
#: Python's garbage collector runs after this many new objects. Objects created by imports are not
#: garbage, and collecting after every 700, the default, takes a tenth of a command's start.
_GC_THRESHOLD = 50_000


class RadtGroup(click.Group):
    """Finds commands by name, lazily, and takes anything else for the file of ``radt run``."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        name += "_" if keyword.iskeyword(name) else ""  # import_.py
        command = importlib.import_module(f"radt.cli.{name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, and the files of ``radt run``."""
        from click.shell_completion import CompletionItem

        return [*super().shell_complete(ctx, incomplete), CompletionItem(incomplete, type="file")]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"--help", "-h", "--version"}
        if args and args[0] not in own and args[0] not in COMMANDS:
            from radt.cli.original import COMMANDS as ORIGINAL

            if args[0] in ORIGINAL:
                args = [ORIGINAL[args[0]], *args[1:]]
                return super().parse_args(ctx, args)
            _refuse_misspelt_command(args)
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=RadtGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="radt FILE is short for radt run FILE. Arguments after a script belong to the script.",
)
@click.version_option(package_name="radt", message="radt %(version)s")
def group() -> None:
    """Resource-aware experiment tracker and benchmark runner for deep learning.

    \b
    radt experiment.csv            run an experiment
    radt train.py --batch-size 64  run one script
    radt dashboard                 compare runs in the browser
    """


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the ``radt`` command. Errors become a paragraph on stderr and an exit code."""
    gc.set_threshold(_GC_THRESHOLD)
    _tolerate_any_character()
    try:
        result = group.main(
            args=None if argv is None else list(argv), prog_name="radt", standalone_mode=False
        )
        if sys.stdout is not None:  # None if the caller has closed it
            sys.stdout.flush()
    except RadtError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = "radt" if context is None else context.command_path
        print_error(UsageError(error.format_message(), f"Run `{path} --help`"))
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("radt: interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `radt … | head`
        _drop_output()
        sys.exit(1)
    except OSError as error:  # a full disk behind `radt … > file`, a removed folder
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"radt: {place}{error.strerror or error}", err=True)
        _drop_output()
        sys.exit(1)
    sys.exit(result if isinstance(result, int) else 0)


def _drop_output() -> None:
    """Discard buffered output that cannot be written: Python would fail on it and exit with 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_misspelt_command(args: Sequence[str]) -> None:
    """Suggest a command for a word that resembles one and is neither a file nor a launcher."""
    word, *rest = args
    is_launcher = shutil.which(word) is not None and any(text.endswith(".py") for text in rest)
    if word.isalpha() and not Path(word).exists() and not is_launcher:
        near = difflib.get_close_matches(word, COMMANDS, 1)
        if near:
            raise UsageError(
                f"{word!r} is neither a command nor a file", f"Did you mean radt {near[0]}?"
            )


def _tolerate_any_character() -> None:
    """Print ``?`` for characters that the terminal's encoding lacks (`LC_ALL=C`)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_error(error: RadtError) -> None:
    """Print an error and its remedy."""
    if isinstance(error, ExperimentError):
        from radt.cli.render import render_problems

        render_problems(error)
        return
    click.echo(f"{click.style('radt:', fg='red', bold=True)} {error.message}", err=True)
    if error.remedy:
        click.echo(f"  {error.remedy}", err=True)
