"""The parameters of a sweep as its YAML describes them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import yaml

from radt.errors import Problem, UsageError
from radt.experiment.columns import did_you_mean
from radt.experiment.sweep_expand import Choice, Distribution, Parameter, Range, SweepMethod
from radt.experiment.sweep_words import Style, Value, is_option
from radt.experiment.sweep_yaml import Entry, collecting, entries_of, line_of, text_of, value_of

PARAMETERS = "parameters"

_VALUES, _VALUE, _DISTRIBUTION, _STEP = "values", "value", "distribution", "q"
_LIMITS, _NORMAL = ("min", "max"), ("mu", "sigma")
_NUMBERS = (*_LIMITS, *_NORMAL, _STEP)
_STYLE, _WHEN = "style", "when"
_KEYS = (_VALUES, _VALUE, _DISTRIBUTION, *_NUMBERS, _STYLE, _WHEN, PARAMETERS)
_NAME = re.compile(r"\w[\w.+-]*")
#: Hydra's keys: ``+trainer.amp``, ``model/encoder``.
_ASSIGNED_NAME = re.compile(r"\+{0,2}[^\W\d][\w.@/-]*")
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
#: Beyond it floating-point numbers skip whole ones.
_LARGEST_INT = 2**53
#: With the names that W&B uses; after ``q_`` numbers are rounded to a step.
_DISTRIBUTIONS: Mapping[str, Distribution] = {
    **{distribution.value: distribution for distribution in Distribution},
    "int_uniform": Distribution.INT,
    "log_uniform_values": Distribution.LOG_UNIFORM,
}
#: Distributions of lists, which say nothing new.
_OF_LISTS = ("categorical", "constant")


def parse_style(text: str) -> Style:
    """Return the style of this name.

    Raises:
        UsageError: There is none.
    """
    styles = (Style.OPTION, Style.ON_OFF, Style.TEXT, Style.ASSIGNMENT)
    if text not in styles:
        remedy = did_you_mean(text, styles) or f"Write style: {Style.ASSIGNMENT} for Hydra"
        raise UsageError(f"expected one of {', '.join(styles)}, got {text!r}", remedy)
    return Style(text)


@dataclass(slots=True)
class ParameterReader:
    """Reads parameters, and collects what is wrong with them.

    Attributes:
        method: Of the sweep.
        style: Of parameters that do not have their own.
        is_wandb: Whether keys mean what they mean in W&B's sweeps.
        problems: What is wrong is added here.
        parameters: Those that are right.
    """

    method: SweepMethod
    style: Style
    is_wandb: bool
    problems: list[Problem]
    parameters: list[Parameter] = field(default_factory=list)
    #: The texts of values by name, for conditions; and the names of parameters that are right.
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _right: set[str] = field(default_factory=set)

    def parse(self, entry: Entry, outer: tuple[str, ...] = ()) -> None:
        """Parse ``parameters:``, of the sweep or of a parameter that others are nested in."""
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

    def _parse_one(self, entry: Entry, outer: tuple[str, ...]) -> None:
        names = tuple(".".join((*outer, each.strip())) for each in entry.name.split(","))
        name = ", ".join(names)
        keys: Mapping[str, Entry] = {}
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
        parameter = Parameter(names, Choice(()), style, self._when(name, keys), outer)
        source = self._source(parameter, entry, keys)
        if source is not None:
            parameter = replace(parameter, source=source)
            self.parameters.append(parameter)
            self._right.update(names)
            for value in source.values if isinstance(source, Choice) else ():
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

    def _when(self, name: str, keys: Mapping[str, Entry]) -> dict[str, frozenset[str]]:
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
        self, parameter: Parameter, entry: Entry, keys: Mapping[str, Entry]
    ) -> Choice | Range | None:
        name = ", ".join(parameter.names)
        if not isinstance(entry.value, yaml.MappingNode):  # `lr: [0.1, 0.01]` has one meaning
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

    def _listed(self, parameter: Parameter, entry: Entry) -> Choice | None:
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

    def _choice(self, parameter: Parameter, node: yaml.Node) -> Choice | None:
        """Parse a list of values; None if one of them is wrong, which is a problem by then."""
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
                # What passes the same arguments, as null and false do, is the same run, too.
                passed = str(_checked(parameter, value))
                if str(value) in seen or passed in seen:
                    what = "written twice" if str(value) in seen else "passed like another value"
                    remedy = "Remove one; repeat: 3 runs everything three times"
                    raise UsageError(f"{name}: {value} is {what}", remedy)
                seen |= {str(value), passed}
                values.append(value)
        return Choice(tuple(values)) if len(values) == len(items) else None

    def _range(self, name: str, kind: str, keys: Mapping[str, Entry]) -> Range:
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
        if self.is_wandb and kind.endswith("log_uniform"):  # not the limits, but their logarithms
            low, high = _exp(f"{name}, min", low), _exp(f"{name}, max", high)
        step = numbers.get(_STEP, 1.0) if has_step else None
        cause, remedy = _wrong_range(kind, distribution, low, high, step)
        if cause:
            raise UsageError(f"{name}: {cause}", remedy)
        return Range(low, low + high if distribution.is_normal else high, distribution, step)


def _wrong_range(
    kind: str, distribution: Distribution, low: float, high: float, step: float | None
) -> tuple[str, str]:
    """Return what is wrong with the numbers of a range, and the remedy; "" for nothing."""
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


def _checked(parameter: Parameter, value: Value) -> list[list[str]]:
    """Return the arguments that pass a value.

    Raises:
        UsageError: They cannot.
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
