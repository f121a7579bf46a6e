"""docs/listeners.md has every listener and profiler, with its options, and says which are usual."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from radt.listeners import registry
from radt.listeners.api import Listener, Source

PAGE = (Path(__file__).parents[2] / "docs" / "listeners.md").read_text(encoding="utf-8")
FOUND = registry.load()
SOURCES: list[type[Source]] = [*FOUND.listeners.values(), *FOUND.profilers.values()]


def row_of(name: str) -> str:
    """The line of a table whose first cell has the name."""
    for line in PAGE.splitlines():
        first = line.split("|")[1] if line.startswith("|") else ""
        if name in re.findall(r"`([^`]+)`", first):
            return line
    raise AssertionError(f"{name} stands in no table of docs/listeners.md")


@pytest.mark.parametrize("kind", SOURCES, ids=lambda kind: kind.name)
def test_it_is_there_with_its_options(kind: type[Source]) -> None:
    row = row_of(kind.name)
    missing = [
        word
        for form in kind.accepts
        if not re.search(rf"\b{(word := form.partition('=')[0])}\b", row)
    ]
    assert missing == []


@pytest.mark.parametrize("kind", FOUND.listeners.values(), ids=lambda kind: kind.name)
def test_the_usual_ones_are_ticked(kind: type[Listener]) -> None:
    assert ("✓" in row_of(kind.name)) == kind.by_default
