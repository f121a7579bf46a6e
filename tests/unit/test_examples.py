"""The examples in docstrings say what the code does."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import radt

_PACKAGE = Path(radt.__file__).parent
#: Radt's own folder and those that it has as links.
_FOLDERS = {"radt": _PACKAGE, "radt.frontend": (_PACKAGE / "frontend").resolve()}
MODULES = sorted(
    ".".join((name, *path.relative_to(folder).with_suffix("").parts))
    for name, folder in _FOLDERS.items()
    for path in folder.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
