"""The best way to share, and which rules and numbers led there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from radt import units
from radt.advice.facts import Facts
from radt.advice.rules import LIGHT, ROOMY, SATURATED, Reason, Rule
from radt.advice.texts import models_text
from radt.advice.words import (
    Candidate,
    Fit,
    Goal,
    Method,
    Prediction,
    Resource,
    Solo,
)

#: Below this sharing is not worth its trouble.
MIN_GAIN = 1.05
#: What is within this of the best is as good; then fewer runs at once are better.
_AS_GOOD = 0.95
#: "Close to MPS" in the guideline on energy.
_CLOSE = 0.9
#: Slowdown of a run that counts as none, where each run is to be as fast as alone.
_UNHURT = 1.1
#: Energy for the same work below this is worth sharing for.
_MAX_ENERGY = 0.98

#: Of ways that are as good, the first: "MPS performs better than naive and MIG" (section 4.1).
_ORDER = (Method.MPS, Method.NAIVE, Method.CPU, Method.MIG, Method.SEVERAL)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants."""

    goal: Goal = Goal.THROUGHPUT
    max_slowdown: float | None = None
    separate: bool = False

    @property
    def limit(self) -> float | None:
        """How much slower a run may become."""
        if self.max_slowdown is None and self.goal is Goal.LATENCY:
            return _UNHURT
        return self.max_slowdown


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to do with a model, or which mix is the best.

    ``best`` is None where it had better run alone.
    """

    subject: str
    best: Prediction | None
    reasons: tuple[Reason, ...]


def recommend(
    solos: Sequence[Solo], predictions: Sequence[Prediction], facts: Facts, wish: Wish
) -> list[Recommendation]:
    """One for each model, and one for the best mix of each device if any is worth it."""
    found = []
    for solo in solos:
        own = [one for one in predictions if set(one.candidate.models) == {solo.key}]
        if any(one.slowdowns for one in own):
            found.append(_of_model(solo, own, facts, wish))
    for place in dict.fromkeys((solo.host, solo.devices) for solo in solos):
        mixes = [
            one
            for one in predictions
            if not one.candidate.is_uniform
            and {(row.solo.host, row.solo.devices) for row in one.candidate.rows} == {place}
        ]
        best = _best(mixes, wish)
        if best is not None:
            found.append(
                Recommendation(
                    models_text(best.candidate),
                    best,
                    (*_of_mix(best.candidate), *_reasons(best, facts, wish, mixes)),
                )
            )
    return found


def is_possible(prediction: Prediction, wish: Wish) -> bool:
    """Whether it can run, as separate as the user wants."""
    if prediction.slowdown is None or prediction.ran_out:
        return False
    if prediction.fit in (Fit.NO, Fit.UNKNOWN) and not prediction.measured_fit:
        return False
    return not wish.separate or prediction.candidate.method is Method.MIG


def _is_worth_it(prediction: Prediction, wish: Wish) -> bool:
    gain, slowdown = prediction.gain, prediction.slowdown
    if gain is None or slowdown is None or gain < MIN_GAIN:
        return False
    return wish.limit is None or slowdown <= wish.limit


def _best(predictions: Iterable[Prediction], wish: Wish) -> Prediction | None:
    """None where none is worth it."""
    possible = [one for one in predictions if is_possible(one, wish)]
    if wish.goal is not Goal.ENERGY:
        possible = _mps_first(possible)
    possible = [one for one in possible if _is_worth_it(one, wish)]
    if not possible:
        return None
    top = max(one.gain or 0.0 for one in possible)
    if wish.goal is Goal.ENERGY:
        known = [one for one in possible if one.energy is not None]
        if known:
            least = min(one.energy or 0.0 for one in known)
            if least > _MAX_ENERGY:
                return None
            possible = [one for one in known if (one.energy or 0.0) <= least / _AS_GOOD]
        close = [
            one
            for one in possible
            if one.candidate.method is Method.MIG and (one.gain or 0.0) >= top * _CLOSE
        ]
        possible = close or possible
        top = max(one.gain or 0.0 for one in possible)
    good = [one for one in possible if (one.gain or 0.0) >= top * _AS_GOOD]
    return min(
        good,
        key=lambda one: (
            one.candidate.degree,
            _ORDER.index(one.candidate.method),
            -(one.gain or 0.0),
        ),
    )


def _mps_first(possible: Sequence[Prediction]) -> list[Prediction]:
    """Without the other ways of what can run under MPS, unless both were measured.

    Lower ends of ranges of different ways do not compare: that of MIG knows nothing of what an
    instance costs, and the guideline says that MPS is the better one.
    """
    under = {one.candidate.models: one for one in possible if one.candidate.method is Method.MPS}
    return [
        one
        for one in possible
        if (known := under.get(one.candidate.models)) is None
        or known is one
        or (one.measured and known.measured)
    ]


def _of_model(solo: Solo, own: Sequence[Prediction], facts: Facts, wish: Wish) -> Recommendation:
    best = _best(own, wish)
    if best is None:
        return Recommendation(solo.name, None, tuple(_why_alone(solo, own, wish)))
    return Recommendation(solo.name, best, tuple(_reasons(best, facts, wish, own)))


def _why_alone(solo: Solo, own: Sequence[Prediction], wish: Wish) -> Iterator[Reason]:
    share = solo.shares.get(Resource.SM)
    if not any(one.fit in (Fit.YES, Fit.TIGHT) and not one.ran_out for one in own):
        smallest = min(own, key=lambda one: one.candidate.degree)
        yield Reason(Rule.MEMORY_ADDS_UP, memory_numbers(smallest))
        return
    if wish.separate and not any(one.candidate.method is Method.MIG for one in own):
        yield Reason(Rule.SEPARATION, "there are no instances that it has room in")
        return
    possible = [one for one in own if one.slowdown is not None]
    if wish.limit is not None and possible:
        least = min(one.slowdown or 0.0 for one in possible)
        if least > wish.limit:
            numbers = f"at least {units.factor(least)}, wanted {units.factor(wish.limit)}"
            yield Reason(Rule.TOO_SLOW, numbers)
            if share is None or share < SATURATED:
                return
    if solo.is_cpu:
        yield Reason(Rule.CORES_ADD_UP, f"{_percent(solo, Resource.CORES)} of the cores alone")
    elif share is not None:
        yield Reason(Rule.DIMINISHING, f"{activity_text(solo)} alone")


def _reasons(
    best: Prediction, facts: Facts, wish: Wish, others: Sequence[Prediction]
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
    yield from _of_method(best, facts, wish, others)
    yield from _why_not_more(best, wish, others)


def _of_method(
    best: Prediction, facts: Facts, wish: Wish, others: Sequence[Prediction]
) -> Iterator[Reason]:
    method = best.candidate.method
    solo = best.candidate.rows[0].solo
    same = [one for one in others if one.candidate.models == best.candidate.models]
    beside = ", ".join(
        f"{one.candidate.method} {units.factor(one.gain)}"
        for one in same
        if one.candidate.method is not method and one.gain is not None and not one.ran_out
    )
    if method is Method.MIG and wish.separate:
        yield Reason(Rule.SEPARATION, "--separate")
    elif method is Method.MIG and wish.goal is Goal.ENERGY:
        yield Reason(Rule.ENERGY, f"gain {units.factor(best.gain)}, {beside or 'no other way'}")
    elif method is Method.MPS:
        known = facts.device(solo.host, solo.devices).has_mps
        there = "" if known else "; whether its daemon is on that machine is not known here"
        versus = f", {beside}" if beside else ""
        yield Reason(Rule.ONE_USER, f"gain {units.factor(best.gain)}{versus}{there}")
    if method is Method.MIG and not best.candidate.is_uniform:
        yield Reason(Rule.RIGID, "the mix ends with its slowest run")


def _why_not_more(best: Prediction, wish: Wish, others: Sequence[Prediction]) -> Iterator[Reason]:
    if not best.candidate.is_uniform:
        return
    more = [
        one
        for one in others
        if one.candidate.degree > best.candidate.degree
        and one.candidate.method is best.candidate.method
    ]
    if not more:
        return
    following = min(more, key=lambda one: one.candidate.degree)
    count = f"{following.candidate.degree} at once"
    if following.ran_out:
        yield Reason(Rule.MEMORY_ADDS_UP, f"{count} ran out of memory")
    elif following.fit is Fit.NO:
        yield Reason(Rule.MEMORY_ADDS_UP, f"{count} would need {memory_numbers(following)}")
    elif following.slowdown is None or following.gain is None:
        return
    elif wish.limit is not None and following.slowdown > wish.limit:
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
        told = ", ".join(f"{name} {units.percent(share)}" for name, share in shares.items())
        yield Reason(Rule.COMPLEMENTS, f"of the SMs' time {told}")


def activity_text(solo: Solo) -> str:
    """``SM activity 31 %``; where that was not measured, what stands for it."""
    named = "GPU utilisation" if solo.sm_is_utilization else Resource.SM.value
    return f"{named} {_percent(solo, Resource.SM)}"


def memory_numbers(prediction: Prediction) -> str:
    """``10.4 GB of 39.6 GB``, of the room with the least room."""
    if prediction.unknown and not prediction.rows:
        return prediction.unknown[0]
    known = [
        room
        for room in prediction.rooms
        if room.need_bytes is not None and room.capacity_bytes is not None
    ]
    if not known:
        return "not known"
    worst = max(known, key=lambda room: (room.need_bytes or 0.0) / (room.capacity_bytes or 1.0))
    where = f" of {worst.name}"
    return f"{units.size(worst.need_bytes)} of {units.size(worst.capacity_bytes)}{where}"


def _percent(solo: Solo, resource: Resource) -> str:
    return units.percent(solo.shares.get(resource))
