"""What the keys of a sweep say, each checked, with the line it stands on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import yaml

from radt.errors import Problem, UsageError
from radt.experiment.cells import NEAR_MISS, did_you_mean
from radt.experiment.columns import Column
from radt.experiment.sweep_document import Entry, entries_of, is_null, noting, text_of
from radt.experiment.sweep_entry import StatusEntry
from radt.experiment.sweep_parameters import PARAMETERS, read_parameters
from radt.experiment.sweep_space import Parameter, SweepMethod

METHOD = "method"
SEED = "seed"
TRIALS = "trials"
REPEAT = "repeat"
AT_ONCE = "at_once"
STATUS = "status"
#: The original's run of the whole sweep in MLflow; kept, and of no use here.
PARENT = "parent"
#: What ``at_once`` says for one workload of everything.
ALL = "all"

#: Keys that are columns of CSV files; Params are the arguments that all runs have.
COLUMN_KEYS: Mapping[str, Column] = {
    column.lower(): column
    for column in Column
    if column not in (Column.STATUS, Column.RUN, Column.WORKLOAD)
}
_OWN_KEYS = (METHOD, PARAMETERS, SEED, TRIALS, REPEAT, AT_ONCE, STATUS, PARENT)
_KNOWN = frozenset((*COLUMN_KEYS, *_OWN_KEYS))
_COUNT = re.compile(r"0*[1-9]\d{0,8}", re.ASCII)
_SEED = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclass(slots=True)
class SweepSpec:
    """A sweep as its file has it.

    ``values`` and ``columns`` are cells that all runs share, ``lines`` where each key stands.
    ``trials`` is None for as many as there are, ``seed`` for any, ``at_once`` for all.
    """

    values: dict[Column, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    method: SweepMethod = SweepMethod.GRID
    parameters: tuple[Parameter, ...] = ()
    seed: int | None = None
    trials: int | None = None
    repeat: int = 1
    at_once: int | None = 1
    entries: tuple[StatusEntry, ...] = ()

    @property
    def fixed(self) -> str:
        """The arguments that all runs have, as one text."""
        return self.values.get(Column.PARAMS, "")


def read_spec(root: yaml.MappingNode, problems: list[Problem]) -> SweepSpec:
    """Understand all keys; what cannot be understood is added to ``problems``."""
    spec = SweepSpec()
    there = keys_of(root, problems)
    spec.lines = {name: entry.line for name, entry in there.items()}
    for name, entry in there.items():
        with noting(problems, entry.line, entry.name):
            if name in COLUMN_KEYS:
                spec.values[COLUMN_KEYS[name]] = text_of(entry.value)
            elif name not in _OWN_KEYS:
                _check_own_column(entry, there)
                spec.columns[entry.name] = text_of(entry.value)

    for name, parse in _FIELDS.items():
        if name in there and not is_null(there[name].value):
            with noting(problems, there[name].line, there[name].name):
                setattr(spec, name, parse(there[name]))
    if PARAMETERS in there:
        spec.parameters = read_parameters(there[PARAMETERS], spec.method, problems)
    else:
        problems.append(
            Problem(
                "this key is missing",
                "Say what is to vary: parameters: {lr: {values: [0.1, 0.01]}}",
                column=PARAMETERS,
            )
        )
    spec.entries = read_entries(there.get(STATUS), problems)
    return spec


def keys_of(root: yaml.MappingNode, problems: list[Problem]) -> dict[str, Entry]:
    """The keys of a sweep in lower case, as columns of CSV files may be in any."""
    found: dict[str, Entry] = {}
    for entry in entries_of(root, problems).values():
        lower = entry.name.lower()
        if lower in found:
            problems.append(
                Problem("this key is there twice", "Remove one of the two", entry.line, entry.name)
            )
        found[lower] = entry
    return found


def read_entries(status: Entry | None, problems: list[Problem]) -> tuple[StatusEntry, ...]:
    """The statuses of a sweep, without those that cannot be understood."""
    if status is None or is_null(status.value):
        return ()
    if status.value.start_mark.index < status.key.end_mark.index:
        problems.append(Problem("this is an alias", "Write it out", status.line, status.name))
        return ()
    if not isinstance(status.value, yaml.MappingNode):
        problems.append(
            Problem("this is no mapping", "Remove it to run all", status.line, status.name)
        )
        return ()
    found: list[StatusEntry] = []
    for number, entry in entries_of(status.value, problems, status.name).items():
        with noting(problems, entry.line, status.name):
            if entry.value.start_mark.index < entry.key.end_mark.index:
                raise UsageError("a status is an alias", "Write it out")
            if text := text_of(entry.value):
                found.append(StatusEntry.parse(number, text))
    return tuple(found)


def _check_own_column(entry: Entry, there: Mapping[str, Entry]) -> None:
    """A key that radt does not know is a column of the user's own, unless it looks misspelt."""
    if entry.name.lower() == Column.WORKLOAD.lower():
        raise UsageError(
            "workloads of a sweep have numbers",
            f"Remove it; {AT_ONCE}: 4 puts four runs into a workload, {AT_ONCE}: {ALL} all of them",
        )
    if entry.name.lower() == Column.RUN.lower():
        raise UsageError("a sweep has many runs", f"Remove it; their ids are in {STATUS}")
    hint = did_you_mean(entry.name, _KNOWN - there.keys(), cutoff=NEAR_MISS)
    if hint and not entry.key.style:
        raise UsageError(
            "unknown key", f'{hint} A column of your own may be called so in quotes: "{entry.name}"'
        )


def _method(entry: Entry) -> SweepMethod:
    text = text_of(entry.value).lower()
    try:
        return SweepMethod(text)
    except ValueError:
        raise UsageError(
            f"unknown method {text!r}",
            did_you_mean(text, SweepMethod) or f"Write {' or '.join(SweepMethod)}",
        ) from None


def _seed(entry: Entry) -> int:
    text = text_of(entry.value)
    if _SEED.fullmatch(text) is None:
        raise UsageError(f"{text!r} is not a whole number", "Write such as 1")
    return int(text)


def _at_once(entry: Entry) -> int | None:
    if text_of(entry.value).lower() == ALL:
        return None
    try:
        return _count(entry)
    except UsageError as error:
        raise UsageError(error.message, f"Write 1, 2, 3 or more, or {ALL}") from None


def _count(entry: Entry) -> int:
    text = text_of(entry.value)
    if _COUNT.fullmatch(text) is None:
        raise UsageError(f"{text!r} is not a number of at least 1", "Write 1, 2, 3 or more")
    return int(text)


#: Keys that are fields of `SweepSpec`.
_FIELDS: Mapping[str, Callable[[Entry], object]] = {
    METHOD: _method,
    SEED: _seed,
    TRIALS: _count,
    REPEAT: _count,
    AT_ONCE: _at_once,
}
