"""Recommendations: the best sharing of a device, with its guideline.

The guidelines are those of T. Robroek: Resourceful Learning, IT University of Copenhagen, 2024,
section 4.5.1, which rest on section 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from radt import units
from radt.analysis.advice_model import (
    Candidate,
    DevicePlace,
    Fit,
    Prediction,
    Resource,
    SharingMethod,
    Solo,
)

#: Sharing is not worth a smaller gain.
MIN_GAIN = 1.05
#: Gains within this factor of the best count as equal; then fewer concurrent runs win.
_AS_GOOD = 0.95
#: "Less than 50%, the 2-way collocation easily doubles the throughput under MPS": section 4.4.2.
_ROOMY = 0.5
#: "Notably high utilisation (~80%)": section 4.4.2, where sharing began to gain little.
_SATURATED = 0.8
#: Maximum SM activity of a run that counts as stressing another part of the GPU than its
#: neighbours; the recommender of section 4.4.7 used 5 %.
_LIGHT = 0.25

#: Order of preference among equal gains: "MPS performs better than naive and MIG" (section 4.1).
_ORDER = (
    SharingMethod.MPS,
    SharingMethod.NAIVE,
    SharingMethod.CPU,
    SharingMethod.MIG,
    SharingMethod.SEVERAL,
)


class Rule(StrEnum):
    """A guideline with its section of the thesis, or one added by radt."""

    MEMORY_ADDS_UP = "memory footprints add up and must fit (§4.5.1)"
    DIMINISHING = "a nearly busy device gains little from sharing (§4.5.1)"
    ROOM_TO_SHARE = "below half of the SMs' time, two at once nearly double throughput (§4.4.2)"
    COMPLEMENTS = "runs that stress different parts hardly slow each other down (§4.4.7)"
    ONE_USER = "for a single user, MPS shares best (§4.5.1)"
    SEPARATION = "only MIG instances isolate runs (§4.5.1)"
    LOADS_ADD_UP = "shares of a resource add up"
    NO_GAIN = "sharing gains less than 5 %"
    TOO_SLOW = "sharing would exceed the largest slowdown"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best sharing of a device; ``best`` is None for running alone.

    ``rule`` is the guideline behind it, ``numbers`` are the measurements to which it was applied.
    """

    place: DevicePlace
    best: Prediction | None
    rule: Rule
    numbers: str

    @property
    def reason(self) -> str:
        """Return ``only MIG instances isolate runs (§4.5.1): --separate``."""
        return f"{self.rule}: {self.numbers}"


def recommend(
    places: Sequence[DevicePlace],
    predictions: Sequence[Prediction],
    max_slowdown: float | None = None,
    *,
    separate: bool = False,
) -> Iterator[Recommendation]:
    """Yield a recommendation for each device with predictions.

    Args:
        places: The devices.
        predictions: Of all candidates.
        max_slowdown: The largest slowdown of a run.
        separate: The runs have to be isolated.
    """
    limit = max_slowdown or math.inf
    for place in places:
        own = [
            prediction
            for prediction in predictions
            if all(row.solo.place == place for row in prediction.candidate.rows)
        ]
        if any(prediction.slowdowns for prediction in own):
            possible = [each for each in own if _is_possible(each, separate)]
            best = _best(possible, limit)
            if best is None:
                yield Recommendation(place, None, *_why_alone(own, possible, limit, separate))
            else:
                yield Recommendation(place, best, *_why(best, separate))


def _is_possible(prediction: Prediction, separate: bool) -> bool:
    """Return whether runs fit, as far as known, and are isolated if they have to be."""
    if not prediction.slowdowns or prediction.ran_out:
        return False
    if prediction.fit in (Fit.NO, Fit.UNKNOWN) and prediction.measured is None:
        return False
    return not separate or prediction.candidate.method is SharingMethod.MIG


def _best(possible: Sequence[Prediction], limit: float) -> Prediction | None:
    """Return the best candidate; None if none gains enough."""
    worth = [
        prediction
        for prediction in _mps_first(possible)
        if _gain(prediction) >= MIN_GAIN and max(prediction.slowdowns) <= limit
    ]
    top = max(map(_gain, worth), default=0.0)
    return min(
        (prediction for prediction in worth if _gain(prediction) >= top * _AS_GOOD),
        key=lambda prediction: (
            prediction.candidate.degree,
            _ORDER.index(prediction.candidate.method),
            -_gain(prediction),
        ),
        default=None,
    )


def _gain(prediction: Prediction) -> float:
    return prediction.gain or 0.0


def _mps_first(possible: Sequence[Prediction]) -> list[Prediction]:
    """Drop other ways of sharing for runs that can use MPS, unless both were measured.

    Lower ends of ranges are not comparable between ways: MIG's ignores the cost of an instance, and
    the guideline prefers MPS.
    """
    under = {
        prediction.candidate.models: prediction
        for prediction in possible
        if prediction.candidate.method is SharingMethod.MPS
    }
    return [
        prediction
        for prediction in possible
        if (known := under.get(prediction.candidate.models)) is None
        or known is prediction
        or (prediction.measured_slowdowns and known.measured_slowdowns)
    ]


def _why(best: Prediction, separate: bool) -> tuple[Rule, str]:
    """Return the guideline that the best sharing follows, and the numbers behind it."""
    candidate = best.candidate
    solo = candidate.rows[0].solo
    if separate:
        return Rule.SEPARATION, "--separate"
    if (loads := _complements(candidate)) is not None:
        return Rule.COMPLEMENTS, loads
    if candidate.is_uniform and solo.shares.get(Resource.SM, 1.0) < _ROOMY:
        return Rule.ROOM_TO_SHARE, f"{_load(solo)} alone"
    if candidate.method is SharingMethod.MPS:
        return Rule.ONE_USER, f"{_load(solo)} alone"
    resource = Resource.CORES if solo.is_cpu else Resource.SM
    total = sum(row.solo.shares.get(resource, 0.0) for row in candidate.rows)
    return Rule.LOADS_ADD_UP, f"{resource} {units.percent(total)}"


def _complements(candidate: Candidate) -> str | None:
    """Return the loads of runs of which one is light and another is not; otherwise None."""
    shares = {
        row.solo.name: row.solo.shares[Resource.SM]
        for row in candidate.rows
        if Resource.SM in row.solo.shares
    }
    if not shares or min(shares.values()) > _LIGHT or max(shares.values()) < _ROOMY:
        return None
    return "SM activity " + ", ".join(
        f"{name} {units.percent(share)}" for name, share in shares.items()
    )


def _why_alone(
    own: Sequence[Prediction], possible: Sequence[Prediction], limit: float, separate: bool
) -> tuple[Rule, str]:
    """Return the guideline by which the runs of a device should run alone."""
    if not possible:
        if separate:
            return Rule.SEPARATION, "no MIG instance is known to have enough memory"
        return Rule.MEMORY_ADDS_UP, memory_text(min(own, key=lambda one: one.candidate.degree))
    least = min(max(prediction.slowdowns) for prediction in possible)
    if least > limit:
        return Rule.TOO_SLOW, f"at least {units.factor(least)}, wanted {units.factor(limit)}"
    best = max(_mps_first(possible), key=_gain)
    solo = best.candidate.rows[0].solo
    is_busy = solo.shares.get(Resource.SM, 0.0) >= _SATURATED
    numbers = f"at most {units.factor(best.gain)}, {_load(solo)} alone"
    return Rule.DIMINISHING if is_busy else Rule.NO_GAIN, numbers


def _load(solo: Solo) -> str:
    """Return ``SM activity 31 %``, or the GPU's utilisation if that was not measured."""
    resource = Resource.CORES if solo.is_cpu else Resource.SM
    named = "GPU utilisation" if solo.sm_is_utilization else resource.value
    return f"{named} {units.percent(solo.shares.get(resource))}"


def memory_text(prediction: Prediction) -> str:
    """Return ``10.4 GB of 39.6 GB of GPU 0``: need and capacity of the fullest memory."""
    if prediction.ran_out:
        return f"{prediction.candidate.models_text} ran out of memory"
    if prediction.unknown and not prediction.rows:
        return prediction.unknown
    used = {
        pool.need_bytes / pool.capacity_bytes: pool
        for pool in prediction.pools
        if pool.need_bytes is not None and pool.capacity_bytes
    }
    if not used:
        return "unknown"
    worst = used[max(used)]
    return f"{units.size(worst.need_bytes)} of {units.size(worst.capacity_bytes)} of {worst.name}"
