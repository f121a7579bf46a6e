"""Fills ``{Model}``, ``{Letter}``, ``{AnyColumn}`` into the words of a command.

Words are filled after they were split, so that a value with blanks stays one word. What stands in
braces and is no column is left as it is: JSON and other people's templates survive, as does
``${…}``. ``{{Model}}`` is the text ``{Model}``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from radt.errors import UsageError
from radt.experiment.cells import NEAR_MISS, did_you_mean
from radt.experiment.columns import WRITTEN, Column

#: Stands in the commands of ``[models]`` for each word of the row's Params.
PARAMS_BLANK = Column.PARAMS
LETTER_BLANK = "Letter"
#: What changes from start to start, and what is itself being filled.
BARRED = WRITTEN | {Column.PARAMS}

_BLANK = re.compile(r"\{\{(?P<kept>[^{}]*)\}\}|(?<!\$)\{(?P<name>[^{}]*)\}")
#: For blanks within braces while a text is split; no argument can hold it.
_SPACE = "\0"
#: What may be the name of a column; `{"a": 1}` and `{1,2}` are not.
_NAME = re.compile(r"[^\W\d_][\w .()/%-]*")


@dataclass(frozen=True, slots=True)
class Blanks:
    """What there is to fill in for one row: texts by the names of columns, in any case.

    ``barred`` columns may not be filled in. ``source`` says what is being filled where that is not
    a cell of the row itself, for messages.
    """

    values: Mapping[str, str]
    barred: frozenset[Column] = BARRED
    source: str = ""
    _lower: Mapping[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        lower = {name.lower(): value for name, value in self.values.items()}
        object.__setattr__(self, "_lower", lower)

    def fill(self, word: str, params: str | None = None) -> str:
        """The word with its blanks filled.

        Args:
            word: Any text.
            params: What ``{Params}`` stands for, None where it may not stand at all.

        Raises:
            UsageError: A blank's column is not there or empty, or a blank looks like a typing error
                in a column's name.
        """

        def filled(match: re.Match[str]) -> str:
            kept = match["kept"]
            if kept is not None:
                return f"{{{kept}}}" if self._means_a_column(kept) else match[0]
            name = match["name"]
            if params is not None and name.lower() == PARAMS_BLANK.lower():
                return params
            value = self._value(name)
            return match[0] if value is None else value

        return _BLANK.sub(filled, word)

    def split(self, text: str) -> list[str]:
        """The words of a command line, as a shell would split it; blanks are not filled yet.

        ``{Batch Size}`` stays in one word without quotes.

        Raises:
            ValueError: A quote is not closed.
        """

        def kept(match: re.Match[str]) -> str:
            name = match["kept"] if match["kept"] is not None else match["name"]
            return match[0].replace(" ", _SPACE) if self._means_a_column(name) else match[0]

        return [word.replace(_SPACE, " ") for word in shlex.split(_BLANK.sub(kept, text))]

    def expand(self, words: Sequence[str], params: Sequence[str]) -> list[str]:
        """The words of a command from ``[models]``, filled.

        A word with ``{Params}`` stands there once for each of the row's parameters; where no word
        has it, they come last.

        Raises:
            UsageError: See `fill`.
        """
        command: list[str] = []
        used = False
        for word in words:
            if has_params(word):
                used = True
                command += [self.fill(word, params=param) for param in params]
            else:
                command.append(self.fill(word))
        return command if used else [*command, *params]

    def _value(self, name: str) -> str | None:
        """What the blank stands for; None if it is no blank."""
        where = f" in {self.source}" if self.source else ""
        literal = f"{{{{{name}}}}} is the text {{{name}}}"
        column = Column.named(name) if name == name.strip() else None
        if column is not None and column in self.barred:
            raise UsageError(f"{{{name}}}{where} cannot be filled in", literal)
        value = self._lower.get(name.lower())
        if value:
            return value
        if value is not None:
            raise UsageError(
                f"{{{name}}}{where} has nothing to stand for", f"Fill the row's {name} cell"
            )
        if column is not None:
            raise UsageError(
                f"{{{name}}}{where}: there is no such column", f"Add it, or: {literal}"
            )
        if hint := self._near(name):
            raise UsageError(f"{{{name}}}{where} is no column", f"{hint} {literal}")
        return None

    def _near(self, name: str) -> str:
        if _NAME.fullmatch(name) is None:
            return ""
        return did_you_mean(name, [*self.values, *Column], cutoff=NEAR_MISS)

    def _means_a_column(self, name: str) -> bool:
        return (
            name.lower() in self._lower or Column.named(name) is not None or bool(self._near(name))
        )


def has_params(word: str) -> bool:
    """Whether the word stands once for each parameter."""
    return any(
        match["name"] is not None and match["name"].lower() == PARAMS_BLANK.lower()
        for match in _BLANK.finditer(word)
    )
