"""Which workload the page shows, and which others there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import text

from radt.errors import RunNotFoundError
from radt.frontend.catalog import Catalog, RunEntry, WorkloadEntry, read_catalog
from radt.frontend.chosen import await_server, latest_experiment
from radt.frontend.foreign.mlflow_run import is_of_mlflow_alone
from radt.frontend.source import Source
from radt.frontend.tints import tint
from radt.frontend.view import View
from radt.model import RunStatus
from radt.store.reader import StoreReader

#: More runs than these are not drawn; the page says how many it leaves out.
MAX_RUNS = 64
#: The list of other workloads has as many at a time; a search finds the rest.
MAX_OFFERED = 80

_OF_ID = text(
    "SELECT experiment, workload_id FROM workload "
    "WHERE workload_id >= :first AND workload_id < :last ORDER BY created_ns DESC LIMIT 1"
)


@dataclass(frozen=True)
class Subject:
    """One workload among those of its experiment; ``automatic``: it is shown as the newest.

    ``left_out`` counts runs beyond `MAX_RUNS`.
    """

    catalog: Catalog
    workload: WorkloadEntry
    automatic: bool = False
    left_out: int = 0

    @property
    def workload_id(self) -> str:
        return self.workload.record.workload_id

    @property
    def runs(self) -> Mapping[str, RunEntry]:
        """The runs that are shown, by id, in order of their letters."""
        return {run.run_id: run for run in self.workload.runs}

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(run.run_id for run in self.workload.runs)

    @property
    def origin_ns(self) -> int:
        """Zero of elapsed time: the barrier, or the first start where there was none."""
        if self.workload.record.barrier_ns:
            return self.workload.record.barrier_ns
        origins = [run.origin_ns for run in self.workload.runs]
        return min(origins, default=self.workload.record.created_ns)

    @property
    def is_live(self) -> bool:
        return any(not run.record.status.ended for run in self.workload.runs)

    @property
    def is_of_mlflow_alone(self) -> bool:
        """Whether radt never saw any of its runs, so that there is no barrier and no file."""
        runs = self.workload.runs
        return bool(runs) and all(is_of_mlflow_alone(run.record) for run in runs)

    @property
    def title(self) -> str:
        return self.workload.record.label or self.workload_id[:12]

    def neighbour(self, step: int) -> WorkloadEntry | None:
        """The workload so many places later (or before, if negative); None beyond the ends."""
        place = self.workload.ordinal + step
        return self.catalog.workloads[place] if 0 <= place < len(self.catalog.workloads) else None


def find_subject(source: Source, view: View) -> Subject:
    """The workload of a view; the newest of the experiment in focus where it names none.

    Raises:
        RunNotFoundError: There is no such workload.
        NothingRecordedError: There is no experiment.
        ListingError: It is not known yet what the MLflow server has.
        StoreError: The store cannot be read.
    """
    if view.workload is None:
        catalog = read_catalog(source, _experiment(source, view))
        return _subject(catalog, _newest(catalog, source), automatic=True)
    place = _place(source, view.workload)
    if place is None:
        await_server(source)
        raise RunNotFoundError(
            f"there is no workload {view.workload[:40]} in {source.address}",
            "It may have been deleted, or be of another store: choose one under Select",
        )
    experiment, workload_id = place
    catalog = read_catalog(source, experiment)
    for workload in catalog.workloads:
        if workload.record.workload_id == workload_id:
            return _subject(catalog, workload)
    raise RunNotFoundError(
        f"workload {workload_id[:12]} has just been deleted", "Choose another under Select"
    )


def offered(subject: Subject, search: str) -> list[dict[str, Any]]:
    """Workloads of the experiment to choose from, the newest first; the one shown is among them."""
    words = search.lower().split()
    found: list[dict[str, Any]] = []
    for workload in reversed(subject.catalog.workloads):
        is_shown = workload.record.workload_id == subject.workload_id
        label = option_label(workload)
        if all(word in label.lower() for word in words) or is_shown:
            found.append({"value": workload.record.workload_id, "label": label})
        if len(found) >= MAX_OFFERED and any(one["value"] == subject.workload_id for one in found):
            break
    if len(found) > MAX_OFFERED:
        shown = next(one for one in found if one["value"] == subject.workload_id)
        found = [*found[: MAX_OFFERED - 1], shown]
    return found


def option_label(workload: WorkloadEntry) -> str:
    """``three · 3 runs · cnn-small · finished``, with a number where a label comes again."""
    names = list(dict.fromkeys(run.record.name for run in workload.runs if run.record.name))
    count = len(workload.runs)
    parts = [
        workload.record.label or workload.record.workload_id[:8],
        f"{count} run" if count == 1 else f"{count} runs",
        ", ".join(names[:3]) + ("…" if len(names) > 3 else ""),
        f"#{workload.ordinal + 1}",
    ]
    return " · ".join(part for part in parts if part)


def _experiment(source: Source, view: View) -> str:
    if view.experiment:
        return view.experiment
    if view.picks:
        return view.picks[-1].experiment
    return latest_experiment(source)


def _newest(catalog: Catalog, source: Source) -> WorkloadEntry:
    begun = [
        one
        for one in catalog.workloads
        if any(run.record.status is not RunStatus.SCHEDULED for run in one.runs)
    ]
    candidates = begun or list(catalog.workloads)
    if not candidates:
        await_server(source)
        raise RunNotFoundError(
            f"experiment {catalog.experiment} has no workload in {source.address}",
            "It may have been deleted: choose another under Select",
        )
    return candidates[-1]


def _subject(catalog: Catalog, workload: WorkloadEntry, *, automatic: bool = False) -> Subject:
    # On this page a run's ordinal is the place of its colour, which is the same on all pages.
    shown = tuple(
        replace(run, ordinal=tint(catalog, run.run_id, run)) for run in workload.runs[:MAX_RUNS]
    )
    left_out = len(workload.runs) - len(shown)
    shortened = WorkloadEntry(workload.record, shown, workload.ordinal)
    return Subject(catalog, shortened, automatic, left_out)


def _place(source: Source, beginning: str) -> tuple[str, str] | None:
    """Experiment and id of the workload whose id begins so."""

    def read(reader: StoreReader) -> tuple[str, str] | None:
        last = beginning + chr(0x10FFFF)
        with reader.snapshot() as connection:
            row = connection.execute(_OF_ID, {"first": beginning, "last": last}).first()
        return None if row is None else (str(row[0]), str(row[1]))

    found = source.remember(("workload-place", beginning), read)
    if found is None:
        # MLflow's are not in the store's tables.
        workloads = source.remember(("workloads",), lambda reader: reader.workloads())
        alike = [one for one in workloads if one.workload_id.startswith(beginning)]
        if alike:
            found = (alike[-1].experiment, alike[-1].workload_id)
    if found is None and source.server is not None:
        for experiment, runs in source.server.experiments().items():
            for run in runs.values():
                if run.record.workload_id.startswith(beginning):
                    return experiment, run.record.workload_id
    return found
