"""Changes single entries of a sweep's text and leaves everything else as it was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import yaml

from radt.experiment.sweep_document import Document, Entry, entries_of, is_null, text_of
from radt.experiment.sweep_spec import METHOD, SEED, STATUS, keys_of

_NEWLINE = re.compile(r"\r\n|\n|\r")
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class EntryEdit:
    """An entry of ``status:`` as it is to be; ``old_key`` is None for a new one."""

    old_key: str | None
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class _Splice:
    """``text[start:end]`` becomes ``new``."""

    start: int
    end: int
    new: str


def with_statuses(document: Document, edits: Sequence[EntryEdit]) -> str:
    """The text with these entries changed or, those without an old key, added at the end.

    Whatever style an entry has, what is changed becomes one line in double quotes.
    """
    status = keys_of(document.root, []).get(STATUS)
    mapping = status.value if status is not None else None
    there = entries_of(mapping, []) if isinstance(mapping, yaml.MappingNode) else {}
    left = {edit.old_key for edit in edits}
    # A key without a value is as good as none, but there.
    edits = [
        replace(edit, old_key=edit.key)
        if edit.old_key is None and edit.key in there and edit.key not in left
        else edit
        for edit in edits
    ]
    changed = [edit for edit in edits if edit.old_key is not None]
    added = [edit for edit in edits if edit.old_key is None]
    if isinstance(mapping, yaml.MappingNode) and mapping.value and not mapping.flow_style:
        return _in_block(document.text, mapping, changed, added)
    # Entries of a mapping in braces are written anew, one a line.
    replaced = {edit.old_key: edit for edit in changed}
    kept = [
        replaced.get(key) or EntryEdit(key, key, text_of(entry.value))
        for key, entry in there.items()
    ]
    indent = " " * document.root.start_mark.column
    lines = [_line(indent + _INDENT, edit) for edit in (*kept, *added)]
    if mapping is None:
        return _spliced(document.text, _at_the_end(document, [f"{indent}{STATUS}:", *lines]))
    start, end = mapping.start_mark.index, mapping.end_mark.index
    while document.text[start - 1] in " \t":
        start -= 1
    return _spliced(
        document.text, [_Splice(start, end, ""), *_after(document.text, mapping, lines)]
    )


def _in_block(
    text: str, mapping: yaml.MappingNode, changed: Sequence[EntryEdit], added: Sequence[EntryEdit]
) -> str:
    entries = entries_of(mapping, [])
    splices = [
        splice for edit in changed for splice in _changed(text, entries[edit.old_key or ""], edit)
    ]
    last_key, last = mapping.value[-1]
    indent = " " * last_key.start_mark.column
    splices += _after(text, last, [_line(indent, edit) for edit in added])
    return _spliced(text, splices)


def with_seed(document: Document, seed: int) -> str:
    """The text with a seed, below the method, unless there is one."""
    keys = keys_of(document.root, [])
    if SEED in keys:
        node = keys[SEED].value
        if not is_null(node):
            return document.text
        start = node.start_mark.index
        space = "" if document.text[start - 1].isspace() else " "
        return _spliced(document.text, [_Splice(start, node.end_mark.index, f"{space}{seed}")])
    line = " " * document.root.start_mark.column + f"{SEED}: {seed}"
    if METHOD in keys:
        return _spliced(document.text, _after(document.text, keys[METHOD].value, [line]))
    return _spliced(document.text, _at_the_end(document, [line]))


def quoted(text: str) -> str:
    """A text in YAML's double quotes, on one line whatever is in it."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def _line(indent: str, edit: EntryEdit) -> str:
    return f"{indent}{edit.key}: {quoted(edit.text)}"


def _changed(text: str, entry: Entry, edit: EntryEdit) -> list[_Splice]:
    splices: list[_Splice] = []
    if edit.key != edit.old_key:
        key = entry.key
        splices.append(_Splice(key.start_mark.index, key.end_mark.index, edit.key))
    start = entry.value.start_mark.index
    # An entry without a value begins right behind its colon.
    space = "" if text[start - 1].isspace() else " "
    return [*splices, _Splice(start, _end(text, entry.value), space + quoted(edit.text))]


def _after(text: str, node: yaml.Node, lines: Sequence[str]) -> list[_Splice]:
    """Put lines below a node's last one, behind what comment there is."""
    if not lines:
        return []
    newline = _newline(text)
    line_end = _NEWLINE.search(text, _end(text, node))
    place = line_end.start() if line_end is not None else len(text)
    return [_Splice(place, place, "".join(newline + line for line in lines))]


def _end(text: str, node: yaml.Node) -> int:
    """Where a node ends; the line ends behind a block of text are the file's, not its own."""
    start = int(node.start_mark.index)
    return start + len(text[start : node.end_mark.index].rstrip())


def _at_the_end(document: Document, lines: Sequence[str]) -> list[_Splice]:
    """Put lines below the last key, before the mark that ends the document if there is one."""
    text, end = document.text, document.root.end_mark.index
    newline = _newline(text)
    before = "" if not end or text[end - 1] in "\r\n" else newline
    return [_Splice(end, end, before + "".join(line + newline for line in lines))]


def _newline(text: str) -> str:
    found = _NEWLINE.search(text)
    return found.group() if found is not None else "\n"


def _spliced(text: str, splices: Sequence[_Splice]) -> str:
    parts: list[str] = []
    position = 0
    for splice in sorted(splices, key=lambda splice: splice.start):
        parts += [text[position : splice.start], splice.new]
        position = splice.end
    return "".join([*parts, text[position:]])
