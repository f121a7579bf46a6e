"""What was typed into the search field, as terms.

``resnet26 "two words" model:resnet26 batch-size>=64 -status:failed,oom duration>10m age<2d``

Terms stand apart by spaces and must all be met. A word is found anywhere, ``key:value`` in that
field, parameter or tag; ``=`` wants all of the value, ``!=`` another one, ``< <= > >=`` numbers.
Commas part alternatives, a minus before a term turns it round, quotes keep spaces, commas and
signs together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from radt.durations import parse_duration_s
from radt.errors import UsageError

#: Longer searches are no searches.
MAX_TERMS = 40

_OPERATOR = re.compile(r"<=|>=|!=|[:=<>]")
_WEEKS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*w(?:eeks?)?(?![a-z])")
_DAYS_A_WEEK = 7


class Operator(StrEnum):
    """How a field and a value are compared."""

    HAS = ":"
    IS = "="
    IS_NOT = "!="
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="


COMPARE: Mapping[Operator, Callable[[float, float], bool]] = {
    Operator.LESS: lambda a, b: a < b,
    Operator.AT_MOST: lambda a, b: a <= b,
    Operator.MORE: lambda a, b: a > b,
    Operator.AT_LEAST: lambda a, b: a >= b,
}

#: Fields that are lengths of time.
TIMES = frozenset({"duration", "age"})


@dataclass(frozen=True, slots=True)
class Term:
    """One term; ``key`` is empty for a word. Texts are casefolded.

    ``values`` are the alternatives; ``number`` is what they are compared with by size (seconds for
    `TIMES`), None where texts are compared. ``typed`` is the term as it was typed.
    """

    typed: str
    key: str
    operator: Operator
    values: tuple[str, ...]
    number: float | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A term that is not applied, and why."""

    typed: str
    cause: str


@dataclass(frozen=True, slots=True)
class Query:
    """All terms must be met; ``problems`` are those that make no sense."""

    terms: tuple[Term, ...] = ()
    problems: tuple[Problem, ...] = ()


class _UnreadableError(Exception):
    """Why a term makes no sense."""


# Characters of a term, each with whether it stood in quotes.
_Chars = list[tuple[str, bool]]


def parse(text: str) -> Query:
    """Read a search; what cannot be read is among the problems, the rest is applied."""
    terms: list[Term] = []
    problems: list[Problem] = []
    for typed, chars, is_closed in _split(text):
        if len(terms) == MAX_TERMS:
            problems.append(Problem(typed, f"only {MAX_TERMS} terms are applied"))
            break
        try:
            terms.append(_term(typed, chars, is_closed=is_closed))
        except _UnreadableError as why:
            problems.append(Problem(typed, str(why)))
    return Query(tuple(terms), tuple(problems))


def _split(text: str) -> list[tuple[str, _Chars, bool]]:
    """Terms as typed, their characters without quotes, and whether all quotes are closed."""
    found: list[tuple[str, _Chars, bool]] = []
    typed, in_quotes = "", False
    chars: _Chars = []
    for char in text:
        if char.isspace() and not in_quotes:
            if typed:
                found.append((typed, chars, True))
            typed, chars = "", []
            continue
        typed += char
        if char == '"':
            in_quotes = not in_quotes
        else:
            chars.append((char, in_quotes))
    if typed:
        found.append((typed, chars, not in_quotes))
    return found


def _term(typed: str, chars: _Chars, *, is_closed: bool) -> Term:
    if not is_closed:
        raise _UnreadableError("a quote is not closed")
    negated = len(chars) > 1 and chars[0] == ("-", False)
    chars = chars[1:] if negated else chars
    text = "".join(char for char, _ in chars).casefold()
    if not text:
        raise _UnreadableError("there is nothing to search for")
    # What stood in quotes is no sign; any character that is none stands for it here.
    bare = "".join("\0" if quoted else char for char, quoted in chars)
    if (first := _OPERATOR.match(bare)) is not None:
        raise _UnreadableError(f"there is no name before {first.group()}")
    sign = _OPERATOR.search(bare)
    if sign is None:
        return Term(typed, "", Operator.HAS, (text,), negated=negated)
    plain = "".join(char for char, _ in chars)
    key, operator = plain[: sign.start()].casefold(), Operator(sign.group())
    value = plain[sign.end() :].casefold().strip()
    if not value:
        raise _UnreadableError(f"there is no value after {operator}")
    if operator in COMPARE:
        return Term(typed, key, operator, (value,), _number(key, value), negated)
    values = _alternatives(plain[sign.end() :], bare[sign.end() :])
    number = _number(key, value) if key in TIMES else None
    return Term(typed, key, operator, values, number, negated)


def _alternatives(plain: str, bare: str) -> tuple[str, ...]:
    starts = [0, *(place + 1 for place, char in enumerate(bare) if char == ",")]
    ends = [*(start - 1 for start in starts[1:]), len(bare)]
    parts = [plain[start:end].casefold().strip() for start, end in zip(starts, ends, strict=True)]
    return tuple(part for part in parts if part) or (plain.casefold().strip(),)


def _number(key: str, text: str) -> float:
    if key in TIMES:
        return _seconds(key, text)
    number = as_number(text)
    if number is None:
        raise _UnreadableError(f"“{text}” is no number")
    return number


def _seconds(key: str, text: str) -> float:
    if key == "age" and as_number(text) is not None:
        raise _UnreadableError("age takes a unit, such as 3h or 2d")
    days = _WEEKS.sub(lambda found: f"{float(found[1]) * _DAYS_A_WEEK:f}d", text)
    try:
        return parse_duration_s(days)
    except UsageError:
        raise _UnreadableError(f"“{text}” is no length of time, such as 90s, 10m, 2d") from None


def as_number(text: str) -> float | None:
    """The text as a finite number; None if it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
