"""README shows only commands and variables that exist; the reference lists all of them."""

from __future__ import annotations

import re
from pathlib import Path

from radt.cli import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Commands as README shows them: in code of a line, or at the beginning of a line of a block.
_COMMAND = re.compile(r"(?:`|^)radt ([a-z][a-z-]*)(?=[ `\n])", re.MULTILINE)
_VARIABLE = re.compile(r"\bRADT_[A-Z][A-Z_]*[A-Z]\b")


def test_every_command_exists() -> None:
    shown = set(_COMMAND.findall(README))
    assert {"report", "compare", "validate"} <= shown
    assert shown <= set(COMMANDS)


def test_every_variable_exists() -> None:
    sources = [
        path for part in ("radt", "listeners", "frontend") for path in ROOT.glob(f"{part}/**/*.py")
    ]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    assert set(_VARIABLE.findall(README)) <= set(_VARIABLE.findall(code))
