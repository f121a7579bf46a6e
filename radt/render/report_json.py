"""A report as JSON with exact numbers: reading them back gives those of the store.

Version 1, an object::

    format       "radt-report"
    version      1; additions do not change it
    experiments  names
    window       the part of each run that counts, in words, by experiment
    confidence   of all intervals: 0.95
    quantities   by name: title, unit (UCUM; "x" for a factor), of ("runs", "workload"),
                 combine ("mean", "sum": of rows or devices), explanation
    workloads    experiment, label, machine, ids (of the starts that count, newest last),
                 values, groups
      energy     gpus_j (each GPU once), rest_j (assigned to no run), runs: letter, name,
                 estimated_j, method; null if not measured
      values     by quantity, see below; those of devices include other users
      groups     like runs together: name, status, repeats, runs, values, reached (by ``time_to``
                 quantity: runs that met its condition, and runs), children (groups of runs within
                 these runs)
        runs     id, letter, name, status, repeats, end_reason
    interference one per experiment: experiment, rows (models), columns (their neighbours),
                 cells (rows of values or null; the worst of several workloads)
    tracker      tracking overhead, one per experiment: experiment, cpu_s (of the collector during
                 workloads), workload_s (their duration), unknown (starts without these numbers),
                 journal_bytes (null where unknown), listeners: name, readings, sampling_s (all
                 readings), longest_s, recorded_s (the time it covers)
    notes        sentences: poor start skew, missing samples, excluded runs, methods of estimates

A value: ``mean``, ``low`` and ``high`` (confidence interval of the mean, null for one repeat),
``n`` (repeats), ``repeats`` (one value each), ``parts`` (of single runs, if the value combines
several), ``metrics`` (its source series), ``methods``, ``estimated``. Values that are not finite
are null.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from radt.analysis.estimates import CONFIDENCE, Estimate, Reached
from radt.analysis.series_quantities import AnyQuantity
from radt.analysis.summaries import GroupSummary
from radt.render.report_content import Content, Item, Matrix, is_shared, matrices

FORMAT, VERSION = "radt-report", 1


def json_text(document: object) -> str:
    """Return a document as JSON, with null for infinity and NaN."""
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


def as_json(content: Content) -> str:
    """Return all values of a report."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "experiments": [report.experiment for report in content.reports],
        "window": {report.experiment: report.window.text for report in content.reports},
        "confidence": CONFIDENCE,
        "quantities": {quantity.value: _about(quantity) for quantity in content.written},
        "workloads": [_workload(content, item) for item in content.items],
        "interference": [_matrix(matrix) for matrix in matrices(content)],
        "tracker": [
            {"experiment": report.experiment, **asdict(report.tracker)}
            for report in content.reports
        ],
        "notes": list(content.notes),
    }
    return json_text(document)


def _about(quantity: AnyQuantity) -> dict[str, Any]:
    info = quantity.info
    return {
        "title": info.title,
        "unit": info.unit,
        "of": info.subject.value,
        "combine": info.combine.value,
        "explanation": info.explanation,
    }


def _workload(content: Content, item: Item) -> dict[str, Any]:
    summary = item.summary
    return {
        "experiment": item.experiment,
        "label": summary.label,
        "machine": summary.host,
        "ids": list(summary.workload_ids),
        "values": _values(content, item, item.groups[0], shared=True),
        "energy": {
            "gpus_j": summary.energy.gpus_j,
            "rest_j": summary.energy.rest_j,
            "runs": [asdict(run) for run in summary.energy.runs],
        },
        "groups": [_group(content, item, group) for group in item.groups],
    }


def _group(content: Content, item: Item, group: GroupSummary) -> dict[str, Any]:
    return {
        "name": group.name,
        "status": group.status.value,
        "repeats": group.repeats,
        "runs": [
            {
                "id": row.run.run_id,
                "letter": row.run.letter,
                "name": row.name,
                "status": row.status.value,
                "repeats": row.repeats,
                "end_reason": row.run.end_reason,
            }
            for row in group.runs
        ],
        "values": _values(content, item, group, shared=False),
        "reached": {
            quantity.value: reached_of(reached) for quantity, reached in group.reached.items()
        },
        "children": [_group(content, item, child) for child in group.children],
    }


def reached_of(reached: Reached | None) -> list[int] | None:
    """Return how many runs met a condition, and of how many; null if not recorded."""
    return None if reached is None else [reached.count, reached.of]


def _values(content: Content, item: Item, group: GroupSummary, *, shared: bool) -> dict[str, Any]:
    return {
        quantity.value: value_of(estimate)
        for quantity in content.written
        if is_shared(quantity) is shared
        and (estimate := item.summary.estimate(quantity, group)) is not None
    }


def _matrix(matrix: Matrix) -> dict[str, Any]:
    return {
        "experiment": matrix.experiment,
        "rows": list(matrix.rows),
        "columns": list(matrix.columns),
        "cells": [
            [None if cell is None else value_of(cell.estimate) for cell in row]
            for row in matrix.cells
        ],
    }


def value_of(estimate: Estimate) -> dict[str, Any]:
    """Return a value as described above."""
    interval = estimate.interval
    return {
        "mean": estimate.mean,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "n": estimate.count,
        "repeats": list(estimate.repeats),
        "parts": list(estimate.parts),
        "metrics": list(estimate.metrics),
        "methods": list(estimate.methods),
        "estimated": estimate.is_estimated,
    }
