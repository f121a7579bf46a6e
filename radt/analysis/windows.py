"""Find the part of each run that counts from its markers, for many runs at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from sqlalchemy import text

from radt.analysis.reading import epochs_of, marked_names_of, marked_of
from radt.analysis.selection import Attempt
from radt.analysis.steady_state import SteadyState, find_steady_states
from radt.analysis.stretches import (
    EARLIEST_NS,
    LATEST_NS,
    Stretch,
    Stretches,
    clipped,
    common,
    length_s,
    lived,
    merged,
)
from radt.analysis.window_spec import WindowKind, WindowSpec
from radt.model import MarkerKind, Role, RunStatus
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, RunRecord, SeriesRecord
from radt.store.tables import of_runs
from radt.tags import ROLE
from radt.units import plural

#: Maximum number of different notes.
_MAX_NOTES = 6
#: Maximum number of names listed if the requested one is missing.
_MAX_NAMES = 6


@dataclass(frozen=True)
class Window:
    """The part of a run that counts.

    Attributes:
        stretches: Its stretches of time; none if the run lacks the requested window.
        parts: Each epoch that lies entirely in them, with its part of them: all of it, or the time
            in the requested phase or span.
        how: How it differs from the request: "only one epoch ended, so it counts".
        missing: Why it has no stretches: "no phase or span 'train'".
    """

    stretches: Stretches = ()
    parts: Sequence[tuple[Stretch, Stretches]] = ()
    how: str = ""
    missing: str = ""

    @cached_property
    def epochs_s(self) -> tuple[float, ...]:
        """Return the seconds of each epoch's part."""
        return tuple(sum(end - start for start, end in part) / 1e9 for _, part in self.parts)

    @property
    def epochs(self) -> Stretches:
        """Return the part of the stretches that belongs to these epochs."""
        return merged(stretch for _, part in self.parts for stretch in part)

    @property
    def time_per_epoch_s(self) -> float | None:
        return fmean(self.epochs_s) if self.epochs_s else None

    @property
    def length_s(self) -> float | None:
        """Return the seconds of all stretches; None without any or with an unknown bound."""
        return length_s(self.stretches)


def window_notes(windows: Iterable[Window]) -> tuple[str, ...]:
    """Return sentences on windows that are not as requested."""
    counts: Counter[str] = Counter()
    for window in windows:
        if window.missing:
            counts[f"no values: {window.missing}"] += 1
        elif window.how:
            counts[window.how] += 1
    most = counts.most_common()
    notes = [f"{plural(count, 'run')}: {text}" for text, count in most[:_MAX_NOTES]]
    rest = sum(count for _, count in most[_MAX_NOTES:])
    if rest:
        notes.append(f"{plural(rest, 'run')}: another window for other reasons")
    return tuple(notes)


def find_windows(
    reader: StoreReader,
    attempts: Sequence[Attempt],
    series: Mapping[str, Sequence[SeriesRecord]],
    spec: WindowSpec,
) -> dict[str, Window]:
    """Return the windows of the finished runs of workloads, by run.

    Args:
        reader: The store.
        attempts: The workloads.
        series: The series of each run, including those of its pace.
        spec: The part that counts.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    finished = {
        run.run_id: run
        for attempt in attempts
        for run in attempt.runs
        if run.status is RunStatus.FINISHED
    }
    run_ids = list(finished)
    epochs = epochs_of(reader, run_ids)
    unmarked = [
        run_id
        for run_id in run_ids
        if spec.kind is WindowKind.STEADY
        or (spec.kind is WindowKind.AFTER_FIRST and not epochs[run_id])
    ]
    steady = find_steady_states(reader, series, unmarked)
    is_marked = spec.kind is WindowKind.MARKED
    kinds = (MarkerKind.PHASE, MarkerKind.SPAN) if spec.marker is None else (spec.marker,)
    marked = marked_of(reader, run_ids, spec.name, kinds) if is_marked else {}
    windows = {
        run_id: _window(run, spec, epochs[run_id], marked.get(run_id, ()), steady.get(run_id))
        for run_id, run in finished.items()
    }
    if spec.overlap:
        for attempt in attempts:
            overlap = _overlap(attempt)
            for run in attempt.runs:
                window = windows.get(run.run_id)
                if window is not None and overlap is not None and not window.missing:
                    windows[run.run_id] = _within_overlap(window, overlap)
    for attempt in attempts:
        windows |= _of_services(attempt, windows)
    return _with_names(reader, windows, spec) if is_marked else windows


def _of_services(attempt: Attempt, windows: Mapping[str, Window]) -> dict[str, Window]:
    """Return the windows of the services of a start: all time in which another run is measured.

    So the loads of services and of the runs that they serve cover the same time, and can be added.
    """
    served = merged(
        part
        for run in attempt.trained
        if run.run_id in windows
        for part in windows[run.run_id].stretches
    )
    return {run_id: Window(served) for run_id in attempt.services if run_id in windows and served}


def after_first(epochs: Sequence[MarkerRecord]) -> Window:
    """Return the default window of a run, which may be unfinished.

    Args:
        epochs: In the order in which they began. Unfinished ones do not count.
    """
    ended = [epoch for epoch in epochs if epoch.end_ns is not None]
    return _after_first(ended) if ended else Window()


#: The mean of the ended epochs after the first, or the first if it is the only one.
_TIMES_SQL = (
    "SELECT m.run_id, AVG(m.end_ns - m.start_ns) FROM marker m JOIN ("
    "SELECT run_id, MIN(start_ns) AS first_ns, COUNT(*) AS epochs FROM marker "
    "WHERE kind = :kind AND process = '' AND end_ns IS NOT NULL GROUP BY run_id"
    ") f ON f.run_id = m.run_id "
    "WHERE m.kind = :kind AND m.process = '' AND m.end_ns IS NOT NULL "
    "AND (m.start_ns > f.first_ns OR f.epochs = 1) "
    "AND m.run_id NOT IN (SELECT run_id FROM tag WHERE key = :role AND value = :service) "
    "GROUP BY m.run_id"
)
_ABOUT = {"kind": MarkerKind.EPOCH.value, "role": ROLE, "service": Role.SERVICE.value}
_TIMES = text(_TIMES_SQL).bindparams(**_ABOUT)
_TIMES_OF = of_runs(
    _TIMES_SQL.replace("IS NOT NULL GROUP", "IS NOT NULL AND run_id IN :ids GROUP"), **_ABOUT
)


def read_times_per_epoch(
    reader: StoreReader, run_ids: Sequence[str] | None = None
) -> dict[str, float]:
    """Return the seconds per epoch of runs in their default windows, by run.

    Unfinished runs count, too. Services are left out, as their windows are those of others.

    Args:
        reader: The store.
        run_ids: The runs; None for all of the store.

    Raises:
        StoreError: The store cannot be read.
    """
    if run_ids is not None:
        rows = reader.rows_of(_TIMES_OF, run_ids)
        return {run_id: float(mean) / 1e9 for run_id, mean in rows}
    with reader.snapshot() as connection:
        return {run_id: float(mean) / 1e9 for run_id, mean in connection.execute(_TIMES)}


def _overlap(attempt: Attempt) -> Stretch | str | None:
    """Return the time in which all runs of a workload ran; text if unknown; None for one run.

    Services do not count.
    """
    runs = attempt.trained
    if len(runs) == 1 and attempt.complete:
        return None
    if not attempt.complete:
        return "not all runs of the workload came to a result"
    stretches = lived(runs)
    if len(stretches) < len(runs):
        return "a run of the workload has no recorded start or end"
    start_ns, end_ns = common(stretches)
    if start_ns >= end_ns:
        return "the runs of the workload never ran all at the same time"
    return start_ns, end_ns


def overlap_share(runs: Sequence[RunRecord], now_ns: int) -> float | None:
    """Return the share of the time from the first start to the last end in which all runs ran.

    None for fewer than two runs, and before all have started.

    Args:
        runs: The runs of a workload without services, which do not count.
        now_ns: The end of runs that have not ended.
    """
    stretches = lived(runs, now_ns)
    if len(runs) < 2 or not stretches:
        return None
    if len(stretches) < len(runs):
        return 0.0 if all(run.status.ended for run in runs) else None
    start_ns, end_ns = common(stretches)
    span_ns = max(end for _, end in stretches) - min(start for start, _ in stretches)
    return max(0, end_ns - start_ns) / span_ns if span_ns else None


def _window(
    run: RunRecord,
    spec: WindowSpec,
    epochs: Sequence[MarkerRecord],
    marked: Sequence[Stretch],
    steady: SteadyState | None,
) -> Window:
    match spec.kind:
        case WindowKind.AFTER_FIRST if epochs:
            return _after_first(epochs)
        case WindowKind.AFTER_FIRST:
            return _steady(run, epochs, steady, "no epochs: ")
        case WindowKind.STEADY:
            return _steady(run, epochs, steady)
        case WindowKind.EPOCHS:
            return _numbered(epochs, spec)
        case WindowKind.MARKED:
            return _marked(epochs, merged(marked), spec)
        case WindowKind.ALL:
            return _around(_whole(run), epochs)


def _after_first(epochs: Sequence[MarkerRecord]) -> Window:
    chosen = [_stretch(epoch) for epoch in epochs[1:] or epochs]
    how = "" if len(epochs) > 1 else "only one epoch ended, so it counts"
    return Window([(chosen[0][0], chosen[-1][1])], [(epoch, (epoch,)) for epoch in chosen], how)


def _numbered(epochs: Sequence[MarkerRecord], spec: WindowSpec) -> Window:
    """Return the requested epochs, including the time between successive ones."""
    numbers = [place if epoch.step is None else epoch.step for place, epoch in enumerate(epochs, 1)]
    last = max(numbers, default=0) if spec.last_epoch is None else spec.last_epoch
    places = [place for place, number in enumerate(numbers) if spec.first_epoch <= number <= last]
    if not places:
        others = f" ({_range(numbers)} did)" if numbers else ""
        return Window(missing=f"{spec.epochs_text} did not end{others}")
    stretches: list[Stretch] = []
    for before, place in zip([-2, *places], places, strict=False):
        stretch = _stretch(epochs[place])
        if stretches and place == before + 1:
            start_ns, end_ns = stretches.pop()
            stretch = (start_ns, max(end_ns, stretch[1]))
        stretches.append(stretch)
    chosen = [_stretch(epochs[place]) for place in places]
    ended = {numbers[place] for place in places}
    is_short = spec.last_epoch is not None and len(ended) <= spec.last_epoch - spec.first_epoch
    how = f"of these epochs only {_range(ended)} ended" if is_short else ""
    return Window(merged(stretches), [(epoch, (epoch,)) for epoch in chosen], how)


def _marked(epochs: Sequence[MarkerRecord], stretches: Stretches, spec: WindowSpec) -> Window:
    if not stretches:
        return Window(missing=f"no {spec.marker_text}")
    within = [_stretch(epoch) for epoch in epochs]
    how = ""
    if within:
        later = clipped(stretches, (within[0][1], LATEST_NS))
        if later:
            stretches, within = later, within[1:]
        else:
            how = f"{spec.marker_text} only before the end of the first epoch"
    parts = [(epoch, clipped(stretches, epoch)) for epoch in within]
    return Window(stretches, [(epoch, part) for epoch, part in parts if part], how)


def _steady(
    run: RunRecord, epochs: Sequence[MarkerRecord], steady: SteadyState | None, why: str = ""
) -> Window:
    if steady is not None and steady.stretch is not None:
        return replace(_around(steady.stretch, epochs), how=f"{why}steady state of {steady.metric}")
    if steady is not None and steady.metric:
        problem = f"{steady.metric} has no steady state"
    else:
        problem = "too few values to find a steady state"
    return replace(_around(_whole(run), epochs), how=f"{why}{problem}, so the whole run counts")


def _around(stretch: Stretch, epochs: Sequence[MarkerRecord]) -> Window:
    within = [epoch for epoch in map(_stretch, epochs) if _is_within(epoch, stretch)]
    return Window([stretch], [(epoch, (epoch,)) for epoch in within])


def _within_overlap(window: Window, overlap: Stretch | str) -> Window:
    if isinstance(overlap, str):
        return Window(missing=overlap)
    stretches = clipped(window.stretches, overlap)
    if not stretches:
        return Window(missing="nothing in the window while all runs of the workload ran")
    parts = [part for part in window.parts if _is_within(part[0], overlap)]
    how = window.how
    if window.parts and not parts:
        problem = "no epoch lies within the time in which all runs of the workload ran"
        how = f"{how}; {problem}" if how else problem
    return Window(stretches, parts, how)


def _with_names(
    reader: StoreReader, windows: Mapping[str, Window], spec: WindowSpec
) -> dict[str, Window]:
    """Return the windows. One that lacks the requested phase or span lists those of its run."""
    nothing = f"no {spec.marker_text}"
    without = [run_id for run_id, window in windows.items() if window.missing == nothing]
    named = dict(windows)
    for run_id, names in marked_names_of(
        reader, without, (MarkerKind.PHASE, MarkerKind.SPAN)
    ).items():
        if names:
            listed = ", ".join(f"'{name}'" for name in names[:_MAX_NAMES])
            more = ", …" if len(names) > _MAX_NAMES else ""
            missing = f"{nothing} (the run has {listed}{more})"
            named[run_id] = replace(windows[run_id], missing=missing)
    return named


def _stretch(epoch: MarkerRecord) -> Stretch:
    return epoch.start_ns, epoch.start_ns if epoch.end_ns is None else epoch.end_ns


def _whole(run: RunRecord) -> Stretch:
    return (
        EARLIEST_NS if run.started_ns is None else run.started_ns,
        LATEST_NS if run.ended_ns is None else run.ended_ns,
    )


def _is_within(stretch: Stretch, bounds: Stretch) -> bool:
    return stretch[0] >= bounds[0] and stretch[1] <= bounds[1]


def _range(numbers: Collection[int]) -> str:
    first, last = min(numbers), max(numbers)
    return str(first) if first == last else f"{first} to {last}"
