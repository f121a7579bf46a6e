"""Runs: the table of all runs, to find the best and to tick runs for the other pages.

The table may be long, so the browser draws only the visible rows (static/runs*.js) and requests
them. Clicks on checkboxes are sent in order, and answered with the new picks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dash import Dash, html
from dash.development.base_component import Component
from flask import Response, request

from radt import units
from radt.errors import RadtError, UsageError
from radt.frontend.addresses import address
from radt.frontend.answers import CSV_MIME, attached, text_answer
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry, WorkloadEntry, read_catalog, read_experiments
from radt.frontend.data.metric_columns import metric_names
from radt.frontend.data.run_columns import FIELDS, PARAM, TAG, note
from radt.frontend.data.run_facts import starred
from radt.frontend.data.run_table import (
    BY_WORKLOAD,
    NAME,
    NO_GROUPS,
    AllRuns,
    Group,
    RunTable,
    group_cell,
    is_narrowed,
    parse_sort,
    read_all,
    read_table,
    statuses_of,
)
from radt.frontend.data.spec import ID_DIGITS, Pick, parse_picks
from radt.frontend.export.run_table import table_csv
from radt.frontend.pages.json_routes import Answer, add_json_routes, asked_view
from radt.frontend.pages.page import Page, sentence
from radt.frontend.pages.parts import changed, followed, template
from radt.frontend.search.find import OWN_TAGS
from radt.frontend.search.query import IgnoredTerm
from radt.frontend.selection import (
    MAX_RUNS,
    Tick,
    Ticks,
    joint,
    latest_experiment,
    resolve,
    selection_notes,
    ticked,
)
from radt.frontend.theme import Scheme, colour
from radt.frontend.view import View
from radt.model import STATUS_WORDS, RunStatus
from radt.render.files import file_name

ROWS_PATH, TICK_PATH, COLUMNS_PATH = "runs/rows", "runs/tick", "runs/columns"
FOUND_PATH, CSV_PATH = "runs/found", "runs/table.csv"
#: Rows sent before the browser reports how many fit: enough for a tall screen.
FIRST_ROWS = 60
#: Maximum number of rows in one answer.
MAX_ROWS = 400
#: Above this number of runs, parameters and metrics are read after the page has loaded.
_EAGER_RUNS = 1_000
#: Space for an interval beside a mean.
_INTERVAL_PX = 64
_NS_PER_MS = 1_000_000


def layout(source: CachedStore, view: View) -> Component:  # noqa: ARG001 - same signature on all pages
    """Return the page, which `ROWS_PATH` and static/runs.js fill.

    Raises:
        NothingRecordedError: The store has no experiment.
        StoreError: The store cannot be read.
    """
    latest_experiment(source)
    return html.Section(
        [html.H1("Runs", className="unseen"), html.Div(id="runs-frame")],
        className="runs-page",
        **followed(ROWS_PATH),
    )


def register(app: Dash, source: CachedStore) -> None:
    """Register the routes of the page."""
    add_json_routes(
        app.server,
        source,
        {
            ROWS_PATH: page_answer,
            TICK_PATH: picks_after,
            COLUMNS_PATH: columns_to_choose,
            FOUND_PATH: found_picks,
        },
    )
    app.server.add_url_rule(f"/{CSV_PATH}", "radt-runs-csv", lambda: _csv(source))


# -- rows ----------------------------------------------------------------------------------------


def page_answer(source: CachedStore, asked: Answer) -> Answer | None:
    """Return the frame of the page and rows: the first ones without slow columns if runs are many.

    Raises:
        NothingRecordedError, StoreError: As `read_table`.
    """
    is_first = not asked.get("list")
    asks_more = bool({"runs.sort", "runs.group"} & set(asked_view(asked).options))
    many = is_first and sum(one.run_count for one in read_experiments(source)) > _EAGER_RUNS
    rows = answer(source, asked, patient=asks_more or not many)
    return changed(asked, {"runs-frame": template("runs.html").frame()}, **rows)


def answer(source: CachedStore, asked: Answer, *, patient: bool = True) -> Answer:
    """Return the visible rows, and everything else that the page shows about the table.

    ``asked`` has the ``view``, the ``start`` and ``count`` of the rows, the groups that were
    ``toggled``, the ``list`` that the browser has, and as ``anchor`` the id of the row at
    ``anchor_at``, which keeps its position when rows are inserted before it.

    Raises:
        NothingRecordedError, StoreError: As `read_table`.
    """
    view = asked_view(asked)
    toggled = _texts(asked.get("toggled"))
    table = read_table(source, view, toggled, patient=patient)
    picks = view.picks or ()
    ticks, stars = _AllTicks(source, picks), starred(source)
    start, shift = _start(table, asked)
    count = _clipped(asked.get("count"), FIRST_ROWS, MAX_ROWS)
    start = max(0, min(start, len(table.lines) - count))
    return {
        "now_ms": time.time_ns() // _NS_PER_MS,
        "search": view.search,
        "count": _count_text(table),
        "problems": _problems(source, table, view),
        "statuses": _statuses(table, view),
        "experiments": [
            {"name": one.name, "count": one.run_count} for one in read_experiments(source)
        ],
        "groups": _group_choices(table),
        "grouped_by": table.grouped_by,
        "columns": _columns(table, view),
        "name_px": table.widths_px.get(NAME),
        "list": table.key,
        "total": len(table.lines),
        "start": start,
        "shift": shift,
        "rows": [_row(table, line, ticks, stars) for line in table.lines[start : start + count]],
        "tick": ticks.joint(table.all_runs, table.order.tolist()),
        "picked": _picked(source, picks),
        "narrowed": is_narrowed(view),
        "query": view.to_query(),
        "partial": table.is_partial,
    }


class _AllTicks:
    """Checkbox state of every run and group."""

    def __init__(self, source: CachedStore, picks: Sequence[Pick]) -> None:
        self._by_experiment = {
            name: Ticks.of(read_catalog(source, name), picks)
            for name in {pick.experiment for pick in picks}
        }

    def run(self, run: RunEntry) -> Tick:
        ticks = self._by_experiment.get(run.record.experiment)
        return ticks.run(run) if ticks else Tick.OFF

    def workload(self, workload: WorkloadEntry) -> Tick:
        ticks = self._by_experiment.get(workload.record.experiment)
        return ticks.workload(workload) if ticks else Tick.OFF

    def joint(self, all_runs: AllRuns, places: Sequence[int]) -> Tick:
        if not self._by_experiment:
            return Tick.OFF
        return joint(self.run(all_runs.runs[place]) for place in places)


def _start(table: RunTable, asked: Answer) -> tuple[int, int]:
    """Return the first row to send, and by how much the browser's rows have moved."""
    if asked.get("list") != table.key:
        return 0, 0
    start = _clipped(asked.get("start"), 0, len(table.lines))
    anchor, at = asked.get("anchor"), asked.get("anchor_at")
    if not (isinstance(anchor, str) and anchor and isinstance(at, int)):
        return start, 0
    wanted = next(
        (place for place, line in enumerate(table.lines) if _id(table, line) == anchor), at
    )
    return start + wanted - at, wanted - at


def _id(table: RunTable, line: Group | int) -> str:
    return line.id if isinstance(line, Group) else table.all_runs.columns.run_ids[line][:ID_DIGITS]


def _row(
    table: RunTable, line: Group | int, ticks: _AllTicks, stars: frozenset[str]
) -> dict[str, Any]:
    if isinstance(line, Group):
        return _group_row(table, line, ticks)
    run = table.all_runs.runs[line]
    is_child = table.grouped_by == BY_WORKLOAD and len(_workload(table, run).runs) > 1
    return {
        "id": _id(table, line),
        "level": 2 if is_child or table.grouped_by not in (BY_WORKLOAD, NO_GROUPS) else 1,
        "name": run.mark if is_child else run.short,
        "detail": run.second_name if not is_child else run.name if run.name != run.mark else "",
        "href": address("run", f"id={run.run_id}"),
        "run": run.run_id,
        "starred": run.run_id in stars,
        "title": _run_title(run),
        "swatch": _swatch(table, run),
        "tick": ticks.run(run),
        "pick": str(Pick.run(run.record.experiment, run.run_id)),
        "cells": [column.cell(line) for column in table.columns],
        "missing": {
            place: column.why(line)
            for place, column in enumerate(table.columns)
            if column.why is not None and math.isnan(column.ranks[line])
        },
        "best": [
            place
            for place, column in enumerate(table.columns)
            if run.omission is None
            and column.key in table.best
            and column.ranks[line] == table.best[column.key]
        ],
    }


def _group_row(table: RunTable, group: Group, ticks: _AllTicks) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": group.id,
        "level": 1,
        "open": group.is_open,
        "name": group.label or "none",
        "detail": units.plural(len(group.places), "run"),
        "title": f"{group.label}, {units.plural(len(group.places), 'run')}",
        "cells": [group_cell(column, group) for column in table.columns],
        "group": group.id,
    }
    if group.workload is None:
        return row | {"tick": ticks.joint(table.all_runs, group.places.tolist())}
    record = group.workload.record
    status = group.workload.status
    shown = {"status": [status.value, STATUS_WORDS[status]]}
    row["cells"] = [
        shown.get(column.key, cell)
        for column, cell in zip(table.columns, row["cells"], strict=True)
    ]
    experiment = View(experiment=record.experiment, workload=record.workload_id[:ID_DIGITS])
    return row | {
        "href": address("workload", experiment.to_query()),
        "detail": content_of(group.workload),
        "title": _workload_title(group.workload),
        "tick": ticks.workload(group.workload),
        "pick": str(Pick.workload(record.experiment, record.workload_id)),
    }


def content_of(workload: WorkloadEntry) -> str:
    """Return the files of a workload and its device sharing: ``3× cnn-small · mps``."""
    counts: dict[str, int] = {}
    for run in workload.runs:
        if run.parent is None:
            name = run.record.name or run.record.letter
            counts[name] = counts.get(name, 0) + 1
    names = " + ".join(f"{count}× {name}" if count > 1 else name for name, count in counts.items())
    collocations = (run.record.collocation for run in workload.runs)
    return " · ".join([names, *dict.fromkeys(text for text in collocations if text.strip("-"))])


def _workload(table: RunTable, run: RunEntry) -> WorkloadEntry:
    return table.all_runs.workloads[run.record.workload_id]


def _swatch(table: RunTable, run: RunEntry) -> list[str]:
    return [colour(table.all_runs.tint(run), scheme) for scheme in Scheme]


def _workload_title(workload: WorkloadEntry) -> str:
    parts = [f"workload {workload.record.label}", units.plural(len(workload.runs), "run")]
    return " · ".join([*parts, *workload.hosts, workload.record.workload_id])


def _run_title(run: RunEntry) -> str:
    record = run.record
    parts = (
        run.title,
        note(run),
        f"thinned {run.pruned}" if run.pruned else "",
        *(record.end_reason, record.command, record.devices, record.host, record.run_id),
    )
    return " · ".join(filter(None, parts))


# -- around the table ----------------------------------------------------------------------------


def _columns(table: RunTable, view: View) -> list[dict[str, Any]]:
    sort = dict(parse_sort(view.options.get("runs.sort", "")))
    places = {key: place for place, key in enumerate(sort, 1)}
    room_px = 0 if table.grouped_by in (BY_WORKLOAD, NO_GROUPS) else _INTERVAL_PX
    return [
        {
            "key": column.key,
            "label": column.label,
            "title": column.title,
            "format": column.format.value,
            "width_px": table.widths_px.get(
                column.key, column.width_px + room_px * column.is_number
            ),
            "better": column.better,
            "sort": places.get(column.key, 0),
            "descending": sort.get(column.key, False),
        }
        for column in table.columns
    ]


def _group_choices(table: RunTable) -> list[dict[str, str]]:
    """Return the columns by which runs can be grouped: the shown ones that are not measured."""
    choices = {BY_WORKLOAD: "workload", NO_GROUPS: "nothing"}
    choices |= {
        column.key: column.label.lower() if column.key in FIELDS else column.label
        for column in table.columns
        if column.key.startswith((PARAM, TAG)) or (column.key in FIELDS and not column.is_number)
    }
    choices.pop("age", None)
    choices.setdefault(table.grouped_by, table.grouped_by.removeprefix(PARAM).removeprefix(TAG))
    return [{"key": key, "label": label} for key, label in choices.items()]


def _count_text(table: RunTable) -> str:
    count, total = len(table.order), table.scope_count
    runs = units.plural(total, "run")
    return runs if count == total else f"{count:,} of {runs}"


def _problems(source: CachedStore, table: RunTable, view: View) -> list[dict[str, str]]:
    """Return the terms of the search that are ignored, and an unknown experiment."""
    problems = [*table.found.problems]
    if view.experiment and not table.scope_count:
        problems.append(IgnoredTerm(view.experiment, f"is not an experiment in {source.address}"))
    return [{"typed": problem.typed, "cause": problem.cause} for problem in problems]


def _statuses(table: RunTable, view: View) -> list[dict[str, Any]]:
    """Return a button for each status that runs have, and for each selected one."""
    on, counts = statuses_of(view), table.found.counts(view.experiment or None)
    return [
        {"value": s.value, "word": STATUS_WORDS[s], "count": counts.get(s, 0), "on": s in on}
        for s in RunStatus
        if counts.get(s) or s in on
    ]


def _picked(source: CachedStore, picks: Sequence[Pick]) -> dict[str, Any]:
    """Return the number of ticked runs, and notes on those that a page cannot show."""
    if not picks:
        return {"count": 0, "text": "", "notes": [], "runs": []}
    selection = resolve(source, picks)
    count = len(selection.runs) + selection.left_out
    return {
        "count": count,
        "text": f"{units.plural(count, 'run')} ticked",
        "notes": selection_notes(selection),
        "runs": list(selection.runs),
    }


def columns_to_choose(source: CachedStore, _: Answer) -> Answer:
    """Return all columns that the store's runs have, by kind.

    Raises:
        StoreError: The store cannot be read.
    """
    all_runs = read_all(source)
    columns = all_runs.columns
    params = {key for of_run in columns.params.values() for key in of_run}
    tags = {key for of_run in columns.tags.values() for key in of_run}
    fields = [
        {"key": key, "label": field.label, "title": field.title} for key, field in FIELDS.items()
    ]
    metrics = metric_names(source)
    logged, measured = (
        [{"label": name.metric, "metric": True} for name in metrics if name.is_logged is is_logged]
        for is_logged in (True, False)
    )
    sections = {
        "Of every run": fields,
        "Logged metrics": logged,
        "Parameters": [{"key": f"{PARAM}{name}", "label": name} for name in sorted(params)],
        "Measured": measured,
        "Tags": [
            {"key": f"{TAG}{name}", "label": name}
            for name in sorted(tags)
            if not name.startswith(OWN_TAGS)
        ],
    }
    return {"sections": [{"title": title, "items": items} for title, items in sections.items()]}


# -- picks ---------------------------------------------------------------------------------------


def picks_after(source: CachedStore, asked: Answer) -> Answer:
    """Return the picks after clicks: ``steps``, each on ``picks``, a ``group`` or ``all`` runs.

    Raises:
        StoreError: The store cannot be read.
        NothingRecordedError: The store has no run.
    """
    picks = parse_picks(_texts(asked.get("picks")))
    steps = asked.get("steps")
    try:
        for step in steps if isinstance(steps, list) else ():
            targets = _targets(source, asked, step)
            picks = ticked(
                picks, targets, lambda name: read_catalog(source, name), on=step.get("on") is True
            )
    except UsageError as error:
        return {"refused": f"{sentence(error.message)} {error.remedy}."}
    return {"picks": [str(pick) for pick in picks]}


def _targets(source: CachedStore, asked: Answer, step: Mapping[str, Any]) -> Sequence[Pick]:
    if not (step.get("all") or step.get("group")):
        return parse_picks(_texts(step.get("picks")))
    view = asked_view(asked)
    table = read_table(source, view)
    if step.get("all"):
        return found_of(table, view)
    group = table.group(str(step["group"]))
    return _run_picks(table, group.places.tolist() if group else ())


def found_of(table: RunTable, view: View) -> Sequence[Pick]:
    """Return picks of all found runs: a whole experiment if nothing else restricts the table."""
    names = dict.fromkeys(table.all_runs.experiments[table.order].tolist())
    narrowed_further = view.search.strip() or statuses_of(view)
    if not narrowed_further:
        return [Pick(name) for name in names]
    return _run_picks(table, table.order.tolist())


def found_picks(source: CachedStore, asked: Answer) -> Answer:
    """Return the address of the found runs for Compare; of the first ones if there are many.

    Raises:
        NothingRecordedError, StoreError: As `read_table`.
    """
    view = asked_view(asked)
    table = read_table(source, view)
    picks = found_of(table, view)
    if len(table.order) > MAX_RUNS:
        picks = _run_picks(table, table.order[:MAX_RUNS].tolist())
    return {"query": View.from_json({**view.to_json(), "picks": list(map(str, picks))}).to_query()}


def _run_picks(table: RunTable, places: Sequence[int]) -> list[Pick]:
    runs = (table.all_runs.runs[place] for place in places)
    return [Pick.run(run.record.experiment, run.run_id) for run in runs]


def _csv(source: CachedStore) -> Response:
    view = View.from_query(request.query_string.decode("ascii", "replace"))
    try:
        content = table_csv(read_table(source, view))
    except RadtError as error:
        return text_answer(sentence(error.message), 503)
    return attached(content, CSV_MIME, file_name([view.experiment or "", "runs"], "csv"))


def _clipped(value: object, default: int, limit: int) -> int:
    return max(0, min(value, limit)) if isinstance(value, int) else default


def _texts(values: object) -> list[str]:
    return [text for text in values if isinstance(text, str)] if isinstance(values, list) else []


PAGE = Page("", "Runs", layout, register, lambda _, view: view.search or view.experiment or "")
