"""The command line of ``radt run``: what is radt's, and what is the program's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from radt.experiment.source import is_experiment

#: Where the context keeps the command line as it was given.
ARGUMENTS = "radt.cli.run.arguments"
_MODULE_OPTIONS = ("-m", "--module")


class RunCommand(click.Command):
    """Options may follow an experiment file; what follows a program is the program's.

    ``-m package.module`` is a program, too, as it is for Python.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)
        before, file, after = self._split(ctx, args)
        if file is None:
            return super().parse_args(ctx, args)
        if is_experiment(file):
            ctx.allow_interspersed_args = True
            name = f"./{file}" if file.startswith("-") else file
            return super().parse_args(ctx, [*before, name, *after])
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, [*before, "--", file, *after])

    def _split(
        self, ctx: click.Context, args: Sequence[str]
    ) -> tuple[list[str], str | None, list[str]]:
        """Options, the file or ``-m package.module``, and what follows it."""
        takes_value = {
            name: not (parameter.is_flag or parameter.count)
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
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
    """Whether the last of some short options (``-qd``) takes the next argument as its value."""
    for index, letter in enumerate(cluster[1:], start=2):
        if takes_value.get(f"-{letter}", False):
            return index == len(cluster)
    return False
