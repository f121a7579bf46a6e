"""The basket: what is picked, by name, with what is missing or too much."""

from __future__ import annotations

from typing import Any

from radt import units
from radt.frontend.catalog import Catalog, RunEntry, WorkloadEntry, read_catalog
from radt.frontend.chosen import MAX_RUNS, Chosen
from radt.frontend.palette import Scheme, colour
from radt.frontend.picks import Pick, PickKind
from radt.frontend.source import Source
from radt.frontend.tints import tint
from radt.frontend.view import View


def basket(source: Source, view: View, chosen: Chosen) -> dict[str, Any]:
    """Groups by experiment of what is picked, and how many runs that is.

    Raises:
        StoreError: The store cannot be read.
    """
    picks = automatic_picks(chosen) if view.picks is None else list(view.picks)
    missing = set(chosen.missing)
    groups: dict[str, list[dict[str, Any]]] = {}
    for pick in picks:
        catalog = read_catalog(source, pick.experiment)
        entry = {"pick": str(pick), **_entry(pick, catalog, is_missing=pick in missing)}
        groups.setdefault(pick.experiment, []).append(entry)
    run_count = len(chosen.runs)
    notes = []
    if chosen.left_out:
        notes.append(
            f"{units.plural(chosen.left_out, 'run')} left out: {MAX_RUNS} are shown at most"
        )
    if missing:
        notes.append(f"{units.plural(len(missing), 'pick')} not in this store")
    return {
        "automatic": chosen.automatic,
        "picks": [str(pick) for pick in picks],
        "groups": [{"experiment": name, "entries": entries} for name, entries in groups.items()],
        "runs": units.plural(run_count, "run"),
        "count": run_count + chosen.left_out,
        "notes": notes,
    }


def automatic_picks(chosen: Chosen) -> list[Pick]:
    """What the dashboard chose, by workloads: they are whole."""
    return [
        Pick.workload(unit.workload.record.experiment, unit.workload.record.workload_id)
        for unit in chosen.units
    ]


def _entry(pick: Pick, catalog: Catalog, *, is_missing: bool) -> dict[str, Any]:
    if is_missing:
        what = {PickKind.WORKLOAD: "workload", PickKind.RUN: "run"}.get(pick.kind, "experiment")
        return {"label": f"{what} {pick.id}".strip(), "detail": "not here", "missing": True}
    if pick.kind is PickKind.EXPERIMENT:
        return {"label": "everything", "detail": units.plural(len(catalog.runs), "run")}
    if pick.kind is PickKind.WORKLOAD:
        return _workload(catalog, catalog.workloads_by_id[catalog.workloads_like(pick.id)[0]])
    return _run(catalog, catalog.runs[catalog.runs_like(pick.id)[0]])


def _workload(catalog: Catalog, workload: WorkloadEntry) -> dict[str, Any]:
    if len(workload.runs) == 1:
        return _run(catalog, workload.runs[0])
    name = workload.runs[0].workload_name if workload.runs else workload.record.label
    return {"label": name, "detail": units.plural(len(workload.runs), "run")}


def _run(catalog: Catalog, run: RunEntry) -> dict[str, Any]:
    return {
        "label": run.short,
        "detail": run.record.name,
        "swatch": [colour(tint(catalog, run.run_id, run), scheme) for scheme in Scheme],
    }
