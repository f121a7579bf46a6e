"""What readers of a report should know: sentences, only where something is poor.

That all was well is said by their absence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from radt import units
from radt.model import RunStatus
from radt.report.attempts import Attempt
from radt.report.baselines import Baseline
from radt.report.recording import Conditions, RunRecording
from radt.report.results import WorkloadSummary
from radt.store.records import RunRecord, WorkloadRecord

#: Runs that start further apart do not start together.
SKEW_LIMIT_S = 0.020
#: More are counted.
_MOST_NAMES = 4
_COMMIT_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Recorded:
    """A workload of a report as it was recorded.

    Attributes:
        summary: What the report says of it.
        repeats: The starts that stand for it.
        starts: Their records, by workload id.
        runs: How their runs were recorded, by run id.
    """

    summary: WorkloadSummary
    repeats: Sequence[Attempt]
    starts: Mapping[str, WorkloadRecord]
    runs: Mapping[str, RunRecording]

    @property
    def records(self) -> Iterator[RunRecord]:
        """Its runs."""
        return (run for attempt in self.repeats for run in attempt.runs)


def footnotes(
    workloads: Sequence[Recorded], earlier: Mapping[str, RunRecording] | None = None
) -> tuple[str, ...]:
    """The sentences about a report, each ends with a full stop; none where all is well.

    Args:
        workloads: What it tells of.
        earlier: How baselines were recorded that are in none of these, by run id.
    """
    # Two machines may have each a workload of that label.
    with_host = len({one.summary.host for one in workloads}) > 1
    called = [
        f"{_name(one.summary)} on {one.summary.host}" if with_host else _name(one.summary)
        for one in workloads
    ]
    named = list(zip(called, workloads, strict=True))
    return tuple(
        sentence
        for sentences in (
            _skew(named),
            _several_machines(named),
            _baselines(named),
            _adjusted(named),
            _incomplete(named),
            _events(named),
            _thinned(named),
            _conditions(named, earlier or {}),
        )
        for sentence in sentences
    )


_Named = Sequence[tuple[str, Recorded]]


def _name(workload: WorkloadSummary) -> str:
    """A script that was run by itself has no workload's label."""
    return workload.groups[0].name if workload.label == units.NO_VALUE else workload.label


def _skew(workloads: _Named) -> Iterator[str]:
    """Of workloads of several runs."""
    large: dict[str, float] = {}
    unknown = []
    for name, one in workloads:
        for attempt in one.repeats:
            start = one.starts.get(attempt.runs[0].workload_id)
            if len(attempt.runs) < 2 or start is None:
                continue
            if start.start_skew_ns is None:
                unknown.append(name)
            elif (skew_s := start.start_skew_ns / 1e9) > SKEW_LIMIT_S:
                large[name] = max(large.get(name, 0.0), skew_s)
    if large:
        worst = sorted(large.items(), key=lambda pair: -pair[1])
        told = _listed(f"{name} {units.duration(skew_s)}" for name, skew_s in worst)
        yield f"Runs started further apart than {units.duration(SKEW_LIMIT_S)}: {told}."
    if unknown:
        yield f"How far apart runs started is not known: {_listed(unknown)}."


def _several_machines(workloads: _Named) -> Iterator[str]:
    names = [name for name, one in workloads if len({run.host for run in one.records}) > 1]
    if names:
        yield (
            f"Ran on several machines, whose clocks may differ: {_listed(names)}. Makespan and "
            "overlap are as exact as these agree."
        )


def _baselines(workloads: _Named) -> Iterator[str]:
    """What "vs solo" and "serial" are against where it is not what one would think."""
    divided: dict[str, list[str]] = {}
    former = []
    for name, one in workloads:
        for baseline in _baselines_of(one):
            if baseline.collocation:
                divided.setdefault(baseline.text, []).append(name)
            if not baseline.is_standing:
                former.append(name)
    for how, names in divided.items():
        yield f"Against runs {how}, as none ran alone on the whole device: {_listed(names)}."
    if former:
        yield (
            f"Against runs of earlier starts, which the report does not show: {_listed(former)}."
        )


def _baselines_of(one: Recorded) -> Iterator[Baseline]:
    return (group.baseline for group in one.summary.groups if group.baseline is not None)


def _adjusted(workloads: _Named) -> Iterator[str]:
    names = [name for name, one in workloads if one.summary.is_adjusted]
    if names:
        yield (
            "Trained another number of epochs than alone; serial is what as many take alone: "
            f"{_listed(names)}."
        )


def _incomplete(workloads: _Named) -> Iterator[str]:
    """Listeners that read less than was due, by workload, the worst first."""
    shares: dict[tuple[str, str], float] = {}
    for name, one in workloads:
        for run in one.records:
            for listener, share in one.runs[run.run_id].incomplete:
                shares[listener, name] = min(shares.get((listener, name), 1.0), share)
    if shares:
        worst = sorted(shares.items(), key=lambda pair: pair[1])
        told = _listed(
            f"{listener} of {name} has {units.percent(share)}" for (listener, name), share in worst
        )
        yield f"Samples are missing: {told}."


def _events(workloads: _Named) -> Iterator[str]:
    """Listeners and collectors that had to begin again, or could not."""
    found: dict[str, list[str]] = {}
    for name, one in workloads:
        for run in one.records:
            for event in one.runs[run.run_id].events:
                found.setdefault(event, []).append(name)
    for event, names in found.items():
        yield f"{event[0].upper()}{event[1:]}: {_listed(names)}."


def _thinned(workloads: _Named) -> Iterator[str]:
    names = [
        name
        for name, one in workloads
        if any(one.runs[run.run_id].is_thinned for run in one.records)
    ]
    if names:
        yield (
            "Samples were thinned by radt prune, so that in windows other than the epochs after "
            f"the first values are near, not exact: {_listed(names)}."
        )


def _conditions(workloads: _Named, earlier: Mapping[str, RunRecording]) -> Iterator[str]:
    """What differs between runs that are compared: those that finished, on one machine."""
    by_host: dict[str, list[tuple[str, Conditions]]] = {}
    for name, one in workloads:
        for run in one.records:
            if run.status is RunStatus.FINISHED:
                known = by_host.setdefault(run.host, [])
                known.append((name, one.runs[run.run_id].conditions))
        for baseline in _baselines_of(one):
            for run_id in baseline.run_ids:
                if run_id in earlier:
                    known = by_host.setdefault(one.summary.host, [])
                    known.append((f"{baseline.label} before", earlier[run_id].conditions))
    for what, value_of in _COMPARED:
        for found in by_host.values():
            names: dict[str, list[str]] = {}
            for name, conditions in found:
                if value := value_of(conditions):
                    names.setdefault(value, []).append(name)
            if len(names) > 1:
                each = (f"{value} in {_listed(those)}" for value, those in names.items())
                yield f"{what} differ: {_listed(each, '; ')}."


_COMPARED: tuple[tuple[str, Callable[[Conditions], str]], ...] = (
    ("Commits", lambda one: one.commit[:_COMMIT_DIGITS]),
    ("GPUs", lambda one: one.gpus),
    ("Drivers", lambda one: one.driver),
    ("Versions of Python", lambda one: one.python),
)


def _listed(texts: Iterable[str], separator: str = ", ") -> str:
    """Each once, the first few by name."""
    names = list(dict.fromkeys(texts))
    rest = len(names) - _MOST_NAMES
    told = separator.join(names[:_MOST_NAMES])
    return f"{told} and {rest:,} more" if rest > 0 else told
