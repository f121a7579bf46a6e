"""Parse the text of the search field into terms.

``resnet26 "two words" model:resnet26 lr < 1e-3 accuracy.max > 0.93 -status:failed,oom age<2d``

Terms are separated by spaces, and a run has to match all of them. A word matches anywhere,
``key:value`` matches part of a field, parameter or tag, ``key~regex`` a part that has the form of a
regular expression (RE2), ``=`` the whole value, ``!=`` any other value, and ``< <= > >=`` compare
numbers; spaces may surround all of these but the colon and the tilde. ``METRIC.last``, ``.min``,
``.max`` and ``.mean`` are numbers of a metric. Commas separate alternatives, a leading minus
negates a term, and quotes keep spaces, commas and operators as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from radt.errors import UsageError
from radt.units import parse_duration_s

#: The limit on terms in one search.
MAX_TERMS = 40

# A tilde at the beginning, and one before a slash after a sign, is that of a home folder.
_OPERATOR = re.compile(r"<=|>=|!=|[:=<>]|(?<!^)~")
_SIGNS = re.compile(r"(?:[=<>!]|~(?!/))*")
_WORD_OPERATORS = ("AND", "OR", "NOT")
#: Operators that may follow or precede a space within a term.
_COMPARISON = re.compile(r"\s+(<=|>=|!=|[=<>])")
_WEEKS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*w(?:eeks?)?(?![a-z])")
_DAYS_A_WEEK = 7


class Operator(StrEnum):
    """Comparison of a field with a value."""

    HAS = ":"
    MATCHES = "~"
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

#: Fields that hold a duration.
TIMES = frozenset({"duration", "age"})


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a search, with casefolded texts. ``key`` is empty for a word.

    ``values`` are the alternatives, or a regular expression. ``number`` is the number to compare
    with (seconds for `TIMES`), None for texts. ``typed`` is the term as the user typed it.
    """

    typed: str
    key: str
    operator: Operator
    values: tuple[str, ...]
    number: float | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IgnoredTerm:
    """A term that the search ignores, and the reason."""

    typed: str
    cause: str


@dataclass(frozen=True, slots=True)
class Query:
    """The terms of a search, and problems for those that cannot be parsed."""

    terms: tuple[Term, ...] = ()
    problems: tuple[IgnoredTerm, ...] = ()


class _TermError(Exception):
    """A term cannot be parsed."""


# Characters of a term, and for each whether it was in quotes.
_Chars = list[tuple[str, bool]]


def parse(text: str) -> Query:
    """Parse a search. Terms that cannot be parsed are in its problems."""
    terms: list[Term] = []
    problems: list[IgnoredTerm] = []
    for typed, chars, is_closed in _split(text):
        if len(terms) == MAX_TERMS:
            problems.append(IgnoredTerm(typed, f"a search has at most {MAX_TERMS} terms"))
            break
        try:
            terms.append(_term(typed, chars, is_closed=is_closed))
        except _TermError as why:
            problems.append(IgnoredTerm(typed, str(why)))
    return Query(tuple(terms), tuple(problems))


def _split(text: str) -> list[tuple[str, _Chars, bool]]:
    """Split into terms: the term as typed, its unquoted characters, whether all quotes close."""
    terms: list[tuple[str, _Chars, bool]] = []
    typed, in_quotes = "", False
    chars: _Chars = []
    for place, char in enumerate(text):
        if char.isspace() and not in_quotes:
            if _goes_on(chars, text[place:]):
                continue
            if typed:
                terms.append((typed, chars, True))
            typed, chars = "", []
            continue
        typed += char
        if char == '"':
            in_quotes = not in_quotes
        else:
            chars.append((char, in_quotes))
    if typed:
        terms.append((typed, chars, not in_quotes))
    return terms


def _goes_on(chars: _Chars, rest: str) -> bool:
    """Return True if a term continues after a space with a comparison or its value."""
    bare = "".join(char for char, is_quoted in chars if not is_quoted)
    if chars and _OPERATOR.search(bare) is None:
        return _COMPARISON.match(rest) is not None
    return bare[-1:] in ("=", "<", ">") and not chars[-1][1]


def _term(typed: str, chars: _Chars, *, is_closed: bool) -> Term:
    if not is_closed:
        raise _TermError("the quote is not closed")
    negated = len(chars) > 1 and chars[0] == ("-", False)
    chars = chars[1:] if negated else chars
    text = "".join(char for char, _ in chars).casefold()
    if not text:
        raise _TermError("the term is empty")
    # Operators in quotes are text, so replace them by a character that is not an operator.
    bare = "".join("\0" if quoted else char for char, quoted in chars)
    if (first := _OPERATOR.match(bare)) is not None:
        raise _TermError(f"expected a name before {first.group()}")
    sign = _OPERATOR.search(bare)
    if sign is None:
        if typed in _WORD_OPERATORS:
            raise _TermError("expected no AND, OR or NOT: write key:a,b for “or”, -term for “not”")
        return Term(typed, "", Operator.HAS, (text,), negated=negated)
    plain = "".join(char for char, _ in chars)
    key, operator = plain[: sign.start()].casefold(), Operator(sign.group())
    if (signs := _signs(bare, sign)) != operator:
        raise _TermError(f"unknown operator {signs}; there are {' '.join(Operator)}")
    value = plain[sign.end() :].casefold().strip()
    if not value:
        raise _TermError(f"expected a value after {operator}")
    if operator is Operator.MATCHES:
        pattern = plain[sign.end() :].strip()
        _check_pattern(key, pattern)
        return Term(typed, key, operator, (pattern,), negated=negated)
    if operator in COMPARE:
        return Term(typed, key, operator, (value,), _number(key, value), negated)
    values = _alternatives(plain[sign.end() :], bare[sign.end() :])
    number = _number(key, value) if key in TIMES else None
    return Term(typed, key, operator, values, number, negated)


def _signs(bare: str, sign: re.Match[str]) -> str:
    """Return the operator with the signs around it, such as ``==`` and ``!~``."""
    if sign.group() == Operator.HAS:  # a value may start with any sign
        return sign.group()
    if sign.group() == Operator.MATCHES:
        return "!~" if bare[sign.start() - 1] == "!" else sign.group()
    found = _SIGNS.match(bare, sign.start())
    return sign.group() if found is None else found.group()


def _check_pattern(key: str, pattern: str) -> None:
    if key in TIMES:
        raise _TermError(f"{key} is a time: compare it with < or >")
    try:
        matches(pattern, "")
    except ValueError as error:
        raise _TermError(f"“{pattern}” is not a regular expression: {error}") from None


@lru_cache(maxsize=100_000)
def matches(pattern: str, text: str) -> bool:
    """Return whether a regular expression is found in a text, in any case.

    RE2 takes linear time for any expression, which matters in a dashboard of several users.

    Raises:
        ValueError: The pattern is not a regular expression.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.match_substring_regex(pa.array([text], pa.string()), pattern, ignore_case=True)
    return bool(found[0].as_py())


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
        raise _TermError(f"“{text}” is not a number")
    return number


def _seconds(key: str, text: str) -> float:
    if key == "age" and as_number(text) is not None:
        raise _TermError("age needs a unit, such as 3h or 2d")
    days = _WEEKS.sub(lambda match: f"{float(match[1]) * _DAYS_A_WEEK:f}d", text)
    try:
        return parse_duration_s(days)
    except UsageError:
        raise _TermError(f"“{text}” is not a duration such as 90s, 10m or 2d") from None


@lru_cache(maxsize=100_000)  # a search tests the values of each run, which repeat
def as_number(text: str) -> float | None:
    """Return the text as a finite number, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
