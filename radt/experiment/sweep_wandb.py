"""W&B's sweep files: the keys that radt's do not have, and their meaning here.

A file with ``program`` is a W&B sweep. The source of keys and distributions is
https://docs.wandb.ai/models/sweeps/sweep-config-keys, that of a command's macros is
`wandb.sdk.launch.sweeps.utils`. Keys with another effect here are refused, or described in a note.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from radt.errors import Problem, UsageError
from radt.experiment.sweep_expand import Combination, Style, Value, words
from radt.experiment.sweep_yaml import SweepEntry, collecting, line_of, text_of

PROGRAM, COMMAND, RUN_CAP = "program", "command", "run_cap"
#: Keys that control how W&B runs or shows a sweep, with the reason why they have no effect here.
IGNORED: Mapping[str, str] = {
    "early_terminate": "every run goes on to its end",
    "metric": "radt optimises none, and target ends no sweep",
    "description": "",
    "entity": "",
    "controller": "",
    "apiversion": "",
    "kind": "",
}
#: Keys for W&B's servers and other optimisers, and keys of radt that ``program`` and ``command``
#: replace.
REFUSED = ("job", "image_uri", "scheduler", "metrics", "file", "params", "style")
#: Keys that name the Experiment of the runs; the first one present counts.
EXPERIMENT = ("project", "name")
KEYS = (PROGRAM, COMMAND, RUN_CAP, *IGNORED, *REFUSED, *EXPERIMENT)

#: The macros of a command that pass parameters; None passes all in one word.
_ARGS: Mapping[str, Style | None] = {
    "args": Style.TEXT,
    "args_json": None,
    **{
        style.value: style
        for style in (Style.ARGS_NO_EQUALS, Style.ARGS_NO_BOOLEAN_FLAGS, Style.ARGS_NO_HYPHENS)
    },
}
_ENV, _INTERPRETER, _PROGRAM = "${env}", "${interpreter}", "${program}"
_DEFAULT = (_ENV, _INTERPRETER, _PROGRAM, "${args}")
_PYTHONS = (_INTERPRETER, "python", "python3")
_MACRO = re.compile(r"\$\{(.*)\}", re.DOTALL)
_VARIABLE = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a W&B sweep: a File cell, and arguments that may contain macros."""

    file: str
    pieces: tuple[str, ...]

    def arguments(self, combination: Combination) -> list[str]:
        """Return the arguments of a run, as W&B's agent passes them."""
        values = _nested(combination)
        return [word for piece in self.pieces for word in _filled(piece, values)]


def _filled(piece: str, values: dict[str, Value]) -> Iterator[str]:
    macro = _MACRO.fullmatch(piece)
    if macro is None:
        yield piece
    elif (style := _ARGS[macro[1]]) is None:
        yield json.dumps(values)
    else:
        for name, value in values.items():
            yield from words(name, value, style)


def _nested(combination: Combination) -> dict[str, Value]:
    """Return nested parameters as W&B passes them: a mapping under the outermost name."""
    result: dict[str, Value] = {}
    for assignment in combination.assignments:
        place, parameter = result, assignment.parameter
        for key in parameter.outer:
            inner = place.setdefault(key, {})
            assert isinstance(inner, dict)  # a parameter with nested ones has no value itself
            place = inner
        place[assignment.name.removeprefix(".".join((*parameter.outer, "")))] = assignment.value
    return result


def parse_command(entries: Mapping[str, SweepEntry], problems: list[Problem]) -> Command:
    """Parse ``program`` and ``command``."""
    program = text_of(entries[PROGRAM].value)
    pieces: list[str] = []
    command = entries.get(COMMAND)
    if command is None:
        pieces += _DEFAULT
    elif not isinstance(command.value, yaml.SequenceNode):
        cause = "expected a list of words"
        remedy = 'Write a word a line: - "${program}"'
        problems.append(Problem(cause, remedy, command.line, COMMAND))
        return Command(program, ())
    for item in () if command is None else command.value.value:
        with collecting(problems, line_of(item), COMMAND):
            pieces.append(_piece(item))
    if command is not None and not any(piece in map("${{{}}}".format, _ARGS) for piece in pieces):
        cause = "the program would not get its parameters: there is no ${args}"
        problems.append(Problem(cause, "Add - ${args}", command.line, COMMAND))
    file, rest = _started(pieces)
    filled = (program if piece == _PROGRAM else piece for piece in rest)
    plain = ("python" if piece == _INTERPRETER else piece for piece in filled if piece != _ENV)
    return Command(program if file == _PROGRAM else file, tuple(plain))


def _piece(node: yaml.Node) -> str:
    text = node.value if isinstance(node, yaml.ScalarNode) else text_of(node)
    for name in _VARIABLE.findall(text):
        if name not in os.environ:
            raise UsageError(f"the variable {name} is not set", f"export {name}=…")
    text = _VARIABLE.sub(lambda match: os.environ[match[1]], text)
    macro = _MACRO.fullmatch(text)
    if macro and text not in (_ENV, _INTERPRETER, _PROGRAM) and macro[1] not in _ARGS:
        known = ", ".join(map("${{{}}}".format, _ARGS))
        raise UsageError(f"radt has nothing to put in place of {text}", f"Write one of {known}")
    return text


def _started(pieces: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the File cell of a command, and the words after it."""
    rest = list(pieces[1:] if pieces[:1] == [_ENV] else pieces)
    if rest[:1] and rest[0] in _PYTHONS:
        if rest[1:2] == [_PROGRAM]:
            return _PROGRAM, rest[2:]
        if rest[1:2] == ["-m"] and len(rest) > 2:
            return f"-m {rest[2]}", rest[3:]
        return "python", rest[1:]
    if rest and "=" in rest[0]:  # a variable for /usr/bin/env
        return "env", rest
    return (rest[0], rest[1:]) if rest else ("", ())


def notes(entries: Mapping[str, SweepEntry], command: Command) -> Iterator[str]:
    """Yield differences from W&B."""
    ignored = [key for key in IGNORED if key in entries]
    ignored += [key for key in EXPERIMENT if key in entries][1:]
    if ignored:
        reasons = (f"{key} ({why})" if (why := IGNORED.get(key)) else key for key in ignored)
        yield f"of W&B's keys, these have no effect: {', '.join(reasons)}"
    if "/" in command.file and command.file.endswith(".py"):
        yield f"{command.file} runs in its own folder, not in that of the sweep"
