"""Pieces of Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

#: Characters that mean something in Markdown, or in a table.
_SPECIAL = str.maketrans({char: f"&#{ord(char)};" for char in "\\`*_[]{}|#~^"})


def plain(text: str) -> str:
    """A text that is shown as it is, on one line."""
    return html.escape(" ".join(text.split()), quote=False).translate(_SPECIAL)


def code(text: str) -> str:
    """A piece of code; HTML rather than backticks, so that tables may hold any character."""
    return f"<code>{plain(text)}</code>"


def prose(text: str) -> str:
    """A docstring's text as Markdown, on one line: double backticks and roles become code."""
    return " ".join(inline(text).split()).replace("|", "&#124;")


def inline(text: str) -> str:
    """The same with its lines and paragraphs."""
    parts = re.split(r"(``.+?``|`[^`\n]+`)", text, flags=re.DOTALL)
    return "".join(
        code(part.strip("`").removeprefix("~"))
        if part.startswith("`")
        else html.escape(part, quote=False).replace("*", "&#42;").replace("_", "&#95;")
        for part in parts
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty if it has no rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines])


def heading(level: int, text: str, anchor: str) -> str:
    """A heading that links can rely on."""
    return f"{'#' * level} {text} {{ #{anchor} }}"


def fenced(text: str, language: str = "") -> str:
    """A block of code, which may have fences in it."""
    fence = "`" * max(3, 1 + max((len(found) for found in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
