"""The YAML of sweeps: nodes with their lines, and their values.

PyYAML reads the text, as in radT 0.2, so that both read the same value from the same text
(``1e-3`` is text, ``1.0e-3`` a number).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import yaml
from yaml.constructor import SafeConstructor
from yaml.reader import ReaderError

from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.check import UNREADABLE
from radt.experiment.sweep_expand import Value

_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
#: Remedies for PyYAML's messages, by a part of the message.
_REMEDIES: Mapping[str, str] = {
    "'\\t'": "Indent with blanks, not tabs",
    "sequence entries are not allowed here": 'Put a dash that stands alone in quotes: "-"',
    "mapping values are not allowed here": "Quote a text with a colon in it, or check the "
    "indentation",
    "'%'": "Put the text in quotes",
    "'@'": "Put the text in quotes",
    "'`'": "Put the text in quotes",
    "undefined alias": "Put a text that starts with * in quotes",
    "but found another document": "Write one sweep a file, without --- between",
}


def parse_yaml(shown: str, text: str) -> yaml.MappingNode:
    """Read the text of a sweep as YAML.

    Raises:
        ExperimentError: It is not YAML, or not a mapping.
    """
    problems = [
        Problem("expected UTF-8 text", "Save the file as text in UTF-8", number)
        for number, line in enumerate(text.split("\n"), start=1)
        if UNREADABLE.search(line)
    ]
    if problems:
        raise ExperimentError(shown, problems)
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ExperimentError(shown, [_syntax_problem(error, text)]) from error
    except RecursionError:
        problem = Problem("brackets are nested too deep", "Remove some")
        raise ExperimentError(shown, [problem]) from None
    if not isinstance(root, yaml.MappingNode):
        actual = "an empty file" if root is None else "something else"
        problem = Problem(
            f"expected a mapping, got {actual}",
            "Write a key a line: file: train.py",
            None if root is None else line_of(root),
        )
        raise ExperimentError(shown, [problem])
    return root


def _syntax_problem(error: yaml.YAMLError, text: str) -> Problem:
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return Problem(f"YAML has no character {chr(error.character)!r}", "Remove it", line)
    cause = str(error)
    number: int | None = None
    if isinstance(error, yaml.MarkedYAMLError):
        mark, opened = error.problem_mark or error.context_mark, error.context_mark
        # For an unclosed bracket or quote, its own line helps more than the end of the file.
        if opened is not None and mark is not None and mark.index >= len(text.rstrip()):
            mark = opened
        number = mark.line + 1 if mark is not None else None
        cause = " ".join(", ".join(filter(None, (error.context, error.problem))).split())
    remedy = next((remedy for part, remedy in _REMEDIES.items() if part in cause), "")
    return Problem(f"invalid YAML: {cause}", remedy or "Check quotes and indentation", number)


@dataclass(frozen=True, slots=True)
class SweepEntry:
    """A key of a YAML mapping and its value."""

    name: str
    key: yaml.ScalarNode
    value: yaml.Node

    @property
    def line(self) -> int:
        """The physical line of the key."""
        return line_of(self.key)


@contextmanager
def collecting(problems: list[Problem], line: int | None, column: str) -> Iterator[None]:
    """Turn a `UsageError` into a problem at this place, and continue."""
    try:
        yield
    except UsageError as error:
        problems.append(Problem(error.message, error.remedy or "", line, column))
    except RecursionError:
        problems.append(Problem("a list contains itself", "Remove the alias", line, column))


def entries_of(
    mapping: yaml.MappingNode, problems: list[Problem], parent: str = ""
) -> dict[str, SweepEntry]:
    """Return the entries of a mapping, with merged aliases; duplicates become problems.

    Args:
        parent: The key of the mapping; empty for the whole file.
    """
    seen: set[str] = set()
    for key, _ in mapping.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if not name.strip():
            problems.append(Problem("expected a key", "Write one", line_of(key), parent or None))
        elif name in seen:
            cause = f"{name} is written twice" if parent else "this key is written twice"
            problems.append(Problem(cause, "Remove one of them", line_of(key), parent or name))
        seen.add(name)
    if any(key.tag == _MERGE for key, _ in mapping.value):
        merged = yaml.MappingNode(
            mapping.tag, list(mapping.value), mapping.start_mark, mapping.end_mark
        )
        try:
            SafeConstructor().flatten_mapping(merged)
        except yaml.YAMLError as error:
            problems.append(Problem(f"invalid YAML: {error}", "Check <<", line_of(mapping)))
        mapping = merged
    return {
        key.value.strip(): SweepEntry(key.value.strip(), key, value)
        for key, value in mapping.value
        if isinstance(key, yaml.ScalarNode) and key.value.strip()
    }


def line_of(node: yaml.Node) -> int:
    """Return the physical line, from 1, on which a node begins."""
    return int(node.start_mark.line) + 1


def is_null(node: yaml.Node) -> bool:
    """Return whether a node is empty or ``null``."""
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL


def text_of(node: yaml.Node) -> str:
    """Return the text as written, whatever YAML takes it for (``no``, ``010``, ``1:30``).

    The items of a list are joined with a plus, as in cells of CSV files.

    Raises:
        UsageError: It is a mapping, or a list with items that are not texts.
    """
    if isinstance(node, yaml.ScalarNode):
        return "" if is_null(node) else node.value.strip()
    if isinstance(node, yaml.SequenceNode) and all(
        isinstance(item, yaml.ScalarNode) for item in node.value
    ):
        return "+".join(text_of(item) for item in node.value)
    kind = "list" if isinstance(node, yaml.SequenceNode) else "mapping"
    raise UsageError(f"expected a text or a number, got a {kind}", "Write name: value")


def value_of(node: yaml.Node) -> Value:
    """Return the value that YAML parses a scalar, or a list of them, to.

    Raises:
        UsageError: It is a mapping, or a value that an argument cannot hold.
    """
    if isinstance(node, yaml.SequenceNode):
        return [value_of(item) for item in node.value]
    if not isinstance(node, yaml.ScalarNode):
        raise UsageError(
            "expected a value, got a mapping",
            "Quote it if the program should get it as one text: '{a: 1}'",
        )
    if is_null(node) and not node.value:
        raise UsageError("expected a value, got nothing", 'Write it, or "" for an empty text')
    try:
        value = SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise UsageError(f"{node.value!r} cannot be read: {problem}", "Quote it") from error
    if isinstance(value, bytes):
        raise UsageError("expected a value, got binary data", "Name a file that holds it")
    text = str(value)
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(f"{text!r} has characters that no argument may have", "Remove them")
    return value if isinstance(value, str | int | float | bool | None) else text
