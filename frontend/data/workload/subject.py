"""The workload that the page shows, and its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import text

from radt.errors import RunNotFoundError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import Catalog, RunEntry, WorkloadEntry, read_catalog, tint
from radt.frontend.selection import choices_of, focused_experiment, latest_experiment
from radt.frontend.view import View
from radt.model import RunStatus
from radt.store.reader import StoreReader

#: Maximum number of drawn runs; the page says how many are left out.
MAX_RUNS = 64

_OF_ID = text(
    "SELECT experiment, workload_id FROM workload "
    "WHERE workload_id >= :first AND workload_id < :last ORDER BY created_ns DESC LIMIT 1"
)


@dataclass(frozen=True)
class ShownWorkload:
    """One workload among those of its experiment.

    ``automatic``: it is shown because it is the newest. ``left_out`` counts runs beyond `MAX_RUNS`.
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
        """The shown runs by id, in order of their letters."""
        return {run.run_id: run for run in self.workload.runs}

    @property
    def whole(self) -> tuple[RunEntry, ...]:
        """The shown runs without child runs, which share processes and devices with them."""
        return tuple(run for run in self.workload.runs if run.parent is None)

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(run.run_id for run in self.workload.runs)

    @property
    def origin_ns(self) -> int:
        """Zero of elapsed time: the barrier, or the first start if there was no barrier."""
        if self.workload.record.barrier_ns:
            return self.workload.record.barrier_ns
        origins = [run.origin_ns for run in self.workload.runs]
        return min(origins, default=self.workload.record.created_ns)

    @property
    def is_live(self) -> bool:
        return any(not run.record.status.ended for run in self.workload.runs)

    @property
    def is_from_mlflow(self) -> bool:
        """True if all of its runs were imported from MLflow: it has no barrier and no files."""
        runs = self.workload.runs
        return bool(runs) and all(run.record.is_from_mlflow for run in runs)

    @property
    def title(self) -> str:
        return self.workload.record.label or self.workload_id[:12]

    def neighbour(self, step: int) -> WorkloadEntry | None:
        """Return the workload at this offset from the shown one; None beyond the ends."""
        place = self.workload.ordinal + step
        return self.catalog.workloads[place] if 0 <= place < len(self.catalog.workloads) else None


def find_subject(source: CachedStore, view: View) -> ShownWorkload:
    """Return the workload of a view, by default the newest that has begun.

    Raises:
        RunNotFoundError: There is no such workload.
        NothingRecordedError: No experiment is stored.
        StoreError: The store cannot be read.
    """
    if view.workload is None:
        catalog = read_catalog(source, experiment_of(source, view))
        return _subject(catalog, _newest(catalog, source), automatic=True)
    place = _place(source, view.workload)
    if place is None:
        raise RunNotFoundError(
            f"no workload {view.workload[:40]} in {source.address}",
            "It may have been deleted or be in another store. Choose a workload on the Runs page",
        )
    experiment, workload_id = place
    catalog = read_catalog(source, experiment)
    if workload_id in catalog.workloads_by_id:
        return _subject(catalog, catalog.workloads_by_id[workload_id])
    raise RunNotFoundError(
        f"workload {workload_id[:12]} has just been deleted", "Choose another on the Runs page"
    )


def offered(subject: ShownWorkload, search: str) -> list[dict[str, str]]:
    """Return the workloads to choose from, the newest first, including the shown one."""
    newest_first = reversed(subject.catalog.workloads)
    labels = ((each.record.workload_id, option_label(each)) for each in newest_first)
    return choices_of(labels, search, subject.workload_id)


def option_label(workload: WorkloadEntry) -> str:
    """Return ``three · 3 runs · cnn-small · #4``: label, number of runs, names and ordinal."""
    top_level = [run for run in workload.runs if run.parent is None]
    names = list(dict.fromkeys(run.record.name for run in top_level if run.record.name))
    count = len(top_level)
    parts = [
        workload.record.label or workload.record.workload_id[:8],
        f"{count} run" if count == 1 else f"{count} runs",
        ", ".join(names[:3]) + ("…" if len(names) > 3 else ""),
        f"#{workload.ordinal + 1}",
    ]
    return " · ".join(part for part in parts if part)


def experiment_of(source: CachedStore, view: View) -> str:
    """Return the experiment in focus: the chosen one, or that of the workload or the last pick.

    Raises:
        NothingRecordedError: No experiment is stored.
        RunNotFoundError: The chosen experiment does not exist.
        StoreError: The store cannot be read.
    """
    if view.experiment:
        return focused_experiment(source, view)
    if view.workload and (place := _place(source, view.workload)) is not None:
        return place[0]
    if view.picks:
        return view.picks[-1].experiment
    return latest_experiment(source)


def _newest(catalog: Catalog, source: CachedStore) -> WorkloadEntry:
    begun = [
        workload
        for workload in catalog.workloads
        if any(run.record.status is not RunStatus.SCHEDULED for run in workload.runs)
    ]
    candidates = begun or list(catalog.workloads)
    if not candidates:
        raise RunNotFoundError(
            f"experiment {catalog.experiment} has no workload in {source.address}",
            "It may have been deleted. Choose another on the Runs page",
        )
    return candidates[-1]


def _subject(
    catalog: Catalog, workload: WorkloadEntry, *, automatic: bool = False
) -> ShownWorkload:
    # On this page a run's ordinal is its colour index, which is the same on all pages.
    shown = tuple(
        replace(run, ordinal=tint(catalog, run.run_id, run)) for run in workload.runs[:MAX_RUNS]
    )
    left_out = len(workload.runs) - len(shown)
    shortened = WorkloadEntry(workload.record, shown, workload.ordinal)
    return ShownWorkload(catalog, shortened, automatic, left_out)


def _place(source: CachedStore, beginning: str) -> tuple[str, str] | None:
    """Return experiment and id of the newest workload whose id has this prefix."""

    def read(reader: StoreReader) -> tuple[str, str] | None:
        last = beginning + chr(0x10FFFF)
        with reader.snapshot() as connection:
            row = connection.execute(_OF_ID, {"first": beginning, "last": last}).first()
        return None if row is None else (str(row[0]), str(row[1]))

    return source.remember(("workload-place", beginning), read)
