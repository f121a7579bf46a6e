"""Recommendations: the best sharing, with the guidelines and numbers behind it.

The guidelines are those of T. Robroek: Resourceful Learning, IT University of Copenhagen, 2024,
section 4.5.1, which rest on section 4.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from radt import units
from radt.analysis.advice_facts import Facts
from radt.analysis.advice_model import Candidate, Fit, Goal, Method, Prediction, Resource, Solo

#: A smaller gain is not worth sharing.
MIN_GAIN = 1.05
#: Gains within this of the best count as equal; then fewer runs at once win.
_AS_GOOD = 0.95
#: "Close to MPS" in the guideline on energy.
_CLOSE = 0.9
#: Largest slowdown that counts as none for the goal latency.
_UNHURT = 1.1
#: Largest relative energy that is worth sharing.
_MAX_ENERGY = 0.98

#: Order of preference among equally good ways: "MPS performs better than naive and MIG" (section
#: 4.1).
_ORDER = (Method.MPS, Method.NAIVE, Method.CPU, Method.MIG, Method.SEVERAL)


@dataclass(frozen=True, slots=True)
class Preferences:
    """The user's goal and limits."""

    goal: Goal = Goal.THROUGHPUT
    max_slowdown: float | None = None
    separate: bool = False

    @property
    def limit(self) -> float | None:
        """The largest slowdown allowed."""
        if self.max_slowdown is None and self.goal is Goal.LATENCY:
            return _UNHURT
        return self.max_slowdown


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best sharing for a model or a mix; ``best`` is None for running alone."""

    subject: str
    best: Prediction | None
    reasons: tuple[Reason, ...]


def recommend(
    solos: Sequence[Solo], predictions: Sequence[Prediction], facts: Facts, preferences: Preferences
) -> list[Recommendation]:
    """Return a recommendation per model, and for each device's best mix if it gains enough."""
    recommendations = []
    for solo in solos:
        own = [
            prediction
            for prediction in predictions
            if set(prediction.candidate.models) == {solo.key}
        ]
        if any(prediction.slowdowns for prediction in own):
            recommendations.append(_of_model(solo, own, facts, preferences))
    for place in dict.fromkeys((solo.host, solo.devices) for solo in solos):
        mixes = [
            prediction
            for prediction in predictions
            if not prediction.candidate.is_uniform
            and {(row.solo.host, row.solo.devices) for row in prediction.candidate.rows} == {place}
        ]
        best = _best(mixes, preferences)
        if best is not None:
            recommendations.append(
                Recommendation(
                    best.candidate.models_text,
                    best,
                    (*_of_mix(best.candidate), *_reasons(best, facts, preferences, mixes)),
                )
            )
    return recommendations


def is_possible(prediction: Prediction, preferences: Preferences) -> bool:
    """Return whether a candidate can run as the user prefers."""
    if prediction.slowdown is None or prediction.ran_out:
        return False
    if prediction.fit in (Fit.NO, Fit.UNKNOWN) and not prediction.measured_fit:
        return False
    return not preferences.separate or prediction.candidate.method is Method.MIG


def _is_worth_it(prediction: Prediction, preferences: Preferences) -> bool:
    gain, slowdown = prediction.gain, prediction.slowdown
    if gain is None or slowdown is None or gain < MIN_GAIN:
        return False
    return preferences.limit is None or slowdown <= preferences.limit


def _best(predictions: Iterable[Prediction], preferences: Preferences) -> Prediction | None:
    """Return the best candidate; None if none gains enough."""
    possible = [prediction for prediction in predictions if is_possible(prediction, preferences)]
    if preferences.goal is not Goal.ENERGY:
        possible = _mps_first(possible)
    possible = [prediction for prediction in possible if _is_worth_it(prediction, preferences)]
    if not possible:
        return None
    top = max(map(_gain, possible))
    if preferences.goal is Goal.ENERGY:
        known = [prediction for prediction in possible if prediction.energy is not None]
        if known:
            least = min(map(_energy, known))
            if least > _MAX_ENERGY:
                return None
            possible = [
                prediction for prediction in known if _energy(prediction) <= least / _AS_GOOD
            ]
        on_mig = [
            prediction
            for prediction in possible
            if prediction.candidate.method is Method.MIG and _gain(prediction) >= top * _CLOSE
        ]
        possible = on_mig or possible
        top = max(map(_gain, possible))
    return min(
        (prediction for prediction in possible if _gain(prediction) >= top * _AS_GOOD),
        key=lambda prediction: (
            prediction.candidate.degree,
            _ORDER.index(prediction.candidate.method),
            -_gain(prediction),
        ),
    )


def _gain(prediction: Prediction) -> float:
    return prediction.gain or 0.0


def _energy(prediction: Prediction) -> float:
    return prediction.energy or 0.0


def _mps_first(possible: Sequence[Prediction]) -> list[Prediction]:
    """Drop other ways to share for runs that can use MPS, unless both were measured.

    Lower ends of ranges are not comparable between ways: MIG's ignores the cost of an instance, and
    the guideline prefers MPS.
    """
    under = {
        prediction.candidate.models: prediction
        for prediction in possible
        if prediction.candidate.method is Method.MPS
    }
    return [
        prediction
        for prediction in possible
        if (known := under.get(prediction.candidate.models)) is None
        or known is prediction
        or (prediction.measured and known.measured)
    ]


def _of_model(
    solo: Solo, own: Sequence[Prediction], facts: Facts, preferences: Preferences
) -> Recommendation:
    best = _best(own, preferences)
    if best is None:
        return Recommendation(solo.name, None, tuple(_why_alone(solo, own, preferences)))
    return Recommendation(solo.name, best, tuple(_reasons(best, facts, preferences, own)))


def _why_alone(solo: Solo, own: Sequence[Prediction], preferences: Preferences) -> Iterator[Reason]:
    share = solo.shares.get(Resource.SM)
    if not any(
        prediction.fit in (Fit.YES, Fit.TIGHT) and not prediction.ran_out for prediction in own
    ):
        smallest = min(own, key=lambda prediction: prediction.candidate.degree)
        yield Reason(Rule.MEMORY_ADDS_UP, memory_numbers(smallest))
        return
    if preferences.separate and not any(
        prediction.candidate.method is Method.MIG for prediction in own
    ):
        yield Reason(Rule.SEPARATION, "no MIG instance has enough memory")
        return
    possible = [prediction for prediction in own if prediction.slowdown is not None]
    if preferences.limit is not None and possible:
        least = min(prediction.slowdown or 0.0 for prediction in possible)
        if least > preferences.limit:
            numbers = f"at least {units.factor(least)}, wanted {units.factor(preferences.limit)}"
            yield Reason(Rule.TOO_SLOW, numbers)
            if share is None or share < SATURATED:
                return
    if solo.is_cpu:
        yield Reason(Rule.CORES_ADD_UP, f"{_percent(solo, Resource.CORES)} of the cores alone")
    elif share is not None:
        yield Reason(Rule.DIMINISHING, f"{activity_text(solo)} alone")


def _reasons(
    best: Prediction, facts: Facts, preferences: Preferences, others: Sequence[Prediction]
) -> Iterator[Reason]:
    candidate = best.candidate
    solo = candidate.rows[0].solo
    if best.measured:
        yield Reason(Rule.MEASURED, f"in {', '.join(candidate.labels)}")
    yield Reason(Rule.MEMORY_ADDS_UP, memory_numbers(best))
    if solo.is_cpu:
        shares = [row.solo.shares.get(Resource.CORES, 0.0) for row in candidate.rows]
        yield Reason(Rule.CORES_ADD_UP, f"{units.percent(sum(shares))} of the machine's")
    elif candidate.is_uniform and solo.shares.get(Resource.SM, 1.0) < ROOMY:
        yield Reason(Rule.ROOM_TO_SHARE, f"{activity_text(solo)} alone")
    elif candidate.is_uniform and solo.shares.get(Resource.SM, 0.0) >= SATURATED:
        yield Reason(Rule.DIMINISHING, f"{activity_text(solo)} alone")
    yield from _of_method(best, facts, preferences, others)
    yield from _why_not_more(best, preferences, others)


def _of_method(
    best: Prediction, facts: Facts, preferences: Preferences, others: Sequence[Prediction]
) -> Iterator[Reason]:
    method = best.candidate.method
    solo = best.candidate.rows[0].solo
    same = [
        prediction for prediction in others if prediction.candidate.models == best.candidate.models
    ]
    others_text = ", ".join(
        f"{prediction.candidate.method} {units.factor(prediction.gain)}"
        for prediction in same
        if prediction.candidate.method is not method
        and prediction.gain is not None
        and not prediction.ran_out
    )
    if method is Method.MIG and preferences.separate:
        yield Reason(Rule.SEPARATION, "--separate")
    elif method is Method.MIG and preferences.goal is Goal.ENERGY:
        yield Reason(
            Rule.ENERGY, f"gain {units.factor(best.gain)}, {others_text or 'no other sharing'}"
        )
    elif method is Method.MPS:
        known = facts.device(solo.host, solo.devices).has_mps
        caveat = "" if known else "; unknown whether that machine has MPS"
        versus = f", {others_text}" if others_text else ""
        yield Reason(Rule.ONE_USER, f"gain {units.factor(best.gain)}{versus}{caveat}")
    if method is Method.MIG and not best.candidate.is_uniform:
        yield Reason(Rule.RIGID, "the mix lasts as long as its slowest run")


def _why_not_more(
    best: Prediction, preferences: Preferences, others: Sequence[Prediction]
) -> Iterator[Reason]:
    if not best.candidate.is_uniform:
        return
    more = [
        prediction
        for prediction in others
        if prediction.candidate.degree > best.candidate.degree
        and prediction.candidate.method is best.candidate.method
    ]
    if not more:
        return
    following = min(more, key=lambda prediction: prediction.candidate.degree)
    count = f"{following.candidate.degree} at once"
    if following.ran_out:
        yield Reason(Rule.MEMORY_ADDS_UP, f"{count} ran out of memory")
    elif following.fit is Fit.NO:
        yield Reason(Rule.MEMORY_ADDS_UP, f"{count} would need {memory_numbers(following)}")
    elif following.slowdown is None or following.gain is None:
        return
    elif preferences.limit is not None and following.slowdown > preferences.limit:
        yield Reason(Rule.TOO_SLOW, f"{count} {units.factor(following.slowdown)}")
    else:
        yield Reason(Rule.FEWER, f"{count} gain {units.factor(following.gain)}")


def _of_mix(candidate: Candidate) -> Iterator[Reason]:
    shares = {
        row.solo.name: row.solo.shares[Resource.SM]
        for row in candidate.rows
        if Resource.SM in row.solo.shares
    }
    if shares and min(shares.values()) <= LIGHT and max(shares.values()) >= ROOMY:
        activities = ", ".join(f"{name} {units.percent(share)}" for name, share in shares.items())
        yield Reason(Rule.COMPLEMENTS, f"SM activity {activities}")


def activity_text(solo: Solo) -> str:
    """Return ``SM activity 31 %``, or the GPU's utilisation if that was not measured."""
    named = "GPU utilisation" if solo.sm_is_utilization else Resource.SM.value
    return f"{named} {_percent(solo, Resource.SM)}"


def memory_numbers(prediction: Prediction) -> str:
    """Return ``10.4 GB of 39.6 GB of GPU 0``: need and capacity of the fullest memory."""
    if prediction.unknown and not prediction.rows:
        return prediction.unknown[0]
    known = [
        pool
        for pool in prediction.pools
        if pool.need_bytes is not None and pool.capacity_bytes is not None
    ]
    if not known:
        return "unknown"
    worst = max(known, key=lambda pool: (pool.need_bytes or 0.0) / (pool.capacity_bytes or 1.0))
    where = f" of {worst.name}"
    return f"{units.size(worst.need_bytes)} of {units.size(worst.capacity_bytes)}{where}"


def _percent(solo: Solo, resource: Resource) -> str:
    return units.percent(solo.shares.get(resource))


#: "Notably high utilisation (~80%)": section 4.4.2, where sharing began to gain little.
SATURATED = 0.8
#: "Less than 50%, the 2-way collocation easily doubles the throughput under MPS": section 4.4.2.
ROOMY = 0.5
#: Largest SM activity of a run that stresses another part of the GPU than its neighbours; the
#: recommender of section 4.4.7 used 5 %.
LIGHT = 0.25


@dataclass(frozen=True, slots=True)
class Guideline:
    """A guideline; ``section`` of the thesis is empty for radt's own.

    ``condition`` is what its numbers assume, and what radt cannot know; ``page`` the page of the
    documentation that explains how to follow it.
    """

    text: str
    section: str = ""
    condition: str = ""
    page: str = ""


class Rule(Enum):
    """The guidelines by name."""

    MEMORY_ADDS_UP = Guideline("memory footprints add up and must fit", "4.5.1")
    DIMINISHING = Guideline("a nearly busy device gains little from sharing", "4.5.1")
    ROOM_TO_SHARE = Guideline(
        "below half of the SMs' time, two at once nearly double the throughput", "4.4.2"
    )
    COMPLEMENTS = Guideline("runs that stress different parts hardly slow each other down", "4.4.7")
    ONE_USER = Guideline("for a single user, MPS shares best", "4.5.1")
    SEPARATION = Guideline("only MIG instances isolate runs", "4.5.1")
    ENERGY = Guideline("MIG uses less energy at nearly the speed of MPS", "4.5.1")
    RIGID = Guideline("the instance of a run that ended stays idle", "4.4.6")
    CORES_ADD_UP = Guideline("cores in use add up")
    MEASURED = Guideline("measured")
    FEWER = Guideline("more at once would gain less than 5 %")
    TOO_SLOW = Guideline("more at once would exceed the largest slowdown")
    SHARE_LOADER = Guideline(
        "share one loader",
        condition="assumes that all read the same data in the same order, which radt does not "
        "know, and that the one loader has the workers of their equal loaders",
        page="Shared loading",
    )
    ECHO_DATA = Guideline(
        "use loaded samples several times",
        condition="the lower number is for a script that loads and trains in turn, the higher one "
        "for workers that load meanwhile; radt does not know whether a step still teaches as much",
        page="Data echoing",
    )
    OVERLAP_VALIDATION = Guideline(
        "validate beside the next epoch's training",
        condition="radt does not know whether a core, or room on the GPU, is free meanwhile, nor "
        "whether the next epoch depends on the result, as early stopping does",
        page="Overlapped validation",
    )
    ONE_PROCESS = Guideline(
        "train several models in one process",
        condition="start-up counts until the first epoch, and what each model needs of it again is "
        "not saved; radt does not know whether models have equal structures, which fusing needs, "
        "nor whether one may wait for the others",
        page="Many models",
    )
    LEASE = Guideline(
        "give requests the device between segments of the training",
        condition="the longest segment is not known before the model is measured, nor how much "
        "slower the training becomes; the processes have to be able to change",
        page="Preemption",
    )
    OFFLOAD = Guideline(
        "keep only a part of the parameters on the device",
        condition="radt does not know how much of the memory are parameters and optimiser states, "
        "nor whether they can be loaded while others compute; activations stay",
        page="Offload",
    )


@dataclass(frozen=True, slots=True)
class Reason:
    """A guideline, and the numbers behind it."""

    rule: Rule
    numbers: str

    @property
    def text(self) -> str:
        """Return ``footprints add up and have to fit: 10.4 of 39.6 GB (4.5.1)``."""
        guideline = self.rule.value
        where = f" (§{guideline.section})" if guideline.section else ""
        return f"{guideline.text}: {self.numbers}{where}"
