"""What single cells mean. Each function raises a `UsageError` with cause and remedy."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from radt.errors import UsageError
from radt.experiment.devices import Machine
from radt.experiment.program import Program, ProgramKind
from radt.listeners.api import Registry
from radt.model import ListenerChoice, RunStatus

#: In the original radT, or on the way; a file that names one is right, only early.
LISTENERS_TO_COME = frozenset(
    ("dcgmi", "free", "iostat", "macmon", "ncu", "ncuattach", "ncuraw", "nsys", "nsysraw", "ps")
)

#: A status and the repeat it is about: ``KILLED 2/3: stopped by the user``.
_REPEAT = re.compile(r"\s*(\w+)[:,;.]?\s+(\d{1,6})/\d{1,6}(?!\S*[\w/])")
_NOTHING = ("", "-", "none")
_SPREADSHEET_ERROR = re.compile(r"#(?:NAME\?|REF!|VALUE!|DIV/0!|NUM!|NULL!|N/A)")


def parse_status(text: str) -> RunStatus | None:
    """The status by its first word (``FINISHED bright-cat-123 (0_A)``); None if empty."""
    words = text.split()
    if not words or words == ["-"]:
        return None
    first = words[0].rstrip(":,;.").upper()
    try:
        return RunStatus(first)
    except ValueError:
        raise UsageError(
            f"unknown status {words[0]!r}",
            did_you_mean(first, RunStatus) or "Empty the cell to run the row",
        ) from None


def parse_repeats(text: str) -> int:
    """How many repeats a Status cell says are FINISHED.

    >>> parse_repeats("FINISHED"), parse_repeats("FINISHED 2/3"), parse_repeats("KILLED 2/3: x")
    (1, 2, 1)
    """
    match = _REPEAT.match(text)
    if match is None:
        return 1 if parse_status(text) is RunStatus.FINISHED else 0
    finished = match[1].upper() == RunStatus.FINISHED
    return max(0, int(match[2]) - (not finished))


def parse_listeners(
    text: str, registry: Registry, machine: Machine
) -> tuple[tuple[ListenerChoice, ...], list[UsageError]]:
    """The listeners of a cell, and what is wrong with any of them.

    Empty means the default: ``top``, and ``smi`` where there is a GPU; ``none`` means none.
    """
    cleaned = text.strip()
    if not cleaned:
        default = ["top", "smi"] if machine.gpus else ["top"]
        names = [name for name in default if name in registry.listeners]
        return tuple(map(ListenerChoice, names)), []
    if cleaned.lower() in _NOTHING:
        return (), []
    choices: dict[str, ListenerChoice] = {}
    errors: list[UsageError] = []
    for part in cleaned.split("+"):
        try:
            choice = parse_listener(part.strip(), registry)
        except UsageError as error:
            errors.append(error)
            continue
        if choice.name in choices:
            errors.append(UsageError(f"listener {choice.name!r} is named twice", "Name it once"))
        choices[choice.name] = choice
    return tuple(choices.values()), errors


def parse_listener(text: str, registry: Registry) -> ListenerChoice:
    """One listener with or without its interval: ``top``, ``top@500ms``, ``smi@2s``."""
    given = text.partition("@")[0].strip()
    if given.lower() not in registry.listeners:
        raise _unknown_listener(given, given.lower(), registry)
    return ListenerChoice.parse(text)


def _unknown_listener(shown: str, name: str, registry: Registry) -> UsageError:
    if not name:
        return UsageError("a listener's name is missing", "Write top+smi, without a + at the ends")
    if name == "none":
        return UsageError("none stands among other listeners", "Write none alone, or leave it out")
    if name in registry.broken:
        return UsageError(
            f"listener {name!r} cannot be loaded: {registry.broken[name]}",
            "Mend or uninstall the package it comes from (radt listeners)",
        )
    if name in LISTENERS_TO_COME:
        return UsageError(f"listener {name!r} lands in a later version", "Leave it out for now")
    hint = did_you_mean(name, registry.listeners)
    return UsageError(
        f"unknown listener {shown!r}",
        f"{hint} (radt listeners)" if hint else "radt listeners shows what there is",
    )


def parse_params(text: str) -> tuple[str, ...]:
    """The script's arguments, split and unquoted as a POSIX shell would, without expansion."""
    if _SPREADSHEET_ERROR.fullmatch(text.strip()):
        raise UsageError(
            f"a spreadsheet took this cell for a formula ({text.strip()})",
            "Format the column as text there and write it again",
        )
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        if "escaped" in str(error):
            raise UsageError("it ends with a lone backslash", r"Write \\ for one") from None
        raise UsageError(
            "a quote is never closed", r"Close it, or write \' or \" for the character itself"
        ) from None


def find_program(text: str, folders: Iterable[Path]) -> Program:
    """A script or an executable, looked for in these folders one after the other.

    The folder is resolved, the script's own name is kept where it is a symbolic link.
    """
    if not text.strip():
        raise UsageError("it is empty", "Name the script to run")
    given = Path(text).expanduser() if text.startswith("~/") else Path(text)
    places = [folder / given for folder in dict.fromkeys(folders)]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise UsageError(f"there is no file {text!r}", _similar_file(places))
    if not found.is_file():
        raise UsageError(f"{text!r} is not a file", "Name the script to run")
    if not os.access(found, os.R_OK):
        raise UsageError(f"{text!r} may not be read", f"chmod +r {shlex.quote(text)}")
    if found.suffix != ".py" and not os.access(found, os.X_OK):
        raise UsageError(
            f"{text!r} is neither a Python script (.py) nor executable",
            f"chmod +x {shlex.quote(text)}",
        )
    kind = ProgramKind.SCRIPT if found.suffix == ".py" else ProgramKind.EXECUTABLE
    return Program(kind, found.parent.resolve() / found.name)


def _similar_file(places: list[Path]) -> str:
    for place in places:
        try:
            names = [entry.name for entry in place.parent.iterdir() if entry.is_file()]
        except OSError:  # the folder is not there either, or not to be listed: no hint from it
            continue
        if hint := did_you_mean(place.name, names):
            return hint
    if len(places) > 1:
        return "Paths start at this file's folder, else at the current one"
    return "Check the path"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the nearest known name, empty if none is near."""
    by_lower = {candidate.lower(): str(candidate) for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[near[0]]!r}?" if near else ""
