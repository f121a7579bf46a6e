"""What the Compare page has to know of the picked runs besides their charts.

Plain dictionaries: ``assets/compare.js`` draws the list of runs, the list of metrics and the
controls from them, so that a click there waits for no server.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from radt import units
from radt.frontend.catalog import STATUS_WORDS, RunEntry
from radt.frontend.charts.quantity import Quantity
from radt.frontend.chosen import MAX_RUNS, Chosen, Unit
from radt.frontend.export.pinned import charts_of
from radt.frontend.metrics import quantities
from radt.frontend.palette import Scheme, colour
from radt.frontend.picks import ID_DIGITS, Pick
from radt.frontend.source import Source
from radt.frontend.tints import Tints
from radt.frontend.view import View
from radt.model import SOFTWARE, RunStatus

_LOGGED = "logged by the script"


def facts(source: Source, view: View, chosen: Chosen) -> dict[str, Any]:
    """All of it, for a view and what it shows.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = chosen.runs
    available = quantities(source, tuple(runs))
    return {
        "names": list(chosen.experiments),
        "text": _summary(chosen),
        "notes": _notes(chosen),
        "automatic": chosen.automatic,
        "live": any(not run.record.status.ended or run.remote for run in runs.values()),
        "units": [_unit(unit, Tints(source)) for unit in chosen.units],
        "metrics": [_metric(quantity) for quantity in available],
        "charts": [spec.to_json() for spec in charts_of(source, view, chosen)],
    }


def fingerprint(runs: Iterable[RunEntry], revision: str) -> str:
    """Stays the same as long as a chart of these runs would: ended runs get no new points."""
    state = hashlib.blake2b(digest_size=12)
    for run in runs:
        record = run.record
        live = "" if record.status.ended else revision
        here = "remote" if run.remote else ""
        state.update(f"{record.run_id} {record.status} {record.ended_ns} {live} {here};".encode())
    return state.hexdigest()


def stamp(content: Mapping[str, Any]) -> str:
    """Changes with the content."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _summary(chosen: Chosen) -> str:
    """``3 workloads · 6 runs · 1 failed``."""
    states = Counter(run.record.status for run in chosen.runs.values())
    unusual = [
        f"{states[status]:,} {word}"
        for status, word in STATUS_WORDS.items()
        if states[status] and status is not RunStatus.FINISHED
    ]
    hosts = {run.record.host for run in chosen.runs.values() if run.record.host}
    profiled = sum(bool(run.profiled) for run in chosen.runs.values())
    return " · ".join(
        [
            units.plural(len(chosen.units), "workload"),
            units.plural(len(chosen.runs), "run"),
            *([units.plural(len(hosts), "machine")] if len(hosts) > 1 else []),
            *unusual,
            *([f"{profiled:,} profiled"] if profiled else []),
        ]
    )


def _notes(chosen: Chosen) -> list[str]:
    """What is not shown of what was picked."""
    notes = []
    if chosen.left_out:
        notes.append(
            f"{units.plural(chosen.left_out, 'picked run')} left out: at most {MAX_RUNS} are shown"
        )
    if chosen.missing:
        several = len(chosen.missing) > 1
        notes.append(
            f"{units.plural(len(chosen.missing), 'pick')} {'are' if several else 'is'} "
            "not in this store"
        )
    return notes


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
    """How long a run took; in words what went otherwise, and that it is no measurement."""
    record = run.record
    words = ["profiled"] if run.profiled else []
    if run.remote is not None:
        words.append(STATUS_WORDS[record.status])
    elif record.status is RunStatus.RUNNING and record.started_ns is not None:
        words.append(units.stopwatch(max(0.0, (time.time_ns() - run.origin_ns) / 1e9)))
    elif record.status is RunStatus.FINISHED and record.ended_ns is not None:
        words.append(units.duration((record.ended_ns - run.origin_ns) / 1e9))
    else:
        words.append(STATUS_WORDS[record.status])
    words += ["thinned"] if run.pruned else []
    words += ["on server"] if run.remote is not None else []
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
