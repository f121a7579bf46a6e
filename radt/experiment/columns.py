"""The columns of an experiment file, and parsers of their cells.

Parsers raise a `UsageError` with cause and remedy.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import resources
from typing import Any

from radt.errors import UsageError
from radt.experiment.table import Record
from radt.listeners.api import Registry, probed
from radt.listeners.registry import ALIASES, check_options
from radt.model import DEFAULT_LISTENERS, ListenerChoice, Role, RunStatus
from radt.units import parse_duration_s

SCHEMA_NAME = "experiment.schema.json"


@dataclass(frozen=True, slots=True)
class Field:
    """The schema of one column.

    ``title`` names one value of the column in messages; ``if_empty`` is what an empty cell or an
    absent column means; ``missing`` are texts that count as empty; ``max_length`` is in characters.
    """

    title: str
    description: str
    if_empty: str
    example: str
    missing: frozenset[str]
    pattern: re.Pattern[str] | None = None
    max_length: int | None = None

    def is_missing(self, text: str) -> bool:
        """Return whether a cell with this text counts as empty."""
        return text.strip().lower() in self.missing

    def check(self, text: str) -> None:
        """Check a cell that is not empty against the constraints.

        Raises:
            UsageError: It breaks one of them.
        """
        value = text.strip()
        if self.max_length is not None and len(value) > self.max_length:
            raise UsageError(
                f"{len(value):,} characters are too many for the {self.title}",
                f"Write at most {self.max_length:,}",
            )
        if self.pattern is not None and self.pattern.fullmatch(value) is None:
            raise UsageError(
                f"{value!r} is not a valid {self.title}", f"Write it like {self.example}"
            )


@functools.cache
def fields() -> Mapping[str, Field]:
    """Return the fields by column name, in the schema's order. The schema is read only once."""
    text = (resources.files("radt.schemas") / SCHEMA_NAME).read_text(encoding="utf-8")
    schema = json.loads(text)
    everywhere = schema["missingValues"]
    return {descriptor["name"]: _field(descriptor, everywhere) for descriptor in schema["fields"]}


def _field(descriptor: Mapping[str, Any], missing_everywhere: list[str]) -> Field:
    constraints = descriptor.get("constraints", {})
    pattern = constraints.get("pattern")
    return Field(
        title=descriptor["title"],
        description=descriptor["description"],
        if_empty=descriptor["ifEmpty"],
        example=descriptor["example"],
        missing=frozenset(descriptor.get("missingValues", missing_everywhere)),
        pattern=None if pattern is None else re.compile(pattern),
        max_length=constraints.get("maxLength"),
    )


class Column(StrEnum):
    """The columns of radt, as ``schemas/experiment.schema.json`` describes them, in its order.

    Other columns are the user's own.
    """

    EXPERIMENT = "Experiment"
    WORKLOAD = "Workload"
    NAME = "Name"
    STATUS = "Status"
    RUN = "Run"
    DEVICES = "Devices"
    COLLOCATION = "Collocation"
    ENVIRONMENT = "Environment"
    CPUS = "Cpus"
    TIMEOUT = "Timeout"
    ROLE = "Role"
    MODEL = "Model"
    DATA = "Data"
    NODES = "Nodes"
    GPUS = "Gpus"
    PARTITION = "Partition"
    EXCLUSIVE = "Exclusive"
    MEMORY = "Memory"
    TIME = "Time"
    LISTENERS = "Listeners"
    FILE = "File"
    PARAMS = "Params"

    @property
    def field(self) -> Field:
        """Return the schema of the column."""
        return fields()[self]

    @classmethod
    def named(cls, name: str) -> Column | None:
        """Return the column with this name, in any case."""
        return _BY_NAME.get(name.strip().lower())


_BY_NAME: Mapping[str, Column] = {column.lower(): column for column in Column}

#: The columns of every table that radt writes.
IN_EVERY_TABLE = (
    *(Column.EXPERIMENT, Column.WORKLOAD, Column.NAME, Column.STATUS, Column.RUN),
    *(Column.DEVICES, Column.COLLOCATION, Column.LISTENERS, Column.FILE, Column.PARAMS),
)
#: Columns that radt itself writes; all others, with the user's own, describe the row.
WRITTEN = frozenset((Column.STATUS, Column.RUN))
#: A row needs one of these to name its program.
PROGRAM = frozenset((Column.FILE, Column.MODEL))
#: Columns that radt reads and also logs as parameters, like the user's own.
LOGGED = (Column.MODEL, Column.DATA)


@dataclass(frozen=True, slots=True)
class ColumnPositions:
    """The positions of columns.

    ``others`` are the user's own columns by their header; ``repeated`` are the positions of
    duplicate headers. Columns without a header, as trailing commas produce, are in neither; they
    are accepted if they are empty. ``described`` are the columns that the user fills in, by their
    lower-case header.
    """

    record: Record
    positions: Mapping[Column, int]
    others: Mapping[str, int]
    repeated: Sequence[int]
    described: Mapping[str, int]

    @classmethod
    def of(cls, record: Record) -> ColumnPositions:
        positions: dict[Column, int] = {}
        others: dict[str, int] = {}
        repeated: list[int] = []
        indices: dict[str, int] = {}
        for index, cell in enumerate(record.cells):
            if not (name := cell.value.strip()):
                continue
            column = Column.named(name)
            if name.lower() in indices:
                repeated.append(index)
            elif column is not None:
                positions[column] = index
            else:
                others[name] = index
            indices.setdefault(name.lower(), index)
        described = {key: at for key, at in indices.items() if Column.named(key) not in WRITTEN}
        return cls(record, positions, others, repeated, described)

    @property
    def names_programs(self) -> bool:
        """Return True if a column names programs; a header needs one."""
        return not PROGRAM.isdisjoint(self.positions)

    def name(self, index: int) -> str | None:
        """Return the header at this position; None beyond the last or if it is empty."""
        if index >= len(self.record.cells):
            return None
        return self.record.cells[index].value.strip() or None

    def is_short(self, row: Record) -> bool:
        """Return True if the row lacks a cell of a column with a header."""
        missing = range(len(row.cells), len(self.record.cells))
        return any(self.name(index) is not None for index in missing)

    def value(self, row: Record, column: Column) -> str:
        """Return the row's cell in this column; "" if the file or the row lacks it."""
        index = self.positions.get(column)
        return "" if index is None else _cell(row, index)

    def workload(self, row: Record, default: str) -> tuple[str, str]:
        """Return the row's experiment, ``default`` if that cell is empty, and its workload."""
        experiment = self.value(row, Column.EXPERIMENT).strip() or default
        return experiment, self.value(row, Column.WORKLOAD).strip()

    def values(self, row: Record) -> dict[Column, str]:
        """Return the row's cells in those of radt's columns that the file has."""
        return {column: _cell(row, index) for column, index in self.positions.items()}

    def logged(self, row: Record) -> dict[str, str]:
        """Return the row's cells that are logged unchanged, by the name in the header."""
        cells: dict[str, str] = {}
        for column in LOGGED:
            if column in self.positions:
                value = self.value(row, column)
                name = self.name(self.positions[column]) or column
                cells[name] = "" if column.field.is_missing(value) else value.strip()
        return cells | {name: _cell(row, index).strip() for name, index in self.others.items()}

    def identity(self, row: Record) -> tuple[str, ...]:
        """Return all that the user wrote in a row, which identifies it when its line changes.

        Reordering columns or adding empty ones does not change a row's identity.
        """
        values = ((name, _cell(row, index).strip()) for name, index in self.described.items())
        return tuple(sorted(f"{name}\0{value}" for name, value in values if value))


def _cell(row: Record, index: int) -> str:
    return row.cells[index].value if index < len(row.cells) else ""


#: The Status cell of a row that waits for a cluster.
QUEUED = "QUEUED"
#: A status and its repeat: ``KILLED 2/3: stopped by the user``.
_REPEAT = re.compile(r"\s*(\w+)[:,;.]?\s+(\d{1,6})/(\d{1,6})(?!\S*[\w/])")
_CLOCK = re.compile(r"(\d{1,5}):([0-5]\d):([0-5]\d(?:\.\d+)?)")
#: One year; a longer timeout is a typing error.
MAX_TIMEOUT_S = 366 * 86400.0
#: A name at least this similar to a known one is a misspelling of it, see `did_you_mean`.
NEAR_MISS = 0.8

_NOTHING = ("", "-", "none")
_SPREADSHEET_ERROR = re.compile(r"#(?:NAME\?|REF!|VALUE!|DIV/0!|NUM!|NULL!|N/A)")


def parse_status(text: str) -> RunStatus | None:
    """Parse a status by its first word (``FINISHED bright-cat-123 (0_A)``); None if empty.

    >>> parse_status("QUEUED: 1234_7 Resources")
    <RunStatus.SCHEDULED: 'SCHEDULED'>
    """
    words = text.split()
    if not words or words == ["-"]:
        return None
    first = words[0].rstrip(":,;.").upper()
    if first == QUEUED:
        return RunStatus.SCHEDULED
    try:
        return RunStatus(first)
    except ValueError:
        raise UsageError(
            f"unknown status {words[0]!r}",
            did_you_mean(first, RunStatus) or "Empty the cell to run the row",
        ) from None


def parse_role(text: str) -> Role:
    """Parse a role: ``service``, or empty for a training run.

    Raises:
        UsageError: There is no such role.
    """
    try:
        return Role(text.strip().lower())
    except ValueError:
        raise UsageError(
            f"unknown role {text.strip()!r}",
            f"Write {Role.SERVICE}, or leave it empty for a training run",
        ) from None


def status_text(status: str, reason: str = "", repeat: int = 1, repeats: int = 1) -> str:
    """Return the text of a Status cell: ``FINISHED``, ``KILLED 2/3: stopped by the user``."""
    count = f" {repeat}/{repeats}" if repeats > 1 else ""
    return f"{status}{count}: {reason}" if reason else f"{status}{count}"


def parse_repeats(text: str) -> int:
    """Return the number of FINISHED repeats in a Status cell.

    >>> parse_repeats("FINISHED"), parse_repeats("FINISHED 2/3"), parse_repeats("KILLED 2/3: x")
    (1, 2, 1)
    """
    match = _REPEAT.match(text)
    if match is None:
        return 1 if parse_status(text) is RunStatus.FINISHED else 0
    finished = match[1].upper() == RunStatus.FINISHED
    return max(0, int(match[2]) - (not finished))


def parse_repeats_asked(text: str) -> int:
    """Return how often a row is to run, according to its Status cell.

    >>> parse_repeats_asked("FINISHED"), parse_repeats_asked("KILLED 2/3: x")
    (1, 3)
    """
    match = _REPEAT.match(text)
    return 1 if match is None else int(match[3])


def parse_listeners(
    text: str, registry: Registry, *, here: bool = True
) -> tuple[tuple[ListenerChoice, ...], list[UsageError]]:
    """Return the listeners and profilers of a cell, and its problems.

    An empty cell, or the word ``default`` in it, means `Registry.defaults`; ``none`` means none.

    Args:
        text: The cell.
        registry: The installed listeners.
        here: True if the run is for this machine; otherwise it is unknown which listeners work.
    """
    cleaned = text.strip()
    defaults = registry.defaults if here else (ListenerChoice(DEFAULT_LISTENERS),)
    if not cleaned:
        return defaults, []
    if cleaned.lower() in _NOTHING:
        return (), []
    choices: dict[str, ListenerChoice] = {}
    named: set[str] = set()
    errors: list[UsageError] = []
    for part in cleaned.split("+"):
        if part.strip().lower() == DEFAULT_LISTENERS:
            choices = {choice.name: choice for choice in defaults} | choices
            continue
        try:
            choice = parse_listener(part.strip(), registry)
        except UsageError as error:
            errors.append(error)
            continue
        if choice.name in named:
            errors.append(UsageError(f"listener {choice.name!r} is named twice", "Name it once"))
        named.add(choice.name)
        choices[choice.name] = choice
    profilers = [name for name in choices if name in registry.profilers]
    disturbing = [name for name in profilers if registry.profilers[name].disturbs]
    if len(disturbing) > 1:
        errors.append(
            UsageError(
                f"{' and '.join(disturbing)} cannot profile one run together",
                "Give each its own row",
            )
        )
    # A missing listener only costs a series, but a run without its profiler is the wrong run.
    for name in profilers if here else ():
        answer = probed(registry.profilers[name])
        if not answer.available:
            remedy = f"{answer.remedy}; or take" if answer.remedy else "Take"
            errors.append(
                UsageError(
                    f"{name} does not work here: {answer.reason}",
                    f"{remedy} {name} out of {Column.LISTENERS}",
                )
            )
    return tuple(choices.values()), errors


def parse_listener(text: str, registry: Registry) -> ListenerChoice:
    """Parse one listener with optional interval and options: ``top``, ``top:cores@500ms``.

    Raises:
        UsageError: It is not installed, or its interval or an option is invalid.
    """
    given = text.partition("@")[0].partition(":")[0].strip()
    name = ALIASES.get(given.lower(), given.lower())
    kind = registry.find(name)
    if kind is None:
        raise _unknown_listener(given, name, registry)
    choice = replace(ListenerChoice.parse(text), name=name)
    check_options(kind, choice.options)
    if choice.interval_s is not None and name in registry.profilers:
        raise UsageError(f"{name} does not sample, so it has no interval", f"Write {name}")
    return choice


def _unknown_listener(shown: str, name: str, registry: Registry) -> UsageError:
    if not name:
        return UsageError("a listener's name is missing", "Write top+smi, without a + at the ends")
    if name == "none":
        return UsageError(
            "none is combined with other listeners", "Write none alone, or leave it out"
        )
    if name in registry.broken:
        return UsageError(
            f"listener {name!r} cannot be loaded: {registry.broken[name]}",
            "Fix or uninstall its package (see radt listeners)",
        )
    hint = did_you_mean(name, registry.names)
    return UsageError(
        f"unknown listener {shown!r}",
        f"{hint} (radt listeners)" if hint else "Run radt listeners for the list",
    )


def parse_params(text: str, split: Callable[[str], list[str]] = shlex.split) -> tuple[str, ...]:
    """Split and unquote the script's arguments as a POSIX shell would, without expansion."""
    if _SPREADSHEET_ERROR.fullmatch(text.strip()):
        raise UsageError(
            f"a spreadsheet took this cell for a formula ({text.strip()})",
            "Format the column as text there and write it again",
        )
    try:
        return tuple(split(text))
    except ValueError as error:
        if "escaped" in str(error):
            raise UsageError("it ends with a lone backslash", r"Write \\ for one") from None
        raise UsageError(
            "a quote is never closed", r"Close it, or write \' or \" for the character itself"
        ) from None


def parse_timeout(text: str) -> float | None:
    """Parse a timeout to seconds, None if empty: ``1:30:00``, or a duration such as ``2h``.

    Raises:
        UsageError: It is not a duration, or not a usable one.
    """
    given = text.strip()
    if not given:
        return None
    clock = _CLOCK.fullmatch(given)
    if clock is not None:
        seconds = int(clock[1]) * 3600.0 + int(clock[2]) * 60.0 + float(clock[3])
    elif ":" in given:
        raise UsageError(
            f"{given!r} may be minutes or hours", "Write hours, too: 1:30:00; or 90min, 90s"
        )
    else:
        seconds = parse_duration_s(given)
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise UsageError(
            f"expected a timeout above 0 and up to 366 days, got {given}",
            "Write 2h, or leave the cell empty for no limit",
        )
    return seconds


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a question for the most similar known name; "" if none is near (0: any, 1: equal)."""
    by_lower = {candidate.lower(): str(candidate) for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f"Did you mean {by_lower[near[0]]!r}?" if near else ""
