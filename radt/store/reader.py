"""Read the sample store: never writes, never creates, never waits for writers.

What reads points is imported with the first point: a runner starts without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, text

from radt.errors import RunNotFoundError
from radt.masking import masked
from radt.model import RunStatus
from radt.store.backend import StoreAddress
from radt.store.database import ReadDatabase
from radt.store.records import (
    ExperimentSummary,
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SavedView,
    SeriesRecord,
    SummaryRecord,
    WorkloadRecord,
)
from radt.store.tables import (
    CURSORS,
    EXPERIMENTS,
    FIND_RUN,
    GAPS,
    HAS_TAG,
    LAST_LOGGED,
    LEDGERS,
    MARKERS,
    RUN_COUNTS,
    RUNS,
    SAVED_VIEWS,
    SERIES,
    SUMMARY,
    TAGGED,
    TO_DELIVER,
    WORKLOADS,
    summary_record,
)

#: Minimum length of an id prefix that may stand for the id.
MIN_PREFIX = 4


class StoreReader:
    """Reads a store. Thread-safe; each call sees everything committed before.

    Args:
        store: The SQLite file, or the address of a Postgres database.

    Raises:
        StoreError: The store does not exist, cannot be read, or is not a radt store.
        SchemaTooNewError: It was written by a later radt.
        SchemaTooOldError: It is in Postgres and must be upgraded.
        UsageError: The address is invalid.
    """

    def __init__(self, store: StoreAddress | Path | str) -> None:
        self.address = StoreAddress.of(store)
        self._database = ReadDatabase(self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._database.close()

    def change_token(self) -> int:
        """Return a number that changes with every write to the store; costs microseconds.

        It is below 2**53, so that JavaScript keeps it exactly.
        """
        return self._database.change_token()

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Yield a connection that sees the store as of now, for other statements."""
        with self._database.snapshot() as connection:
            yield connection

    # -- experiments, workloads, runs -------------------------------------------------------------

    def experiments(self) -> list[ExperimentSummary]:
        """Return all experiments, the most recently active first."""
        statuses: dict[str, dict[RunStatus, int]] = {}
        last_ns: dict[str, int] = {}
        workload_counts: dict[str, int] = {}
        with self._database.snapshot() as connection:
            for name, created_ns, count in connection.execute(EXPERIMENTS):
                statuses[name], last_ns[name], workload_counts[name] = {}, created_ns, count
            for name, status, count, active_ns in connection.execute(RUN_COUNTS):
                statuses[name][RunStatus(status)] = count
                last_ns[name] = max(last_ns[name], active_ns)
        return sorted(
            (
                ExperimentSummary(
                    name, workload_counts[name], sum(counts.values()), counts, last_ns[name]
                )
                for name, counts in statuses.items()
            ),
            key=lambda summary: summary.last_activity_ns,
            reverse=True,
        )

    def workloads(self, experiment: str | None = None) -> list[WorkloadRecord]:
        """Return the workloads of one experiment or of all, oldest first."""
        return self._database.select(
            WORKLOADS, {"experiment": experiment}, "created_ns, workload_id"
        )

    def workload(self, workload_id: str) -> WorkloadRecord:
        """Return a workload; raise RunNotFoundError if it does not exist."""
        for workload in self._database.select(
            WORKLOADS, {"workload_id": workload_id}, "workload_id"
        ):
            return workload
        raise RunNotFoundError(f"there is no workload {workload_id} in {self.address}")

    def runs(
        self,
        *,
        experiment: str | None = None,
        workload_id: str | None = None,
        status: RunStatus | None = None,
        run_ids: Sequence[str] | None = None,
    ) -> list[RunRecord]:
        """Return runs that meet all conditions, oldest first, by letter within a workload."""
        conditions = {
            "experiment": experiment,
            "workload_id": workload_id,
            "status": None if status is None else status.value,
        }
        order = "created_ns, LENGTH(letter), letter, run_id"
        if run_ids is None:
            return self._database.select(RUNS, conditions, order)
        # Read in groups, each in its own order.
        runs = sorted(
            self._database.select_of(RUNS, run_ids, order),
            key=lambda run: (run.created_ns, len(run.letter), run.letter, run.run_id),
        )
        wanted = {name: value for name, value in conditions.items() if value is not None}
        return [
            run
            for run in runs
            if all(getattr(run, name) == value for name, value in wanted.items())
        ]

    def run(self, run_id: str) -> RunRecord:
        """Return a run by its id; raise RunNotFoundError if it does not exist."""
        for run in self._database.select(RUNS, {"run_id": run_id}, "run_id"):
            return run
        raise RunNotFoundError(
            f"there is no run {run_id} in {self.address}", "`radt ls` lists the runs"
        )

    def find_run(self, given: str) -> RunRecord:
        """Return the run with the given id, radt's or MLflow's, or id prefix.

        Raises:
            RunNotFoundError: No run or several match, or fewer than 4 characters were given.
        """
        matches = self.matching_runs(given)
        if not matches:
            raise RunNotFoundError(
                f"no run matches '{given}' in {self.address}", "`radt ls` lists the runs"
            )
        if len(matches) == 1:
            return matches[0]
        some = ", ".join(run.run_id[:12] for run in matches[:3])
        raise RunNotFoundError(f"several runs match '{given}': {some}…", "Give more characters")

    def matching_runs(self, given: str) -> list[RunRecord]:
        """Return the run with that id, radt's or MLflow's, else some runs with that id prefix.

        Raises:
            RunNotFoundError: Fewer than 4 characters were given.
        """
        prefix = given.strip().lower()
        if len(prefix) < MIN_PREFIX:
            raise RunNotFoundError(
                f"'{given}' is too short for a run id", f"Give {MIN_PREFIX} characters or more"
            )
        # A range uses the index for any prefix; LIKE would not, and has wildcards.
        row = {"first": prefix, "last": prefix + chr(0x10FFFF)}
        with self._database.snapshot() as connection:
            rows = connection.execute(FIND_RUN, row).all()
        runs = {run.run_id: run for run in map(RUNS.read, rows)}
        exact = [run for run in runs.values() if prefix in (run.run_id, run.mlflow_run_id)]
        return exact or list(runs.values())

    def unended_runs(self) -> list[RunRecord]:
        """Return runs without an end, oldest first."""
        return self._database.query(RUNS, "WHERE ended_ns IS NULL ORDER BY created_ns", {})

    def runs_to_deliver(self, tracking_uri: str) -> list[RunRecord]:
        """Return runs not yet marked by `StoreWriter.mark_run_delivered`, oldest first."""
        return self._database.query(RUNS, TO_DELIVER, {"uri": masked(tracking_uri)})

    def workloads_to_deliver(self, tracking_uri: str) -> list[WorkloadRecord]:
        """Return workloads not yet marked by `StoreWriter.mark_workload_delivered`."""
        return self._database.query(WORKLOADS, TO_DELIVER, {"uri": masked(tracking_uri)})

    def params(self, run_id: str) -> dict[str, str]:
        """Return the parameters of a run."""
        return self.params_of([run_id]).get(run_id, {})

    def params_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the parameters of runs; runs without any are left out."""
        return self._database.texts("param", run_ids)

    def tags(self, run_id: str) -> dict[str, str]:
        """Return the tags of a run."""
        return self.tags_of([run_id]).get(run_id, {})

    def tags_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the tags of runs; runs without any are left out."""
        return self._database.texts("tag", run_ids)

    def tagged(self, key: str, experiment: str) -> dict[str, str]:
        """Return the values of one tag by run; runs of the experiment without it are left out."""
        with self._database.snapshot() as connection:
            rows = connection.execute(TAGGED, {"key": key, "experiment": experiment}).all()
        return {str(run_id): str(value) for run_id, value in rows}

    def has_tag(self, key: str, value: str) -> bool:
        """Return whether any run has a tag with this value."""
        with self._database.snapshot() as connection:
            return connection.execute(HAS_TAG, {"key": key, "value": value}).first() is not None

    def saved_views(self) -> list[SavedView]:
        """Return the saved views by name."""
        return self._database.query(SAVED_VIEWS, "ORDER BY name", {})

    # -- samples ----------------------------------------------------------------------------------

    def series(self, run_ids: Sequence[str]) -> list[SeriesRecord]:
        """Return all series of runs, by run and number."""
        return self._database.select_of(SERIES, run_ids, "run_id, series_no")

    def samples(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Samples:
        """Return the points of a series in a range of time, in time order, at full resolution.

        An unknown series has no points.

        Raises:
            CodecError: A chunk is damaged.
        """
        from radt.store import chunks, points

        with self._database.snapshot() as connection:
            stored = points.chunks_between(connection, run_id, series_no, start_ns, end_ns)
        return chunks.between(chunks.time_sorted(stored.decode()), start_ns, end_ns)

    def point_counts(self, run_id: str) -> dict[int, int]:
        """Return the number of points of each series of a run, by the series' number."""
        from radt.store import points

        with self._database.snapshot() as connection:
            return points.point_counts(connection, run_id)

    def points_after(self, run_id: str, series_no: int, skip: int, limit: int) -> Samples:
        """Return at most ``limit`` points in the order of writing, after the first ``skip``.

        That order never changes, so a reader that counts its points misses none and gets none
        twice, even if times go backwards.

        Raises:
            CodecError: A chunk is damaged.
        """
        from radt.store import chunks, points

        with self._database.snapshot() as connection:
            stored = points.chunks_after(connection, run_id, series_no, skip, limit)
        first = skip - stored.before
        return chunks.sliced(stored.decode(), first, first + limit)

    def mean(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> float | None:
        """Return the mean of finite values in a range of time, mostly from headers, if any.

        See `radt.store.points.mean_between`.

        Raises:
            CodecError: A chunk is damaged.
        """
        from radt.store import points

        with self._database.snapshot() as connection:
            return points.mean_between(connection, run_id, series_no, start_ns, end_ns)

    def envelope(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        max_points: int = 2000,
    ) -> Samples:
        """Return at most ``max_points`` real points of a series that keep its peaks, for a chart.

        See `radt.store.overview.envelope`.

        Raises:
            CodecError: A chunk is damaged.
        """
        from radt.store import chunks, overview, points

        part = points.Part(run_id, series_no, start_ns, end_ns)
        with self._database.snapshot() as connection:
            plan = overview.plan(overview.read_headers(connection, part), part, max_points)
            stored = (
                points.chunks_between(connection, run_id, series_no, start_ns, end_ns)
                if plan is None
                else points.chunks_numbered(connection, run_id, series_no, plan.numbers)
            )
        if plan is not None:
            return plan.points(stored.chunks)
        samples = chunks.between(chunks.time_sorted(stored.decode()), start_ns, end_ns)
        return overview.envelope(samples, max_points)

    def summary(self, run_ids: Sequence[str]) -> list[SummaryRecord]:
        """Return count, mean, extremes and ends of every series with points, from headers only."""
        return self._database.in_groups(
            run_ids,
            lambda connection, ids: [
                summary_record(row) for row in connection.execute(SUMMARY, {"ids": ids})
            ],
        )

    def last_logged(self, run_ids: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the newest value of each metric that scripts logged, by run and metric.

        It is read from headers alone; NaN where the value is not a number.
        """
        rows = self._database.in_groups(
            run_ids, lambda connection, ids: list(connection.execute(LAST_LOGGED, {"ids": ids}))
        )
        values: dict[str, dict[str, float]] = {}
        for run_id, metric, entity, value, chunk_no in rows:
            if chunk_no is not None:
                name = f"{metric} {entity}".rstrip()
                values.setdefault(run_id, {})[name] = math.nan if value is None else value
        return values

    # -- what else is known of runs ---------------------------------------------------------------

    def markers(self, run_ids: Sequence[str]) -> list[MarkerRecord]:
        """Return the markers of runs, by run and start."""
        return self._database.select_of(MARKERS, run_ids, "run_id, start_ns, marker_no")

    def markers_after(self, run_id: str, marker_no: int, limit: int) -> list[MarkerRecord]:
        """Return at most ``limit`` markers of a run after number ``marker_no``, by number."""
        return self._database.query(
            MARKERS,
            "WHERE run_id = :run_id AND marker_no > :after ORDER BY marker_no LIMIT :limit",
            {"run_id": run_id, "after": marker_no, "limit": limit},
        )

    def ledger(self, run_ids: Sequence[str]) -> list[LedgerRecord]:
        """Return the samples expected and received of every listener of runs."""
        return self._database.select_of(LEDGERS, run_ids, "run_id, listener")

    def gaps(self, run_ids: Sequence[str]) -> list[GapRecord]:
        """Return the stretches of runs without values, by run and start."""
        return self._database.select_of(GAPS, run_ids, "run_id, start_ns, listener, series_no")

    def cursors(self, run_id: str) -> dict[str, JournalCursor]:
        """Return how far each journal of a run was read, by the journal's name."""
        rows = self._database.query(CURSORS, "WHERE run_id = :run_id", {"run_id": run_id})
        return {cursor.journal: cursor for cursor in rows}

    def delivered(self, run_id: str) -> dict[int, int]:
        """Return the positions recorded by `StoreWriter.mark_delivered`, by series number."""
        with self._database.snapshot() as connection:
            rows = connection.execute(
                text("SELECT series_no, delivered FROM delivery WHERE run_id = :run_id"),
                {"run_id": run_id},
            )
            return {int(number): int(count) for number, count in rows}

    def delivered_artifacts(self, run_id: str) -> set[str]:
        """Return the artifacts recorded by `StoreWriter.mark_artifacts`."""
        with self._database.snapshot() as connection:
            rows = connection.execute(
                text("SELECT path FROM artifact_delivered WHERE run_id = :run_id"),
                {"run_id": run_id},
            )
            return {str(path) for (path,) in rows}
