"""The windows of many runs, from their markers, read together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from radt.model import MarkerKind, RunStatus
from radt.report.attempts import Attempt
from radt.report.reading import epochs_of, marked_names_of, marked_of
from radt.report.steady import Steady, steady_states
from radt.report.stretches import (
    EARLIEST_NS,
    LATEST_NS,
    Stretch,
    Stretches,
    clipped,
    merged,
)
from radt.report.windows import Window, WindowKind, WindowSpec
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, RunRecord, SeriesRecord

#: Names that are told where the one asked for is not there.
_MAX_NAMES = 6


@dataclass(frozen=True, slots=True)
class _Shared:
    """When all runs of a workload ran; None where they never did, or nobody knows: ``why``."""

    stretch: Stretch | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """What a run's window is made of.

    Attributes:
        epochs: Those that ended, in the order in which they began.
        marked: Phases or spans of the name asked for.
        steady: Its steady state, if it was looked for.
        shared: When all runs of its workload ran; None where that makes no difference.
    """

    epochs: Sequence[MarkerRecord] = ()
    marked: Sequence[Stretch] = ()
    steady: Steady | None = None
    shared: _Shared | None = None


def windows_of(
    reader: StoreReader,
    attempts: Sequence[Attempt],
    series: Mapping[str, Sequence[SeriesRecord]],
    spec: WindowSpec,
) -> dict[str, Window]:
    """The windows of the finished runs of workloads, by run; others have none.

    Args:
        reader: The store.
        attempts: The workloads.
        series: Of each run what measures its pace, among others.
        spec: What counts.

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
    steady = steady_states(reader, series, unmarked)
    is_marked = spec.kind is WindowKind.MARKED
    marked = marked_of(reader, run_ids, spec.name, _kinds(spec)) if is_marked else {}
    shared = (
        {run.run_id: _shared(attempt) for attempt in attempts for run in attempt.runs}
        if spec.overlap
        else {}
    )
    found = {
        run_id: _window(
            run,
            spec,
            _Known(epochs[run_id], marked.get(run_id, ()), steady.get(run_id), shared.get(run_id)),
        )
        for run_id, run in finished.items()
    }
    return _with_names(reader, found, spec) if is_marked else found


def after_first(epochs: Sequence[MarkerRecord]) -> Window:
    """The window of a run, perhaps one that still goes on, if nobody asks for another.

    Args:
        epochs: In the order in which they began; those that have not ended do not count.
    """
    ended = [one for one in epochs if one.end_ns is not None]
    return _made(_after_first(ended)) if ended else Window()


def _kinds(spec: WindowSpec) -> Sequence[MarkerKind]:
    return (MarkerKind.PHASE, MarkerKind.SPAN) if spec.marker is None else (spec.marker,)


def _shared(attempt: Attempt) -> _Shared | None:
    if len(attempt.runs) == 1 and attempt.complete:
        return None
    if not attempt.complete:
        return _Shared(None, "not all runs of the workload came to a result")
    starts = [run.started_ns for run in attempt.runs if run.started_ns is not None]
    ends = [run.ended_ns for run in attempt.runs if run.ended_ns is not None]
    if len(starts) < len(attempt.runs) or len(ends) < len(attempt.runs):
        return _Shared(None, "it is not known when all runs of the workload ran")
    if max(starts) >= min(ends):
        return _Shared(None, "the runs of the workload never ran all at once")
    return _Shared((max(starts), min(ends)))


@dataclass(frozen=True, slots=True)
class _Found:
    """A window before it is known which of its epochs count.

    Attributes:
        stretches: When.
        epochs: Epochs, and what of the stretches belongs to each.
        how: As of `Window`.
        missing: As of `Window`.
    """

    stretches: Stretches = ()
    epochs: Sequence[tuple[Stretch, Stretches]] = ()
    how: str = ""
    missing: str = ""


def _window(run: RunRecord, spec: WindowSpec, known: _Known) -> Window:
    match spec.kind:
        case WindowKind.AFTER_FIRST if known.epochs:
            found = _after_first(known.epochs)
        case WindowKind.AFTER_FIRST:
            found = _steady(run, known, "no epochs: ")
        case WindowKind.STEADY:
            found = _steady(run, known)
        case WindowKind.EPOCHS:
            found = _numbered(known.epochs, spec)
        case WindowKind.MARKED:
            found = _marked(known.epochs, merged(known.marked), spec)
        case WindowKind.ALL:
            found = _around(_whole(run), known.epochs)
    if known.shared is not None and not found.missing:
        found = _while_shared(found, known.shared)
    return _made(found)


def _made(found: _Found) -> Window:
    return Window(
        found.stretches,
        tuple(sum(end - start for start, end in parts) / 1e9 for _, parts in found.epochs),
        merged(part for _, parts in found.epochs for part in parts),
        found.how,
        found.missing,
    )


def _after_first(epochs: Sequence[MarkerRecord]) -> _Found:
    chosen = [_stretch(one) for one in epochs[1:] or epochs]
    how = "" if len(epochs) > 1 else "only one epoch ended, which counts"
    return _Found([(chosen[0][0], chosen[-1][1])], [(one, (one,)) for one in chosen], how)


def _numbered(epochs: Sequence[MarkerRecord], spec: WindowSpec) -> _Found:
    """What lies between two such epochs, one after the other, counts with them."""
    numbers = [place if one.step is None else one.step for place, one in enumerate(epochs, 1)]
    last = max(numbers, default=0) if spec.last_epoch is None else spec.last_epoch
    places = [place for place, number in enumerate(numbers) if spec.first_epoch <= number <= last]
    if not places:
        there = f" ({_range(numbers)} did)" if numbers else ""
        return _Found(missing=f"no {spec.epochs_text} ended{there}")
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
    return _Found(merged(stretches), [(one, (one,)) for one in chosen], how)


def _marked(epochs: Sequence[MarkerRecord], stretches: Stretches, spec: WindowSpec) -> _Found:
    if not stretches:
        return _Found(missing=f"no {spec.marker_text}")
    within = [_stretch(one) for one in epochs]
    how = ""
    if within:
        later = clipped(stretches, (within[0][1], LATEST_NS))
        if later:
            stretches, within = later, within[1:]
        else:
            how = f"{spec.marker_text} only before the end of the first epoch"
    parts = [(epoch, clipped(stretches, epoch)) for epoch in within]
    return _Found(stretches, [(epoch, found) for epoch, found in parts if found], how)


def _steady(run: RunRecord, known: _Known, why: str = "") -> _Found:
    steady = known.steady or Steady()
    if steady.stretch is not None:
        found = _around(steady.stretch, known.epochs)
        return replace(found, how=f"{why}steady state, found by {steady.metric}")
    if steady.metric:
        none = f"no steady state was found by {steady.metric}"
    else:
        none = "too few values to find a steady state"
    return replace(_around(_whole(run), known.epochs), how=f"{why}{none}, the whole run counts")


def _around(stretch: Stretch, epochs: Sequence[MarkerRecord]) -> _Found:
    """All that is within one stretch."""
    within = [one for one in map(_stretch, epochs) if _is_within(one, stretch)]
    return _Found([stretch], [(one, (one,)) for one in within])


def _while_shared(found: _Found, shared: _Shared) -> _Found:
    if shared.stretch is None:
        return _Found(missing=shared.why)
    stretches = clipped(found.stretches, shared.stretch)
    if not stretches:
        return _Found(missing="nothing that counts while all runs of the workload ran")
    epochs = [one for one in found.epochs if _is_within(one[0], shared.stretch)]
    how = found.how
    if found.epochs and not epochs:
        none = "no epoch lies wholly in the time in which all runs of the workload ran"
        how = f"{how}; {none}" if how else none
    return _Found(stretches, epochs, how)


def _with_names(
    reader: StoreReader, found: Mapping[str, Window], spec: WindowSpec
) -> dict[str, Window]:
    """Where there is nothing of a name, the names that there are."""
    without = [run_id for run_id, window in found.items() if window.missing]
    names = marked_names_of(reader, without, (MarkerKind.PHASE, MarkerKind.SPAN))
    told = dict(found)
    nothing = f"no {spec.marker_text}"
    for run_id in without:
        if found[run_id].missing != nothing or not names[run_id]:
            continue
        some = ", ".join(f"'{name}'" for name in names[run_id][:_MAX_NAMES])
        more = ", …" if len(names[run_id]) > _MAX_NAMES else ""
        told[run_id] = replace(found[run_id], missing=f"{nothing} (there are {some}{more})")
    return told


def _stretch(epoch: MarkerRecord) -> Stretch:
    return epoch.start_ns, epoch.start_ns if epoch.end_ns is None else epoch.end_ns


def _whole(run: RunRecord) -> Stretch:
    return (
        EARLIEST_NS if run.started_ns is None else run.started_ns,
        LATEST_NS if run.ended_ns is None else run.ended_ns,
    )


def _is_within(one: Stretch, other: Stretch) -> bool:
    return one[0] >= other[0] and one[1] <= other[1]


def _range(numbers: Collection[int]) -> str:
    first, last = min(numbers), max(numbers)
    return str(first) if first == last else f"{first} to {last}"
