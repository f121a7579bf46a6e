"""Candidates for sharing, and their predictions.

Candidates are copies of a model, mixes of several models, and measured workloads. A model bounds
the slowdown of each run, and measured workloads calibrate it. Memory fits if the sum of the
footprints of the runs alone fits. The thesis that radt builds on found that this rule holds for
training on GPUs (Robroek 2024, section 4.4.3, and 4.5.1: "can simply be estimated by the sum").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from statistics import median

from radt.analysis.advice_measurements import CONTEXT_BYTES, Measurements
from radt.analysis.advice_model import (
    Candidate,
    CandidateRow,
    DevicePlace,
    MeasuredWorkload,
    MemoryPool,
    Prediction,
    Range,
    Resource,
    RowPrediction,
    SharingMethod,
    Solo,
)
from radt.analysis.baselines import BaselineKey
from radt.collocation.packing import pack
from radt.collocation.spec import Collocation, MigProfile, Mps
from radt.collocation.topology import InstanceProfile, MigState
from radt.units import plural

#: Numbers of copies measured in the thesis (what 3g, 2g and 1g instances allow), and four.
COPIES = (2, 3, 4, 7)
#: "We limit the amount of collocated models to four" (Robroek 2024, section 4.3.4).
MAX_MIX = 4
#: With more models on a device there would be hundreds of mixes, so only measured ones are
#: considered.
MAX_MIXED_MODELS = 8
#: Share of the capacity kept free for fragmentation and other batch sizes.
DEFAULT_MARGIN = 0.05
_MIB = 2**20

#: A range whose ends have a smaller ratio is too narrow for positions.
_MIN_RATIO = 1.1
#: A run that uses a smaller share of a resource hardly waits for it.
MIN_SHARE = 0.05

#: The slowdown by each limit, and the upper end of the range.
_Limits = tuple[dict[str, float], float]


def candidates_of(measurements: Measurements, *, separate: bool) -> list[Candidate]:
    """Return the candidates to predict, each once. With ``separate``, only those on MIG."""
    made = (
        candidate
        for place, solos in measurements.places.items()
        for together in _groups(solos)
        for candidate in _ways(together, place, separate)
    )
    unique: dict[object, Candidate] = {}
    for candidate in (*(workload.candidate for workload in measurements.measured), *made):
        known = unique.setdefault(candidate.identity, candidate)
        labels = tuple(dict.fromkeys((*known.labels, *candidate.labels)))
        unique[candidate.identity] = replace(known, labels=labels)
    return list(unique.values())


def _groups(solos: Sequence[Solo]) -> Iterator[tuple[Solo, ...]]:
    """Yield the copies of each model of a device, and the mixes of different models."""
    for solo in solos:
        if not solo.cpus or solo.own_cpus:  # copies with a list would all be on the same CPUs
            for count in COPIES:
                yield (solo,) * count
    if len(solos) <= MAX_MIXED_MODELS:
        for count in range(2, MAX_MIX + 1):
            yield from combinations(solos, count)


def _ways(solos: tuple[Solo, ...], place: DevicePlace, separate: bool) -> Iterator[Candidate]:
    """Yield the same runs sharing naively, under MPS, and on MIG instances of equal size."""
    ways = [] if separate else [Collocation()]
    if not (separate or place.is_cpu or place.has_mps is False):
        ways.append(Collocation(mps=Mps()))
    if place.card is not None:
        needs = [solo.memory_bytes or 0.0 for solo in solos]
        profile = equal_instances(place.card, len(solos), max(needs))
        ways += [] if profile is None else [Collocation.parse(profile.name)]
    for how in ways:
        yield Candidate(tuple(CandidateRow(solo, how) for solo in solos))


def shared_profiles(card: MigState) -> Sequence[InstanceProfile]:
    """Return profiles without media extensions, smallest first, except that of the whole GPU."""
    plain = [
        profile
        for profile in card.profiles
        if not {"+", "-"} & set(profile.name) and profile.slices < card.slices
    ]
    return sorted(plain, key=lambda profile: (profile.slices, profile.memory_mb))


@cache
def equal_instances(card: MigState, count: int, need_bytes: float) -> InstanceProfile | None:
    """Return the largest profile of which ``count`` instances fit on an empty GPU.

    None if such instances have less memory than ``need_bytes``.
    """
    fitting = [
        profile
        for profile in shared_profiles(card)
        if profile.memory_mb * _MIB >= need_bytes and pack([profile] * count, card) is not None
    ]
    return fitting[-1] if fitting else None


def memory_pools(candidate: Candidate, margin: float) -> Iterator[MemoryPool]:
    """Yield the memory of each GPU or MIG instance, and the machine's."""
    for place in dict.fromkeys(row.solo.place for row in candidate.rows):
        rows = [row for row in candidate.rows if row.solo.place == place]
        if place.is_cpu:
            continue
        whole = [row for row in rows if row.collocation.mig is None]
        if whole:
            need = _sum(row.solo.memory_bytes for row in whole)
            if need is not None and any(row.collocation.mps is not None for row in whole):
                need += CONTEXT_BYTES
            yield MemoryPool(place.device, need, place.gpu_bytes, margin)
        for row in rows:
            if row.collocation.mig is not None:
                name = row.collocation.mig.gpu_instance
                profile = None if place.card is None else place.card.profile(name)
                capacity = None if profile is None else float(profile.memory_mb * _MIB)
                yield MemoryPool(name, row.solo.memory_bytes, capacity, margin)
    need = _sum(row.solo.host_bytes for row in candidate.rows)
    capacity = candidate.rows[0].solo.place.host_bytes
    # The machine's memory counts for runs on GPUs only where measured, as they need less of it.
    if None not in (need, capacity) or any(row.solo.is_cpu for row in candidate.rows):
        yield MemoryPool("the machine", need, capacity, margin)


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a slowdown in its range by ratios: 0 at the lower end, 1 at the upper.

    A slowdown outside the range is at one of its ends, and ``beyond`` is its ratio to that end. A
    slowdown at a fixed position grows with both ends, so more runs are never expected to be faster.
    """

    place: float
    beyond: float = 1.0

    @classmethod
    def of(cls, slowdown: float, bounds: Range) -> Position | None:
        """Return the position of a slowdown; None if the range is too narrow.

        >>> Position.of(2.0, Range(1.0, 4.0))
        Position(place=0.5, beyond=1.0)
        >>> Position.of(6.0, Range(1.0, 4.0))
        Position(place=1.0, beyond=1.5)
        """
        if bounds.high < bounds.low * _MIN_RATIO or slowdown <= 0:
            return None
        inside = max(bounds.low, min(bounds.high, slowdown))
        place = math.log(inside / bounds.low) / math.log(bounds.high / bounds.low)
        return cls(place, slowdown / inside)

    def slowdown_in(self, bounds: Range) -> float:
        """Return the slowdown at this position of a range, at least 1."""
        inside = bounds.low * (bounds.high / bounds.low) ** self.place
        return float(max(1.0, inside * self.beyond))


class Predictor:
    """Predicts the slowdown of runs together from measurements of each alone.

    Args:
        measured: Workloads that calibrate the predictions of others, the oldest first.
        margin: Share of each memory to leave free.
    """

    def __init__(
        self, measured: Sequence[MeasuredWorkload] = (), margin: float = DEFAULT_MARGIN
    ) -> None:
        self._margin = margin
        self._measured = measured
        self._own: dict[object, MeasuredWorkload] = {}
        self._positions: list[tuple[Candidate, Position]] = []
        self._middle = cache(self._middle_position)
        for workload in measured:
            identity = workload.candidate.identity
            known = self._own.get(identity, workload)
            newest = workload if workload.slowdowns else known
            self._own[identity] = replace(newest, ran_out=known.ran_out or workload.ran_out)
            self._positions += self._positions_of(workload)

    def predict(self, candidate: Candidate, *, blind: bool = False) -> Prediction:
        """Return fit and slowdowns, calibrated by measured workloads of the same method.

        Args:
            candidate: The runs.
            blind: Leave out measurements of the same models together, to check the prediction
                against them. Otherwise all candidates of a method share one calibration, so that
                their expectations are comparable.
        """
        bare = replace(self._bare(candidate), measured=self._own.get(candidate.identity))
        middle = self._middle(candidate.method, candidate.models if blind else None)
        if middle is None or not bare.rows:
            return bare
        rows = tuple(replace(row, expected=middle.slowdown_in(row.range)) for row in bare.rows)
        return replace(bare, rows=rows)

    def _middle_position(
        self, method: SharingMethod, without: tuple[BaselineKey, ...] | None
    ) -> Position | None:
        """Return the median position of a method, without that of these models together."""
        known = [
            position
            for measured, position in self._positions
            if measured.method is method and measured.models != without
        ]
        if not known:
            return None
        return Position(
            median(position.place for position in known),
            median(position.beyond for position in known),
        )

    def checks(self) -> Iterator[PredictionCheck]:
        """Predict each measured workload without joint measurements of the same models."""
        for workload in self._measured:
            candidate = workload.candidate
            expected = self.predict(candidate, blind=True).expected
            for at in _one_of_each(workload) if expected else ():
                yield PredictionCheck(
                    candidate.labels[0],
                    candidate.rows[at].solo.name,
                    candidate.method,
                    expected[at],
                    workload.slowdowns[at],
                )

    def _bare(self, candidate: Candidate) -> Prediction:
        """Return the prediction by the model, without calibration."""
        wanted = sum(row.solo.own_cpus or 0 for row in candidate.rows)
        cores = candidate.rows[0].solo.place.cores
        if cores is not None and wanted > cores:
            problem = f"{plural(wanted, 'CPU')} of their own on a machine with {cores}"
            return Prediction(candidate, (MemoryPool("CPUs", wanted, cores),), unknown=problem)
        pools = tuple(memory_pools(candidate, self._margin))
        rows = [bounds_of(candidate, row) for row in candidate.rows]
        known = tuple(row for row in rows if row is not None)
        if len(known) < candidate.degree:
            unknown = "the load of a run, or its instance, is not known"
            return Prediction(candidate, pools, unknown=unknown)
        return Prediction(candidate, pools, known)

    def _positions_of(self, workload: MeasuredWorkload) -> Iterator[tuple[Candidate, Position]]:
        """Yield the position of each model of a measured workload."""
        rows = self._bare(workload.candidate).rows
        for at in _one_of_each(workload) if rows else ():
            position = Position.of(workload.slowdowns[at], rows[at].range)
            if position is not None:
                yield workload.candidate, position


def _one_of_each(workload: MeasuredWorkload) -> Iterator[int]:
    """Yield the index of one row of each model. Equal rows have one slowdown, their mean."""
    models = [row.solo.key for row in workload.candidate.rows]
    if workload.slowdowns:
        yield from (at for at, model in enumerate(models) if model not in models[:at])


def bounds_of(candidate: Candidate, row: CandidateRow) -> RowPrediction | None:
    """Return the range of a run's slowdown, without calibration.

    None if a share was not measured, or for a part of a MIG instance.
    """
    cores, mig = _cores(candidate, row), row.collocation.mig
    known: _Limits | None
    if row.solo.is_cpu:
        known = None if cores is None else ({}, float(candidate.degree))
    elif mig is None:
        known = _limits_of_gpu(candidate, row)
    else:
        known = _limits_of_instance(row, mig)
    if known is None:
        return None
    limits, high = known
    limits[Resource.CORES.value] = cores or 1.0
    limit, low = max(limits.items(), key=lambda item: item[1])
    if low <= 1:
        limit, low = "nothing measured", 1.0
    return RowPrediction(row, Range(low, max(low, high)), limit, low)


def _cores(candidate: Candidate, row: CandidateRow) -> float | None:
    """Return the slowdown caused by the cores of all rows; None if those of a row are unknown."""
    cores = row.solo.place.cores
    if row.solo.own_cpus is not None:
        return 1.0  # no other run is on its CPUs
    total = _load(candidate.rows, Resource.CORES)
    if total is None or cores is None:
        return None
    return total if row.solo.shares[Resource.CORES] * cores >= MIN_SHARE else 1.0


def _limits_of_gpu(candidate: Candidate, row: CandidateRow) -> _Limits | None:
    """Return the limits of a run that shares a whole GPU."""
    members = [
        other
        for other in candidate.rows
        if other.solo.place == row.solo.place and other.collocation.mig is None
    ]
    shares, mps = row.solo.shares, row.collocation.mps
    active = _load(members, Resource.SM)
    if active is None:
        return None
    sums = {Resource.SM: active, Resource.DRAM: _load(members, Resource.DRAM)}
    if mps is None and len(members) > 1:
        sums[Resource.KERNEL] = _load(members, Resource.KERNEL)
    limits = {
        resource.value: total
        for resource, total in sums.items()
        if total is not None and shares.get(resource, 0.0) >= MIN_SHARE
    }
    high = float(len(members))
    if mps is not None and mps.thread_percentage is not None:
        cap = mps.thread_percentage / 100
        limits[f"its cap of {mps.thread_percentage:g} %"] = shares[Resource.SM] / cap
        high = max(high, _stretched(row, cap))
    return limits, high


def _limits_of_instance(row: CandidateRow, mig: MigProfile) -> _Limits | None:
    """Return the limits of a run alone on a MIG instance, where neighbours have no influence."""
    shares, card = row.solo.shares, row.solo.place.card
    profile = None if card is None else card.profile(mig.gpu_instance)
    is_shared = mig.compute_slices or row.collocation.instance or row.collocation.mps is not None
    if card is None or profile is None or is_shared or Resource.SM not in shares:
        return None
    known = row.solo.on_profile.get(profile.name.lower())
    if known is not None:
        return {"measured on this instance": known}, known
    sm = profile.slices / card.slices
    whole_mb = max(each.memory_mb for each in card.profiles)
    dram = profile.memory_mb / whole_mb if whole_mb else sm  # a driver may not report memory
    low = max(shares[Resource.SM] / sm, shares.get(Resource.DRAM, 0.0) / dram)
    return {"the size of its instance": low}, _stretched(row, sm)


def _stretched(row: CandidateRow, fraction: float) -> float:
    """Return the slowdown if all kernels use the whole device. Only kernels take longer."""
    kernel = row.solo.shares.get(Resource.KERNEL, 1.0)
    if row.solo.sm_is_utilization:
        kernel = row.solo.shares[Resource.SM]
    return max(1.0, 1 - kernel + kernel / fraction)


def _sum(amounts: Iterable[float | None]) -> float | None:
    """Return the sum; None if an amount is not known."""
    total = 0.0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _load(rows: Iterable[CandidateRow], resource: Resource) -> float | None:
    """Return the sum of the rows' shares; None if one is missing."""
    return _sum(row.solo.shares.get(resource) for row in rows)


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """Expected and measured slowdown of a model in one workload."""

    workload: str
    model: str
    method: SharingMethod
    expected: float
    measured: float

    @property
    def error(self) -> float:
        """Return the relative error: 0.1 if the expectation was 10 % too high."""
        return self.expected / self.measured - 1


def median_error(checks: Iterable[PredictionCheck]) -> float | None:
    """Return the median of the absolute relative errors; None without any."""
    errors = [abs(check.error) for check in checks]
    return median(errors) if errors else None
