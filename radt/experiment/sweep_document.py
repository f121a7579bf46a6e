"""The YAML of a sweep: its keys, where they stand, and what is wrong with them as YAML.

PyYAML reads it, as it does for the original radT, so that both take the same text for the same
value (``1e-3`` is text, ``1.0e-3`` a number). Only its tree of nodes with their places is used:
what stands in the file is changed piece by piece, never written anew, so that all else stays as
the user has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import yaml
from yaml.constructor import SafeConstructor
from yaml.reader import ReaderError

from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.sweep_space import Value

_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
#: Where PyYAML's messages need a word of help, by a part of them.
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


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a mapping and its value; ``line`` is the key's."""

    name: str
    key: yaml.ScalarNode
    value: yaml.Node

    @property
    def line(self) -> int:
        return line_of(self.key)


@dataclass(frozen=True, slots=True)
class Document:
    """A sweep's text and the mapping in it."""

    text: str
    root: yaml.MappingNode


def parse_document(shown: str, text: str) -> Document:
    """Read a sweep's text as YAML.

    Raises:
        ExperimentError: It is not YAML, or not a mapping with a key a line.
    """
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ExperimentError(shown, [_syntax_problem(error, text)]) from error
    except RecursionError:
        raise ExperimentError(
            shown, [Problem("brackets are nested too deep", "Remove some")]
        ) from None
    if root is None:
        what = "there is nothing but comments in it" if text.strip() else "it is empty"
        raise ExperimentError(shown, [Problem(what, "Begin with a line such as file: train.py")])
    if not isinstance(root, yaml.MappingNode):
        raise ExperimentError(
            shown,
            [Problem("this is no mapping", "Write a key a line: file: train.py", line_of(root))],
        )
    if root.flow_style:
        raise ExperimentError(
            shown,
            [
                Problem(
                    "the whole sweep stands in braces",
                    "Write a key a line, without { }; radt adds its statuses below",
                    line_of(root),
                )
            ],
        )
    return Document(text, root)


@contextmanager
def noting(problems: list[Problem], line: int, column: str) -> Iterator[None]:
    """Make a problem of a `UsageError`, at this place, and go on."""
    try:
        yield
    except UsageError as error:
        problems.append(Problem(error.message, error.remedy or "", line, column))


def entries_of(
    mapping: yaml.MappingNode, problems: list[Problem], within: str = ""
) -> dict[str, Entry]:
    """The keys of a mapping, of aliases merged into it, too, without those in excess.

    Args:
        within: The key that the mapping is the value of; empty for the whole file.
    """
    seen: set[str] = set()
    for key, _ in mapping.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if not name.strip():
            problems.append(Problem("a key is missing", "Write one", line_of(key), within or None))
        elif name in seen:
            problems.append(
                Problem(
                    f"{name} is there twice" if within else "this key is there twice",
                    "Remove one of the two",
                    line_of(key),
                    within or name,
                )
            )
        seen.add(name)
    found: dict[str, Entry] = {}
    for key, value in _merged(mapping, problems):
        if isinstance(key, yaml.ScalarNode) and key.value.strip():
            found[key.value.strip()] = Entry(key.value.strip(), key, value)
    return found


def _merged(
    mapping: yaml.MappingNode, problems: list[Problem]
) -> Sequence[tuple[yaml.Node, yaml.Node]]:
    if not any(key.tag == _MERGE for key, _ in mapping.value):
        return list(mapping.value)
    copy = yaml.MappingNode(mapping.tag, list(mapping.value), mapping.start_mark, mapping.end_mark)
    try:
        SafeConstructor().flatten_mapping(copy)
    except yaml.YAMLError as error:
        problems.append(_syntax_problem(error, ""))
    return list(copy.value)


def line_of(node: yaml.Node) -> int:
    """The physical line, from 1, on which a node begins."""
    return int(node.start_mark.line) + 1


def text_of(node: yaml.Node) -> str:
    """What is written, whatever YAML takes it for: the text of a cell (``no``, ``010``, ``1:30``).

    Items of a list are joined as cells have them, with a plus.

    Raises:
        UsageError: It is no text.
    """
    if isinstance(node, yaml.ScalarNode):
        return "" if is_null(node) else node.value.strip()
    if isinstance(node, yaml.SequenceNode) and all(
        isinstance(item, yaml.ScalarNode) for item in node.value
    ):
        return "+".join(text_of(item) for item in node.value)
    raise UsageError(f"it is a {_kind(node)}", "Write a text or a number")


def is_null(node: yaml.Node) -> bool:
    """Whether nothing is there, or the word for nothing."""
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL


def value_of(node: yaml.Node) -> Value:
    """What YAML takes a scalar for, which is what the original hands to programs.

    Raises:
        UsageError: It is none.
    """
    if not isinstance(node, yaml.ScalarNode):
        raise UsageError(
            f"a value is a {_kind(node)}",
            "Quote it if the program is to get it as one text: '[1, 2]'",
        )
    if is_null(node) and not node.value:
        raise UsageError("a value is missing", 'Write it, or "" for an empty text')
    try:
        value = SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise UsageError(f"{node.value!r} cannot be read: {problem}", "Quote it") from error
    if isinstance(value, bytes):
        raise UsageError("a value is binary", "Name a file that holds it")
    text = str(value)
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError("a value has characters that no argument may have", "Remove them")
    return value if isinstance(value, str | int | float | bool | None) else text


def _kind(node: yaml.Node) -> str:
    return "list" if isinstance(node, yaml.SequenceNode) else "mapping"


def _syntax_problem(error: yaml.YAMLError, text: str) -> Problem:
    if isinstance(error, ReaderError):
        return Problem(
            f"the character {chr(error.character)!r} may not be in YAML",
            "Remove it",
            text.count("\n", 0, error.position) + 1,
        )
    cause = str(error)
    line: int | None = None
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else None
        # Where something was not closed the end of the file is no help; its beginning is.
        opened = error.context_mark
        if opened is not None and mark is not None and mark.index >= len(text.rstrip()):
            line = opened.line + 1
        cause = ", ".join(part for part in (error.context, error.problem) if part)
        cause = " ".join(cause.split())
    remedy = next((remedy for part, remedy in _REMEDIES.items() if part in cause), "")
    return Problem(f"this is not YAML: {cause}", remedy or "Check quotes and indentation", line)
