"""Measurements of kinds of rows, from all experiments of a store.

Rows of the same kind do the same work on the same hardware. They have the same program, environment
and params; params in the setting ``ignored-params`` may differ.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import NamedTuple

from radt.analysis.advice_measurements import Measurements, collocation_of, read_measurements
from radt.analysis.advice_model import (
    Candidate,
    CandidateRow,
    DevicePlace,
    Fit,
    MeasuredWorkload,
    Prediction,
    Resource,
    Solo,
)
from radt.analysis.advice_prediction import Predictor
from radt.analysis.baselines import BaselineKey, Work, keys_of, program_in
from radt.analysis.report import ReportCache
from radt.analysis.summaries import WorkloadSummary
from radt.collocation.spec import Collocation
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.tags import START

#: Rows share a device only if the shares of each resource that they use alone add up to at most
#: this. Beyond it, runs disturb each other in ways that a sum of shares does not predict.
MAX_LOAD = 1.5
_LIMITED = (Resource.CORES, Resource.SM, Resource.DRAM)
#: The param that has a run's environment (`radt.runner.preparation`).
ENVIRONMENT, LOCAL = "Environment", "local"
#: The newest experiments that are searched for measurements.
_MAX_EXPERIMENTS = 20


class Kind(NamedTuple):
    """The work of a row, and what it runs on: ``cpu`` or ``GPU``."""

    program: str
    params: Work
    environment: str
    hardware: str


class Member(NamedTuple):
    """A row of a group: its kind, how it shares its device, and which that is."""

    kind: Kind
    collocation: Collocation
    device: str


_Part = tuple[Kind, str]
#: Kinds and collocations that shared a device, in a fixed order.
Sharing = tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """Where rows run: a machine, or the nodes of a cluster with one kind of hardware.

    Attributes:
        hardware: The machine or the hardware of nodes, as in `BaselineKey`.
        devices: Its devices, as in `BaselineKey`, with their hardware, as in `Kind`.
    """

    hardware: str
    devices: Mapping[str, str]

    def kind(self, key: BaselineKey, run: RunRecord, environment: str) -> Kind | None:
        """Return the kind of a run; None if it ran elsewhere."""
        device = self.devices.get(key.devices)
        if key.hardware != self.hardware or device is None:
            return None
        return Kind(program_in(run.command, key.file), key.params, environment, device)


def sharing_of(members: Iterable[Member]) -> Sharing:
    """Return what equal groups have in common, on whichever device."""
    return tuple(sorted((member.kind, str(member.collocation)) for member in members))


@dataclass(frozen=True)
class KindMeasurements:
    """Measurements of kinds on one machine.

    Attributes:
        solos: Their needs and loads alone.
        durations_s: What they take alone, in s.
        shared_s: What rows that shared a device took, in s; infinity if one ran out of memory.
        calibration: Workloads that calibrate predictions.
    """

    solos: Mapping[Kind, Solo] = field(default_factory=dict)
    durations_s: Mapping[Kind, float] = field(default_factory=dict)
    shared_s: Mapping[Sharing, float] = field(default_factory=dict)
    calibration: Sequence[MeasuredWorkload] = ()

    def alone_s(self, kind: Kind) -> float | None:
        """Return what a kind takes alone, in s; None if it was never measured."""
        return self.durations_s.get(kind)

    def has_needs(self, kind: Kind) -> bool:
        """Return True if the memory and the load of a kind are known."""
        solo = self.solos.get(kind)
        if solo is None or None in (solo.memory_bytes, solo.place.memory_bytes):
            return False
        return (Resource.CORES if solo.is_cpu else Resource.SM) in solo.shares

    def has_measured(self, members: Sequence[Member]) -> bool:
        """Return True if rows of these kinds have shared a device."""
        return sharing_of(members) in self.shared_s

    def together_s(self, members: Sequence[Member]) -> float:
        """Return what rows of measured kinds take that share a device, in s.

        Infinity if they should not: they may not fit, or their loads add up to more than
        `MAX_LOAD`. More rows are never expected to take less than some of them were measured to.
        """
        sharing = sharing_of(members)
        if sharing in self.shared_s:
            return self.shared_s[sharing]
        if self._load(members) > MAX_LOAD:
            return math.inf
        prediction = self._prediction(members)
        if prediction is None or prediction.fit is not Fit.YES or not prediction.slowdowns:
            return math.inf
        counts = Counter(sharing)
        parts_s = (
            taken_s
            for first in counts
            for known, taken_s in self._measured_with.get(first, ())
            if known <= counts
        )
        rows_s = (
            self.durations_s[member.kind] * slowdown
            for member, slowdown in zip(members, prediction.slowdowns, strict=True)
        )
        return max(*rows_s, *parts_s)

    def fits(self, members: Sequence[Member]) -> bool:
        """Return True if the rows' memory is known, and fits into their devices and the machine.

        On several devices, the CPUs have to suffice as well.
        """
        prediction = self._prediction(members)
        if prediction is None or prediction.fit is not Fit.YES:
            return False
        return (
            len({member.device for member in members}) == 1
            or self._load(members, (Resource.CORES,)) <= 1
        )

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.calibration)

    @cached_property
    def _measured_with(self) -> Mapping[_Part, Sequence[tuple[Counter[_Part], float]]]:
        """Return what rows took that shared a device, by the first of them."""
        by_first: dict[_Part, list[tuple[Counter[_Part], float]]] = {}
        for sharing, taken_s in self.shared_s.items():
            by_first.setdefault(sharing[0], []).append((Counter(sharing), taken_s))
        return by_first

    @cached_property
    def _places(self) -> dict[str, DevicePlace]:
        """Return a place for each kind of hardware: rows that share one must agree on its size."""
        return {kind.hardware: solo.place for kind, solo in self.solos.items()}

    @cached_property
    def _row(self) -> Callable[[Member], CandidateRow | None]:
        return cache(self._row_of)

    def _row_of(self, member: Member) -> CandidateRow | None:
        solo = self.solos.get(member.kind)
        if solo is None:
            return None
        place = replace(self._places[member.kind.hardware], devices=member.device)
        return CandidateRow(replace(solo, place=place), member.collocation)

    def _prediction(self, members: Sequence[Member]) -> Prediction | None:
        """Return what is predicted of rows; None if one was never measured on its device alone."""
        rows = [row for row in map(self._row, members) if row is not None]
        if len(rows) < len(members):
            return None
        return self._predictor.predict(Candidate(tuple(rows)))

    def _load(self, members: Sequence[Member], resources: Iterable[Resource] = _LIMITED) -> float:
        """Return the largest sum of the rows' shares of a resource."""
        shares = [solo.shares for member in members if (solo := self.solos.get(member.kind))]
        return max(sum(each.get(resource, 0.0) for each in shares) for resource in resources)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The measurements of an experiment, and the kinds of its runs by their ids."""

    found: Measurements
    kinds: Mapping[str, Kind]

    def rows(self, workload: WorkloadSummary) -> list[tuple[Member, RunRecord]]:
        """Return the rows of a workload; none if it has services."""
        runs = [row.run for group in workload.groups for row in group.runs]
        members = [
            (Member(self.kinds[run.run_id], collocation_of(run), run.devices), run)
            for run in runs
            if run.run_id in self.kinds
        ]
        return members if len(members) == workload.run_count == len(runs) else []


class KindReader:
    """Reads what was measured of kinds at a site: in an experiment, and in the newest others.

    Args:
        reader: The store.
        site: Where the rows are to run.
        experiment: The experiment. It is read again by each `read`, the others only now.
        wanted: The kinds.
        limits: ``--max-epoch`` and ``--max-time`` of the start: others make runs of other lengths.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The settings file cannot be read.
    """

    def __init__(
        self,
        reader: StoreReader,
        site: Site,
        experiment: str,
        wanted: Collection[Kind],
        limits: Collection[str] = (),
    ) -> None:
        self._reader = reader
        self._site = site
        self._experiment = experiment
        self._wanted = frozenset(wanted)
        self._limits = frozenset(limits)
        self._cache = ReportCache()
        others = sorted(
            (each for each in reader.experiments() if each.name != experiment),
            key=lambda each: each.last_activity_ns,
        )
        self._others = [self._measured(each.name) for each in others[-_MAX_EXPERIMENTS:]]

    def read(self) -> KindMeasurements:
        """Return all measurements; those of the experiment override the others.

        Raises:
            StoreError: The store cannot be read.
            UsageError: The settings file cannot be read.
        """
        solos: dict[Kind, Solo] = {}
        durations_s: dict[Kind, float] = {}
        shared_s: dict[Sharing, float] = {}
        calibration: list[MeasuredWorkload] = []
        for measured in (*self._others, self._measured(self._experiment, self._cache)):
            for solo in measured.found.solos.values():
                solos[measured.kinds[solo.run_id]] = solo
            calibration += measured.found.measured
            for workload in sorted(measured.found.report.workloads, key=_created_ns):
                rows = measured.rows(workload)
                if len(rows) == 1:
                    ((member, run),) = rows
                    is_whole = member.collocation.mig is None
                    if run.status is RunStatus.FINISHED and is_whole and (taken := run.lasted_s()):
                        durations_s[member.kind] = taken
                elif rows:
                    shared_s |= _shared_s(rows, shared_s)
        return KindMeasurements(solos, durations_s, shared_s, calibration)

    def _measured(self, experiment: str, cache: ReportCache | None = None) -> _Measured:
        """Read the workloads of an experiment all of whose rows are of the kinds."""
        reader = self._reader
        runs = reader.runs(experiment=experiment)
        params = reader.params_of([run.run_id for run in runs])
        keys = keys_of(reader, runs, params)
        starts = reader.tagged(START, experiment)
        kinds = {
            run.run_id: kind
            for run in runs
            for environment in [params.get(run.run_id, {}).get(ENVIRONMENT, LOCAL)]
            if limits_in(starts.get(run.run_id, "")) == self._limits
            and (kind := self._site.kind(keys[run.run_id], run, environment)) in self._wanted
        }
        foreign = {run.workload_id for run in runs if run.run_id not in kinds}
        only = {run.run_id for run in runs if run.workload_id not in foreign}
        found = Measurements(experiment)
        if only:
            found = read_measurements(reader, experiment, cache=cache, only=only)
        return _Measured(found, kinds)


def limits_in(options: str) -> frozenset[str]:
    """Return ``--max-epoch`` and ``--max-time`` with their values, from a start's options."""
    words = shlex.split(options)
    return frozenset(
        word if "=" in word else f"{word}={value}"
        for word, value in zip(words, [*words[1:], ""], strict=False)
        if word.partition("=")[0] in ("--max-epoch", "--max-time")
    )


def _created_ns(workload: WorkloadSummary) -> int:
    return max(row.run.created_ns for group in workload.groups for row in group.runs)


def _shared_s(
    rows: Sequence[tuple[Member, RunRecord]], known: Mapping[Sharing, float]
) -> dict[Sharing, float]:
    """Return what the rows on each device took. A group that failed by that never fits."""
    by_device: dict[str, list[tuple[Member, RunRecord]]] = {}
    for member, run in rows:
        by_device.setdefault(member.device, []).append((member, run))
    shared_s = {}
    for together in by_device.values():
        sharing = sharing_of(member for member, _ in together)
        statuses = {run.status for _, run in together}
        taken_s = [run.lasted_s() or math.inf for _, run in together]
        if len(together) > 1 and statuses & {RunStatus.OOM, RunStatus.TIMEOUT}:
            shared_s[sharing] = math.inf
        elif len(together) > 1 and statuses == {RunStatus.FINISHED}:
            shared_s[sharing] = math.inf if known.get(sharing) == math.inf else max(taken_s)
    return shared_s
