"""Reports of an experiment or a selection, sorted and coloured for the page, and advice on one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

from sqlalchemy import text

from radt.analysis.advice import Advice, advise
from radt.analysis.quantities import Statistic
from radt.analysis.report import Report, ReportCache, read_report
from radt.analysis.series_quantities import SeriesQuantity, joined
from radt.analysis.window_spec import WindowSpec
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import read_catalog, tint
from radt.frontend.data.report_model import (
    BY_NAME,
    BY_ORDER,
    BY_WORKLOAD,
    Choices,
    Shown,
    sorted_groups,
)
from radt.frontend.data.spec import Pick, PickKind
from radt.frontend.selection import latest_experiment
from radt.frontend.view import View
from radt.model import SOFTWARE
from radt.render.labels import natural
from radt.render.report_content import Item, items_of
from radt.store.reader import StoreReader

#: Maximum number of experiments whose reports are cached.
_REMEMBERED = 8


def read_shown(source: CachedStore, view: View) -> Shown:
    """Read the report of a view's experiment or selection.

    Raises:
        NothingRecordedError: No experiment is stored.
        StoreError: The store cannot be read.
    """
    choices = Choices.of(view.options)
    picks = view.picks if choices.picked and view.picks else None
    names = _names(source, view, choices)
    reports = tuple(
        _read(
            source,
            name,
            profiled=choices.profiled,
            window=choices.window,
            series=choices.series,
        )
        for name in names
    )
    items = [
        item
        for report in reports
        for item in _items(report, choices, with_experiment=len(names) > 1)
        if picks is None or _is_picked(item, picks)
    ]
    tints: dict[str, int] = {}
    for name in names:
        tints |= source.remember(("tints", name), partial(_tints, source, name))
    series = joined(choices.series, [report.series for report in reports])
    quantities = Report("", [item.summary for item in items], series=series).quantities
    return Shown(
        reports,
        tuple(sorted_items(items, choices)),
        quantities,
        columns=choices.shown(quantities),
        tints=tints,
        problems=series.problems,
    )


def _items(report: Report, choices: Choices, *, with_experiment: bool) -> Iterator[Item]:
    prefix = f"{report.experiment} " if with_experiment else ""
    for item in items_of(report.workloads, report.experiment):
        groups = sorted_groups(item.summary, choices)
        yield replace(item, label=f"{prefix}{item.label}", groups=groups)


def _names(source: CachedStore, view: View, choices: Choices) -> tuple[str, ...]:
    """Return the reported experiments."""
    if choices.picked and view.picks:
        return tuple(dict.fromkeys(pick.experiment for pick in view.picks))
    return (view.experiment or latest_experiment(source),)


def sorted_items(items: Iterable[Item], choices: Choices) -> list[Item]:
    """Sort by the chosen column. Workloads without a value come last in both directions.

    A workload is sorted by its first group: the smallest in ascending order, else the largest.
    """
    in_order = list(items)
    if choices.sort == BY_ORDER:
        return in_order
    if choices.sort in (BY_WORKLOAD, BY_NAME):
        return sorted(
            in_order,
            key=lambda each: natural(
                each.name if choices.sort == BY_WORKLOAD else each.groups[0].name
            ),
            reverse=choices.is_descending,
        )
    quantity = choices.sort_quantity
    if quantity is None:
        return in_order
    best = max if choices.is_descending else min
    values = [
        [
            estimate.mean
            for group in item.groups
            if (estimate := item.summary.estimate(quantity, group)) is not None
        ]
        for item in in_order
    ]
    known = [(best(estimates), place) for place, estimates in enumerate(values) if estimates]
    # Python's sort is stable, so equal workloads stay in the order of the experiment.
    known.sort(key=lambda pair: -pair[0] if choices.is_descending else pair[0])
    unknown = [place for place, estimates in enumerate(values) if not estimates]
    return [in_order[place] for _, place in known] + [in_order[place] for place in unknown]


def read_advice(source: CachedStore, experiment: str) -> Advice:
    """Return the advice on an experiment.

    Raises:
        StoreError: The store cannot be read.
    """
    cache = _cache(source, ("advice", experiment))
    return source.remember(
        ("advice", experiment), lambda reader: advise(reader, experiment, cache=cache)
    )


_caches: WeakKeyDictionary[CachedStore, OrderedDict[Hashable, ReportCache]] = WeakKeyDictionary()
_lock = threading.Lock()


def _read(
    source: CachedStore,
    experiment: str,
    *,
    profiled: bool,
    window: WindowSpec,
    series: tuple[SeriesQuantity, ...],
) -> Report:
    key = (experiment, profiled, window, series)
    cache = _cache(source, key)

    def read(reader: StoreReader) -> Report:
        try:
            return read_report(
                reader, experiment, profiled=profiled, window=window, cache=cache, series=series
            )
        finally:
            cache.progress = None

    return source.remember(("report", *key), read)


def _cache(source: CachedStore, key: Hashable) -> ReportCache:
    with _lock:
        caches = _caches.setdefault(source, OrderedDict())
        cache = caches.setdefault(key, ReportCache())
        caches.move_to_end(key)
        while len(caches) > _REMEMBERED:
            caches.popitem(last=False)
    return cache


def read_progress(source: CachedStore, view: View) -> tuple[int, int] | None:
    """Return the numbers of workloads read so far and in total; None if the report is complete.

    Raises:
        NothingRecordedError: No experiment is stored.
        StoreError: The store cannot be read.
    """
    choices = Choices.of(view.options)
    each = [
        _cache(source, (name, choices.profiled, choices.window, choices.series)).progress
        for name in _names(source, view, choices)
    ]
    known = [progress for progress in each if progress is not None]
    return known[0] if known else None


_LOGGED = text(
    "SELECT DISTINCT series.metric FROM series JOIN run ON run.run_id = series.run_id "
    "WHERE run.experiment = :experiment AND series.listener = :listener ORDER BY series.metric"
)
#: Suggested statistics of each logged metric.
_SUGGESTED = (Statistic.LAST, Statistic.MAX, Statistic.MIN, Statistic.MEAN, Statistic.P95)


def suggestions(source: CachedStore, experiment: str) -> list[str]:
    """Return suggested quantities of metrics that an experiment's scripts logged.

    Raises:
        StoreError: The store cannot be read.
    """

    def metrics(reader: StoreReader) -> list[str]:
        with reader.snapshot() as connection:
            parameters = {"experiment": experiment, "listener": SOFTWARE}
            return [str(row[0]) for row in connection.execute(_LOGGED, parameters)]

    names = source.remember(("logged", experiment), metrics)
    return [f"{statistic}({name})" for name in names for statistic in _SUGGESTED]


def _tints(source: CachedStore, experiment: str, _: StoreReader) -> dict[str, int]:
    catalog = read_catalog(source, experiment)
    return {run_id: tint(catalog, run_id) for run_id in catalog.runs}


def _is_picked(item: Item, picks: Iterable[Pick]) -> bool:
    run_ids = [run.run.run_id for group in item.groups for run in group.runs]
    for pick in picks:
        if pick.experiment != item.experiment:
            continue
        if pick.kind is PickKind.EXPERIMENT:
            return True
        ids = run_ids if pick.kind is PickKind.RUN else item.summary.workload_ids
        if any(run_id.startswith(pick.id) for run_id in ids):
            return True
    return False
