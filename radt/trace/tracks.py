"""The tracks of a run in its trace: curves of its series, and rows of its epochs, spans and gaps.

Viewers do not support missing values: a counter keeps its last value forever. So a curve drops to 0
in gaps, which draws nothing, and a slice beside it shows what is missing and why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from radt.model import NO_STEP, MarkerKind, SeriesKind
from radt.store.cells import GAP_INTERVALS, kept
from radt.store.counters import increases, rate_unit
from radt.store.records import (
    GapRecord,
    Int64Array,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesRecord,
)
from radt.trace.chrome import TraceFile, TraceSpan

#: A pause at a recorded gap counts as one only if it is longer than this many intervals.
_MISSED_INTERVALS = 1.5
#: Fewer points do not reveal the interval of a series.
_MIN_TO_TELL = 3
_WORDS = {"By": "bytes", "By/s": "bytes/s", "1": "ratio", "Cel": "°C", "": "value"}


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
) -> Samples:
    """Return a series as values that each hold until the next one; NaN for unknown.

    Args:
        samples: Its points, in time order.
        series: Its record; counters become rates, in the unit of `unit_of`.
        holes_ns: Starts of recorded gaps.
        end_ns: The end of the run, until which logged values hold.
        max_points: Number of points to keep, with the extremes; gaps are added.
    """
    if not len(samples):
        return samples
    interval_ns = _interval_ns(samples, series)
    last_ns = int(samples.times_ns[-1])
    if series.kind is SeriesKind.COUNTER:
        # Rates hold from each reading to the next.
        grown = increases(samples.times_ns, samples.values, series.wraps_at).timed
        samples = Samples(grown.start_ns, grown.per_s * rate_unit(series.unit).factor)
        if not len(samples):
            return samples
    elif interval_ns is None:
        last_ns = max(last_ns + 1, end_ns)
    else:
        last_ns += interval_ns
    breaks_ns = _breaks(samples.times_ns, interval_ns, holes_ns, last_ns)
    drawn = kept(samples, max_points)
    times_ns = np.concatenate([drawn.times_ns, breaks_ns])
    values = np.concatenate([drawn.values, np.full(len(breaks_ns), np.nan)])
    return Samples(times_ns, values)[np.argsort(times_ns, kind="stable")]


def _interval_ns(samples: Samples, series: SeriesRecord) -> int | None:
    """Return the time between readings; None for script metrics.

    A listener may read expensive metrics less often than its interval, which is not a gap.
    """
    if series.interval_s is None:
        return None
    given_ns = round(series.interval_s * 1e9)
    if len(samples) < _MIN_TO_TELL:
        return given_ns
    return max(given_ns, int(np.median(np.diff(samples.times_ns))))


def _breaks(
    times_ns: Int64Array, interval_ns: int | None, holes_ns: Sequence[int], last_ns: int
) -> Int64Array:
    """Return the times at which a value ends without a successor, and the end of the series."""
    if interval_ns is None:
        return np.array([last_ns], np.int64)
    pause_ns = np.append(times_ns[1:], last_ns) - times_ns
    at_hole = np.zeros(len(times_ns), dtype=bool)
    # The reading at which a gap was noticed may carry the gap's own time stamp.
    places = np.searchsorted(times_ns, np.array(holes_ns, np.int64), "right") - 1
    at_hole[places[places >= 0]] = True
    # Another run may have values of the device during this run's gap, which is then invisible.
    broken = at_hole & (pause_ns > _MISSED_INTERVALS * interval_ns)
    broken |= pause_ns > GAP_INTERVALS * interval_ns
    return np.append(times_ns[broken] + interval_ns, last_ns).astype(np.int64)


# -- rows of spans --------------------------------------------------------------------------------

#: Gaps of a listener whose bounds differ by less are the same gap, noticed at one instant.
_SAME_NS = 1_000_000
_MAIN_PROCESS = "main process"


def write_rows(file: TraceFile, pid: int, rows: Mapping[str, Iterable[TraceSpan]]) -> None:
    """Write rows of spans below a process; overlapping spans get separate rows."""
    for row, spans in rows.items():
        tids: dict[int, int] = {}
        for lane, span in _in_lanes(spans):
            if lane not in tids:
                tids[lane] = file.track(pid, row if lane == 0 else f"{row} (overlapping {lane})")
            file.slice(pid, tids[lane], span)


def _in_lanes(spans: Iterable[TraceSpan]) -> Iterator[tuple[int, TraceSpan]]:
    """Yield each span with the number of its row: the first in which it is disjoint or nested.

    Spans are sorted by start, the longer ones first, so that a parent precedes its children.
    """
    lanes: list[list[int]] = []  # ends of open spans, outermost first
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.stop_ns)):
        for open_ends in lanes:
            while open_ends and open_ends[-1] <= span.start_ns:
                open_ends.pop()
        rooms = (n for n, ends in enumerate(lanes) if not ends or span.stop_ns <= ends[-1])
        lane = next(rooms, len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(span.stop_ns)
        yield lane, span


def life(record: RunRecord, name: str, end_ns: int, params: Mapping[str, str]) -> TraceSpan:
    """Return the span of a run that has started."""
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
    return TraceSpan(name, record.started_ns, max(end_ns, record.started_ns), "run", args)


def marker_spans(markers: Iterable[MarkerRecord], end_ns: int) -> dict[str, list[TraceSpan]]:
    """Return the rows of a run's markers: the first process, others by label, events."""
    rows: dict[str, list[TraceSpan]] = defaultdict(list)
    for marker in markers:
        is_event = marker.kind is MarkerKind.EVENT
        if is_event and marker.end_ns is None:
            args: dict[str, object] = {"detail": marker.detail, "process": marker.process}
            event = TraceSpan(marker.name, marker.start_ns, None, marker.kind.value, args)
            rows["events"].append(event)
        else:
            row = "radt" if is_event else marker.process or _MAIN_PROCESS
            rows[row].append(_span(marker, end_ns))
    last = ("radt", "events")
    order = sorted(rows, key=lambda row: (row in last, row == "events", row != _MAIN_PROCESS, row))
    return {row: rows[row] for row in order}


def _span(marker: MarkerRecord, end_ns: int) -> TraceSpan:
    numbered = marker.step is not None and marker.step != NO_STEP
    name = f"{marker.name} {marker.step}" if numbered else marker.name
    args: dict[str, object] = {"kind": marker.kind.value, "detail": marker.detail}
    if marker.end_ns is None:
        args["open"] = "it did not end before the run did"
    closed_ns = end_ns if marker.end_ns is None else marker.end_ns
    return TraceSpan(
        name, marker.start_ns, max(closed_ns, marker.start_ns), marker.kind.value, args
    )


def gap_spans(gaps: Iterable[GapRecord], names: Mapping[int, str]) -> list[TraceSpan]:
    """Return stretches without values; series with the same gap and reason share one.

    ``names`` are the names of the run's curves by series number.
    """
    together: dict[tuple[object, ...], list[GapRecord]] = defaultdict(list)
    for gap in gaps:
        instants = gap.start_ns // _SAME_NS, gap.end_ns // _SAME_NS
        together[gap.listener, gap.reason, gap.detail, *instants].append(gap)
    spans = []
    for same in together.values():
        first = same[0]
        which = [
            names.get(gap.series_no, f"series {gap.series_no}")
            for gap in same
            if gap.series_no >= 0
        ]
        whole = len(which) < len(same)
        what = first.listener if whole or len(which) > 1 else f"{first.listener} {which[0]}"
        args: dict[str, object] = {
            "reason": first.reason.value,
            "detail": first.detail,
            "series": "all" if whole else ", ".join(which),
        }
        start_ns = min(gap.start_ns for gap in same)
        end_ns = max(start_ns, *(gap.end_ns for gap in same))
        spans.append(TraceSpan(f"{what}: {first.reason.value}", start_ns, end_ns, "gap", args))
    return spans
