"""Techniques of `radt.training` that may help, and the most that each can bring.

Bounds, not predictions. Sources: ol.data (overlapped validation), UnifiedNN (many models in one
process), SwitchFlow (preemption) and Atom (offloading).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from radt import units
from radt.analysis.advice_candidates import by_place
from radt.analysis.advice_choice import ROOMY, Reason, Rule, activity_text
from radt.analysis.advice_facts import Facts
from radt.analysis.advice_measurements import Measurements
from radt.analysis.advice_model import Prediction, Resource, Solo
from radt.analysis.baselines import BaselineKey, keys_of
from radt.analysis.reading import of_runs, rows_of
from radt.analysis.report import Report, read_report
from radt.analysis.series_quantities import SeriesQuantity, Statistic
from radt.analysis.summaries import GroupSummary, WorkloadSummary
from radt.model import SOFTWARE, MarkerKind, RunStatus
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, RunRecord

#: Smaller gains are not worth a change of the script.
MIN_GAIN = 1.1
#: Largest share of a device's memory that a small model takes.
SMALL = 0.25
#: Share of a device's memory from which a run is near its end.
NEARLY_FULL = 0.9
#: The span in which scripts validate, and what only overlapped validation records.
VALIDATE, OVERLAPPED = "validate", "validation.wait"
#: Recorded by runs that use a lease already.
LEASED = "lease.wait"
_STARTING_ONCE = "by starting once"
_RECORDED = of_runs(
    "SELECT run_id, metric FROM series WHERE run_id IN :ids AND listener = :listener "
    "AND (metric IN (:overlapped, :leased) OR LOWER(metric) LIKE :latency)",
    listener=SOFTWARE,
    latency="%latency%",
    overlapped=OVERLAPPED,
    leased=LEASED,
)


@dataclass(frozen=True, slots=True)
class Technique:
    """A technique that may help runs.

    Attributes:
        subject: The model, or the runs.
        observation: What was measured, for a sentence that begins with the subject.
        at_most: Largest factor by which it can speed up a run or requests; None if not known.
        reason: The guideline, with its bounds.
    """

    subject: str
    observation: str
    at_most: float | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class _Course:
    """The course of a run, in seconds.

    Attributes:
        duration_s: From its start to its end.
        start_up_s: From its start to its first epoch; None without epochs.
        validating_s: All its validations; ``training_s`` the rest from the first epoch on.
        validations: Their number.
    """

    duration_s: float
    start_up_s: float | None = None
    validating_s: float = 0.0
    training_s: float = 0.0
    validations: int = 0


def overlap_bound(training_s: float, validating_s: float, epochs: int) -> float:
    """Return the largest speed-up of a run whose validation overlaps the next epoch's training.

    E epochs take at least E·max(T, V) + min(T, V), as nothing overlaps the last validation. With
    many epochs this comes to (T + V) / max(T, V), at most 2.

    Args:
        training_s: Time of all epochs of training.
        validating_s: Time of all validations.
        epochs: Number of validations, at least 1.

    >>> overlap_bound(10, 10, 1), overlap_bound(10, 10, 10)
    (1.0, 1.8181818181818181)
    """
    longer, shorter = max(training_s, validating_s), min(training_s, validating_s)
    return (training_s + validating_s) / (longer + shorter / epochs)


def techniques_of(
    reader: StoreReader, measurements: Measurements, predictions: Sequence[Prediction]
) -> list[Technique]:
    """Return the techniques that may help an experiment's runs.

    Raises:
        StoreError: The store cannot be read.
    """
    solos = sorted(
        measurements.solos.values(), key=lambda solo: (solo.host, solo.devices, solo.name)
    )
    courses = _courses(reader, [solo.run_id for solo in solos])
    run_ids = _run_ids(measurements.report)
    recorded = {(run_id, metric) for run_id, metric in rows_of(reader, _RECORDED, run_ids)}
    return [
        *_overlap(solos, courses, recorded),
        *_one_process(solos, courses, predictions, measurements.facts),
        *_leases(reader, measurements, recorded),
        *_offload(solos, measurements),
    ]


def _runs(report: Report) -> list[RunRecord]:
    return [
        row.run for workload in report.workloads for group in workload.groups for row in group.runs
    ]


def _run_ids(report: Report) -> list[str]:
    return [run.run_id for run in _runs(report)]


def _courses(reader: StoreReader, run_ids: Sequence[str]) -> dict[str, _Course]:
    markers: dict[str, list[MarkerRecord]] = {run_id: [] for run_id in run_ids}
    for marker in reader.markers(run_ids):
        if not marker.process and marker.end_ns is not None:
            markers[marker.run_id].append(marker)
    return {run.run_id: _course(run, markers[run.run_id]) for run in reader.runs(run_ids=run_ids)}


def _course(run: RunRecord, markers: Sequence[MarkerRecord]) -> _Course:
    if run.started_ns is None or run.ended_ns is None:
        return _Course(0.0)
    duration_s = (run.ended_ns - run.started_ns) / 1e9
    epochs = [marker for marker in markers if marker.kind is MarkerKind.EPOCH]
    if not epochs:
        return _Course(duration_s)
    began_ns = min(marker.start_ns for marker in epochs)
    spans_s = [
        ((marker.end_ns or marker.start_ns) - marker.start_ns) / 1e9
        for marker in markers
        if marker.kind is MarkerKind.SPAN and marker.name == VALIDATE
        if marker.start_ns >= began_ns
    ]
    ended_ns = max(marker.end_ns or 0 for marker in markers)
    return _Course(
        duration_s,
        max(0.0, (began_ns - run.started_ns) / 1e9),
        sum(spans_s),
        max(0.0, (ended_ns - began_ns) / 1e9 - sum(spans_s)),
        len(spans_s),
    )


def _overlap(
    solos: Iterable[Solo], courses: Mapping[str, _Course], recorded: set[tuple[str, str]]
) -> Iterator[Technique]:
    for solo in solos:
        course = courses[solo.run_id]
        if not course.validations or (solo.run_id, OVERLAPPED) in recorded:
            continue
        bound = overlap_bound(course.training_s, course.validating_s, course.validations)
        if bound >= MIN_GAIN:
            share = course.validating_s / (course.training_s + course.validating_s)
            yield Technique(
                solo.name,
                f"validates {units.percent(share)} of its epochs' time",
                bound,
                Reason(Rule.OVERLAP_VALIDATION, f"at most {units.factor(bound)}"),
            )


def _one_process(
    solos: Sequence[Solo],
    courses: Mapping[str, _Course],
    predictions: Sequence[Prediction],
    facts: Facts,
) -> Iterator[Technique]:
    """Yield small models of one device, then small runs that were measured together."""
    for (host, devices), here in by_place(solos).items():
        small = [solo for solo in here if _is_small(solo, facts)]
        if len(small) < 2:
            continue
        where = "the CPU" if small[0].is_cpu else f"GPU {devices}"
        at = f" of {host}" if len({solo.host for solo in solos}) > 1 else ""
        bounds = _bounds_one_after_the_other(small, courses)
        # On CPUs, small runs side by side use all cores: one process only saves start-up for sure.
        if bounds and (not small[0].is_cpu or bounds.get(_STARTING_ONCE, 1.0) >= MIN_GAIN):
            yield Technique(
                f"{len(small)} small models on {where}{at}",
                _load(small),
                max(bounds.values()),
                Reason(
                    Rule.ONE_PROCESS,
                    "one after the other, at most "
                    + ", ".join(f"{units.factor(bound)} {by}" for by, bound in bounds.items()),
                ),
            )
    for prediction in predictions:
        together = [row.solo for row in prediction.candidate.rows]
        if prediction.measured and all(_is_small(solo, facts) for solo in together):
            sizes = [solo.footprint.peak_bytes for solo in together if solo.footprint is not None]
            yield Technique(
                f"{prediction.candidate.models_text} together",
                _load(together),
                None,
                Reason(
                    Rule.ONE_PROCESS,
                    f"memory at least {units.size(max(sizes))} instead of {units.size(sum(sizes))}",
                ),
            )


def _bounds_one_after_the_other(
    solos: Sequence[Solo], courses: Mapping[str, _Course]
) -> dict[str, float]:
    """Return what one process brings at most against processes one after the other, by its cause.

    At best one start-up is left, the longest; and equal models take the time of one if fused.
    """
    bounds = {}
    known = [courses[solo.run_id] for solo in solos]
    starts_s = [course.start_up_s for course in known if course.start_up_s is not None]
    total_s = sum(course.duration_s for course in known)
    saved_s = sum(starts_s) - max(starts_s, default=0.0)
    if saved_s > 0:
        bounds[_STARTING_ONCE] = total_s / (total_s - saved_s)
    (_, alike), *_ = Counter(solo.key.file for solo in solos).most_common(1)
    if alike > 1:
        bounds[f"for {alike} runs of one script if fused"] = float(alike)
    return bounds


def _is_small(solo: Solo, facts: Facts) -> bool:
    """Return whether a model takes little of its device's time and memory."""
    load = solo.shares.get(Resource.CORES if solo.is_cpu else Resource.SM)
    memory = (
        facts.host(solo.host).memory_bytes
        if solo.is_cpu
        else facts.device(solo.host, solo.devices).memory_bytes
    )
    if load is None or memory is None or solo.footprint is None:
        return False
    return load <= ROOMY and solo.footprint.peak_bytes <= SMALL * memory


def _load(solos: Sequence[Solo]) -> str:
    """Return ``each alone at most SM activity 31 %, 2.00 GB``."""
    resource = Resource.CORES if solos[0].is_cpu else Resource.SM
    busiest = max(solos, key=lambda solo: solo.shares[resource])
    largest = max(solo.footprint.peak_bytes for solo in solos if solo.footprint is not None)
    cores = f"{units.percent(busiest.shares[resource])} of the cores"
    load = cores if busiest.is_cpu else activity_text(busiest)
    return f"each alone at most {load}, {units.size(largest)}"


def _leases(
    reader: StoreReader, measurements: Measurements, recorded: set[tuple[str, str]]
) -> Iterator[Technique]:
    """Yield runs with a series of latencies beside a run that trains on their device."""
    metrics = {metric for _, metric in recorded} - {OVERLAPPED, LEASED}
    if not metrics:
        return
    asked = tuple(SeriesQuantity(Statistic.P95, metric) for metric in sorted(metrics))
    report = read_report(reader, measurements.experiment, series=asked)
    keys = keys_of(reader, _runs(report), reader.params_of(_run_ids(report)))
    alone: dict[tuple[BaselineKey, SeriesQuantity], float] = {}
    shared: list[tuple[WorkloadSummary, GroupSummary]] = []
    for workload in report.workloads:
        serving = [group for group in workload.groups if _has(group, metrics, recorded)]
        if len(workload.groups) == 1 and workload.run_count == 1:
            for group in serving:
                key = keys[group.runs[0].run.run_id]
                alone |= {(key, one): p95 for one in asked if (p95 := group.mean(one)) is not None}
        training = {
            (group.runs[0].run.host, group.runs[0].run.devices)
            for group in workload.groups
            if group not in serving and not _has(group, {LEASED}, recorded)
            if group.time_per_epoch_s is not None
        }
        shared += [
            (workload, group)
            for group in serving
            if (group.runs[0].run.host, group.runs[0].run.devices) in training
        ]
    for workload, group in shared:
        for quantity in report.series.quantities:
            p95 = group.mean(quantity)
            if p95 is None:
                continue
            run = group.runs[0].run
            best = alone.get((keys[run.run_id], quantity))
            bound = None if not best else p95 / best
            if bound is not None and bound < MIN_GAIN:
                continue
            text = quantity.info.text
            known = (
                "" if bound is None else f"; alone {text(best)}, so at most {units.factor(bound)}"
            )
            yield Technique(
                f"{group.name} in {workload.label}",
                f"{quantity.value} {text(p95)} beside training on the same device",
                bound,
                Reason(
                    Rule.LEASE, f"at best the service's own time and the longest segment{known}"
                ),
            )


def _has(group: GroupSummary, metrics: set[str], recorded: set[tuple[str, str]]) -> bool:
    return any((row.run.run_id, metric) in recorded for row in group.runs for metric in metrics)


def _offload(solos: Iterable[Solo], measurements: Measurements) -> Iterator[Technique]:
    """Yield models that ran out of memory alone, or that nearly fill their device."""
    for workload in measurements.report.workloads:
        group = workload.groups[0]
        if workload.run_count == 1 and group.status is RunStatus.OOM:
            shortage = group.shortage
            yield Technique(
                group.name,
                "ran out of memory alone",
                None,
                Reason(
                    Rule.OFFLOAD,
                    "it may run" if shortage is None else f"it may run: {shortage.text}",
                ),
            )
    for solo in solos:
        memory_bytes = measurements.facts.device(solo.host, solo.devices).memory_bytes
        if solo.is_cpu or memory_bytes is None or solo.footprint is None:
            continue
        share = solo.footprint.peak_bytes / memory_bytes
        if share >= NEARLY_FULL:
            sizes = f"{units.size(solo.footprint.peak_bytes)} of {units.size(memory_bytes)}"
            yield Technique(
                solo.name,
                f"needs {units.percent(share)} of the memory of GPU {solo.devices}",
                None,
                Reason(Rule.OFFLOAD, f"less than {sizes}, at best as fast as now"),
            )
