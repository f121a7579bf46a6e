"""Docstrings in the style of this project as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from textwrap import dedent

from docs.generator import markdown

_SECTION = re.compile(
    r"^(Args|Returns|Raises|Attributes|Yields):\n((?:[ \t]+.*\n?|\n)+)", re.MULTILINE
)
_ENTRY = re.compile(
    r"^(?P<name>\*{0,2}[\w.]+):\s+(?P<text>(?:.*\n?)(?:[ \t]+.*\n?|\n)*)", re.MULTILINE
)
_TITLES = {
    "Args": "argument",
    "Attributes": "attribute",
    "Raises": "raises",
    "Returns": "Returns",
    "Yields": "Yields",
}


def as_markdown(docstring: str) -> str:
    """The text, and a table for each of its sections."""
    text = inspect.cleandoc(docstring) + "\n"
    place = 0
    parts: list[str] = []
    for found in _SECTION.finditer(text):
        parts.extend(_paragraphs(text[place : found.start()]))
        parts.append(_section(found[1], dedent(found[2])))
        place = found.end()
    parts.extend(_paragraphs(text[place:]))
    return "\n\n".join(part for part in parts if part)


def summary(docstring: str) -> str:
    """Its first paragraph, on one line."""
    return markdown.prose(inspect.cleandoc(docstring).partition("\n\n")[0])


def _section(title: str, body: str) -> str:
    entries = list(_ENTRY.finditer(body))
    if title in ("Args", "Attributes", "Raises") and entries:
        return markdown.table(
            (_TITLES[title], "" if title != "Raises" else "when"),
            [(markdown.code(one["name"]), markdown.prose(one["text"])) for one in entries],
        )
    return f"**{_TITLES[title].capitalize()}:** {markdown.prose(body)}"


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs; indented ones after a ``::`` are code."""
    literal = False
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if not paragraph.strip():
            continue
        if literal and paragraph.startswith("    "):
            yield markdown.fenced(dedent(paragraph), "text")
            continue
        if paragraph.lstrip().startswith(">>>"):
            yield markdown.fenced(dedent(paragraph), "python")
            continue
        literal = paragraph.rstrip().endswith("::")
        shown = re.sub(r"\s*::$", ":", paragraph.rstrip()) if literal else paragraph
        if shown.strip(": ") or not literal:
            yield markdown.inline(shown)
