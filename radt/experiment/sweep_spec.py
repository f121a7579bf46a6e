"""The keys of a sweep's YAML file, and its parameters."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import yaml

from radt.errors import Problem, UsageError
from radt.experiment import sweep_wandb
from radt.experiment.columns import NEAR_MISS, Column, did_you_mean, parse_params
from radt.experiment.sweep_expand import (
    MAX_RUNS,
    Combination,
    Distribution,
    Style,
    SweepChoice,
    SweepMethod,
    SweepParameter,
    SweepRange,
    Value,
    expand,
    is_option,
)
from radt.experiment.sweep_yaml import (
    SweepEntry,
    collecting,
    entries_of,
    is_null,
    line_of,
    text_of,
    value_of,
)
from radt.experiment.templates import Placeholders

_AT_ONCE, _TRIALS, _STATUS, _STYLE = "at_once", "trials", "status", "style"
PARAMETERS = "parameters"

_VALUES, _VALUE, _DISTRIBUTION, _STEP = "values", "value", "distribution", "q"
_LIMITS, _NORMAL = ("min", "max"), ("mu", "sigma")
_NUMBERS = (*_LIMITS, *_NORMAL, _STEP)
_WHEN = "when"
_KEYS = (_VALUES, _VALUE, _DISTRIBUTION, *_NUMBERS, _STYLE, _WHEN, PARAMETERS)
_NAME = re.compile(r"\w[\w.+-]*")
#: Hydra's keys: ``+trainer.amp``, ``model/encoder``.
_ASSIGNED_NAME = re.compile(r"\+{0,2}[^\W\d][\w.@/-]*")
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
#: Beyond it, floating-point numbers cannot represent all whole numbers.
_LARGEST_INT = 2**53
#: By W&B's names; with the prefix ``q_``, numbers are rounded to a step.
_DISTRIBUTIONS: Mapping[str, Distribution] = {
    **{distribution.value: distribution for distribution in Distribution},
    "int_uniform": Distribution.INT,
    "log_uniform_values": Distribution.LOG_UNIFORM,
}
#: W&B's distributions of lists, which have no effect.
_OF_LISTS = ("categorical", "constant")
_PARAMS = Column.PARAMS.lower()
#: Keys that are columns of CSV files; Params are the arguments shared by all runs.
_COLUMN_KEYS: Mapping[str, Column] = {
    column.lower(): column
    for column in Column
    if column not in (Column.STATUS, Column.RUN, Column.WORKLOAD)
}
#: radT 0.2 had ``parent`` for a run of the whole sweep in MLflow; it is ignored.
_OWN_KEYS = ("method", PARAMETERS, "seed", _TRIALS, "repeat", _AT_ONCE, _STATUS, _STYLE, "parent")
_COUNT = re.compile(r"0*[1-9]\d{0,8}", re.ASCII)
_SEED = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclass(slots=True)
class SweepSpec:
    """The keys of a sweep.

    ``cells`` are shared by all runs, by column; ``lines`` are the lines of keys. ``trials`` is None
    for all combinations, ``at_once`` is None for all runs in one workload. ``command`` is that of a
    W&B sweep, None for others; ``notes`` describe differences from W&B.
    """

    cells: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    method: SweepMethod = SweepMethod.GRID
    style: Style = Style.OPTION
    parameters: tuple[SweepParameter, ...] = ()
    seed: int = 0
    trials: int | None = None
    repeat: int = 1
    at_once: int | None = 1
    command: sweep_wandb.Command | None = None
    notes: tuple[str, ...] = ()

    def combinations(self, problems: list[Problem]) -> tuple[Combination, ...]:
        """Return the values of all runs; problems are added to ``problems``."""
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
            # W&B has no placeholders, so braces are literal.
            literal = Placeholders(self.cells).escaped
            return shlex.join(map(literal, self.command.arguments(combination)))
        fixed = self.cells.get(Column.PARAMS, "")
        return f"{fixed} {shlex.join(combination.arguments)}".strip()


def parse_spec(root: yaml.MappingNode, problems: list[Problem]) -> SweepSpec:
    """Parse all keys; problems are added to ``problems``."""
    spec = SweepSpec()
    entries: dict[str, SweepEntry] = {}
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
    entries: Mapping[str, SweepEntry], spec: SweepSpec, problems: list[Problem]
) -> dict[str, SweepEntry]:
    """Read the keys of a W&B sweep, and return those that are the same in radt."""
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


def _is_own_style(entry: SweepEntry) -> bool:
    """Return whether ``style`` is a user's own column here: its name is quoted."""
    return entry.name.lower() == _STYLE and bool(entry.key.style)


def _check_own_column(entry: SweepEntry, entries: Iterable[str]) -> None:
    """Accept an unknown key as a user's own column, unless it seems misspelt."""
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


# Parameters -------------------------------------------------------------------------------------


def parse_style(text: str) -> Style:
    """Return the style with this name.

    Raises:
        UsageError: There is no such style.
    """
    styles = (Style.OPTION, Style.ON_OFF, Style.TEXT, Style.ASSIGNMENT)
    if text not in styles:
        remedy = did_you_mean(text, styles) or f"Write style: {Style.ASSIGNMENT} for Hydra"
        raise UsageError(f"expected one of {', '.join(styles)}, got {text!r}", remedy)
    return Style(text)


@dataclass(slots=True)
class ParameterReader:
    """Reads parameters, and collects their problems.

    Attributes:
        method: The method of the sweep.
        style: The style of parameters that do not set their own.
        is_wandb: True if keys have their meaning in W&B's sweeps.
        problems: Problems are added to this list.
        parameters: The valid ones.
    """

    method: SweepMethod
    style: Style
    is_wandb: bool
    problems: list[Problem]
    parameters: list[SweepParameter] = field(default_factory=list)
    #: The texts of values by name, for conditions; and the names of valid parameters.
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _right: set[str] = field(default_factory=set)

    def parse(self, entry: SweepEntry, outer: tuple[str, ...] = ()) -> None:
        """Parse ``parameters:`` of the sweep, or of a parameter with nested ones."""
        node = entry.value
        if not isinstance(node, yaml.MappingNode) or not node.value:
            actual = "an empty one" if isinstance(node, yaml.MappingNode) else "something else"
            cause = f"expected a mapping of names to values, got {actual}"
            remedy = "Write a parameter a line: lr: {values: [0.1, 0.01]}"
            self.problems.append(Problem(cause, remedy, entry.line, PARAMETERS))
            return
        for child in entries_of(node, self.problems, PARAMETERS).values():
            with collecting(self.problems, child.line, PARAMETERS):
                self._parse_one(child, outer)

    def _parse_one(self, entry: SweepEntry, outer: tuple[str, ...]) -> None:
        names = tuple(".".join((*outer, each.strip())) for each in entry.name.split(","))
        name = ", ".join(names)
        keys: Mapping[str, SweepEntry] = {}
        if isinstance(entry.value, yaml.MappingNode):
            keys = entries_of(entry.value, self.problems, PARAMETERS)
        known = [key for key in _KEYS if key != _STYLE or not self.is_wandb]
        for key in keys:
            if key not in known:
                remedy = did_you_mean(key, known) or f"Write {name}: {{values: [0.1, 0.01]}}"
                raise UsageError(f"{name} has an unknown key {key!r}", remedy)
        if PARAMETERS in keys:
            if len(keys) > 1:
                raise UsageError(f"{name} has values and parameters", "Remove one of them")
            self.parse(keys[PARAMETERS], (*outer, entry.name))
            return
        style = parse_style(text_of(keys[_STYLE].value)) if _STYLE in keys else self.style
        for each in names:
            self._check_name(each, style)
        parameter = SweepParameter(names, SweepChoice(()), style, self._when(name, keys), outer)
        source = self._source(parameter, entry, keys)
        if source is not None:
            parameter = replace(parameter, source=source)
            self.parameters.append(parameter)
            values = list(itertools.islice(source.values, MAX_RUNS + 1))
            if len(values) <= MAX_RUNS:  # else too many to compare conditions with
                self._right.update(names)
            for value in values:
                for assignment in parameter.assigned(value):
                    self._texts[assignment.name].append(str(assignment.value))

    def _check_name(self, name: str, style: Style) -> None:
        allowed = _ASSIGNED_NAME if style is Style.ASSIGNMENT else _NAME
        if allowed.fullmatch(name) is None:
            bare = name.lstrip("-")
            remedy = "Use letters, digits and dashes"
            remedy = f"Write {bare}" if allowed.fullmatch(bare) else remedy
            cause = f"expected the name of an option without its dashes, got {name!r}"
            raise UsageError(cause, remedy)
        if name in self._texts:
            raise UsageError(f"{name} is written twice", "Remove one of them")
        self._texts[name] = []

    def _when(self, name: str, keys: Mapping[str, SweepEntry]) -> dict[str, frozenset[str]]:
        when: dict[str, frozenset[str]] = {}
        node = keys[_WHEN].value if _WHEN in keys else None
        if node is not None and not isinstance(node, yaml.MappingNode):
            cause = f"{name}: expected a parameter and its values in when"
            raise UsageError(cause, "Write when: {model: vit}")
        for other in entries_of(node, self.problems, PARAMETERS).values() if node else ():
            if other.name not in self._texts:
                remedy = did_you_mean(other.name, self._texts) or "Write the other one first"
                raise UsageError(f"{name}: no parameter {other.name!r} is above it", remedy)
            is_list = isinstance(other.value, yaml.SequenceNode)
            items = other.value.value if is_list else [other.value]
            texts, known = [str(value_of(item)) for item in items], self._texts[other.name]
            for text in texts if other.name in self._right else ():
                if text not in known:
                    remedy = did_you_mean(text, known) or "Write one of its values"
                    raise UsageError(f"{name}: {other.name} is never {text!r}", remedy)
            when[other.name] = frozenset(texts)
        return when

    def _source(
        self, parameter: SweepParameter, entry: SweepEntry, keys: Mapping[str, SweepEntry]
    ) -> SweepChoice | SweepRange | None:
        name = ", ".join(parameter.names)
        if not isinstance(entry.value, yaml.MappingNode):  # shorthand: `lr: [0.1, 0.01]`
            return self._choice(parameter, entry.value)
        kind = text_of(keys[_DISTRIBUTION].value).lower() if _DISTRIBUTION in keys else ""
        lists = [key for key in (_VALUES, _VALUE) if key in keys]
        has_range = any(key in keys for key in _NUMBERS) or kind not in ("", *_OF_LISTS)
        if len(lists) + has_range > 1:
            raise UsageError(
                f"{name} has values twice, or values and a range", "Remove one of them"
            )
        if lists:
            return self._listed(parameter, keys[lists[0]])
        if not has_range:
            remedy = f"Write {name}: {{values: [0.1, 0.01]}}, or min and max"
            raise UsageError(f"{name} has no values", remedy)
        source = self._range(name, kind, keys)
        if len(parameter.names) > 1 or (self.method is SweepMethod.GRID and source.size is None):
            method = "a grid" if len(parameter.names) == 1 else "several parameters"
            cause = f"{name}: expected a list of values for {method}, got a range"
            raise UsageError(cause, "List them, or write method: random and trials: 20")
        return source

    def _listed(self, parameter: SweepParameter, entry: SweepEntry) -> SweepChoice | None:
        name, node = ", ".join(parameter.names), entry.value
        is_list = isinstance(node, yaml.SequenceNode)
        if entry.name == _VALUES and not is_list:
            text = text_of(node)
            cause = f"{name}: expected a list of values, got {text!r}"
            raise UsageError(cause, f"Write values: [{text}]")
        if entry.name == _VALUE and is_list:
            if not self.is_wandb:
                remedy = "Write values: [1, 2] for two values, values: [[1, 2]] for one list"
                raise UsageError(f"{name}: expected one value, got a list", remedy)
            node = yaml.SequenceNode(node.tag, [node], node.start_mark, node.end_mark)
        return self._choice(parameter, node)

    def _choice(self, parameter: SweepParameter, node: yaml.Node) -> SweepChoice | None:
        """Parse a list of values; return None if one is invalid, which is added as a problem."""
        name = ", ".join(parameter.names)
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not items:
            raise UsageError(f"{name} has no values", "Add one, or remove the parameter")
        values: list[Value] = []
        seen: set[str] = set()
        for item in items:
            with collecting(self.problems, line_of(item), PARAMETERS):
                try:
                    value = value_of(item)
                except UsageError as error:
                    raise UsageError(f"{name}: {error.message}", error.remedy) from None
                # Values that pass the same arguments, such as null and false, are the same run.
                passed = str(_checked(parameter, value))
                if str(value) in seen or passed in seen:
                    what = "written twice" if str(value) in seen else "passed like another value"
                    remedy = "Remove one; repeat: 3 runs everything three times"
                    raise UsageError(f"{name}: {value} is {what}", remedy)
                seen |= {str(value), passed}
                values.append(value)
        return SweepChoice(tuple(values)) if len(values) == len(items) else None

    def _range(self, name: str, kind: str, keys: Mapping[str, SweepEntry]) -> SweepRange:
        texts = {key: text_of(keys[key].value) for key in _NUMBERS if key in keys}
        if not kind:
            is_whole = all(_WHOLE.fullmatch(texts.get(key, "")) for key in _LIMITS)
            kind = Distribution.INT if is_whole else Distribution.UNIFORM
        distribution = _DISTRIBUTIONS.get(kind.removeprefix("q_"))
        has_step = kind.startswith("q_")
        if distribution is None or (has_step and distribution is Distribution.INT):
            known = [*_DISTRIBUTIONS, "q_uniform", "q_normal"]
            cause = f"{name}: expected {', '.join(known)} as distribution, got {kind!r}"
            raise UsageError(cause, did_you_mean(kind, known) or "Write distribution: uniform")
        wanted = _NORMAL if distribution.is_normal else _LIMITS
        numbers: dict[str, float] = {"mu": 0.0, "sigma": 1.0} if distribution.is_normal else {}
        for key, text in texts.items():
            if key not in wanted and not (key == _STEP and has_step):
                raise UsageError(f"{name}: {key} has no meaning for {kind}", "Remove it")
            numbers[key] = _number(f"{name}, {key}", text)
        if not all(key in numbers for key in wanted):
            raise UsageError(f"{name} has no values", "Write min and max")
        low, high = (numbers[key] for key in wanted)
        if self.is_wandb and kind.endswith("log_uniform"):  # W&B's limits are logarithms
            low, high = _exp(f"{name}, min", low), _exp(f"{name}, max", high)
        step = numbers.get(_STEP, 1.0) if has_step else None
        cause, remedy = _wrong_range(kind, distribution, low, high, step)
        if cause:
            raise UsageError(f"{name}: {cause}", remedy)
        return SweepRange(low, low + high if distribution.is_normal else high, distribution, step)


def _wrong_range(
    kind: str, distribution: Distribution, low: float, high: float, step: float | None
) -> tuple[str, str]:
    """Return the problem with the numbers of a range, and the remedy; "" for none."""
    is_log, is_int = distribution is Distribution.LOG_UNIFORM, distribution is Distribution.INT
    is_whole = low.is_integer() and high.is_integer() and max(abs(low), abs(high)) <= _LARGEST_INT
    if step is not None and step <= 0:
        return f"expected q > 0, got {step:g}", "Write q: 1"
    if distribution.is_normal:
        return ("", "") if high >= 0 else (f"expected sigma >= 0, got {high:g}", "Write sigma: 1")
    if low > high:
        return f"expected min <= max, got {low:g} and {high:g}", "Swap them"
    if is_log and low <= 0:
        remedy = "Write the smallest value itself, not its logarithm"
        return f"expected min > 0 for {kind}, got {low:g}", remedy
    if is_int and not is_whole:
        cause = f"expected whole numbers for {kind}, got {low:g} and {high:g}"
        return cause, "Write min: 1, max: 8"
    return "", ""


def _checked(parameter: SweepParameter, value: Value) -> list[list[str]]:
    """Return the arguments that pass a value.

    Raises:
        UsageError: The value cannot be passed.
    """
    name, count = ", ".join(parameter.names), len(parameter.names)
    if count > 1 and not (isinstance(value, list) and len(value) == count):
        cause = f"{name}: expected a list of {count} values, one for each, got {value}"
        raise UsageError(cause, f"Write {name}: [[resnet, 0.1], [vit, 0.01]]")
    assigned = parameter.assigned(value)
    for each in assigned:
        items = each.value if isinstance(each.value, list) else []
        options = [str(item) for item in items if is_option(str(item))]
        if options and parameter.style in (Style.OPTION, Style.ON_OFF):
            cause = f"{name}: {options[0]} in a list would be taken for an option"
            raise UsageError(cause, f"Write style: {Style.TEXT}, which passes the list as one word")
    return [each.words for each in assigned]


def _number(where: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{where}: expected a number, got {text!r}", "Write 0.1 or 1e-4")
    return number


def _exp(where: str, number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        cause = f"{where}: expected the logarithm of a limit, got {number:g}"
        raise UsageError(cause, "Write distribution: log_uniform_values for the limits") from None


#: Keys that are fields of `SweepSpec`.
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "method": _method,
    "seed": _seed,
    _TRIALS: _count,
    "repeat": _count,
    _AT_ONCE: lambda text: None if text.lower() == "all" else _count(text),
    _STYLE: parse_style,
}
