"""The tracks of a run in its trace: curves of its series, and rows of its epochs, spans and gaps.

Viewers do not support missing values: a counter keeps its last value forever. So a curve drops to 0
in gaps, which draws nothing, and a slice beside it shows what is missing and why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radt.model import NO_STEP, MarkerKind, SeriesKind
from radt.store.counters import increases, rate_unit
from radt.store.overview import envelope
from radt.store.records import (
    Float64Array,
    GapRecord,
    Int64Array,
    MarkerRecord,
    Samples,
    SeriesRecord,
)
from radt.trace.chrome import TraceFile, Track
from radt.trace.gather import TracedRun

#: A pause longer than this many intervals is a gap, not jitter.
GAP_INTERVALS = 3.5
#: A pause at a recorded gap must be longer than this many intervals.
_MISSED_INTERVALS = 1.5
#: Fewer points do not show the interval of a series.
_MIN_TO_TELL = 3
_NOTHING = 0.0
_WORDS = {"By": "bytes", "By/s": "bytes/s", "1": "ratio", "Cel": "°C", "": "value"}


@dataclass(frozen=True, slots=True)
class Steps:
    """Values that hold from their time to the next; NaN for unknown. Arrays (N,)."""

    times_ns: Int64Array
    values: Float64Array

    def __len__(self) -> int:
        return len(self.times_ns)

    def points(self) -> Iterator[tuple[int, float]]:
        """Return points for `radt.trace.chrome.TraceFile.counter`; unknown values become 0."""
        values = np.where(np.isfinite(self.values), self.values, _NOTHING)
        return zip(self.times_ns.tolist(), values.tolist(), strict=True)


def unit_of(series: SeriesRecord) -> str:
    """Return the unit of a series' steps, as shown in track names."""
    unit = rate_unit(series.unit).unit if series.kind is SeriesKind.COUNTER else series.unit
    return _WORDS.get(unit, unit.replace("{", "").replace("}", ""))


def merged(parts: Sequence[Samples]) -> Samples:
    """Return the samples of one device from several runs, each instant once."""
    if len(parts) == 1:
        return parts[0]
    times_ns, first = np.unique(
        np.concatenate([part.times_ns for part in parts]), return_index=True
    )
    return Samples(times_ns, np.concatenate([part.values for part in parts])[first])


def steps(
    samples: Samples,
    series: SeriesRecord,
    holes_ns: Sequence[int],
    end_ns: int,
    max_points: int,
) -> Steps:
    """Return a series as steps.

    Args:
        samples: Its points, in time order.
        series: Its record; counters become rates, in the unit of `unit_of`.
        holes_ns: Starts of recorded gaps.
        end_ns: The end of the run, until which logged values hold.
        max_points: Number of points to keep, with the extremes; gaps are added.
    """
    if not len(samples):
        return Steps(samples.times_ns, samples.values)
    interval_ns = _interval_ns(samples, series)
    last_ns = int(samples.times_ns[-1])
    if series.kind is SeriesKind.COUNTER:
        samples = _rates(samples, series)
        if not len(samples):
            return Steps(samples.times_ns, samples.values)
    elif interval_ns is None:
        last_ns = max(last_ns + 1, end_ns)
    else:
        last_ns += interval_ns
    breaks_ns = _breaks(samples.times_ns, interval_ns, holes_ns, last_ns)
    kept = envelope(samples, max_points)
    times_ns = np.concatenate([kept.times_ns, breaks_ns])
    values = np.concatenate([kept.values, np.full(len(breaks_ns), np.nan)])
    order = np.argsort(times_ns, kind="stable")
    return Steps(times_ns[order], values[order])


def _interval_ns(samples: Samples, series: SeriesRecord) -> int | None:
    """Return the time between readings; None for script metrics.

    A listener may read costly metrics less often than its interval, which is not a gap.
    """
    if series.interval_s is None:
        return None
    given_ns = round(series.interval_s * 1e9)
    if len(samples) < _MIN_TO_TELL:
        return given_ns
    return max(given_ns, int(np.median(np.diff(samples.times_ns))))


def _rates(samples: Samples, series: SeriesRecord) -> Samples:
    """Return rates per second that hold from each reading to the next."""
    grown = increases(samples.times_ns, samples.values, series.wraps_at)
    timed = grown.seconds > 0
    per_s = grown.amounts[timed] / grown.seconds[timed]
    return Samples(grown.start_ns[timed], per_s * rate_unit(series.unit).factor)


def _breaks(
    times_ns: Int64Array, interval_ns: int | None, holes_ns: Sequence[int], last_ns: int
) -> Int64Array:
    """Return the times at which a value ends without a successor, and the end of the series."""
    following_ns = np.append(times_ns[1:], last_ns)
    if interval_ns is None:
        return np.array([last_ns], np.int64)
    pause_ns = following_ns - times_ns
    at_hole = np.zeros(len(times_ns), dtype=bool)
    # The reading at which a gap was noticed may carry the gap's own time stamp.
    places = np.searchsorted(times_ns, np.array(holes_ns, np.int64), "right") - 1
    at_hole[places[places >= 0]] = True
    # Another run may have the device's values during one run's gap, which is then invisible.
    broken = at_hole & (pause_ns > _MISSED_INTERVALS * interval_ns)
    broken |= pause_ns > GAP_INTERVALS * interval_ns
    return np.append(times_ns[broken] + interval_ns, last_ns).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """A named stretch of time; nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    category: str
    args: dict[str, object]


def in_lanes(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Yield each span with the number of its row: the first in which it is disjoint or nested.

    Spans are sorted by start, the longer ones first, so that a parent precedes its children.
    """
    lanes: list[list[int]] = []  # ends of open spans, outermost first
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        place = next((n for n, lane in enumerate(lanes) if _has_room(lane, span)), len(lanes))
        if place == len(lanes):
            lanes.append([])
        lanes[place].append(span.end_ns)
        yield place, span


def _has_room(open_ends: list[int], span: Span) -> bool:
    """Remove the spans that ended before this one; return whether it nests in the others."""
    while open_ends and open_ends[-1] <= span.start_ns:
        open_ends.pop()
    return not open_ends or span.end_ns <= open_ends[-1]


#: Listeners notice a gap at the same instant; their clocks tick in nanoseconds.
_SAME_NS = 1_000_000
_MAIN_PROCESS = "main process"
_WHOLE_LISTENER = -1


@dataclass(frozen=True, slots=True)
class Rows:
    """Numbers of written markers and gaps."""

    markers: int
    gaps: int


def write_rows(file: TraceFile, pid: int, run: TracedRun, params: Mapping[str, str]) -> Rows:
    """Write all rows of a run below its process `pid`; `params` go to the slice of the run."""
    record = run.record
    if record.started_ns is not None:
        _write_spans(file, pid, "run", [_life(run, params)])
    by_process: dict[str, list[Span]] = defaultdict(list)
    events: list[MarkerRecord] = []
    for marker in run.markers:
        if marker.kind is MarkerKind.EVENT and marker.end_ns is None:
            events.append(marker)
        else:
            row = "radt" if marker.kind is MarkerKind.EVENT else marker.process or _MAIN_PROCESS
            by_process[row].append(_span(marker, run.end_ns))
    # The first process, then by label, then radt's own events.
    for row in sorted(by_process, key=lambda row: (row == "radt", row != _MAIN_PROCESS, row)):
        _write_spans(file, pid, row, by_process[row])
    if events:
        track = file.track(pid, "events")
        for event in events:
            args = {"detail": event.detail, "process": event.process}
            file.instant(track, event.name, event.start_ns, event.kind.value, args)
    gaps = _gaps(run)
    _write_spans(file, pid, "gaps", gaps)
    return Rows(len(run.markers), len(gaps))


def _life(run: TracedRun, params: Mapping[str, str]) -> Span:
    record = run.record
    assert record.started_ns is not None
    args: dict[str, object] = {
        "run_id": record.run_id,
        "mlflow_run_id": record.mlflow_run_id,
        "status": record.status.value,
        "reason": record.end_reason,
        "exit_code": record.exit_code,
        "devices": record.devices,
        "collocation": record.collocation,
        "listeners": record.listeners,
        "command": record.command,
        "params": dict(params),
    }
    return Span(run.name, record.started_ns, max(run.end_ns, record.started_ns), "run", args)


def _span(marker: MarkerRecord, end_ns: int) -> Span:
    numbered = marker.step is not None and marker.step != NO_STEP
    name = f"{marker.name} {marker.step}" if numbered else marker.name
    args: dict[str, object] = {"kind": marker.kind.value, "detail": marker.detail}
    if marker.end_ns is None:
        args["open"] = "it did not end before the run did"
    closed_ns = end_ns if marker.end_ns is None else marker.end_ns
    return Span(name, marker.start_ns, max(closed_ns, marker.start_ns), marker.kind.value, args)


def _gaps(run: TracedRun) -> list[Span]:
    """Return stretches without values, one for all series with the same gap and reason."""
    names = {
        part.series.series_no: curve.name
        for curve in run.curves
        for part in curve.parts
        if part.series.run_id == run.record.run_id
    }
    together: dict[tuple[object, ...], list[GapRecord]] = defaultdict(list)
    for gap in run.gaps:
        instants = gap.start_ns // _SAME_NS, gap.end_ns // _SAME_NS
        together[gap.listener, gap.reason, gap.detail, *instants].append(gap)
    spans = []
    for gaps in together.values():
        first = gaps[0]
        which = [
            names.get(gap.series_no, f"series {gap.series_no}")
            for gap in gaps
            if gap.series_no != _WHOLE_LISTENER
        ]
        whole = len(which) < len(gaps)
        what = first.listener if whole or len(which) > 1 else f"{first.listener} {which[0]}"
        args: dict[str, object] = {
            "reason": first.reason.value,
            "detail": first.detail,
            "series": "all" if whole else ", ".join(which),
        }
        start_ns = min(gap.start_ns for gap in gaps)
        end_ns = max(gap.end_ns for gap in gaps)
        name = f"{what}: {first.reason.value}"
        spans.append(Span(name, start_ns, max(start_ns, end_ns), "gap", args))
    return spans


def _write_spans(file: TraceFile, pid: int, row: str, spans: Iterable[Span]) -> None:
    tracks: dict[int, Track] = {}
    for lane, span in in_lanes(spans):
        if lane not in tracks:
            tracks[lane] = file.track(pid, row if lane == 0 else f"{row} (overlapping {lane})")
        file.slice(tracks[lane], span.name, span.start_ns, span.end_ns, span.category, span.args)
