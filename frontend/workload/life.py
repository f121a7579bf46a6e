"""What each run of a workload did when: set-up, epochs, what lay within them, its end.

Times are seconds since the workload's barrier. Hundreds of epochs and many thousand spans are drawn
as bins: neighbours that would be thinner than a line become one bar that says how many they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from radt.frontend.catalog import STATUS_WORDS, RunEntry
from radt.frontend.charts.spec import Window
from radt.frontend.source import Source
from radt.frontend.workload.subject import Subject
from radt.model import MarkerKind, RunStatus
from radt.report.windowing import after_first
from radt.store.records import MarkerRecord, SummaryRecord
from radt.units import duration

_SHORTEST_S = 1.0
#: Of the time that is shown without a zoom, set-up takes at most this part.
_SETUP_SHARE = 0.14


class BarKind(StrEnum):
    """What a bar of the timeline stands for."""

    SETUP = "set-up"
    ALIVE = "alive"  # from the barrier to the end, under all else
    EPOCH = "epoch"
    INSIDE = "inside"  # a phase or span
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a run; ``end_s`` equals ``start_s`` for an instant.

    ``count`` is how many became one; ``text`` says what it is, ``label`` is short enough to stand
    in it; ``is_open`` says that it has not ended.
    """

    kind: BarKind
    start_s: float
    end_s: float
    text: str
    label: str = ""
    count: int = 1
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Life:
    """One run from its set-up to its end, or to now."""

    run: RunEntry
    start_s: float | None
    end_s: float
    setup_s: float
    bars: tuple[Bar, ...]
    epoch_count: int
    epoch_s: float | None

    @property
    def never_started(self) -> bool:
        return self.start_s is None

    @property
    def end_text(self) -> str:
        """``finished``, ``OOM``, ``running``."""
        return STATUS_WORDS[self.run.record.status]

    @property
    def reason(self) -> str:
        """Why it ended so; empty where all is well."""
        record = self.run.record
        if record.status in (RunStatus.FINISHED, RunStatus.RUNNING, RunStatus.SCHEDULED):
            return ""
        if record.end_reason:
            return record.end_reason
        return "" if record.exit_code is None else f"exit code {record.exit_code}"


def lives(source: Source, subject: Subject, summaries: Iterable[SummaryRecord]) -> tuple[Life, ...]:
    """The lives of a workload's runs.

    Raises:
        StoreError: The store cannot be read.
    """
    run_ids = subject.run_ids
    markers: dict[str, list[MarkerRecord]] = {run_id: [] for run_id in run_ids}
    for marker in source.remember(("markers", run_ids), lambda reader: reader.markers(run_ids)):
        markers[marker.run_id].append(marker)
    last_ns: dict[str, int] = {}
    for summary in summaries:
        run_id = summary.series.run_id
        last_ns[run_id] = max(last_ns.get(run_id, 0), summary.last_ns)
    # All that run have lived until the newest sample of any of them.
    now_ns = max(
        [*last_ns.values(), *(m.start_ns for of_run in markers.values() for m in of_run)], default=0
    )
    return tuple(
        life_of(run, markers[run.run_id], subject.origin_ns, now_ns)
        for run in subject.workload.runs
    )


def life_of(run: RunEntry, markers: Sequence[MarkerRecord], origin_ns: int, now_ns: int) -> Life:
    """One run's life. ``now_ns`` is the end of what is known of runs that have not ended."""
    record = run.record
    end_ns = record.ended_ns
    if end_ns is None:
        end_ns = max(now_ns, record.started_ns or record.created_ns)

    def at(time_ns: int) -> float:
        return (time_ns - origin_ns) / 1e9

    barrier_s = max(0.0, at(record.created_ns))
    setup = Bar(
        BarKind.SETUP,
        at(record.created_ns),
        barrier_s if record.started_ns else max(at(end_ns), at(record.created_ns)),
        f"set-up · {duration(max(0.0, barrier_s - at(record.created_ns)))}",
    )
    bars = [setup] if record.created_ns < origin_ns or record.started_ns is None else []
    start_s = None if record.started_ns is None else at(record.started_ns)
    if start_s is not None:
        took = duration(at(end_ns) - start_s)
        text = f"{STATUS_WORDS[record.status]} · {took}"
        bars.append(Bar(BarKind.ALIVE, start_s, at(end_ns), text, is_open=not record.status.ended))
    own = [marker for marker in markers if not marker.process]
    epochs = [marker for marker in own if marker.kind is MarkerKind.EPOCH]
    bars += [_bar(BarKind.EPOCH, marker, at, end_ns) for marker in epochs]
    bars += [
        _bar(BarKind.INSIDE, marker, at, end_ns)
        for marker in own
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
        sum(1 for epoch in epochs if epoch.end_ns is not None),
        after_first(epochs).time_per_epoch_s,
    )


def _bar(kind: BarKind, marker: MarkerRecord, at: Any, end_ns: int) -> Bar:
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
        if marker.process:
            name = f"{marker.process} · {name}"
    length = "not ended" if is_open else duration(end_s - start_s) if end_s > start_s else ""
    return Bar(kind, start_s, end_s, f"{name} · {length}".rstrip(" ·"), label, is_open=is_open)


def binned(bars: Iterable[Bar], window: Window, shortest_s: float) -> list[Bar]:
    """The bars of one kind in a window, in order of their starts; thin neighbours as one."""
    found: list[Bar] = []
    group: list[Bar] = []

    def flush() -> None:
        if group:
            found.append(_together(group))
            group.clear()

    for bar in sorted(bars, key=lambda one: one.start_s):
        if bar.end_s < window.start or bar.start_s > window.end:
            continue
        is_thin = bar.end_s - bar.start_s < shortest_s
        if group:
            starts_late = bar.start_s - group[0].start_s >= shortest_s
            gap = bar.start_s - max(one.end_s for one in group[-1:])
            if not is_thin or starts_late or gap >= shortest_s:
                flush()
        if is_thin:
            group.append(bar)
        else:
            found.append(bar)
    flush()
    return found


def _together(group: Sequence[Bar]) -> Bar:
    if len(group) == 1:
        return group[0]
    lengths = [bar.end_s - bar.start_s for bar in group]
    first, last = group[0], group[-1]
    mean, low, high = sum(lengths) / len(lengths), min(lengths), max(lengths)
    if first.kind is BarKind.EPOCH:
        what = f"epochs {first.label} to {last.label}"
        text = f"{what} · mean {duration(mean)} ({duration(low)} to {duration(high)})"
    else:
        names = list(dict.fromkeys(bar.text.partition(" · ")[0] for bar in group))
        what = ", ".join(names[:3]) + ("…" if len(names) > 3 else "")
        text = f"{len(group):,} × {what}"
        if any(lengths):
            text += f" · {duration(sum(lengths))} in all"
    end_s = max(bar.end_s for bar in group)
    return Bar(first.kind, first.start_s, end_s, text, "", len(group))


def whole_window(found: Sequence[Life]) -> Window:
    """From set-up to the end of the run that took longest; of a long set-up only its end."""
    end_s = max((life.end_s for life in found), default=_SHORTEST_S)
    end_s = max(end_s, _SHORTEST_S)
    setup_s = max((-bar.start_s for life in found for bar in life.bars), default=0.0)
    return Window(-min(max(setup_s, 0.0), _SETUP_SHARE * end_s), end_s * 1.005)


def overlap(found: Sequence[Life]) -> float | None:
    """The share of the time from the first start to the last end in which all runs ran.

    None for fewer than two runs, and before all have started.
    """
    started = [life for life in found if life.start_s is not None]
    if len(found) < 2 or not started:
        return None
    if len(started) < len(found):
        return 0.0 if all(life.run.record.status.ended for life in found) else None
    starts = [life.start_s for life in started if life.start_s is not None]
    ends = [life.end_s for life in started]
    span_s = max(ends) - min(starts)
    return max(0.0, min(ends) - max(starts)) / span_s if span_s > 0 else None


def mapping(found: Sequence[Life]) -> Mapping[str, Life]:
    return {life.run.run_id: life for life in found}
