"""What the Compare page knows of the selected runs besides their charts.

Plain dictionaries: static/compare.js draws the list of runs, the list of metrics and the controls
from them, so that a click there does not wait for the server.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from radt import units
from radt.frontend.data.catalog import RunEntry, Tints
from radt.frontend.data.metrics import quantities
from radt.frontend.data.model import STATUS_WORDS, Quantity
from radt.frontend.data.source import Source
from radt.frontend.data.spec import ID_DIGITS, Pick
from radt.frontend.export.request import charts_of
from radt.frontend.pages.select import selection_notes
from radt.frontend.selection import Selection, Unit
from radt.frontend.theme import Scheme, colour
from radt.frontend.view import View
from radt.model import SOFTWARE, RunStatus

_LOGGED = "logged by the script"


def facts(source: Source, view: View, selection: Selection) -> dict[str, Any]:
    """Return the facts of a view and its selection.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = selection.runs
    available = quantities(source, tuple(runs))
    return {
        "names": list(selection.experiments),
        "text": _summary(selection),
        "notes": selection_notes(selection),
        "automatic": selection.automatic,
        "live": any(not run.record.status.ended for run in runs.values()),
        "units": [_unit(unit, Tints(source)) for unit in selection.units],
        "metrics": [_metric(quantity) for quantity in available],
        "charts": [spec.to_json() for spec in charts_of(source, view, selection)],
    }


def fingerprint(runs: Iterable[RunEntry], revision: str) -> str:
    """Return a hash that changes when a chart of these runs may: ended runs get no new points."""
    state = hashlib.blake2b(digest_size=12)
    for run in runs:
        record = run.record
        live = "" if record.status.ended else revision
        state.update(f"{record.run_id} {record.status} {record.ended_ns} {live};".encode())
    return state.hexdigest()


def stamp(content: Mapping[str, Any]) -> str:
    """Return a hash of the content."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _summary(selection: Selection) -> str:
    """Return a line such as ``3 workloads · 6 runs · 1 failed``."""
    states = Counter(run.record.status for run in selection.runs.values())
    unusual = [
        f"{states[status]:,} {word}"
        for status, word in STATUS_WORDS.items()
        if states[status] and status is not RunStatus.FINISHED
    ]
    hosts = {run.record.host for run in selection.runs.values() if run.record.host}
    profiled = sum(bool(run.profiled) for run in selection.runs.values())
    return " · ".join(
        [
            units.plural(len(selection.units), "workload"),
            units.plural(len(selection.runs), "run"),
            *([units.plural(len(hosts), "machine")] if len(hosts) > 1 else []),
            *unusual,
            *([f"{profiled:,} profiled"] if profiled else []),
        ]
    )


def _unit(unit: Unit, tints: Tints) -> dict[str, Any]:
    record = unit.workload.record
    first = unit.runs[0]
    return {
        "pick": str(Pick.workload(record.experiment, record.workload_id)),
        "key": f"w{record.workload_id[:ID_DIGITS]}",
        "whole": unit.whole,
        "name": first.workload_name,
        "title": f"workload {first.workload_name}",
        "note": units.plural(len(unit.runs), "run"),
        "dash": first.dash,
        **_colours(tints.workload(first)),
        "runs": [_run(run, tints) for run in unit.runs],
    }


def _run(run: RunEntry, tints: Tints) -> dict[str, Any]:
    record = run.record
    details = [
        run.title,
        STATUS_WORDS[record.status],
        *([f"profiled by {run.profiled}"] if run.profiled else []),
        *([f"thinned {run.pruned}"] if run.pruned else []),
        record.devices,
        record.host,
        record.end_reason,
    ]
    return {
        "pick": str(Pick.run(record.experiment, record.run_id)),
        "key": f"r{record.run_id[:ID_DIGITS]}",
        "id": record.run_id,
        "short": run.short,
        "letter": "" if run.alone else record.letter,
        "name": record.name,
        "title": " · ".join(filter(None, details)),
        "status": record.status.value,
        "note": _note(run),
        "dash": run.dash,
        **_colours(tints.run(run)),
    }


def _note(run: RunEntry) -> str:
    """Return how long a finished run took, else its status, and why it is not comparable."""
    record = run.record
    words = ["profiled"] if run.profiled else []
    if record.status is RunStatus.RUNNING and record.started_ns is not None:
        words.append(units.stopwatch(max(0.0, (time.time_ns() - run.origin_ns) / 1e9)))
    elif record.status is RunStatus.FINISHED and record.ended_ns is not None:
        words.append(units.duration((record.ended_ns - run.origin_ns) / 1e9))
    else:
        words.append(STATUS_WORDS[record.status])
    words += ["thinned"] if run.pruned else []
    return " · ".join(words)


def _colours(place: int) -> dict[str, str]:
    return {str(scheme): colour(place, scheme) for scheme in Scheme}


def _metric(quantity: Quantity) -> dict[str, Any]:
    return {
        "metric": quantity.metric,
        "group": _LOGGED if quantity.listener == SOFTWARE else quantity.listener,
        "unit": quantity.drawn_unit,
        "subtitle": quantity.subtitle,
        "how": quantity.explanation,
        "aggregate": str(quantity.default_aggregate),
    }
