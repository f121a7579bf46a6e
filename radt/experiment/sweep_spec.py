"""The keys of a sweep's YAML file."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from radt.errors import Problem, UsageError
from radt.experiment import sweep_wandb
from radt.experiment.columns import NEAR_MISS, Column, did_you_mean, parse_params
from radt.experiment.sweep_expand import Combination, Parameter, SweepMethod, expand
from radt.experiment.sweep_parameters import PARAMETERS, ParameterReader, parse_style
from radt.experiment.sweep_words import Style
from radt.experiment.sweep_yaml import Entry, collecting, entries_of, is_null, text_of
from radt.experiment.templates import Placeholders

_AT_ONCE, _TRIALS, _STATUS, _STYLE = "at_once", "trials", "status", "style"
_PARAMS = Column.PARAMS.lower()
#: Keys that are columns of CSV files; Params are the arguments that all runs have.
_COLUMN_KEYS: Mapping[str, Column] = {
    column.lower(): column
    for column in Column
    if column not in (Column.STATUS, Column.RUN, Column.WORKLOAD)
}
#: ``parent`` is radT 0.2's run of the whole sweep in MLflow; it is ignored.
_OWN_KEYS = ("method", PARAMETERS, "seed", _TRIALS, "repeat", _AT_ONCE, _STATUS, _STYLE, "parent")
_COUNT = re.compile(r"0*[1-9]\d{0,8}", re.ASCII)
_SEED = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclass(slots=True)
class SweepSpec:
    """The keys of a sweep.

    ``cells`` are shared by all runs, by column; ``lines`` are the lines of keys. ``trials`` is None
    for all combinations, ``at_once`` for all runs in one workload. ``command`` is that of a sweep
    of W&B, None for others; ``notes`` say what is different from W&B.
    """

    cells: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    method: SweepMethod = SweepMethod.GRID
    style: Style = Style.OPTION
    parameters: tuple[Parameter, ...] = ()
    seed: int = 0
    trials: int | None = None
    repeat: int = 1
    at_once: int | None = 1
    command: sweep_wandb.Command | None = None
    notes: tuple[str, ...] = ()

    def combinations(self, problems: list[Problem]) -> tuple[Combination, ...]:
        """Return the values of all runs; what is wrong is added to ``problems``."""
        key = _TRIALS if _TRIALS in self.lines else PARAMETERS
        combinations: tuple[Combination, ...] = ()
        with collecting(problems, self.lines.get(key), key):
            combinations = expand(self.parameters, self.method, self.seed, self.trials)
        is_drawn = self.command is not None and self.method is SweepMethod.RANDOM
        if is_drawn and len(combinations) < (self.trials or math.inf):
            self.notes += (
                f"each of the {len(combinations)} combinations runs once; W&B would repeat some",
            )
        return combinations

    def rows(self, combinations: Sequence[Combination]) -> list[dict[str, str]]:
        """Return the cells of each run, without its workload."""
        return [
            {**self.cells, Column.PARAMS: self._params(combination)} for combination in combinations
        ]

    def _params(self, combination: Combination) -> str:
        if self.command is not None:
            # W&B has no placeholders: what looks like one is a text.
            literal = Placeholders(self.cells).escaped
            return shlex.join(map(literal, self.command.arguments(combination)))
        fixed = self.cells.get(Column.PARAMS, "")
        return f"{fixed} {shlex.join(combination.arguments)}".strip()


def parse_spec(root: yaml.MappingNode, problems: list[Problem]) -> SweepSpec:
    """Parse all keys; what is wrong is added to ``problems``."""
    spec = SweepSpec()
    entries: dict[str, Entry] = {}
    for entry in entries_of(root, problems).values():
        key = entry.name.lower()
        if key in entries:
            cause = "this key is written twice"
            problems.append(Problem(cause, "Remove one of them", entry.line, entry.name))
        entries[key] = entry
        spec.lines[key] = entry.line
    others = _read_wandb(entries, spec, problems) if sweep_wandb.PROGRAM in entries else entries
    for key, entry in others.items():
        with collecting(problems, entry.line, entry.name):
            if key in _COLUMN_KEYS:
                spec.cells[_COLUMN_KEYS[key]] = text_of(entry.value)
            elif key in _PARSERS and not (is_null(entry.value) or _is_own_style(entry)):
                setattr(spec, key, _PARSERS[key](text_of(entry.value)))
            elif key == _STATUS and not is_null(entry.value):
                raise UsageError(
                    "an earlier version of radt wrote these statuses",
                    "Remove the key: statuses are in the CSV file now, and all runs start anew",
                )
            elif key not in _OWN_KEYS or _is_own_style(entry):
                _check_own_column(entry, entries)
                spec.cells[entry.name] = text_of(entry.value)
    if PARAMETERS in entries:
        reader = ParameterReader(spec.method, spec.style, spec.command is not None, problems)
        reader.parse(entries[PARAMETERS])
        spec.parameters = tuple(reader.parameters)
    else:
        remedy = "Write parameters: {lr: {values: [0.1, 0.01]}}"
        problems.append(Problem("this key is missing", remedy, column=PARAMETERS))
    with collecting(problems, spec.lines.get(_PARAMS), _PARAMS):
        given = parse_params(spec.cells.get(Column.PARAMS, ""))
        named = [
            (name, parameter.style) for parameter in spec.parameters for name in parameter.names
        ]
        for name, style in named:
            option = name if style is Style.ASSIGNMENT else f"--{name}"
            if any(word == option or word.startswith(f"{option}=") for word in given):
                raise UsageError(
                    f"{option} is in both params and parameters", "Remove it from one of them"
                )
    return spec


def _read_wandb(
    entries: Mapping[str, Entry], spec: SweepSpec, problems: list[Problem]
) -> dict[str, Entry]:
    """Read the keys of one of W&B's sweeps, and return those that are like radt's."""
    for key in sweep_wandb.REFUSED:
        if key in entries:
            cause = f"radt has no use for {key} beside W&B's program"
            remedy = "Remove it; arguments and other programs go into command"
            problems.append(Problem(cause, remedy, entries[key].line, key))
    spec.command = sweep_wandb.parse_command(entries, problems)
    spec.notes = tuple(sweep_wandb.notes(entries, spec.command))
    spec.cells[Column.FILE] = spec.command.file
    spec.lines["file"] = spec.lines[sweep_wandb.PROGRAM]
    titles = [entries[key] for key in sweep_wandb.EXPERIMENT if key in entries]
    for entry in titles[:1]:
        with collecting(problems, entry.line, entry.name):
            spec.cells[Column.EXPERIMENT] = text_of(entry.value)
    cap = entries.get(sweep_wandb.RUN_CAP)
    if cap is not None:
        spec.lines[_TRIALS] = cap.line
        with collecting(problems, cap.line, cap.name):
            spec.trials = _count(text_of(cap.value))
    return {key: entry for key, entry in entries.items() if key not in sweep_wandb.KEYS}


def _is_own_style(entry: Entry) -> bool:
    """Return whether this is a column of the user's own: its name is quoted."""
    return entry.name.lower() == _STYLE and bool(entry.key.style)


def _check_own_column(entry: Entry, entries: Iterable[str]) -> None:
    """Take an unknown key as a column of the user's own, unless it looks misspelt."""
    if entry.name.lower() == Column.WORKLOAD.lower():
        raise UsageError(
            "radt numbers the workloads of a sweep",
            f"Remove it; {_AT_ONCE}: 4 puts four runs into a workload, {_AT_ONCE}: all puts all",
        )
    if entry.name.lower() == Column.RUN.lower():
        raise UsageError("a sweep has several runs", "Remove it; run ids are in the CSV file")
    known = {*_COLUMN_KEYS, *_OWN_KEYS} - set(entries)
    hint = did_you_mean(entry.name, known, cutoff=NEAR_MISS)
    if hint and not entry.key.style:
        raise UsageError("unknown key", f'{hint} Quote it to have your own column: "{entry.name}"')


def _method(text: str) -> SweepMethod:
    try:
        return SweepMethod(text.lower())
    except ValueError:
        expected = " or ".join(SweepMethod)
        remedy = did_you_mean(text, SweepMethod) or "Write method: random and trials: 20"
        raise UsageError(f"expected {expected}, got {text!r}", remedy) from None


def _seed(text: str) -> int:
    if _SEED.fullmatch(text) is None:
        raise UsageError(f"expected a whole number, got {text!r}", "Write seed: 1")
    return int(text)


def _count(text: str) -> int:
    if _COUNT.fullmatch(text) is None:
        raise UsageError(f"expected a whole number from 1, got {text!r}", "Write 1, 2 or more")
    return int(text)


def _at_once(text: str) -> int | None:
    return None if text.lower() == "all" else _count(text)


#: Keys that are fields of `SweepSpec`.
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "method": _method,
    "seed": _seed,
    _TRIALS: _count,
    "repeat": _count,
    _AT_ONCE: _at_once,
    _STYLE: parse_style,
}
