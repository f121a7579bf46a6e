"""The run that the page shows, the run to compare it with, and the runs to choose from."""

from __future__ import annotations

from dataclasses import dataclass

from radt.errors import RunNotFoundError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import Catalog, RunEntry, read_catalog, tint
from radt.frontend.data.workload.subject import experiment_of
from radt.frontend.selection import choices_of
from radt.frontend.view import View

#: The view's option with the run to compare with.
OTHER = "run.other"


@dataclass(frozen=True)
class RunSubject:
    """A run among those of its experiment, and the run to compare it with, if any.

    ``automatic``: it is shown because it is the newest.
    """

    catalog: Catalog
    run: RunEntry
    other: RunEntry | None
    automatic: bool = False

    @property
    def is_live(self) -> bool:
        return not self.run.record.status.ended

    @property
    def hue(self) -> int:
        """The run's colour index, the same on all pages."""
        return tint(self.catalog, self.run.run_id, self.run)


def find_run(source: CachedStore, view: View) -> RunSubject:
    """Return the run of a view, by default the newest of the experiment in focus.

    It is compared with the run that the view names, by default the previous one.

    Raises:
        RunNotFoundError: There is no such run, or it was added or deleted during the call.
        NothingRecordedError: No experiment is stored.
        StoreError: The store cannot be read.
    """
    if view.run is None:
        catalog = read_catalog(source, experiment_of(source, view))
        if not catalog.runs:
            raise RunNotFoundError(
                f"experiment {catalog.experiment} has no runs in {source.address}",
                "They may have been deleted. Choose another on the Runs page",
            )
        run = max(catalog.runs.values(), key=lambda run: run.record.created_ns)
    else:
        wanted = view.run
        record = source.remember(("run", wanted), lambda reader: reader.find_run(wanted))
        catalog = read_catalog(source, record.experiment)
        if record.run_id not in catalog.runs:  # the catalog in memory may be older
            raise RunNotFoundError(
                f"run {record.run_id[:12]} has just been added or deleted",
                "The page retries by itself. If the run is gone, choose another on the Runs page",
            )
        run = catalog.runs[record.run_id]
    return RunSubject(catalog, run, _other(catalog, run, view), automatic=view.run is None)


def _other(catalog: Catalog, run: RunEntry, view: View) -> RunEntry | None:
    if wanted := view.options.get(OTHER):
        matches = [run_id for run_id in catalog.runs_like(wanted) if run_id != run.run_id]
        if matches:
            return catalog.runs[matches[0]]
    before = [other for other in catalog.runs.values() if other.ordinal < run.ordinal]
    return before[-1] if before else None


def offered(catalog: Catalog, search: str, shown: RunEntry | None) -> list[dict[str, str]]:
    """Return the runs to choose from, the newest first, including the shown one."""
    labels = ((run.run_id, label_of(run)) for run in reversed(list(catalog.runs.values())))
    return choices_of(labels, search, shown.run_id if shown else "")


def label_of(run: RunEntry) -> str:
    """Return ``three b  cnn-small · 1f2e3d4c``."""
    return f"{run.title} · {run.run_id[:8]}"
