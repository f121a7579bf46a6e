"""Default names of runs: the script, its arguments and a number.

``train lr=0.1 #3`` is the third run of its experiment. The number makes the name unique there; the
arguments distinguish the runs. Imports the standard library only, as training processes import it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from radt.params import split_params

#: Further arguments are left out of the name; they are parameters of the run anyway.
_MAX_ARGUMENTS = 3
_MAX_VALUE_CHARS = 20
_NUMBER = re.compile(r" #(\d+)")


def script_name(script: str, arguments: Sequence[str]) -> str:
    """Build a run's name from its script and arguments, without a number.

    >>> script_name("train", ["--lr", "0.1", "--amp"])
    'train lr=0.1 amp'
    """
    values = split_params(arguments)
    words = [_word(name, value) for name, value in values.items()][:_MAX_ARGUMENTS]
    more = ["…"] if len(values) > _MAX_ARGUMENTS else []
    return " ".join([script, *words, *more])


def _word(name: str, value: str) -> str:
    if name.startswith("arg") and name[3:].isdecimal():  # a positional argument
        return _cut(value)
    return name if value == "true" else f"{name}={_cut(value)}"


def _cut(value: str) -> str:
    """Shorten a value: keep the end of a path, or the beginning of any other text, on one line."""
    value = " ".join(value.split())
    value = PurePath(value).name if "/" in value else value
    return value if len(value) <= _MAX_VALUE_CHARS else f"{value[: _MAX_VALUE_CHARS - 1]}…"


def numbered(name: str, number: int) -> str:
    """Return the name of the run with this number in its experiment."""
    return f"{name} #{number}"


def number_of(name: str) -> int:
    """Return the number at the end of a name, or 0."""
    match = _NUMBER.fullmatch(name[name.rfind(" #") :]) if " #" in name else None
    return int(match[1]) if match else 0


def script_of(name: str, file: str) -> str:
    """Return the script for which radt generated this name; empty for a name that the user chose.

    Args:
        name: The run's name.
        file: The program, as in the parameter ``File``: ``train.py``, ``package.module``.
    """
    for script in dict.fromkeys((PurePath(file).stem, file)):
        if script and (name == script or (name.startswith(f"{script} ") and number_of(name))):
            return script
    return ""


def row_letter(index: int) -> str:
    """Return the letter of the run at this position in its workload: a … z, aa, ab …

    >>> [row_letter(index) for index in (0, 25, 26, 701, 702)]
    ['a', 'z', 'aa', 'zz', 'aaa']
    """
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters


def child_letter(letter: str, name: str) -> str:
    """Return the letter of a run within a run (`radt.Run.child`): ``a.lenet``."""
    return f"{letter}.{name}"


def family_of(letter: str) -> tuple[str, str]:
    """Split a run's letter into its row's letter and its name within the row (empty for a parent).

    >>> family_of("a"), family_of("a.lenet")
    (('a', ''), ('a', 'lenet'))
    """
    row, _, child = letter.partition(".")
    return row, child


def letter_order(letter: str) -> tuple[int, str, str]:
    """Return a sort key: a to z, aa; children after their parent."""
    row, child = family_of(letter)
    return len(row), row, child
