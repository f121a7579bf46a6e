"""A store and MLflow's runs, read as one store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, text

from radt.errors import RadtError, RunNotFoundError, StoreError
from radt.frontend.foreign.beside import Beside
from radt.frontend.foreign.empty import EmptyStore
from radt.frontend.foreign.listing import Listing
from radt.frontend.foreign.points import mean_of, sliced
from radt.model import RunStatus
from radt.store.address import StoreAddress
from radt.store.reader import MIN_PREFIX, StoreReader
from radt.store.records import (
    ExperimentSummary,
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesRecord,
    SummaryRecord,
    WorkloadRecord,
)

ResultT = TypeVar("ResultT")

_RUN_IDS = text("SELECT run_id FROM run")
#: At most so many runs that an id may mean.
_SOME = 5


class JointReader(StoreReader):
    """Reads like `StoreReader`; what the store has is not taken from MLflow. Thread-safe.

    Each run is of one of both. Where MLflow cannot be read, the store alone is, and there is a
    ``problem``.

    Args:
        address: Of the store.
        store: The open store, or None where there is none yet.
        beside: MLflow's runs.
        before: Those that it had when it was read last, which are shown while it is away.
    """

    def __init__(
        self,
        address: StoreAddress,
        store: StoreReader | None,
        beside: Beside,
        before: Listing | None = None,
    ) -> None:
        # Not the base's: there is no database of its own.
        self.address = address
        self.store = store
        self.problem: RadtError | None = None
        self._beside = beside
        self._lock = threading.Lock()
        self._listing: Listing | None = None
        self._before = before or Listing()
        self._tokens: tuple[int, int, int] | None = None
        self._beside_token = 0
        self._recoveries = 0
        self._empty: EmptyStore | None = None

    def close(self) -> None:
        """Nothing: store and MLflow are their keepers' to close."""

    def change_token(self) -> int:
        """See `StoreReader.change_token`."""
        store_token = 0 if self.store is None else self.store.change_token()
        try:
            self._beside_token = self._beside.change_token()
            # What failed meanwhile is to be read again, also if nothing else is new.
            self._recoveries += self.problem is not None
            self.problem = None
        except StoreError as error:
            self._without_beside(error)
        with self._lock:
            tokens = (store_token, self._beside_token, self._recoveries)
            if tokens != self._tokens:
                self._tokens, self._listing = tokens, None
        return hash(tokens) % 2**53

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Of the store; of an empty one where there is none yet."""
        with self._lock:
            if self.store is None and self._empty is None:
                self._empty = EmptyStore(self.address)
        source = self.store or self._empty
        assert source is not None
        with source.snapshot() as connection:
            yield connection

    @property
    def before(self) -> Listing:
        """MLflow's runs when they were read last."""
        return self._before

    def is_foreign(self, run_id: str) -> bool:
        """Whether a run is read from MLflow."""
        return run_id in self._runs().runs

    # -- experiments, workloads, runs -------------------------------------------------------------

    def experiments(self) -> list[ExperimentSummary]:
        found = {} if self.store is None else {one.name: one for one in self.store.experiments()}
        for one in self._runs().experiments():
            known = found.get(one.name)
            found[one.name] = one if known is None else _together(known, one)
        return sorted(found.values(), key=lambda one: one.last_activity_ns, reverse=True)

    def workloads(self, experiment: str | None = None) -> list[WorkloadRecord]:
        found = [] if self.store is None else self.store.workloads(experiment)
        listing = self._runs()
        foreign = (
            listing.workloads.values()
            if experiment is None
            else listing.workloads_by_experiment.get(experiment, ())
        )
        there = {one.workload_id for one in found}
        found += (one for one in foreign if one.workload_id not in there)
        return sorted(found, key=lambda one: (one.created_ns, one.workload_id))

    def workload(self, workload_id: str) -> WorkloadRecord:
        known = self._runs().workloads.get(workload_id)
        if self.store is not None:
            try:
                return self.store.workload(workload_id)
            except RunNotFoundError:
                if known is None:
                    raise
        if known is None:
            raise RunNotFoundError(f"there is no workload {workload_id} in {self.address}")
        return known

    def runs(
        self,
        *,
        experiment: str | None = None,
        workload_id: str | None = None,
        status: RunStatus | None = None,
        run_ids: Sequence[str] | None = None,
    ) -> list[RunRecord]:
        found: list[RunRecord] = []
        if self.store is not None:
            found = self.store.runs(
                experiment=experiment, workload_id=workload_id, status=status, run_ids=run_ids
            )
        listing = self._runs()
        if run_ids is not None:
            foreign = [listing.runs[one] for one in dict.fromkeys(run_ids) if one in listing.runs]
        elif experiment is not None:
            foreign = list(listing.by_experiment.get(experiment, ()))
        else:
            foreign = list(listing.runs.values())
        found += (
            run
            for run in foreign
            if (experiment is None or run.experiment == experiment)
            and (workload_id is None or run.workload_id == workload_id)
            and (status is None or run.status is status)
        )
        return sorted(found, key=lambda r: (r.created_ns, len(r.letter), r.letter, r.run_id))

    def run(self, run_id: str) -> RunRecord:
        known = self._runs().runs.get(run_id)
        if known is not None:
            return known
        if self.store is None:
            raise RunNotFoundError(f"there is no run {run_id} in {self.address}")
        return self.store.run(run_id)

    def matching_runs(self, given: str) -> list[RunRecord]:
        prefix = given.strip().lower()
        found = [] if self.store is None else self.store.matching_runs(given)
        if len(prefix) < MIN_PREFIX:
            raise RunNotFoundError(
                f"'{given}' is too short for a run id", f"Give {MIN_PREFIX} characters or more"
            )
        foreign = [
            run
            for run in self._runs().runs.values()
            if run.run_id.startswith(prefix) or (run.mlflow_run_id or "").startswith(prefix)
        ]
        found = [*found, *foreign]
        exact = [run for run in found if prefix in (run.run_id, run.mlflow_run_id)]
        return exact or found[:_SOME]

    def unended_runs(self) -> list[RunRecord]:
        found = [] if self.store is None else self.store.unended_runs()
        return [*found, *(r for r in self._runs().runs.values() if not r.status.ended)]

    def runs_to_deliver(self, tracking_uri: str) -> list[RunRecord]:
        return [] if self.store is None else self.store.runs_to_deliver(tracking_uri)

    def workloads_to_deliver(self, tracking_uri: str) -> list[WorkloadRecord]:
        return [] if self.store is None else self.store.workloads_to_deliver(tracking_uri)

    def params_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        ours, foreign = self._sorted(run_ids)
        found = {} if self.store is None or not ours else self.store.params_of(ours)
        return found | (self._beside.params_of(foreign) if foreign else {})

    def tags_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        ours, foreign = self._sorted(run_ids)
        found = {} if self.store is None or not ours else self.store.tags_of(ours)
        return found | (self._beside.tags_of(foreign) if foreign else {})

    def tagged(self, key: str, experiment: str) -> dict[str, str]:
        """Of the store: what is asked for are tags of radt."""
        return {} if self.store is None else self.store.tagged(key, experiment)

    # -- samples ----------------------------------------------------------------------------------

    def series(self, run_ids: Sequence[str]) -> list[SeriesRecord]:
        ours, foreign = self._sorted(run_ids)
        found = [] if self.store is None or not ours else self.store.series(ours)
        found = [*found, *(self._beside.series(foreign) if foreign else ())]
        return sorted(found, key=lambda one: (one.run_id, one.series_no))

    def samples(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Samples:
        if self.is_foreign(run_id):
            return self._beside.samples(run_id, series_no, start_ns=start_ns, end_ns=end_ns)
        return self._of_store().samples(run_id, series_no, start_ns=start_ns, end_ns=end_ns)

    def point_counts(self, run_id: str) -> dict[int, int]:
        if self.is_foreign(run_id):
            return {one.series.series_no: one.count for one in self._beside.summary([run_id])}
        return {} if self.store is None else self.store.point_counts(run_id)

    def points_after(self, run_id: str, series_no: int, skip: int, limit: int) -> Samples:
        """As in the store; of MLflow, which does not keep the order of writing, by time."""
        if self.is_foreign(run_id):
            return sliced(self._beside.samples(run_id, series_no), skip, skip + limit)
        return self._of_store().points_after(run_id, series_no, skip, limit)

    def mean(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> float | None:
        if self.is_foreign(run_id):
            found = self._beside.samples(run_id, series_no, start_ns=start_ns, end_ns=end_ns)
            return mean_of(found)
        return self._of_store().mean(run_id, series_no, start_ns=start_ns, end_ns=end_ns)

    def envelope(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        max_points: int = 2000,
    ) -> Samples:
        reader = self._beside.samples if self.is_foreign(run_id) else self._of_store().envelope
        return reader(run_id, series_no, start_ns=start_ns, end_ns=end_ns, max_points=max_points)

    def summary(self, run_ids: Sequence[str]) -> list[SummaryRecord]:
        ours, foreign = self._sorted(run_ids)
        found = [] if self.store is None or not ours else self.store.summary(ours)
        found = [*found, *(self._beside.summary(foreign) if foreign else ())]
        return sorted(found, key=lambda one: (one.series.run_id, one.series.series_no))

    # -- what only the store has -------------------------------------------------------------------

    def markers(self, run_ids: Sequence[str]) -> list[MarkerRecord]:
        return self._stored(run_ids, lambda store, ids: store.markers(ids))

    def markers_after(self, run_id: str, marker_no: int, limit: int) -> list[MarkerRecord]:
        return self._stored([run_id], lambda s, _: s.markers_after(run_id, marker_no, limit))

    def ledger(self, run_ids: Sequence[str]) -> list[LedgerRecord]:
        return self._stored(run_ids, lambda store, ids: store.ledger(ids))

    def gaps(self, run_ids: Sequence[str]) -> list[GapRecord]:
        return self._stored(run_ids, lambda store, ids: store.gaps(ids))

    def cursors(self, run_id: str) -> dict[str, JournalCursor]:
        return {} if self.store is None else self.store.cursors(run_id)

    def delivered(self, run_id: str) -> dict[int, int]:
        return {} if self.store is None else self.store.delivered(run_id)

    def delivered_artifacts(self, run_id: str) -> set[str]:
        return set() if self.store is None else self.store.delivered_artifacts(run_id)

    # ---------------------------------------------------------------------------------------------

    def _runs(self) -> Listing:
        """MLflow's runs that the store has not; while MLflow is away, those that it had."""
        with self._lock:
            if self._listing is None:
                try:
                    listing = self._beside.listing()
                except StoreError as error:
                    self._without_beside(error)
                    return self._shown(self._before)
                self._listing = self._before = self._shown(listing)
            return self._listing

    def _shown(self, listing: Listing) -> Listing:
        if self.store is None or not listing.of_radt:
            return listing
        with self.store.snapshot() as connection:
            known = {str(run_id) for (run_id,) in connection.execute(_RUN_IDS)}
        return listing.without(known)

    def _without_beside(self, error: StoreError) -> None:
        """
        Raises:
            StoreError: There is nothing else.
        """
        if self.store is None:
            raise error
        self.problem = error

    def _sorted(self, run_ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """Ids of the store, and of MLflow."""
        foreign = self._runs().runs
        return (
            [one for one in run_ids if one not in foreign],
            [one for one in run_ids if one in foreign],
        )

    def _stored(
        self,
        run_ids: Sequence[str],
        read: Callable[[StoreReader, Sequence[str]], list[ResultT]],
    ) -> list[ResultT]:
        ours, _ = self._sorted(run_ids)
        return read(self.store, ours) if self.store is not None and ours else []

    def _of_store(self) -> StoreReader:
        """
        Raises:
            RunNotFoundError: There is no store, and the run is none of MLflow's.
        """
        if self.store is None:
            raise RunNotFoundError(f"there is no such run in {self.address}")
        return self.store


def _together(store: ExperimentSummary, beside: ExperimentSummary) -> ExperimentSummary:
    """An experiment that both have."""
    statuses = dict(store.statuses)
    for status, count in beside.statuses.items():
        statuses[status] = statuses.get(status, 0) + count
    return ExperimentSummary(
        store.name,
        store.workload_count + beside.workload_count,
        store.run_count + beside.run_count,
        statuses,
        max(store.last_activity_ns, beside.last_activity_ns),
    )
