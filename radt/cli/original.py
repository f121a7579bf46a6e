"""Options and commands of radT 0.2: accepted where radt has the same, else answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata

from radt.errors import UsageError


@dataclass(frozen=True, slots=True)
class Replacement:
    """What became of an option.

    Args:
        now: What to write now, or why nothing is needed; a sentence's end.
        becomes: The options that are used in its place; None refuses the option.
        takes_value: Whether a value follows it, which is dropped.
    """

    now: str
    becomes: tuple[str, ...] | None = None
    takes_value: bool = False


_OPTIONS: Mapping[str, Replacement] = {
    "--conda": Replacement("--environment conda", ("--environment", "conda")),
    "--local": Replacement("--environment local", ("--environment", "local")),
    "--poll_interval": Replacement("not needed; output is shown as it appears", (), True),
    "--buffered": Replacement(
        "not needed; to buffer output, set PYTHONUNBUFFERED to an empty string", ()
    ),
    "--manual": Replacement("not needed; --sync context lets rows wait for each other there", ()),
    "-p": Replacement("arguments after the script: radt train.py --lr 0.1"),
    "-i": Replacement("the interval after a listener: -l top@500ms"),
    "-t": Replacement("--timeout TIME, or --max-time TIME to end the with block"),
}
#: Options that take a value.
WITH_VALUE = frozenset(name for name, known in _OPTIONS.items() if known.takes_value)
#: Commands of the original radT and their current names.
COMMANDS: Mapping[str, str] = {"export-trace": "trace"}


def translated(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return options before a program in radt's words, and messages for the user.

    Raises:
        UsageError: One has no equal.
    """
    words: list[str] = []
    notes: list[str] = []
    position = 0
    while position < len(arguments):
        option, equals, _ = arguments[position].partition("=")
        position += 1
        known = _OPTIONS.get(option)
        if known is None:
            words.append(arguments[position - 1])
            continue
        if known.becomes is None:
            cause = f"{option} was an option of radT 0.2. Now: {known.now}"
            raise UsageError(cause, documentation("From radT 0.2"))
        words += known.becomes
        position += known.takes_value and not equals
        notes.append(f"{option} of radT 0.2 is now: {known.now}")
    return words, notes


def documentation(page: str) -> str:
    """Return where to read on: a page of the documentation, with its address if radt has one."""
    try:
        entries = metadata("radt").get_all("Project-URL") or []
    except PackageNotFoundError:
        entries = []
    links = dict(entry.split(", ", 1) for entry in entries if ", " in entry)
    address = links.get("Documentation", "")
    return f"See “{page}” in the documentation{f', {address}' if address else ''}"
