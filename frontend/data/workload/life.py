"""Lifetimes of the runs of a workload: set-up, epochs, phases and spans, end.

Times are seconds since the workload's barrier. Hundreds of epochs and many thousands of spans are
drawn as bins: neighbours that would be thinner than a line become one bar with their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from radt.analysis.windows import after_first
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.spec import AxisRange
from radt.frontend.data.workload.model import BarKind, LaneSpan, Life
from radt.frontend.data.workload.subject import ShownWorkload
from radt.model import STATUS_WORDS, MarkerKind
from radt.store.records import MarkerRecord
from radt.store.summaries import SeriesSummary
from radt.units import duration

_SHORTEST_S = 1.0
#: Without a zoom, set-up takes at most this share of the shown time.
_SETUP_SHARE = 0.14


def markers_of(source: CachedStore, run_ids: tuple[str, ...]) -> Sequence[MarkerRecord]:
    """Return the markers of runs.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember(("markers", run_ids), lambda reader: reader.markers(run_ids))


def newest_ns(markers: Iterable[MarkerRecord], summaries: Iterable[SeriesSummary]) -> int:
    """Return the time of the newest marker or sample: all running runs have lived until then."""
    times_ns = [summary.last_ns for summary in summaries]
    return max([*times_ns, *(marker.start_ns for marker in markers)], default=0)


def lives(subject: ShownWorkload, markers: Iterable[MarkerRecord], now_ns: int) -> tuple[Life, ...]:
    """Return the lifetimes of a workload's runs. ``now_ns`` is the end of those still running."""
    of_run: dict[str, list[MarkerRecord]] = {run_id: [] for run_id in subject.run_ids}
    for marker in markers:
        of_run[marker.run_id].append(marker)
    return tuple(
        life_of(run, of_run[run.run_id], subject.origin_ns, now_ns) for run in subject.workload.runs
    )


def life_of(run: RunEntry, markers: Sequence[MarkerRecord], origin_ns: int, now_ns: int) -> Life:
    """Return the lifetime of one run. ``now_ns`` is the end of a run that has not ended."""
    record = run.record
    end_ns = record.ended_ns
    if end_ns is None:
        end_ns = max(now_ns, record.started_ns or record.created_ns)

    def at(time_ns: int) -> float:
        return (time_ns - origin_ns) / 1e9

    barrier_s = max(0.0, at(record.created_ns))
    setup = LaneSpan(
        BarKind.SETUP,
        at(record.created_ns),
        barrier_s if record.started_ns else max(at(end_ns), at(record.created_ns)),
        f"set-up · {duration(max(0.0, barrier_s - at(record.created_ns)))}",
    )
    bars = [setup] if record.created_ns < origin_ns or record.started_ns is None else []
    start_s = None if record.started_ns is None else at(record.started_ns)
    if start_s is not None:
        took = duration(record.lasted_s(end_ns))
        text = f"{STATUS_WORDS[record.status]} · {took}"
        bars.append(
            LaneSpan(BarKind.ALIVE, start_s, at(end_ns), text, is_open=not record.status.ended)
        )
    own = [marker for marker in markers if not marker.process]
    epochs = [marker for marker in own if marker.kind is MarkerKind.EPOCH]
    bars += [_bar(BarKind.EPOCH, marker, at, end_ns) for marker in epochs]
    bars += [
        _bar(BarKind.INSIDE, marker, at, end_ns)
        for marker in markers
        if marker.kind in (MarkerKind.PHASE, MarkerKind.SPAN)
    ]
    bars += [
        _bar(BarKind.EVENT, marker, at, end_ns)
        for marker in markers
        if marker.kind is MarkerKind.EVENT
    ]
    return Life(
        run,
        start_s,
        at(end_ns),
        setup.end_s - setup.start_s,
        tuple(bars),
        after_first(epochs).time_per_epoch_s,
    )


def _bar(kind: BarKind, marker: MarkerRecord, at: Any, end_ns: int) -> LaneSpan:
    start_s = at(marker.start_ns)
    is_open = marker.end_ns is None and kind is not BarKind.EVENT
    if kind is BarKind.EVENT and marker.end_ns is None:
        end_s = start_s
    else:
        end_s = max(start_s, at(end_ns if marker.end_ns is None else marker.end_ns))
    label = ""
    if kind is BarKind.EPOCH:
        label = str(marker.step) if marker.step is not None else marker.name
        name = f"epoch {label}" if marker.step is not None else marker.name
    else:
        name = f"{marker.name}: {marker.detail}" if marker.detail else marker.name
        if kind is BarKind.INSIDE:
            label = marker.name
        if marker.process:
            name = f"{marker.process} · {name}"
    length = "not ended" if is_open else duration(end_s - start_s) if end_s > start_s else ""
    return LaneSpan(kind, start_s, end_s, f"{name} · {length}".rstrip(" ·"), label, is_open=is_open)


def whole_window(lives: Sequence[Life]) -> AxisRange:
    """Return the range from set-up to the end of the longest run; a long set-up is cut."""
    end_s = max((life.end_s for life in lives), default=_SHORTEST_S)
    end_s = max(end_s, _SHORTEST_S)
    setup_s = max((-bar.start_s for life in lives for bar in life.bars), default=0.0)
    return AxisRange(-min(max(setup_s, 0.0), _SETUP_SHARE * end_s), end_s * 1.005)
