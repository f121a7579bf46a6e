"""What pages can read of MLflow's runs, wherever they are: a database, or a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from radt.frontend.foreign.listing import Listing
from radt.store.records import Samples, SeriesRecord, SummaryRecord


class Beside(ABC):
    """Runs of one MLflow. Thread-safe; nothing is opened before it is asked.

    Its methods are those of `radt.store.reader.StoreReader` of the same name, for its own runs.
    ``is_away_at_times`` says that it may not answer for a while: what was read stays on the page
    then.
    """

    is_away_at_times = False
    #: For people: a file, or an address without password.
    where = ""

    @property
    @abstractmethod
    def is_there(self) -> bool:
        """Whether there is anything to ask.

        Raises:
            StoreError: That cannot be found out.
        """

    @abstractmethod
    def change_token(self) -> int:
        """A number below 2**53 that changes whenever there is news.

        Raises:
            StoreError: It cannot be read.
        """

    @abstractmethod
    def listing(self) -> Listing:
        """All runs, as they are now.

        Raises:
            StoreError: It cannot be read.
        """

    @abstractmethod
    def params_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Parameters of runs; runs without any are left out."""

    @abstractmethod
    def tags_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Tags of runs; runs without any are left out."""

    @abstractmethod
    def series(self, run_ids: Sequence[str]) -> list[SeriesRecord]:
        """All series of runs, by run and number."""

    @abstractmethod
    def summary(self, run_ids: Sequence[str]) -> list[SummaryRecord]:
        """Count, mean, extremes and ends of every series that has points."""

    @abstractmethod
    def samples(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        max_points: int | None = None,
    ) -> Samples:
        """Points of a series in time order; at most ``max_points`` that keep its peaks."""

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of what it holds."""
