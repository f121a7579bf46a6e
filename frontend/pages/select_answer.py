"""What the browser gets to draw the page Select: the rows in sight, their boxes, the basket."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from radt import units
from radt.errors import TrackingError
from radt.frontend.catalog import (
    STATUS_WORDS,
    RunEntry,
    WorkloadEntry,
    read_catalog,
)
from radt.frontend.chosen import Chosen, choose, resolve
from radt.frontend.keepers import ListingError, NothingRecordedError
from radt.frontend.pages.select_basket import basket
from radt.frontend.pages.select_columns import note
from radt.frontend.pages.select_lists import Listing, Lists, Pane, read_lists, statuses_of
from radt.frontend.pages.select_ticks import Tick, Ticks, joint
from radt.frontend.palette import Scheme, colour
from radt.frontend.picks import ID_DIGITS, Pick
from radt.frontend.searching.finding import FoundExperiment
from radt.frontend.source import Source
from radt.frontend.tints import tint
from radt.frontend.view import View
from radt.model import RunStatus

#: Rows that come with the page, before it is known how many fit: a tall screen's.
FIRST_ROWS = 60
#: More rows at once are no screen.
MAX_ROWS = 400
_NS_PER_MS = 1_000_000

EntryT = TypeVar("EntryT", FoundExperiment, WorkloadEntry, RunEntry)


def answer(source: Source, view: View, ask: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The page's data for a view.

    ``ask`` says which rows are in sight: for each pane ``start``, ``count``, the ``list`` that it
    has, and as ``anchor`` the id of the first row in sight, which stays in its place when others
    come before it. Without it the first rows come, and nothing that takes long.

    Raises:
        NothingRecordedError: There is no experiment.
        ListingError: It is not known yet what the MLflow server has.
        TrackingError: The server does not answer, and the store has nothing.
        StoreError: The store cannot be read.
    """
    revision = source.revision()
    lists = read_lists(source, view, patient=ask is not None)
    picks = view.picks or ()
    ticks_of = {
        name: Ticks.of(read_catalog(source, name), picks)
        for name in {pick.experiment for pick in picks}
    }
    ticks = ticks_of.get(lists.catalog.experiment) or Ticks.of(lists.catalog, ())
    focus = lists.focus.record.workload_id[:ID_DIGITS] if lists.focus else ""
    asked = ask or {}

    def experiment_row(one: FoundExperiment) -> dict[str, Any]:
        own = ticks_of.get(one.summary.name)
        return {"tick": own.experiment if own else Tick.OFF, "pick": str(Pick(one.summary.name))}

    def workload_row(one: WorkloadEntry) -> dict[str, Any]:
        record = one.record
        return {
            "tick": ticks.workload(one),
            "pick": str(Pick.workload(record.experiment, record.workload_id)),
            "title": _workload_title(one),
        }

    def run_row(run: RunEntry) -> dict[str, Any]:
        return {
            "tick": ticks.run(run),
            "pick": str(Pick.run(run.record.experiment, run.run_id)),
            "title": _run_title(run),
            "reason": run.record.end_reason,
            "swatch": [colour(tint(lists.catalog, run.run_id, run), scheme) for scheme in Scheme],
        }

    name = lists.catalog.experiment
    panes = {
        Pane.EXPERIMENTS: _pane(lists.experiments, name, experiment_row, asked, Pane.EXPERIMENTS),
        Pane.WORKLOADS: _pane(lists.workloads, focus, workload_row, asked, Pane.WORKLOADS),
        Pane.RUNS: _pane(lists.runs, "", run_row, asked, Pane.RUNS),
    }
    for pane, sent in panes.items():
        sent["sort"] = view.options.get(pane.sort_option, "")
    if not ticks.is_empty:
        panes[Pane.WORKLOADS]["tick"] = joint(map(ticks.workload, lists.workloads.entries))
        panes[Pane.RUNS]["tick"] = joint(map(ticks.run, lists.runs.entries))
    return {
        "n": asked.get("n", 0),
        "revision": revision,
        "now_ms": time.time_ns() // _NS_PER_MS,
        "query": view.to_query(),
        "search": view.search,
        "count": _count_text(lists, view),
        "problems": [{"typed": one.typed, "cause": one.cause} for one in lists.found.problems],
        "statuses": _chips(lists, view),
        "experiment": name,
        "workload": {"id": focus, "label": lists.focus.record.label} if lists.focus else None,
        "panes": panes,
        "partial": lists.is_partial,
        "params_left_out": lists.params_left_out,
        "basket": basket(source, view, _chosen(source, view)),
    }


def _chosen(source: Source, view: View) -> Chosen:
    try:
        return choose(source, view)
    except (ListingError, NothingRecordedError, TrackingError):
        # What is missing may come; meanwhile what is there can be picked.
        return resolve(source, view.picks or ())


def _pane(
    listing: Listing[EntryT],
    focus: str,
    row: Callable[[EntryT], dict[str, Any]],
    asked: Mapping[str, Any],
    pane: Pane,
) -> dict[str, Any]:
    wish = asked.get(pane.value)
    wish = wish if isinstance(wish, Mapping) else {}
    total = len(listing.entries)
    focus_at = listing.places.get(focus, -1)
    start, count, anchor_at = 0, _whole(wish.get("count"), FIRST_ROWS, MAX_ROWS), -1
    if wish.get("list") == listing.key:
        start = _whole(wish.get("start"), 0, total)
        before = _whole(wish.get("anchor_at"), 0, total)
        anchor_at = listing.places.get(str(wish.get("anchor", "")), -1)
        if anchor_at >= 0:
            start += anchor_at - before
    elif focus_at >= 0:
        start = focus_at - count // 2
    start = max(0, min(start, total - count))
    entries = listing.entries[start : start + count]
    ids = listing.ids[start : start + count]
    return {
        "list": listing.key,
        "total": total,
        "start": start,
        "focus": focus_at,
        "anchor_at": anchor_at,
        "columns": [column.to_json() for column in listing.columns],
        "rows": [
            {
                "id": one,
                "focus": one == focus,
                "cells": [column.cell(entry) for column in listing.columns],
                **row(entry),
            }
            for one, entry in zip(ids, entries, strict=True)
        ],
    }


def _whole(given: object, default: int, most: int) -> int:
    return max(0, min(given, most)) if isinstance(given, int) else default


def _count_text(lists: Lists, view: View) -> str:
    total = lists.found.total_count
    if not (view.search.strip() or statuses_of(view)):
        return units.plural(total, "run")
    return f"{lists.found.run_count:,} of {units.plural(total, 'run')}"


def _chips(lists: Lists, view: View) -> list[dict[str, Any]]:
    """One a state that there is, and those that are chosen."""
    chosen, counts = statuses_of(view), lists.found.statuses
    return [
        {"value": s.value, "word": STATUS_WORDS[s], "count": counts.get(s, 0), "on": s in chosen}
        for s in RunStatus
        if counts.get(s) or s in chosen
    ]


def _workload_title(workload: WorkloadEntry) -> str:
    parts = [f"workload {workload.record.label}", units.plural(len(workload.runs), "run")]
    return " · ".join([*parts, *workload.hosts, workload.record.workload_id])


def _run_title(run: RunEntry) -> str:
    record = run.record
    parts: Sequence[str] = (
        run.title,
        note(run),
        f"thinned {run.pruned}" if run.pruned else "",
        record.end_reason,
        record.command,
        record.devices,
        record.host,
        record.run_id,
    )
    return " · ".join(filter(None, parts))
