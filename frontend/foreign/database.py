"""Runs of an MLflow database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, TextClause

from radt.frontend.foreign import statements
from radt.frontend.foreign.beside import Beside
from radt.frontend.foreign.connection import MlflowConnection
from radt.frontend.foreign.histories import Histories, Latest
from radt.frontend.foreign.listing import MAX_RUNS, Listing, listed
from radt.frontend.foreign.mlflow_run import NAME_TAG, READ_TAGS, MlflowRun, shown_tags
from radt.frontend.foreign.numbering import Numbering
from radt.frontend.foreign.points import samples_of
from radt.store.downsample import envelope
from radt.store.records import Samples, SeriesRecord, SummaryRecord

#: Databases limit the parameters of one statement.
_IDS_PER_STATEMENT = 500


class DatabaseBeside(Beside):
    """See `Beside`. A database that is not there, or has no tables of MLflow, has no runs."""

    def __init__(self, database: MlflowConnection) -> None:
        self._database = database
        self.where = database.where
        self.is_away_at_times = database.is_remote
        self._listing = Listing()
        self._histories = Histories(database)
        self._numbering = Numbering()

    @property
    def is_there(self) -> bool:
        return self._database.is_there

    def change_token(self) -> int:
        return self._database.change_token() if self.is_there else 0

    def listing(self) -> Listing:
        if not self.is_there:
            self._listing = Listing()
            return self._listing
        with self._database.snapshot() as connection:
            rows = connection.execute(statements.RUNS, {"limit": MAX_RUNS}).all()
            # Before MLflow 1.30 runs had no names of their own.
            keys = READ_TAGS if all(row[2] for row in rows) else (*READ_TAGS, NAME_TAG)
            tags: dict[str, dict[str, str]] = {}
            for mlflow_id, key, value in connection.execute(statements.RUN_TAGS, {"keys": keys}):
                tags.setdefault(mlflow_id, {})[key] = value or ""
            found = [
                MlflowRun(mlflow_id, name, title or "", status or "", start, end, run_tags)
                for mlflow_id, name, title, status, start, end in rows
                for run_tags in [tags.get(mlflow_id, {})]
            ]
            parents = {run.parent_id for run in found} - {""}
            with_metrics = {
                row[0] for row in _in_groups(connection, statements.WITH_METRICS, parents)
            }
        for index, run in enumerate(found):
            if run.mlflow_id in parents and run.mlflow_id not in with_metrics:
                found[index] = replace(run, has_metrics=False)
        self._listing = listed(found, self._database.where)
        return self._listing

    def params_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        return self._texts(statements.PARAMS, run_ids)

    def tags_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        found = self._texts(statements.TAGS, run_ids)
        return {run_id: shown_tags(tags) for run_id, tags in found.items()}

    def series(self, run_ids: Sequence[str]) -> list[SeriesRecord]:
        return [
            record
            for run_id, latest in self._latest(run_ids).items()
            for record in self._records(run_id, latest).values()
        ]

    def summary(self, run_ids: Sequence[str]) -> list[SummaryRecord]:
        found = []
        for run_id, latest in self._latest(run_ids).items():
            records = self._records(run_id, latest)
            totals = self._histories.totals(self._mlflow_id(run_id), latest)
            found += [
                totals[key].summary(record, latest[key])
                for key, record in records.items()
                if key in totals
            ]
        return found

    def samples(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        max_points: int | None = None,
    ) -> Samples:
        key = self._numbering.key(run_id, series_no)
        if key is None:
            self.series([run_id])  # nobody has asked for its number here
            key = self._numbering.key(run_id, series_no)
        if key is None:
            return samples_of(())
        run = self._listing.runs.get(run_id)
        samples = self._histories.points(
            self._mlflow_id(run_id),
            key,
            start_ns,
            end_ns,
            ended=run is not None and run.status.ended,
        )
        return samples if max_points is None else envelope(samples, max_points)

    def close(self) -> None:
        self._database.close()

    # ---------------------------------------------------------------------------------------------

    def _mlflow_id(self, run_id: str) -> str:
        run = self._listing.runs.get(run_id)
        return run_id if run is None or run.mlflow_run_id is None else run.mlflow_run_id

    def _latest(self, run_ids: Sequence[str]) -> dict[str, dict[str, Latest]]:
        """The last points of runs by run, in order, and metric."""
        own = {self._mlflow_id(run_id): run_id for run_id in run_ids}
        found: dict[str, dict[str, Latest]] = {}
        with self._database.snapshot() as connection:
            for mlflow_id, key, *last in _in_groups(connection, statements.LATEST, own):
                found.setdefault(own[mlflow_id], {})[key] = Latest(*last)
        return dict(sorted(found.items()))

    def _records(self, run_id: str, keys: Iterable[str]) -> dict[str, SeriesRecord]:
        run = self._listing.runs.get(run_id)
        alone = run is None or self._listing.alone_in_workload(run_id)
        return self._numbering.series(run_id, keys, "" if alone or run is None else run.letter)

    def _texts(self, statement: TextClause, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        own = {self._mlflow_id(run_id): run_id for run_id in run_ids}
        found: dict[str, dict[str, str]] = {}
        with self._database.snapshot() as connection:
            for mlflow_id, key, value in _in_groups(connection, statement, own):
                found.setdefault(own[mlflow_id], {})[key] = value or ""
        return found


def _in_groups(
    connection: Connection, statement: TextClause, ids: Iterable[str]
) -> Iterator[Sequence[Any]]:
    """The rows of a statement, of some ids at a time."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), _IDS_PER_STATEMENT):
        yield from connection.execute(
            statement, {"ids": ordered[start : start + _IDS_PER_STATEMENT]}
        )
