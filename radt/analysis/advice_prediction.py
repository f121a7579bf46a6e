"""Predict candidates by a model, calibrated by measured workloads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from radt.analysis.advice_facts import Facts
from radt.analysis.advice_measurements import MeasuredWorkload
from radt.analysis.advice_model import (
    Candidate,
    Fit,
    MemoryPool,
    Method,
    Prediction,
    Range,
    Resource,
    Row,
    RowPrediction,
)
from radt.analysis.baselines import BaselineKey
from radt.analysis.memory_fit import Part, impossible, memory_pools, parts_of

#: A range with a smaller ratio of its ends is too narrow for positions.
_MIN_RATIO = 1.1


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a slowdown in its range by ratios: 0 at the lower end, 1 at the upper.

    What lies outside the range is at one of its ends, and ``beyond`` is its ratio to that end. So
    a slowdown at a fixed position grows with both ends: more runs are never expected to be faster.
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


@dataclass(frozen=True, slots=True)
class MeasuredPosition:
    """The position of a model's slowdown in one measured workload."""

    models: tuple[BaselineKey, ...]
    method: Method
    position: Position


class Predictor:
    """Predicts candidates of one experiment.

    Args:
        facts: Facts on its machines.
        measured: Workloads that calibrate the predictions of others.
        margin: Share of each memory to leave free.
    """

    def __init__(self, facts: Facts, measured: Sequence[MeasuredWorkload], margin: float) -> None:
        self._facts = facts
        self._margin = margin
        self._measured: dict[object, list[MeasuredWorkload]] = {}
        self._positions: list[MeasuredPosition] = []
        for workload in measured:
            self._measured.setdefault(workload.candidate.identity, []).append(workload)
            self._positions += self._positions_of(workload)

    def predict(self, candidate: Candidate, *, blind: bool = False) -> Prediction:
        """Return fit, slowdown and energy, calibrated by measured workloads of the same method.

        Args:
            candidate: The runs.
            blind: Leave out measurements of the same models together, to check the prediction
                against them. Else all candidates of a method have one calibration, so that what
                is expected of them can be compared.
        """
        own = self._measured.get(candidate.identity, [])
        bare = self._bare(candidate)
        known = [
            measured.position
            for measured in self._positions
            if measured.method is candidate.method
            and not (blind and measured.models == candidate.models)
        ]
        rows = bare.rows
        if known:
            middle = Position(
                median(position.place for position in known),
                median(position.beyond for position in known),
            )
            rows = tuple(replace(row, expected=middle.slowdown_in(row.range)) for row in rows)
        with_times = [workload for workload in own if workload.slowdowns]
        fits = [workload.fits for workload in own if workload.fits is not None]
        prediction = replace(
            bare,
            rows=rows,
            calibrated_by=len(known) if rows else 0,
            measured=with_times[-1].slowdowns if with_times else (),
            data_waits=with_times[-1].data_waits if with_times else (),
            measured_fit=all(fits) if fits else None,
        )
        return replace(prediction, energy=self._energy(prediction, own))

    def _bare(self, candidate: Candidate) -> Prediction:
        """Return the prediction by the model, without calibration."""
        if problem := impossible(candidate, self._facts):
            return Prediction(candidate, (MemoryPool("place", 1.0, 0.0),), unknown=(problem,))
        parts = parts_of(candidate, self._facts)
        if parts is None:
            return Prediction(candidate, (), unknown=("its MIG instances are not known",))
        pools: tuple[MemoryPool, ...] = tuple(
            memory_pools(candidate, self._facts, parts, self._margin)
        )
        slowdowns = [
            slowdown_of(candidate, place, parts, self._facts)
            for place in range(len(candidate.rows))
        ]
        rows = tuple(
            RowPrediction(row, slowdown[0], slowdown[1], slowdown[0].low)
            for row, slowdown in zip(candidate.rows, slowdowns, strict=True)
            if slowdown is not None
        )
        if len(rows) < len(candidate.rows):
            return Prediction(candidate, pools, unknown=("the load of a run was not measured",))
        return Prediction(candidate, pools, rows)

    def _positions_of(self, workload: MeasuredWorkload) -> list[MeasuredPosition]:
        """Return the mean position of each model of a measured workload."""
        rows = self._bare(workload.candidate).rows
        if not rows or not workload.slowdowns:
            return []
        known: dict[BaselineKey, list[Position]] = {}
        for row, slowdown in zip(rows, workload.slowdowns, strict=True):
            position = Position.of(slowdown, row.range)
            if position is not None:
                known.setdefault(row.row.solo.key, []).append(position)
        candidate = workload.candidate
        return [
            MeasuredPosition(
                candidate.models,
                candidate.method,
                Position(
                    fmean(position.place for position in positions),
                    fmean(position.beyond for position in positions),
                ),
            )
            for positions in known.values()
        ]

    @staticmethod
    def _energy(prediction: Prediction, own: Sequence[MeasuredWorkload]) -> float | None:
        """Return the energy relative to the runs one after the other.

        Runs that share a device share its idle power; their energy above idle stays the same.
        """
        known = [workload.energy for workload in own if workload.energy is not None]
        if known:
            return known[-1]
        solos = [row.solo for row in prediction.candidate.rows]
        if prediction.gain is None or any(solo.power_w is None for solo in solos):
            return None
        idle = [
            min(1.0, (solo.idle_w or 0.0) / solo.power_w)
            for solo in solos
            if solo.power_w is not None and solo.power_w > 0
        ]
        return 1 - fmean(idle) * (1 - 1 / prediction.gain) if len(idle) == len(solos) else None


#: A run that uses less of a resource hardly waits for it.
MIN_SHARE = 0.05

NOTHING = "nothing measured"
OWN_INSTANCE = "the size of its instance"
MEASURED_THERE = "measured on this instance"


def slowdown_of(
    candidate: Candidate, place: int, parts: Sequence[Part], facts: Facts
) -> tuple[Range, str] | None:
    """Return the range of one row's slowdown and its limiting resource; None if a share is missing.

    `place` is the row's position in the candidate, `parts` come from `memory_fit.parts_of`.
    """
    row = candidate.rows[place]
    cpu = _cpu(candidate, row, facts)
    if row.solo.is_cpu:
        if cpu is None:
            return None
        low, limit = cpu
        return Range(low, max(low, float(candidate.degree))), limit
    part = next(part for part in parts if place in part.rows)
    gpu = _gpu([candidate.rows[position] for position in part.rows], row, part)
    if gpu is None:
        return None
    bounds, limit = gpu
    if cpu is not None and cpu[0] > bounds.low:
        return Range(cpu[0], max(cpu[0], bounds.high)), cpu[1]
    return bounds, limit


def _cpu(candidate: Candidate, row: Row, facts: Facts) -> tuple[float, str] | None:
    """Return the slowdown by the cores of all rows; None if those of a row are unknown."""
    if row.solo.own_cpus is not None:
        return 1.0, NOTHING  # no other run is on its CPUs
    shares = [member.solo.shares.get(Resource.CORES) for member in candidate.rows]
    known = [share for share in shares if share is not None]
    if len(known) != len(shares) or facts.host(row.solo.host).cores is None:
        return None
    total = sum(known)
    cores = facts.host(row.solo.host).cores or 1
    if row.solo.shares[Resource.CORES] * cores < MIN_SHARE or total <= 1:
        return 1.0, NOTHING
    return total, Resource.CORES.value


def _gpu(members: Sequence[Row], row: Row, part: Part) -> tuple[Range, str] | None:
    solo = row.solo
    if any(Resource.SM not in member.solo.shares for member in members):
        return None
    if len(members) == 1 and row.collocation.mig is not None:
        return _instance(row, part)
    count = float(len(members))
    by_resource = {
        Resource.SM: (_sum(members, Resource.SM) or 0.0) / part.sm,
        Resource.DRAM: (_sum(members, Resource.DRAM) or 0.0) / part.dram,
    }
    mps = row.collocation.mps
    if mps is None and len(members) > 1:
        by_resource[Resource.KERNEL] = _sum(members, Resource.KERNEL) or 0.0
    low, limit = 1.0, NOTHING
    for resource, total in by_resource.items():
        if total > low and solo.shares.get(resource, 0.0) >= MIN_SHARE:
            low, limit = total, resource.value
    high = count / part.sm if len(members) > 1 else 1.0
    if mps is not None and mps.thread_percentage is not None:
        cap = mps.thread_percentage / 100 * part.sm
        if solo.shares[Resource.SM] / cap > low:
            low, limit = solo.shares[Resource.SM] / cap, f"its cap of {mps.thread_percentage:g} %"
        high = max(high, _stretched(row, cap))
    return Range(low, max(low, high)), limit


def _instance(row: Row, part: Part) -> tuple[Range, str]:
    """Return the range of a run alone on an instance, where neighbours do not matter."""
    assert row.collocation.mig is not None
    paces = row.solo.on_profile.get(str(row.collocation.mig).lower())
    known = None if paces is None else row.solo.slowdown_of(paces)
    if known is not None:
        return Range(known, known), MEASURED_THERE
    shares = row.solo.shares
    low = max(1.0, shares[Resource.SM] / part.sm, shares.get(Resource.DRAM, 0.0) / part.dram)
    limit = OWN_INSTANCE if low > 1 else NOTHING
    return Range(low, max(low, _stretched(row, part.sm))), limit


def _stretched(row: Row, fraction: float) -> float:
    """Return the slowdown if all kernels use the whole device; only kernels take longer."""
    kernel = row.solo.shares.get(Resource.KERNEL, 1.0)
    if row.solo.sm_is_utilization:
        kernel = row.solo.shares[Resource.SM]
    return max(1.0, 1 - kernel + kernel / fraction)


def _sum(members: Sequence[Row], resource: Resource) -> float | None:
    """Return the sum of the rows' shares; None if one is missing."""
    shares = [member.solo.shares.get(resource) for member in members]
    known = [value for value in shares if value is not None]
    return sum(known) if len(known) == len(shares) else None


@dataclass(frozen=True, slots=True)
class ComparedSlowdown:
    """Expected and measured slowdown of a model in one workload."""

    label: str
    name: str
    method: Method
    expected: float
    range: Range
    measured: float

    @property
    def error(self) -> float:
        """Return the relative error: 0.1 if the expectation was 10 % too high."""
        return self.expected / self.measured - 1

    @property
    def within(self) -> bool:
        """Return whether the measured value is within 5 % of the range by the model."""
        return self.range.low / 1.05 <= self.measured <= self.range.high * 1.05


@dataclass(frozen=True, slots=True)
class ComparedFit:
    """Predicted and measured fit of a workload."""

    label: str
    predicted: Fit
    fitted: bool

    @property
    def right(self) -> bool | None:
        """Return whether the prediction was right; None if it was unknown or tight."""
        if self.predicted in (Fit.UNKNOWN, Fit.TIGHT):
            return None
        return (self.predicted is Fit.YES) is self.fitted


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Predictions against measurements."""

    slowdowns: tuple[ComparedSlowdown, ...] = ()
    fits: tuple[ComparedFit, ...] = ()

    @property
    def median_error(self) -> float | None:
        """Return the median of the absolute relative errors."""
        return (
            median(abs(slowdown.error) for slowdown in self.slowdowns) if self.slowdowns else None
        )

    @property
    def worst(self) -> ComparedSlowdown | None:
        return max(self.slowdowns, key=lambda slowdown: abs(slowdown.error), default=None)

    @property
    def within(self) -> int:
        """Return the number of measurements within the range by the model."""
        return sum(slowdown.within for slowdown in self.slowdowns)

    @property
    def decided(self) -> tuple[ComparedFit, ...]:
        """Return the fits with a definite prediction."""
        return tuple(fit for fit in self.fits if fit.right is not None)

    @property
    def wrong(self) -> tuple[ComparedFit, ...]:
        return tuple(fit for fit in self.fits if fit.right is False)


def compare(predictor: Predictor, measured: Sequence[MeasuredWorkload]) -> Accuracy:
    """Predict each measured workload without using joint measurements of the same models."""
    slowdowns, fits = [], []
    for workload in measured:
        prediction = predictor.predict(workload.candidate, blind=True)
        if workload.fits is not None:
            fits.append(ComparedFit(workload.label, prediction.fit, workload.fits))
        if not prediction.rows or not workload.slowdowns:
            continue
        by_model: dict[BaselineKey, list[int]] = {}
        for place, row in enumerate(workload.candidate.rows):
            by_model.setdefault(row.solo.key, []).append(place)
        for places in by_model.values():
            row_found = prediction.rows[places[0]]
            slowdowns.append(
                ComparedSlowdown(
                    workload.label,
                    row_found.row.solo.name,
                    workload.candidate.method,
                    fmean(prediction.rows[place].expected for place in places),
                    row_found.range,
                    fmean(workload.slowdowns[place] for place in places),
                )
            )
    return Accuracy(tuple(slowdowns), tuple(fits))
