"""Entries of a sweep's ``status:`` mapping: what became of its runs.

The original radT writes ``3: FINISHED RUN_ID (--lr 0.1)``: a number, and what is known of the run
with these parameters. radt writes the same, with the number of finished repeats and a reason where
there are any::

    3: "KILLED 2/3 RUN_ID (--lr 0.1): stopped by the user"

The number is the workload's. Where a workload has several runs each has its letter behind it:
``3a``, ``3b``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from radt.errors import UsageError
from radt.experiment.sweep_space import Key

_KEY = re.compile(r"(0|[1-9]\d{0,8})([a-z]*)", re.ASCII)
_TEXT = re.compile(
    r"(?P<status>[^\s(:]+)(?P<count> \d+/\d+)?(?: (?P<run>[^\s(]+))? \((?P<rest>.*)", re.DOTALL
)
#: How a run id that is not there is written, by radt and by the original.
_NO_RUN = ("-", "None", "nan")


@dataclass(frozen=True, slots=True)
class RunNumber:
    """The number of a run's workload in its sweep, and its letter if the workload has several."""

    workload: int
    letter: str = ""

    @classmethod
    def parse(cls, text: str) -> RunNumber:
        """Understand an entry's key.

        Raises:
            UsageError: It is no number.
        """
        match = _KEY.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text!r} is not the number of a run", "Remove this entry")
        return cls(int(match[1]), match[2])

    @property
    def label(self) -> str:
        """The workload's, as the original has it."""
        return f"{self.workload:03}"

    def __str__(self) -> str:
        return f"{self.workload}{self.letter}"


@dataclass(frozen=True, slots=True)
class StatusEntry:
    """What an entry says: the cell Status as CSV files have it, the run's id and its params."""

    number: RunNumber
    status: str
    run_id: str
    params: str

    @classmethod
    def parse(cls, key: str, text: str) -> StatusEntry:
        """Understand an entry, the original's or radt's own.

        Raises:
            UsageError: It is neither.
        """
        number = RunNumber.parse(key)
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise _not_an_entry(text)
        params, reason = _params_and_reason(match["rest"])
        run_id = match["run"] or ""
        status = match["status"] + (match["count"] or "") + (f": {reason}" if reason else "")
        return cls(number, status, "" if run_id in _NO_RUN else run_id, params)

    def __str__(self) -> str:
        head, _, reason = self.status.partition(": ")
        return f"{head} {self.run_id or '-'} ({self.params})" + (f": {reason}" if reason else "")

    def key(self, names: Iterable[str], fixed: str) -> Key | None:
        """The combination that the entry is of, None if it is of none of these parameters.

        Args:
            names: The parameters that the sweep has now.
            fixed: The arguments that all its runs have, which must be the entry's, too.
        """
        try:
            words, first = shlex.split(self.params), shlex.split(fixed)
        except ValueError:
            return None  # the original did not quote
        if words[: len(first)] != first:
            return None
        pairs = words[len(first) :]
        known = {f"--{name}": name for name in names}
        options = pairs[::2]
        if len(pairs) % 2 or sorted(options) != sorted(known):
            return None
        return frozenset(
            (known[option], value) for option, value in zip(options, pairs[1::2], strict=True)
        )


def _params_and_reason(rest: str) -> tuple[str, str]:
    """Split what follows the opening bracket at the closing one, which may not be the first."""
    for end in _closing_brackets(rest):
        after = rest[end + 1 :]
        if not after or after.startswith(": "):
            return rest[:end], after[2:]
    raise _not_an_entry(rest)


def _closing_brackets(text: str) -> Iterator[int]:
    """Places of closing brackets: those outside a shell's quotes first, then all of them."""
    quote = ""
    for place, character in enumerate(text):
        if character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote = character
        elif not quote and character == ")":
            yield place
    yield from (place for place, character in enumerate(text) if character == ")")


def _not_an_entry(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not the status of a run",
        'It is written "FINISHED RUN_ID (--lr 0.1)"; remove the entry to run it again',
    )
