"""A report as JSON with exact numbers: reading them back gives those of the store.

Version 1, an object::

    format       "radt-report"
    version      1; additions do not change it
    experiments  names
    window       the part of each run that counts, in words, by experiment
    runs         how many runs count, and why the others do not, in words, by experiment
    confidence   of all intervals: 0.95
    quantities   by name: title, unit (UCUM; "x" for a factor), of ("runs", "workload"),
                 combine ("mean", "sum": of rows or devices), explanation
    workloads    experiment, label, machine, ids (of the starts that count, newest last),
                 values, missing, groups
      energy     gpus_j (each GPU once), is_lower_bound (a counter did not cover a whole run),
                 rest_j (assigned to no run), runs: letter, name, estimated_j, method; null if
                 not measured
      values     by quantity, see below; those of devices include other users
      groups     like runs together: name, status, repeats, runs, values, missing (why it has no
                 value, by quantity), reached (by ``time_to`` quantity: runs that met its condition,
                 and runs), children (groups of runs within these runs)
        runs     id, letter, name, status, repeats, end_reason
    interference one per experiment: experiment, rows (models), columns (their neighbours),
                 cells (rows of values or null; the worst of several workloads)
    tracker      tracking overhead, one per experiment: experiment, cpu_s (of the collector during
                 workloads), workload_s (their duration), unknown (starts without these numbers),
                 journal_bytes (null where unknown), listeners: name, readings, sampling_s (all
                 readings), longest_s, recorded_s (the time it covers)
    notes        sentences: poor start skew, missing samples, methods of estimates

A value: ``mean``, ``low`` and ``high`` (confidence interval of the mean, null for one repeat),
``n`` (repeats), ``repeats`` (one value each), ``parts`` (of single runs, if the value combines
several), ``metrics`` (its source series), ``methods``, ``estimated``. Values that are not finite
are the texts ``NaN``, ``Infinity`` and ``-Infinity``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from radt.analysis.estimates import CONFIDENCE, Estimate, Reached
from radt.analysis.selection import counts_text
from radt.analysis.series_quantities import AnyQuantity
from radt.analysis.summaries import GroupSummary
from radt.render.interference import matrices
from radt.render.json_text import attributes, json_text
from radt.render.model import Table
from radt.render.report_content import Content, Item


def as_json(content: Content) -> str:
    """Return all values of a report."""
    document = {
        "experiments": content.experiments,
        "window": {report.experiment: report.window.text for report in content.reports},
        "runs": {report.experiment: counts_text([report.selection]) for report in content.reports},
        "confidence": CONFIDENCE,
        "quantities": {quantity.value: _about(quantity) for quantity in content.written},
        "workloads": [_workload(content, item) for item in content.items],
        "interference": [_matrix(*matrix) for matrix in matrices(content).items()],
        "tracker": [
            {"experiment": report.experiment, **asdict(report.tracker)}
            for report in content.reports
        ],
        "notes": list(content.notes),
    }
    return json_text("report", document)


def _about(quantity: AnyQuantity) -> dict[str, Any]:
    info = quantity.info
    about = attributes(info, "title", "unit", "combine", "explanation")
    return {**about, "of": info.subject}


def _workload(content: Content, item: Item) -> dict[str, Any]:
    summary = item.summary
    return {
        "experiment": item.experiment,
        "label": summary.label,
        "machine": summary.host,
        "ids": list(summary.workload_ids),
        **_values(content, item),
        "energy": {
            **attributes(summary.energy, "gpus_j", "is_lower_bound", "rest_j"),
            "runs": [asdict(run) for run in summary.energy.runs],
        },
        "groups": [_group(content, item, group) for group in item.groups],
    }


def _group(content: Content, item: Item, group: GroupSummary) -> dict[str, Any]:
    return {
        **attributes(group, "name", "status", "repeats"),
        "runs": [
            {
                "id": row.run.run_id,
                **attributes(row.run, "letter", "end_reason"),
                **attributes(row, "name", "status", "repeats"),
            }
            for row in group.runs
        ],
        **_values(content, item, group),
        "reached": {
            quantity.value: reached_json(reached) for quantity, reached in group.reached.items()
        },
        "children": [_group(content, item, child) for child in group.children],
    }


def reached_json(reached: Reached | None) -> list[int] | None:
    """Return the number of runs that met a condition, and of all; null if not recorded."""
    return None if reached is None else [reached.count, reached.of]


def _values(content: Content, item: Item, group: GroupSummary | None = None) -> dict[str, Any]:
    """Return the values of like runs or of the whole workload, and the reasons for missing ones."""
    values = content.values(item, group)
    return {
        "values": {
            quantity.value: estimate_json(estimate)
            for quantity, estimate in values.items()
            if estimate is not None
        },
        "missing": {
            quantity.value: item.summary.why_missing(quantity, group)
            for quantity, estimate in values.items()
            if estimate is None and quantity in content.quantities
        },
    }


def _matrix(experiment: str, table: Table) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "rows": [row.cells[0].text for row in table.rows],
        "columns": [column.title for column in table.columns[1:]],
        "cells": [
            [cell.estimate and estimate_json(cell.estimate) for cell in row.cells[1:]]
            for row in table.rows
        ],
    }


def estimate_json(estimate: Estimate) -> dict[str, Any]:
    """Return a value as described above."""
    interval = estimate.interval
    return {
        **attributes(estimate, "mean", "repeats", "parts", "metrics", "methods"),
        "low": interval and interval.low,
        "high": interval and interval.high,
        "n": estimate.count,
        "estimated": estimate.is_estimated,
    }
