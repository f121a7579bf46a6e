"""What is predicted of candidates; measured workloads say where in the range runs come to lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from radt.advice.facts import Facts
from radt.advice.rooms import impossible, parts_of, rooms_of
from radt.advice.slowdown import slowdown_of
from radt.advice.study import Measured
from radt.advice.words import (
    Candidate,
    Method,
    ModelKey,
    Prediction,
    Range,
    Room,
    RowPrediction,
)

#: Where both ends of a range are nearer to each other, a measurement says nothing of its place.
_MIN_RATIO = 1.1
#: A measurement further outside of its range than the range is wide counts as so far.
_MAX_PLACE = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where one measured slowdown lay in its range: 0 at the lower end, 1 at the upper."""

    models: tuple[ModelKey, ...]
    method: Method
    place: float


def place_in(bounds: Range, slowdown: float) -> float | None:
    """Where it lies, by ratios; None where the ends are too near to each other.

    >>> place_in(Range(1.0, 4.0), 2.0)
    0.5
    """
    if bounds.high < bounds.low * _MIN_RATIO or slowdown <= 0:
        return None
    found = math.log(slowdown / bounds.low) / math.log(bounds.high / bounds.low)
    return max(-_MAX_PLACE, min(_MAX_PLACE, found))


def expected_in(bounds: Range, place: float) -> float:
    """What lies there; the inverse of `place_in`."""
    return float(bounds.low * (bounds.high / bounds.low) ** place)


class Predictor:
    """Predicts candidates of one study.

    Args:
        facts: Of its machines.
        measured: What ran together; it calibrates the predictions of others.
        margin: Share of the memory that is to stay free.
    """

    def __init__(self, facts: Facts, measured: Sequence[Measured], margin: float) -> None:
        self._facts = facts
        self._margin = margin
        self._measured: dict[object, list[Measured]] = {}
        self._sightings: list[Sighting] = []
        for one in measured:
            self._measured.setdefault(one.candidate.identity, []).append(one)
            self._sightings += self._sighted(one)

    def predict(self, candidate: Candidate) -> Prediction:
        """Fit, slowdown and energy; by measurements of others, never of the candidate itself."""
        own = self._measured.get(candidate.identity, [])
        bare = self._bare(candidate)
        places = [
            one.place
            for one in self._sightings
            if one.method is candidate.method and one.models != candidate.models
        ]
        rows = bare.rows
        if places:
            middle = median(places)
            rows = tuple(replace(row, expected=expected_in(row.range, middle)) for row in rows)
        with_times = [one for one in own if one.slowdowns]
        fits = [one.fits for one in own if one.fits is not None]
        found = replace(
            bare,
            rows=rows,
            calibrated_by=len(places) if rows else 0,
            measured=with_times[-1].slowdowns if with_times else (),
            measured_fit=all(fits) if fits else None,
        )
        return replace(found, energy=self._energy(found, own))

    def _bare(self, candidate: Candidate) -> Prediction:
        """By the model alone."""
        if problem := impossible(candidate, self._facts):
            return Prediction(candidate, (Room("place", 1.0, 0.0),), unknown=(problem,))
        parts = parts_of(candidate, self._facts)
        if parts is None:
            return Prediction(candidate, (), unknown=("its MIG instances are not known",))
        rooms: tuple[Room, ...] = tuple(rooms_of(candidate, self._facts, parts, self._margin))
        found = [
            slowdown_of(candidate, place, parts, self._facts)
            for place in range(len(candidate.rows))
        ]
        rows = tuple(
            RowPrediction(row, one[0], one[1], one[0].low)
            for row, one in zip(candidate.rows, found, strict=True)
            if one is not None
        )
        if len(rows) < len(candidate.rows):
            return Prediction(candidate, rooms, unknown=("the load of a run was not measured",))
        return Prediction(candidate, rooms, rows)

    def _sighted(self, one: Measured) -> list[Sighting]:
        """One for each model of a measured workload."""
        rows = self._bare(one.candidate).rows
        if not rows or not one.slowdowns:
            return []
        found: dict[ModelKey, list[float]] = {}
        for row, slowdown in zip(rows, one.slowdowns, strict=True):
            place = place_in(row.range, slowdown)
            if place is not None:
                found.setdefault(row.row.solo.key, []).append(place)
        candidate = one.candidate
        return [Sighting(candidate.models, candidate.method, fmean(its)) for its in found.values()]

    @staticmethod
    def _energy(found: Prediction, own: Sequence[Measured]) -> float | None:
        """Over that of the runs one after the other.

        What a run takes above idle it takes in any case; the idle power is shared by all that run
        at the same time.
        """
        known = [one.energy for one in own if one.energy is not None]
        if known:
            return known[-1]
        solos = [row.solo for row in found.candidate.rows]
        if found.gain is None or any(solo.power_w is None for solo in solos):
            return None
        idle = [
            min(1.0, (solo.idle_w or 0.0) / solo.power_w)
            for solo in solos
            if solo.power_w is not None and solo.power_w > 0
        ]
        return 1 - fmean(idle) * (1 - 1 / found.gain) if len(idle) == len(solos) else None
