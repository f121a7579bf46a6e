"""The runs of all experiments that a search finds; from memory while nothing changes."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from radt.frontend.catalog import Catalog, WorkloadEntry, read_catalog, read_experiments
from radt.frontend.searching.fields import ALIASES, TEXTS, Texts
from radt.frontend.searching.matching import Matcher, unknown
from radt.frontend.searching.terms import TIMES, Problem, Query, parse
from radt.frontend.source import Source
from radt.model import RunStatus
from radt.store.records import ExperimentSummary

#: What is found now by age or duration is not what is found this much later.
_TIMES_HOLD_S = 15
_RECENT_RESULTS = 64

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class FoundExperiment:
    """An experiment and how many of its runs were found; ``workloads`` None stands for all."""

    summary: ExperimentSummary
    run_count: int
    workloads: tuple[WorkloadEntry, ...] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a search finds, the experiment that was active last first.

    ``statuses`` counts the runs that the words find, before states are chosen among them.
    """

    experiments: tuple[FoundExperiment, ...]
    statuses: Mapping[RunStatus, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    total_count: int = 0

    @property
    def run_count(self) -> int:
        return sum(one.run_count for one in self.experiments)

    def of(self, experiment: str | None) -> FoundExperiment | None:
        """What was found of an experiment; None for nothing."""
        return next((one for one in self.experiments if one.summary.name == experiment), None)


class Recent:
    """Some results of a revision, the ones asked for last; thread-safe."""

    def __init__(self, limit: int = _RECENT_RESULTS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, object] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._results

    def get(self, key: Hashable, make: Callable[[], ResultT]) -> ResultT:
        """The result under the key, made if it is not there (perhaps by two threads at once)."""
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


def recent(source: Source) -> Recent:
    """Results that hold as long as the store does not change."""
    return source.remember("recent", lambda _: Recent())


def find(source: Source, text: str, statuses: frozenset[RunStatus] = frozenset()) -> Found:
    """Search all experiments; ``statuses`` keeps runs in these states only, empty for all.

    Raises:
        StoreError: The store cannot be read.
    """
    query = parse(text)
    timed = any(term.key in TIMES for term in query.terms)
    moment = int(time.monotonic() / _TIMES_HOLD_S) if timed else 0
    return recent(source).get(
        ("found", text, statuses, moment), lambda: _find(source, query, statuses)
    )


def read_texts(source: Source) -> Texts:
    """Parameters and tags of all runs.

    Raises:
        StoreError: The store cannot be read.
    """
    ids = [run_id for catalog in _catalogs(source) for run_id in catalog.runs]
    return source.remember("texts", lambda r: _texts(r.params_of(ids), r.tags_of(ids)))


def _find(source: Source, query: Query, statuses: frozenset[RunStatus]) -> Found:
    summaries = read_experiments(source)
    total = sum(one.run_count for one in summaries)
    if not query.terms and not statuses and source.server is None:
        counts: Counter[RunStatus] = Counter()
        for one in summaries:
            counts.update(one.statuses)
        everything = tuple(FoundExperiment(one, one.run_count) for one in summaries)
        return Found(everything, counts, query.problems, total)
    asks_texts = any(
        ALIASES.get(term.key, term.key) not in TEXTS and term.key not in TIMES
        for term in query.terms
    )
    texts = read_texts(source) if asks_texts else Texts({}, {}, frozenset())
    words = source.remember("words", lambda _: dict[str, str]()) if asks_texts else {}
    matcher = Matcher(query, texts, words)
    found: list[FoundExperiment] = []
    counts = Counter()
    for summary, catalog in zip(summaries, _catalogs(source), strict=True):
        workloads: list[WorkloadEntry] = []
        for workload in catalog.workloads:
            runs = tuple(run for run in workload.runs if matcher.matches(run))
            counts.update(run.record.status for run in runs)
            if statuses:
                runs = tuple(run for run in runs if run.record.status in statuses)
            if runs:
                whole = len(runs) == len(workload.runs)
                workloads.append(workload if whole else replace(workload, runs=runs))
        if workloads or not (query.terms or statuses):
            count = sum(len(workload.runs) for workload in workloads)
            found.append(FoundExperiment(summary, count, tuple(workloads)))
    problems = (*query.problems, *(unknown(query, texts) if asks_texts else ()))
    return Found(tuple(found), counts, problems, total)


def _catalogs(source: Source) -> Sequence[Catalog]:
    return [read_catalog(source, one.name) for one in read_experiments(source)]


def _texts(params: dict[str, dict[str, str]], tags: dict[str, dict[str, str]]) -> Texts:
    keys: set[str] = set()
    folded: dict[str, str] = {}  # most runs have the same keys
    for of_runs in (params, tags):
        for run_id, texts in of_runs.items():
            of_runs[run_id] = {
                folded.setdefault(key, key.casefold()): value for key, value in texts.items()
            }
    keys.update(folded.values())
    return Texts(params, tags, frozenset(keys))
