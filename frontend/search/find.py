"""Find the runs that a search matches, in all experiments; results are cached per revision."""

from __future__ import annotations

import difflib
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from radt.analysis.metric_columns import STATISTICS
from radt.analysis.quantities import Quantity, Statistic
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import (
    Catalog,
    RunEntry,
    read_catalog,
    read_experiments,
)
from radt.frontend.data.metric_columns import metric_columns, metric_names
from radt.frontend.data.run_facts import time_per_epoch_s
from radt.frontend.search.query import (
    COMPARE,
    TIMES,
    IgnoredTerm,
    Operator,
    Query,
    Term,
    as_number,
    matches,
    parse,
)
from radt.model import STATUS_WORDS, RunStatus
from radt.tags import ARCHIVED, MLFLOW_NOTE, STARRED, YES

_NS_PER_S = 1_000_000_000

#: The text fields of a run, by their names in searches.
TEXTS: Mapping[str, Callable[[RunEntry], str]] = {
    "status": lambda run: f"{run.record.status} {STATUS_WORDS[run.record.status]}",
    "device": lambda run: run.record.devices,
    "workload": lambda run: run.record.workload,
    "experiment": lambda run: run.record.experiment,
    "letter": lambda run: run.record.letter,
    "name": lambda run: run.record.name,
    "command": lambda run: run.record.command,
    "host": lambda run: run.record.host,
    "collocation": lambda run: run.record.collocation,
    "listener": lambda run: run.record.listeners,
    "run": lambda run: f"{run.record.run_id} {run.record.mlflow_run_id or ''}",
    "reason": lambda run: run.record.end_reason,
    "profiled": lambda run: run.profiled,
    "pruned": lambda run: run.pruned,
}
#: Fields whose values are never compared as numbers.
WORDS_ONLY = frozenset({"run", "status", "command", "reason"})
ALIASES: Mapping[str, str] = {
    "devices": "device",
    "listeners": "listener",
    "starred": STARRED,
    "archived": ARCHIVED,
    "description": MLFLOW_NOTE,
    "run_id": "run",
    "machine": "host",
    "state": "status",
}
#: Name of a run's seconds per epoch.
TIME_PER_EPOCH = Quantity.TIME_PER_EPOCH.value
#: Prefixes of tags that radt and MLflow set. These match by name only, not by words.
OWN_TAGS = ("radt.", "mlflow.")
#: How long the result of a search by age or duration is cached.
_TIMES_HOLD_S = 15
_RECENT_RESULTS = 64

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Texts:
    """Parameters and tags by run and key; keys are casefolded."""

    params: Mapping[str, Mapping[str, str]]
    tags: Mapping[str, Mapping[str, str]]
    keys: frozenset[str]


#: A statistic of a metric, by run.
Numbers = Mapping[str, float]


def active_ns(run: RunEntry) -> int:
    """Return when the run ended, started or was created, whichever came last."""
    record = run.record
    return record.ended_ns or record.started_ns or record.created_ns


def everything(run: RunEntry, texts: Texts) -> str:
    """Return all text that a search for words looks at, casefolded."""
    record = run.record
    parts = [f"{run.short} {record.name}", record.experiment, record.command, record.run_id]
    parts += [record.mlflow_run_id or "", TEXTS["status"](run), record.host, record.collocation]
    parts += [f"{key}={value}" for key, value in texts.params.get(record.run_id, {}).items()]
    parts += [
        f"{key}={value}"
        for key, value in texts.tags.get(record.run_id, {}).items()
        if not key.startswith(OWN_TAGS)
    ]
    return "\n".join(parts).casefold()


class Matcher:
    """Matches runs against all terms of a query.

    Args:
        query: The parsed search.
        texts: Parameters and tags of all runs.
        numbers: The metrics that the query names, by the key of their terms.
        words: A cache of `everything` by run id.
        now_ns: The current time, for ages and for durations of running runs.
    """

    def __init__(
        self,
        query: Query,
        texts: Texts,
        numbers: Mapping[str, Numbers],
        words: dict[str, str],
        now_ns: int | None = None,
    ) -> None:
        self._texts = texts
        self._numbers = numbers
        self._words = words
        self._now_ns = time.time_ns() if now_ns is None else now_ns
        self._tests = [(self._test(term), term.negated) for term in query.terms]

    def matches(self, run: RunEntry) -> bool:
        """Return whether the run matches all terms."""
        return all(test(run) is not negated for test, negated in self._tests)

    def _test(self, term: Term) -> Callable[[RunEntry], bool]:
        key = ALIASES.get(term.key, term.key)
        if not key:
            return lambda run: term.values[0] in self._everything(run)
        if key in TIMES:
            return self._time_test(key, term)
        met = _value_test(term, numbers=key not in WORDS_ONLY)
        if key == "status":
            return lambda run: met((run.record.status, STATUS_WORDS[run.record.status]))
        if (text := TEXTS.get(key)) is not None:
            return lambda run: met((text(run),))
        if (values := self._numbers.get(key)) is not None:
            if term.operator in COMPARE:
                compare, wanted = COMPARE[term.operator], term.number
                assert wanted is not None
                return lambda run: compare(values.get(run.run_id, math.nan), wanted)
            return lambda run: run.run_id in values and met((repr(values[run.run_id]),))
        # A parameter and a tag may have the same name.
        params, tags = self._texts.params, self._texts.tags

        def test(run: RunEntry) -> bool:
            values = (each.get(run.run_id, {}).get(key) for each in (params, tags))
            return met(value for value in values if value is not None)

        return test

    def _time_test(self, key: str, term: Term) -> Callable[[RunEntry], bool]:
        assert term.number is not None
        wanted_s = term.number

        def test(run: RunEntry) -> bool:
            if key == "age":
                seconds: float | None = (self._now_ns - active_ns(run)) / _NS_PER_S
            else:
                seconds = run.record.lasted_s(self._now_ns)
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
    """Return a function that tests if any value of a run matches the term."""
    if term.operator in COMPARE:
        compare, wanted = COMPARE[term.operator], term.number
        assert wanted is not None
        return lambda values: any(
            (number := as_number(value)) is not None and compare(number, wanted) for value in values
        )
    if term.operator is Operator.MATCHES:
        (pattern,) = term.values
        return lambda values: any(matches(pattern, value) for value in values)
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
                # 64 equals 64.0, and neither is part of 640.
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


def numbers_of(source: CachedStore, query: Query, texts: Texts) -> dict[str, Numbers]:
    """Return the numbers that the query's terms on metrics compare, by key.

    A key is ``METRIC.STATISTIC``, or ``METRIC`` for its last value, unless a parameter or tag has
    this name (``lr.min``); or `TIME_PER_EPOCH`.

    Raises:
        StoreError: The store cannot be read.
    """
    known = {name.metric.casefold(): name.metric for name in metric_names(source)}
    meant: dict[str, tuple[str, Statistic]] = {}
    keys = {ALIASES.get(term.key, term.key) for term in query.terms} - {*TEXTS, *TIMES}
    for key in keys - {TIME_PER_EPOCH, *texts.keys}:
        metric, _, statistic = key.rpartition(".")
        if metric in known and statistic in STATISTICS:
            meant[key] = known[metric], Statistic(statistic)
        elif key in known:
            meant[key] = known[key], Statistic.LAST
    columns = metric_columns(source, [metric for metric, _ in meant.values()])
    times = {TIME_PER_EPOCH: time_per_epoch_s(source)} if TIME_PER_EPOCH in keys else {}
    return times | {
        key: dict(
            zip(columns[metric].run_ids, columns[metric].numbers[statistic].tolist(), strict=True)
        )
        for key, (metric, statistic) in meant.items()
        if metric in columns
    }


def unknown(
    query: Query, texts: Texts, numbers: Mapping[str, Numbers], metrics: Iterable[str]
) -> tuple[IgnoredTerm, ...]:
    """Return a problem for each term whose key no run has, to explain an empty result."""
    of_metrics = [
        f"{metric}.{statistic}".casefold() for metric in metrics for statistic in STATISTICS
    ]
    known: Mapping[str, None] = dict.fromkeys(
        [*TEXTS, *ALIASES, *TIMES, *sorted(texts.keys), *numbers, *of_metrics]
    )
    problems = []
    for term in query.terms:
        if term.key and term.key not in known:
            cause = f"no run has a parameter, tag or metric “{term.key}”"
            if close := difflib.get_close_matches(term.key, known, 1):
                cause += f"; did you mean {close[0]}?"
            problems.append(IgnoredTerm(term.typed, cause))
    return tuple(problems)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search in all experiments.

    ``runs`` are the found runs, None if all are. ``statuses`` counts, by experiment, the runs that
    match the terms, whatever their status.
    """

    runs: tuple[RunEntry, ...] | None
    statuses: Mapping[str, Mapping[RunStatus, int]] = field(default_factory=dict)
    problems: tuple[IgnoredTerm, ...] = ()

    def counts(self, experiment: str | None) -> Mapping[RunStatus, int]:
        """Return `statuses` for one experiment, or for all if `experiment` is None."""
        counts: Counter[RunStatus] = Counter()
        for name, of_experiment in self.statuses.items():
            if experiment in (None, name):
                counts.update(of_experiment)
        return counts


class Recent:
    """The most recent results for one revision of the store. Thread-safe."""

    def __init__(self, limit: int = _RECENT_RESULTS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, object] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], ResultT]) -> ResultT:
        """Return the result for a key. Two threads may compute it at the same time."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return cast(ResultT, self._results[key])
        made = make()
        with self._lock:
            self._results[key] = made
            while len(self._results) > self._limit:
                self._results.popitem(last=False)
        return made


def recent(source: CachedStore) -> Recent:
    """Return the results for the current revision of the store."""
    return source.remember("recent", lambda _: Recent())


def find(source: CachedStore, text: str, statuses: frozenset[RunStatus] = frozenset()) -> Found:
    """Search all experiments. If ``statuses`` is not empty, return only runs with one of them.

    Raises:
        StoreError: The store cannot be read.
    """
    query = parse(text)
    timed = any(term.key in TIMES for term in query.terms)
    moment = int(time.monotonic() / _TIMES_HOLD_S) if timed else 0
    return recent(source).get(
        ("found", text, statuses, moment), lambda: _find(source, query, statuses)
    )


def read_params(source: CachedStore) -> Mapping[str, Mapping[str, str]]:
    """Return the parameters of all runs, by run and key.

    Raises:
        StoreError: The store cannot be read.
    """
    ids = _run_ids(source)
    return source.remember("params", lambda reader: reader.params_of(ids))


def read_tags(source: CachedStore) -> Mapping[str, Mapping[str, str]]:
    """Return the tags of all runs, by run and key.

    Raises:
        StoreError: The store cannot be read.
    """
    ids = _run_ids(source)
    return source.remember("tags", lambda reader: reader.tags_of(ids))


def read_texts(source: CachedStore) -> Texts:
    """Return the parameters and tags of all runs in the form that a search compares.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember("texts", lambda _: _texts(read_params(source), read_tags(source)))


def _run_ids(source: CachedStore) -> Sequence[str]:
    return [run_id for catalog in _catalogs(source) for run_id in catalog.runs]


def _find(source: CachedStore, query: Query, statuses: frozenset[RunStatus]) -> Found:
    asks_archived = any(ALIASES.get(term.key, term.key) == ARCHIVED for term in query.terms)
    hides = not asks_archived and source.remember(
        "archived", lambda reader: reader.has_tag(ARCHIVED, YES)
    )
    if not (query.terms or statuses or hides):
        counts = {entry.name: entry.statuses for entry in read_experiments(source)}
        return Found(None, counts, query.problems)
    asks_texts = any(
        ALIASES.get(term.key, term.key) not in TEXTS and term.key not in TIMES
        for term in query.terms
    )
    texts = read_texts(source) if asks_texts else Texts({}, {}, frozenset())
    words = source.remember("words", lambda _: dict[str, str]()) if asks_texts else {}
    numbers = numbers_of(source, query, texts) if asks_texts else {}
    matcher = Matcher(query, texts, numbers, words)
    matching = [
        run
        for catalog in _catalogs(source)
        for run in catalog.runs.values()
        if not (hides and run.is_archived) and matcher.matches(run)
    ]
    by_experiment: dict[str, Counter[RunStatus]] = {}
    for run in matching:
        by_experiment.setdefault(run.record.experiment, Counter())[run.record.status] += 1
    runs = tuple(run for run in matching if not statuses or run.record.status in statuses)
    problems = query.problems
    if asks_texts:
        metrics = [name.metric for name in metric_names(source)]
        problems += unknown(query, texts, numbers, metrics)
    return Found(runs, by_experiment, problems)


def _catalogs(source: CachedStore) -> Sequence[Catalog]:
    return [read_catalog(source, summary.name) for summary in read_experiments(source)]


def _texts(params: Mapping[str, Mapping[str, str]], tags: Mapping[str, Mapping[str, str]]) -> Texts:
    keys: dict[str, str] = {}  # most runs share the same keys
    folded_params, folded_tags = (
        {
            run_id: {keys.setdefault(key, key.casefold()): text for key, text in texts.items()}
            for run_id, texts in of_runs.items()
        }
        for of_runs in (params, tags)
    )
    return Texts(folded_params, folded_tags, frozenset(keys.values()))
