"""Copy one run: when it is due, and what is left to send."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from radt import settings
from radt.delivery.postgres.contents import CopyDifference
from radt.delivery.postgres.shipment import Copied, SeriesEnd, Shipment
from radt.delivery.process import setting_or_default
from radt.errors import CodecError, RunNotFoundError
from radt.model import SOFTWARE
from radt.store import copy
from radt.store.copy import Batch, Position, PrunedError
from radt.store.reader import StoreReader
from radt.store.records import SeriesRecord

log = logging.getLogger(__name__)

#: More points than any series, and more markers than any run.
_ALL = 2**62


class RunCopy:
    """State of a run's copy in this process.

    ``copied`` is None until the other store was queried, and again when it may be wrong.
    """

    def __init__(self, run_id: str, source: StoreReader, pace: Pace) -> None:
        self.run_id = run_id
        self.copied: Copied | None = None
        #: Series of the run and their numbers of points as of the last batch.
        self.series: Sequence[SeriesRecord] = ()
        self._points: Mapping[int, int] = {}
        #: The run's revision on this side at the last check, and at the time when all of it was
        #: sent.
        self.seen_revision = -1
        self.sent_revision = -1
        #: Number of conflicts in a row with another writer of the run.
        self.stale_tries = 0
        #: Series that are unreadable on this side.
        self.damaged: dict[int, str] = {}
        self._source = source
        self._pace = pace
        self._texts_due_s = 0.0
        self._samples_due_s = 0.0
        self._any_samples = False
        self._all_markers = False
        self._with_samples = False
        self._batches: Iterator[Batch] | None = None

    @property
    def due_s(self) -> float:
        """Return the monotonic time at which a running run is due; infinity without new writes."""
        if self.sent_revision >= self.seen_revision:
            return math.inf
        return min(self._texts_due_s, self._samples_due_s)

    def flush(self) -> None:
        """Make the run due now: it has ended, or everything has to be copied."""
        self._texts_due_s = self._samples_due_s = 0.0

    def add_to(self, shipment: Shipment, *, final: bool) -> bool:
        """Add the next batch to a shipment; return whether more is left.

        Args:
            shipment: The next shipment, which may contain other runs.
            final: Whether the run has ended, so that all of it is due.
        """
        now_s = time.monotonic()
        assert self.copied is not None
        if self._batches is None:
            self._with_samples = final or now_s >= self._samples_due_s
            since = self.copied.position
            self._batches = copy.changes(
                self._source,
                self.run_id,
                Position(since.points) if self._all_markers else since,
                samples=self._with_samples,
            )
            self._all_markers = False
        try:
            batch = next(self._batches)
        except (RunNotFoundError, PrunedError):
            self._batches = None
            return False  # removed or pruned meanwhile
        self._note(batch)
        shipment.add_batch(batch, self.copied)
        if batch.is_last:
            self._batches = None
            self._set_due(now_s)
            if self._with_samples:
                self.sent_revision = batch.rows.revision  # unless `lost` resets it
        return not batch.is_last

    def _note(self, batch: Batch) -> None:
        self.series, self._points = batch.rows.series, batch.rows.points
        for number, reason in batch.damaged.items():
            if number not in self.damaged:
                log.warning("run %s, series %d: %s", self.run_id, number, reason)
        self.damaged |= batch.damaged
        own = {each.series_no for each in self.series if each.listener == SOFTWARE}
        if any(piece.series_no not in own for piece in batch.pieces):
            self._any_samples = True

    def lost(self) -> None:
        """Forget what was copied: the shipment may or may not have arrived."""
        self.forget()
        self.sent_revision = -1
        self.flush()

    def forget(self) -> None:
        """Forget what was copied while idle, because another process may write, too."""
        self.copied = self._batches = None

    def rewind(self, ends: Mapping[int, SeriesEnd]) -> bool:
        """Schedule the ends of series to be sent again, if this side has all of their points."""
        assert self.copied is not None
        copied = self.copied.position.points
        for number, end in ends.items():
            # Another process may have written to it meanwhile.
            if not end.points <= copied.get(number, -1) <= self._points.get(number, 0):
                return False
        try:
            self._check_readable({no: copied[no] - end.points for no, end in ends.items()})
        except (CodecError, RunNotFoundError, PrunedError):
            return False
        self.copied.rewind(ends)
        self._batches = None
        self.flush()
        return True

    def redo(self, difference: CopyDifference) -> None:
        """Schedule the different parts of a copy to be sent again.

        These are all series of a listener, because they share their times.

        Raises:
            CodecError: One of them is unreadable here, so the copy must be kept.
        """
        listeners = {each.listener for each in self.series if each.series_no in difference.series}
        numbers = [each.series_no for each in self.series if each.listener in listeners]
        self._check_readable(dict.fromkeys(numbers, 0))
        self._all_markers = self._all_markers or difference.markers
        assert self.copied is not None
        points = self.copied.position.points
        self.copied.rewind({n: SeriesEnd(0, points[n]) for n in numbers if n in points})
        self._batches = None

    def _check_readable(self, after: Mapping[int, int]) -> None:
        """Raise CodecError if a series is unreadable here after this number of its points."""
        points = {each.series_no: after.get(each.series_no, _ALL) for each in self.series}
        for batch in copy.changes(self._source, self.run_id, Position(points, {0: _ALL})):
            for reason in batch.damaged.values():
                raise CodecError(reason)

    def _set_due(self, now_s: float) -> None:
        self._texts_due_s = now_s + self._pace.texts_s
        if self._with_samples:
            # The first pieces are sent soon, so that a new run appears as live.
            wait_s = self._pace.samples_s if self._any_samples else self._pace.texts_s
            self._samples_due_s = now_s + wait_s


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two pieces of a running run; its beginning and its end are sent at once.

    Args:
        samples_s: For listeners' samples. A piece is one row per series with an overhead of about
            200 bytes, a quarter of its size at 600 points, which is a minute at 10 Hz.
        texts_s: For the script's metrics, parameters, tags and markers.
        look_s: Between two checks of the store, regardless of notifications.
        look_share: Share of the time that checking may take, however many runs there are.
    """

    samples_s: float = settings.REPLICATION_S.default
    texts_s: float = 10.0
    look_s: float = 2.0
    look_share: float = 0.02

    @classmethod
    def from_environment(cls) -> Pace:
        """Parse ``RADT_REPLICATION_S``."""
        interval_s = setting_or_default(settings.REPLICATION_S)
        return cls(interval_s, min(cls().texts_s, interval_s), min(cls().look_s, interval_s))
