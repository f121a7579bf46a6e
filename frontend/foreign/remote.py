"""Runs of an MLflow server that radt never saw."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from radt.frontend.foreign.beside import Beside
from radt.frontend.foreign.fetching import Fetch, Fetching, History
from radt.frontend.foreign.listing import Listing, listed
from radt.frontend.foreign.numbering import Numbering
from radt.frontend.foreign.points import between, samples_of, summary_of, with_steps_if_any
from radt.frontend.server_runs import Listed
from radt.masking import masked
from radt.store.downsample import envelope
from radt.store.records import Samples, SeriesRecord, SummaryRecord


class ServerBeside(Beside):
    """See `Beside`. Answers from memory: what is not here yet is asked for with `open`.

    Args:
        uri: The server.
    """

    is_there = True

    def __init__(self, uri: str) -> None:
        self.where = masked(uri)
        self._fetching = Fetching(uri)
        self._numbering = Numbering()
        self._lock = threading.Lock()
        self._known: Mapping[str, Listed] = {}
        self._listing = Listing()
        self._version = 0

    @property
    def fetching(self) -> Fetching:
        return self._fetching

    def take(self, known: Mapping[str, Listed]) -> None:
        """The runs that the server has now, by id."""
        listing = listed((one.run for one in known.values()), self.where)
        with self._lock:
            self._known, self._listing = known, listing
            self._version += 1

    def open(self, run_ids: Iterable[str]) -> None:
        """Read the metrics of those that are runs of this server."""
        self._fetching.want([one for one in run_ids if one in self._listing.runs])

    def fetches(self, run_ids: Iterable[str]) -> Mapping[str, Fetch]:
        """How far those are that were opened."""
        return self._fetching.of(run_ids)

    def change_token(self) -> int:
        return hash((self._version, self._fetching.version)) % 2**53

    def listing(self) -> Listing:
        return self._listing

    def params_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        known = self._known
        return {one: dict(known[one].params) for one in run_ids if one in known}

    def tags_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        known = self._known
        return {one: dict(known[one].tags) for one in run_ids if one in known}

    def series(self, run_ids: Sequence[str]) -> list[SeriesRecord]:
        return [
            record
            for run_id in sorted(set(run_ids))
            for record in self._records(run_id, self._fetching.histories(run_id)).values()
        ]

    def summary(self, run_ids: Sequence[str]) -> list[SummaryRecord]:
        found = []
        for run_id in sorted(set(run_ids)):
            histories = self._fetching.histories(run_id)
            found += [
                summary_of(record, samples)
                for key, record in self._records(run_id, histories).items()
                if len(samples := histories[key].samples)
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
        histories = self._fetching.histories(run_id)
        key = self._numbering.key(run_id, series_no)
        if key is None:
            self._records(run_id, histories)
            key = self._numbering.key(run_id, series_no)
        if key is None or key not in histories:
            return samples_of(())
        samples = with_steps_if_any(between(histories[key].samples, start_ns, end_ns))
        return samples if max_points is None else envelope(samples, max_points)

    def close(self) -> None:
        self._fetching.close()

    def _records(self, run_id: str, histories: Mapping[str, History]) -> dict[str, SeriesRecord]:
        run = self._listing.runs.get(run_id)
        alone = run is None or self._listing.alone_in_workload(run_id)
        spot = "" if alone or run is None else run.letter
        return self._numbering.series(run_id, sorted(histories), spot)
