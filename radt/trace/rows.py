"""The rows of a run in its trace: its life, epochs and spans of its processes, events, gaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from radt.model import NO_STEP, MarkerKind
from radt.store.records import GapRecord, MarkerRecord
from radt.trace.chrome import TraceFile, Track
from radt.trace.gather import TracedRun


@dataclass(frozen=True, slots=True)
class Span:
    """A named stretch of time; nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    category: str
    args: dict[str, object]


def in_lanes(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Each span with the number of its row: the first in which it lies apart or inside others.

    They come by start, the longer ones first, so that a parent comes before its children.
    """
    lanes: list[list[int]] = []  # ends of what is open, outermost first
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        place = next((n for n, lane in enumerate(lanes) if _has_room(lane, span)), len(lanes))
        if place == len(lanes):
            lanes.append([])
        lanes[place].append(span.end_ns)
        yield place, span


def _has_room(open_ends: list[int], span: Span) -> bool:
    """Whether a span nests in what is open; what has ended before it is taken away."""
    while open_ends and open_ends[-1] <= span.start_ns:
        open_ends.pop()
    return not open_ends or span.end_ns <= open_ends[-1]


#: Listeners notice a gap at the same instant; their clocks tick in nanoseconds.
_SAME_NS = 1_000_000
_MAIN_PROCESS = "main process"
_WHOLE_LISTENER = -1


@dataclass(frozen=True, slots=True)
class Rows:
    """How many markers and gaps were written."""

    markers: int
    gaps: int


def write_rows(file: TraceFile, pid: int, run: TracedRun, params: Mapping[str, str]) -> Rows:
    """Write all rows of a run.

    Args:
        file: Where to.
        pid: The run's process in it.
        run: The run.
        params: Its parameters, which stand at its life.
    """
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
    # The first process, then by label, then what radt noticed.
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
    """Stretches without values: one for all series that lack them at once and for one reason."""
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
