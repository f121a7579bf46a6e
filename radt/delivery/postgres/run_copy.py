"""Copy one run: choose the content of the next shipment.

Points are sent once, in the order of writing: the copy's position is a number of points per series,
and the next pieces start there. They do not follow the chunks on this side, which are merged as
they grow.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from radt import settings
from radt.delivery.postgres.local import LocalStore
from radt.delivery.postgres.remote import RunProgress, SeriesProgress
from radt.delivery.postgres.shipment import (
    EXPERIMENT,
    PARAM,
    TAG,
    Cut,
    Difference,
    Kind,
    Row,
    Shipment,
    row_of,
)
from radt.errors import CodecError
from radt.model import SOFTWARE, MarkerKind
from radt.store import chunks
from radt.store.records import MarkerRecord, RunRecord, SeriesRecord
from radt.store.tables import Value, to_column

log = logging.getLogger(__name__)

#: Number of points of all series read at a time; they take 24 bytes each.
_POINTS_AT_A_TIME = 500_000
_SERIES_AT_A_TIME = 200
_MARKERS_AT_A_TIME = 5000
#: Number of small pieces of a series that are merged into one, unless they fill a chunk earlier.
_MANY_PIECES = 60

#: Returns where chunks can be cut (`Remote.settled`).
Settle = Callable[[str, dict[int, int]], tuple[dict[int, int], dict[int, int]]]


class RunCopy:
    """State of a run's copy in this process.

    ``progress`` is None before its query, and again when it may be wrong.
    """

    def __init__(self, run_id: str, local: LocalStore, pace: Pace) -> None:
        self.run_id = run_id
        self.progress: RunProgress | None = None
        #: The run's revision on this side at the last check, and when all of it was sent.
        self.seen_revision = -1
        self.sent_revision = -1
        #: Series that are unreadable on this side.
        self.damaged: dict[int, str] = {}
        self._local = local
        self._pace = pace
        self._next: RunProgress | None = None
        self._sent: dict[tuple[Kind, Row], int] = {}
        self._sending: dict[tuple[Kind, Row], int] = {}
        self._texts_due_s = 0.0
        self._samples_due_s = 0.0
        self._any_samples = False
        self._all_markers = False

    # -- when -------------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """Return the monotonic time at which a running run is due; infinity without writes."""
        if self.sent_revision == self.seen_revision:
            return math.inf
        return min(self._texts_due_s, self._samples_due_s)

    def hurry(self) -> None:
        """Make the run due now: it has ended, or everything is to be copied."""
        self._texts_due_s = self._samples_due_s = 0.0

    # -- what -------------------------------------------------------------------------------------

    def plan(self, shipment: Shipment, settle: Settle, *, final: bool) -> bool:
        """Add new data to a shipment, which may have other runs' rows; return whether more is left.

        Pieces of an ended run (`final`) are as large as possible.
        """
        assert self.progress is not None
        revision = self.seen_revision
        self._next = copy.deepcopy(self.progress)
        self._sending = {}
        run = self._local.run(self.run_id)
        if run is None:
            return False  # removed meanwhile
        now_s = time.monotonic()
        texts = final or now_s >= self._texts_due_s
        samples = final or now_s >= self._samples_due_s
        before = shipment.size_bytes
        series = self._local.series(self.run_id)
        self._plan_run(shipment, run)
        more = self._plan_texts(shipment, series) if texts else False
        if samples:
            for ledger in self._local.ledgers(self.run_id):
                self._put(shipment, *row_of(ledger))
        for listener, numbers in _groups(series, texts=texts, samples=samples):
            if shipment.full:
                more = True
                break
            known = len(shipment.chunks)
            more = self._plan_points(shipment, numbers, settle, final=final) or more
            if listener != SOFTWARE and len(shipment.chunks) > known:
                self._any_samples = True
        if shipment.size_bytes > before or final:
            shipment.revisions[self.run_id] = self.progress.revision
            if self.progress.revision is None:
                # The run's row creates it; a concurrently created one must not be replaced.
                self._put(shipment, *row_of(run), again=True)
        if not more:
            self._set_due(now_s, texts=texts, samples=samples)
            if texts and samples:
                self.sent_revision = revision  # or `lost`
        return more

    def shipped(self) -> None:
        """Record that the shipment has arrived."""
        assert self._next is not None
        self._next.revision = 0 if self._next.revision is None else self._next.revision + 1
        self.progress = self._next
        self._sent |= self._sending

    def lost(self) -> None:
        """Forget the progress: the shipment may or may not have arrived."""
        self.forget()
        self.sent_revision = -1
        self.hurry()

    def forget(self) -> None:
        """Forget the progress while idle, because another process may write, too."""
        self.progress = None
        self._sent.clear()

    def redo(self, difference: Difference, series: Sequence[SeriesRecord]) -> list[Cut]:
        """Restart what differs in the copy; return the cuts that delete its points there.

        Cuts all series of a listener, as they share their times, but none that is unreadable here.

        Raises:
            CodecError: A series is unreadable.
        """
        listeners = {record.listener for record in series if record.series_no in difference.series}
        numbers = [record.series_no for record in series if record.listener in listeners]
        for number in numbers:
            self._check_readable(number)
        self._all_markers = self._all_markers or difference.markers
        return [Cut(self.run_id, number, 0) for number in numbers]

    def _check_readable(self, number: int) -> None:
        count, limit = 0, _limit(1)
        while True:
            stored = self._local.points_after(self.run_id, {number: count}, limit)[number]
            if not stored.chunks:
                return
            count = stored.before + len(stored.decode())

    def _set_due(self, now_s: float, *, texts: bool, samples: bool) -> None:
        if texts:
            self._texts_due_s = now_s + self._pace.texts_s
        if samples:
            # The first pieces are sent soon, so that a new run appears as live.
            wait_s = self._pace.samples_s if self._any_samples else self._pace.texts_s
            self._samples_due_s = now_s + wait_s

    # -- small tables -----------------------------------------------------------------------------

    def _put(self, shipment: Shipment, kind: Kind, row: Row, *, again: bool = False) -> None:
        """Add a row unless the same row was already sent."""
        key, digest = (kind, kind.key(row)), hash(row)
        if again or self._sent.get(key) != digest:
            self._sending[key] = digest
            shipment.add(kind, row)

    def _plan_run(self, shipment: Shipment, run: RunRecord) -> None:
        created_ns = self._local.experiment_created_ns(run.experiment) or run.created_ns
        self._put(shipment, EXPERIMENT, (to_column(run.experiment), created_ns))
        self._put(shipment, *row_of(run))

    def _plan_texts(self, shipment: Shipment, series: Sequence[SeriesRecord]) -> bool:
        for kind in (PARAM, TAG):
            for key, value in self._local.texts(kind.name, self.run_id):
                self._put(shipment, kind, (self.run_id, key, value))
        for record in series:
            self._put(shipment, *row_of(record))
        for gap in self._local.gaps(self.run_id):
            self._put(shipment, *row_of(gap))
        return self._plan_markers(shipment)

    def _plan_markers(self, shipment: Shipment) -> bool:
        """Add new markers and formerly open ones: a million others may never change again."""
        assert self._next is not None
        progress = self._next
        if self._all_markers:
            progress.next_marker_no, self._all_markers = 0, False
        for marker in self._local.markers(self.run_id, sorted(progress.open_markers)):
            if not _is_open(marker):
                progress.open_markers.discard(marker.marker_no)
            self._put(shipment, *row_of(marker))
        while not shipment.full:
            new = self._local.new_markers(self.run_id, progress.next_marker_no, _MARKERS_AT_A_TIME)
            for marker in new:
                shipment.add(*row_of(marker))
                if _is_open(marker):
                    progress.open_markers.add(marker.marker_no)
            if new:
                progress.next_marker_no = new[-1].marker_no + 1
            if len(new) < _MARKERS_AT_A_TIME:
                return False
        return True

    # -- points -----------------------------------------------------------------------------------

    def _plan_points(
        self, shipment: Shipment, numbers: Collection[int], settle: Settle, *, final: bool
    ) -> bool:
        """Return a piece of each of several series read together; and whether there is more."""
        assert self._next is not None
        known = {number: self._next.series.get(number, SeriesProgress()) for number in numbers}
        scattered = any(
            record.tail_chunks > 1
            and (
                final
                or record.tail_chunks >= _MANY_PIECES
                or record.tail_points >= chunks.POINTS_PER_CHUNK
            )
            for record in known.values()
        )
        limit = _limit(len(numbers))
        piece = self._merged(known, settle, limit) if scattered else None
        if piece is None:
            piece = self._piece(known, limit)
        shipment.cuts += piece.cuts
        shipment.add_chunks(piece.rows)
        self._next.series |= piece.progress
        return piece.more

    def _piece(self, known: Mapping[int, SeriesProgress], limit: int) -> _Piece:
        """Return at most ``limit`` points of each series, after those that were copied."""
        piece, times = _Piece(), chunks.SharedTimes()
        skip = {number: state.points for number, state in known.items()}
        for number, stored in self._local.points_after(self.run_id, skip, limit).items():
            if not stored.chunks:
                continue
            progress = copy.copy(known[number])
            try:
                samples = stored.decode()
            except CodecError as error:
                if number not in self.damaged:
                    log.warning("run %s, series %d: %s", self.run_id, number, error)
                self.damaged[number] = error.message
                continue
            first = progress.points - stored.before
            samples = chunks.sliced(samples, first, first + limit)
            piece.more = piece.more or len(samples) >= limit
            rows = chunks.compacted_rows(
                self.run_id, number, progress.next_chunk_no, samples, times, seal_rest=True
            )
            for row in rows:
                progress.append(int(row["point_count"] or 0))
                piece.rows.append(row)
            piece.progress[number] = progress
        return piece

    def _merged(
        self, known: Mapping[int, SeriesProgress], settle: Settle, limit: int
    ) -> _Piece | None:
        """Return the piece merged with the copy's small pieces at the end, which it replaces.

        None if this side lacks some of the points that would be deleted there.
        """
        tails = {number: state.next_chunk_no - state.tail_chunks for number, state in known.items()}
        cuts, left = settle(self.run_id, tails)
        if max(known[number].points - left[number] for number in known) > limit:
            return None
        piece = self._piece(
            {number: SeriesProgress(left[number], cuts[number]) for number in known},
            limit + chunks.POINTS_PER_CHUNK,
        )
        for number, state in known.items():
            if state.points > left[number] and (
                number not in piece.progress or piece.progress[number].points < state.points
            ):
                return None
        piece.cuts = [
            Cut(self.run_id, number, cuts[number])
            for number, state in known.items()
            if state.next_chunk_no > cuts[number]
        ]
        return piece


@dataclass(slots=True)
class _Piece:
    """Chunks of several series, and the copy's progress after them."""

    rows: list[dict[str, Value]] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    progress: dict[int, SeriesProgress] = field(default_factory=dict)
    more: bool = False


def _groups(
    series: Sequence[SeriesRecord], *, texts: bool, samples: bool
) -> list[tuple[str, list[int]]]:
    """Return due series grouped by listener, not too many at a time."""
    groups: dict[str, list[int]] = {}
    for record in series:
        if texts if record.listener == SOFTWARE else samples:
            groups.setdefault(record.listener, []).append(record.series_no)
    return [
        (listener, numbers[start : start + _SERIES_AT_A_TIME])
        for listener, numbers in groups.items()
        for start in range(0, len(numbers), _SERIES_AT_A_TIME)
    ]


def _limit(series_count: int) -> int:
    """Return the number of points to read of each of so many series: whole chunks."""
    full = chunks.POINTS_PER_CHUNK
    return full * max(1, math.floor(_POINTS_AT_A_TIME / max(1, series_count) / full))


def _is_open(marker: MarkerRecord) -> bool:
    """Return whether the marker will get an end."""
    return marker.end_ns is None and marker.kind is not MarkerKind.EVENT


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
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Pace:
        """Parse ``RADT_REPLICATION_S``; raise UsageError if it is not a number above 0."""
        setting = settings.variable(settings.REPLICATION_S, environ)
        if setting.problem is not None:
            raise setting.problem
        interval_s = setting.value
        return cls(interval_s, min(cls().texts_s, interval_s), min(cls().look_s, interval_s))
