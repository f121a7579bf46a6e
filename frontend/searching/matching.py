"""Which runs meet the terms of a search."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Mapping

from radt.frontend.catalog import RunEntry
from radt.frontend.searching.fields import (
    ALIASES,
    TEXTS,
    WORDS_ONLY,
    Texts,
    active_ns,
    duration_s,
    everything,
)
from radt.frontend.searching.terms import (
    COMPARE,
    TIMES,
    Operator,
    Problem,
    Query,
    Term,
    as_number,
)

_NS_PER_S = 1_000_000_000


class Matcher:
    """Tells runs that meet all terms from those that do not.

    Args:
        query: What was typed.
        texts: Parameters and tags.
        words: `everything` of each run by id, filled as it is asked for.
        now_ns: What age and the duration of running runs are measured at.
    """

    def __init__(
        self, query: Query, texts: Texts, words: dict[str, str], now_ns: int | None = None
    ) -> None:
        self._texts = texts
        self._words = words
        self._now_ns = time.time_ns() if now_ns is None else now_ns
        self._tests = [(self._test(term), term.negated) for term in query.terms]

    def matches(self, run: RunEntry) -> bool:
        """Whether the run meets all terms."""
        return all(test(run) is not negated for test, negated in self._tests)

    def _test(self, term: Term) -> Callable[[RunEntry], bool]:
        key = ALIASES.get(term.key, term.key)
        if not key:
            return lambda run: term.values[0] in self._everything(run)
        if key in TIMES:
            return self._time_test(key, term)
        met = _value_test(term, numbers=key not in WORDS_ONLY)
        if (text := TEXTS.get(key)) is not None:
            return lambda run: met((text(run),))
        # The same name may be a parameter and a tag.
        params, tags = self._texts.params, self._texts.tags

        def test(run: RunEntry) -> bool:
            found = (each.get(run.run_id, {}).get(key) for each in (params, tags))
            return met(value for value in found if value is not None)

        return test

    def _time_test(self, key: str, term: Term) -> Callable[[RunEntry], bool]:
        assert term.number is not None
        wanted_s = term.number

        def test(run: RunEntry) -> bool:
            if key == "age":
                seconds: float | None = (self._now_ns - active_ns(run)) / _NS_PER_S
            else:
                seconds = duration_s(run, self._now_ns)
            if seconds is None:
                return False
            if term.operator in COMPARE:
                return COMPARE[term.operator](seconds, wanted_s)
            same = round(seconds) == round(wanted_s)
            return same is not (term.operator is Operator.IS_NOT)

        return test

    def _everything(self, run: RunEntry) -> str:
        text = self._words.get(run.run_id)
        if text is None:
            text = self._words[run.run_id] = everything(run, self._texts)
        return text


def _value_test(term: Term, *, numbers: bool) -> Callable[[Iterable[str]], bool]:
    """Whether one of the values of a run meets a term."""
    if term.operator in COMPARE:
        compare, wanted = COMPARE[term.operator], term.number
        assert wanted is not None
        return lambda values: any(
            (number := as_number(value)) is not None and compare(number, wanted) for value in values
        )
    options = [(value, as_number(value) if numbers else None) for value in term.values]
    partly = term.operator is Operator.HAS

    def same(given: str) -> bool:
        text = given.casefold()
        number: float | None = None
        for value, wanted in options:
            if text == value:
                return True
            if wanted is not None:
                number = as_number(text) if number is None else number
                # 64 is 64.0, and neither is part of 640.
                if number is not None:
                    if number == wanted:
                        return True
                    continue
            if partly and value in text:
                return True
        return False

    if term.operator is Operator.IS_NOT:
        return lambda values: any(not same(value) for value in values)
    return lambda values: any(same(value) for value in values)


def unknown(query: Query, texts: Texts) -> tuple[Problem, ...]:
    """Terms that name what no run has; they find nothing, which wants an explanation."""
    known: Mapping[str, None] = dict.fromkeys([*TEXTS, *ALIASES, *TIMES, *sorted(texts.keys)])
    found = []
    for term in query.terms:
        if term.key and term.key not in known:
            cause = f"no run has a parameter or tag “{term.key}”"
            if close := difflib.get_close_matches(term.key, known, 1):
                cause += f"; did you mean {close[0]}?"
            found.append(Problem(term.typed, cause))
    return tuple(found)
