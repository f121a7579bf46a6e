"""Footnotes of a report: sentences about doubtful measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from radt import units
from radt.analysis.baselines import Baseline
from radt.analysis.recording import RunRecording
from radt.analysis.selection import Attempt
from radt.analysis.summaries import WorkloadSummary
from radt.model import RunStatus
from radt.parts import agreement
from radt.store.records import RunRecord, WorkloadRecord
from radt.tags import DRIVER, GIT_COMMIT, GPUS, PYTHON

#: Runs whose starts differ by more do not count as starting together.
SKEW_LIMIT_S = 0.020
#: Maximum number of names listed; the rest is counted.
_MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class ReportedWorkload:
    """A workload of a report as it was recorded.

    Attributes:
        summary: Its summary.
        repeats: The starts that represent it.
        starts: Their records, by workload id.
        recordings: How runs were recorded, by run id, including baselines.
    """

    summary: WorkloadSummary
    repeats: Sequence[Attempt]
    starts: Mapping[str, WorkloadRecord]
    recordings: Mapping[str, RunRecording]

    @property
    def runs(self) -> Iterator[RunRecord]:
        return (run for attempt in self.repeats for run in attempt.runs)

    @property
    def baselines(self) -> Iterator[Baseline]:
        return (group.baseline for group in self.summary.groups if group.baseline is not None)


#: Workloads by their names in sentences.
_Named = Sequence[tuple[str, ReportedWorkload]]


def losses(workloads: Sequence[ReportedWorkload]) -> tuple[str, ...]:
    """Return sentences about devices that were lost during runs."""
    return tuple(
        dict.fromkeys(
            f"{workload.summary.name}, {run.letter}: {text}."
            + " The run's energy is a lower bound." * workload.summary.energy.is_lower_bound
            for workload in workloads
            for run in workload.runs
            for text in workload.recordings[run.run_id].lost.values()
        )
    )


def footnotes(workloads: Sequence[ReportedWorkload]) -> tuple[str, ...]:
    """Return the sentences about a report, each with a full stop."""
    # Two machines may each have a workload with the same label.
    with_host = len({workload.summary.host for workload in workloads}) > 1
    named = [
        (
            f"{workload.summary.name} on {workload.summary.host}"
            if with_host
            else workload.summary.name,
            workload,
        )
        for workload in workloads
    ]
    return tuple(
        sentence
        for sentences in (
            _skew(named),
            _parts(named),
            _concerning(
                named,
                lambda workload: len({run.host for run in workload.runs}) > 1,
                "Several machines, whose clocks may differ, ran {}. Makespan and overlap are as "
                "exact as these clocks agree.",
            ),
            _baselines(named),
            _concerning(
                named,
                lambda workload: workload.summary.is_adjusted,
                "Trained another number of epochs than alone; “one after another” is the time of "
                "as many epochs alone: {}.",
            ),
            losses(workloads),
            _concerning(
                named,
                lambda workload: workload.summary.energy.is_lower_bound,
                "A GPU's energy was not counted for the whole run (docs/energy.md). The energy is "
                "a lower bound: {}.",
            ),
            _incomplete(named),
            _events(named),
            _concerning(
                named,
                lambda workload: any(
                    workload.recordings[run.run_id].is_thinned for run in workload.runs
                ),
                "`radt prune` thinned the samples; values are approximate in every window but "
                "the epochs after the first: {}.",
            ),
            _environments(named),
        )
        for sentence in sentences
    )


def _concerning(
    workloads: _Named, is_concerned: Callable[[ReportedWorkload], bool], sentence: str
) -> Iterator[str]:
    """Yield a sentence with the names of the workloads concerned, if any."""
    names = [name for name, workload in workloads if is_concerned(workload)]
    if names:
        yield sentence.format(_listed(names))


def _skew(workloads: _Named) -> Iterator[str]:
    large: dict[str, float] = {}
    unknown = []
    for name, workload in workloads:
        for attempt in workload.repeats:
            start = workload.starts.get(attempt.runs[0].workload_id)
            if len(attempt.trained) < 2 or start is None:
                continue
            if start.start_skew_ns is None:
                unknown.append(name)
            elif (skew_s := start.start_skew_ns / 1e9) > SKEW_LIMIT_S:
                large[name] = max(large.get(name, 0.0), skew_s)
    if large:
        worst = sorted(large.items(), key=lambda pair: -pair[1])
        skews = _listed(f"{name} {units.duration(skew_s)}" for name, skew_s in worst)
        yield f"Runs started more than {units.duration(SKEW_LIMIT_S)} apart: {skews}."
    if unknown:
        yield f"The start skew is unknown: {_listed(unknown)}."


def _parts(workloads: _Named) -> Iterator[str]:
    """Yield how well the clocks agree for runs spread over several nodes."""
    for name, workload in workloads:
        parts = [part for run in workload.runs for part in workload.recordings[run.run_id].parts]
        if parts:
            skews = [
                start.start_skew_ns
                for attempt in workload.repeats
                if (start := workload.starts.get(attempt.runs[0].workload_id)) is not None
                and start.start_skew_ns is not None
            ]
            began = f" It began on all within {units.duration(max(skews) / 1e9)}." if skews else ""
            yield f"{name} ran {agreement(parts)}.{began}"


def _baselines(workloads: _Named) -> Iterator[str]:
    """Yield unusual baselines: divided or served, of an earlier start, of another node."""
    divided: dict[tuple[str, bool], list[str]] = {}
    former = []
    elsewhere: dict[str, list[str]] = {}
    for name, workload in workloads:
        for baseline in workload.baselines:
            if not baseline.is_plain:
                divided.setdefault((baseline.text, baseline.is_served), []).append(name)
            if not baseline.is_current:
                former.append(name)
            if baseline.host != workload.summary.host:
                elsewhere.setdefault(baseline.host, []).append(name)
    for (how, is_served), names in divided.items():
        yield (
            f"Compared with runs {how}, because no run was alone "
            f"{'without one' if is_served else 'on the whole device'}: {_listed(names)}."
        )
    if former:
        yield f"Compared with earlier runs that this report does not show: {_listed(former)}."
    for host, names in elsewhere.items():
        yield compared_elsewhere(host, names)


def compared_elsewhere(host: str, names: Iterable[str]) -> str:
    """Return the sentence about workloads or runs whose baselines are of another node."""
    return f"Compared with runs alone on {host}, a node with the same hardware: {_listed(names)}."


def _incomplete(workloads: _Named) -> Iterator[str]:
    """Yield listeners with missing samples, by workload, the worst first."""
    shares: dict[tuple[str, str], float] = {}
    for name, workload in workloads:
        for run in workload.runs:
            for listener, share in workload.recordings[run.run_id].incomplete:
                shares[listener, name] = min(shares.get((listener, name), 1.0), share)
    if shares:
        worst = sorted(shares.items(), key=lambda pair: pair[1])
        texts = (
            f"{listener} of {name} has {units.percent(share)}" for (listener, name), share in worst
        )
        yield f"Samples are missing: {_listed(texts)}."


def _events(workloads: _Named) -> Iterator[str]:
    """Yield listeners and collectors that were restarted or failed."""
    names: dict[str, list[str]] = {}
    for name, workload in workloads:
        for run in workload.runs:
            for event in workload.recordings[run.run_id].events:
                names.setdefault(event, []).append(name)
    for event, workloads_of_event in names.items():
        yield f"{event[0].upper()}{event[1:]}: {_listed(workloads_of_event)}."


def _environments(workloads: _Named) -> Iterator[str]:
    """Yield differences between compared runs: those that finished on one machine."""
    by_host: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for name, workload in workloads:
        for run in workload.runs:
            if run.status is RunStatus.FINISHED:
                known = by_host.setdefault(run.host, [])
                known.append((name, workload.recordings[run.run_id].environment))
        for baseline in workload.baselines:
            for run_id in () if baseline.is_current else baseline.run_ids:
                known = by_host.setdefault(workload.summary.host, [])
                known.append((f"earlier {baseline.label}", workload.recordings[run_id].environment))
    for what, tag, digits in _COMPARED:
        for environments in by_host.values():
            names: dict[str, list[str]] = {}
            for name, environment in environments:
                if value := environment.get(tag, "")[:digits]:
                    names.setdefault(value, []).append(name)
            if len(names) > 1:
                each = (f"{value} in {_listed(same)}" for value, same in names.items())
                yield f"{what} differ: {_listed(each, '; ')}."


#: Tags that compared runs should share, and the number of characters shown of them.
_COMPARED = (
    ("Commits", GIT_COMMIT, 10),
    ("GPUs", GPUS, None),
    ("Drivers", DRIVER, None),
    ("Python versions", PYTHON, None),
)


def _listed(texts: Iterable[str], separator: str = ", ") -> str:
    """Return the first few texts, each once, and the number of others."""
    return units.listed(list(dict.fromkeys(texts)), _MOST_NAMES, separator)
