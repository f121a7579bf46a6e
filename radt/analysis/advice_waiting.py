"""Runs that wait for data, and the most that sharing or reusing loaded data can bring.

Bounds, not predictions. Source of sharing: TensorSocket (T. Robroek: Resourceful Learning, IT
University of Copenhagen, 2024, chapter 5); of reuse: D. Choi et al.: Faster Neural Network Training
with Data Echoing, arXiv:1907.05550.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radt import units
from radt.analysis.advice_choice import Reason, Recommendation, Rule
from radt.analysis.advice_model import Prediction, Range, Solo

#: A run that waits less gains at most a ninth.
MIN_WAIT = 0.1
#: Echo factors for which bounds are given.
FACTORS = (2, 4)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Runs that wait for data, and what may help.

    Attributes:
        subject: The model that ran alone, or the runs that share a device.
        model: The model that waits most.
        share: Share of its steps' time that it waits, from 0 to 1.
        is_alone: The share was measured alone.
        at_most: Largest factor by which the guideline can speed up a run.
        reason: The guideline, with its bounds.
    """

    subject: str
    model: str
    share: float
    is_alone: bool
    at_most: float
    reason: Reason


def sharing_bound(wait: float, runs: int) -> float:
    """Return the largest speed-up of a run that shares a loader with others.

    At best nothing is left of the wait. And one loader with the workers of all loads each
    sample once instead of once a run, so it is at most that many times as fast.

    Args:
        wait: Share of time spent waiting, from 0 to below 1, while all had loaders of their own.
        runs: Number of runs.

    >>> sharing_bound(0.5, 4), sharing_bound(0.9, 4)
    (2.0, 4.0)
    """
    return min(float(runs), 1 / (1 - wait))


def echo_bounds(wait: float, factor: int) -> Range:
    """Return the largest speed-ups of a run that uses each loaded sample several times.

    The lower one is that of loading and training in turn, where the wait shrinks to its part; the
    higher one that of loading beside training, where the wait may vanish.

    Args:
        wait: Share of time spent waiting, from 0 to below 1.
        factor: How often each sample is used.

    >>> echo_bounds(0.5, 2)
    Range(low=1.3333333333333333, high=2.0)
    """
    return Range(1 / (1 - wait + wait / factor), min(float(factor), 1 / (1 - wait)))


def waiting_of(
    solos: Sequence[Solo],
    predictions: Sequence[Prediction],
    recommendations: Sequence[Recommendation],
) -> Iterator[Waiting]:
    """Yield models alone that wait for data, then measured and recommended workloads."""
    for solo in solos:
        if solo.data_wait is not None and solo.data_wait >= MIN_WAIT:
            yield _alone(solo.name, solo.data_wait)
    recommended = {id(recommendation.best) for recommendation in recommendations}
    for prediction in predictions:
        if prediction.measured or id(prediction) in recommended:
            yield from _together(prediction)


def _alone(model: str, wait: float) -> Waiting:
    bounds = {factor: echo_bounds(wait, factor) for factor in FACTORS}
    texts = [
        f"{units.factor(bound.low)} to {units.factor(bound.high)} with {factor} uses"
        for factor, bound in bounds.items()
    ]
    most = max(bound.high for bound in bounds.values())
    reason = Reason(Rule.ECHO_DATA, f"at most {', '.join(texts)}")
    return Waiting(model, model, wait, True, most, reason)


@dataclass(frozen=True, slots=True)
class _RunTogether:
    """A run beside others; ``wait`` is the measured share of time, None if not measured."""

    solo: Solo
    slowdown: float
    wait: float | None

    @property
    def share(self) -> float | None:
        """Return the share of time that it waits, beside others if measured."""
        return self.solo.data_wait if self.wait is None else self.wait

    @property
    def most(self) -> float:
        """Return the largest share of time that loading may cost it.

        That is the measured wait on a GPU. On CPUs, loading also slows down training itself, and
        without a measurement only the slowdown is known: then all time beyond that of training
        alone may be due to loading.
        """
        alone = self.solo.data_wait
        if alone is None or (self.wait is not None and not self.solo.is_cpu):
            return self.wait or 0.0
        return max(self.wait or 0.0, 1 - (1 - alone) / max(1.0, self.slowdown))


def _together(prediction: Prediction) -> Iterator[Waiting]:
    """Yield the runs of a candidate if two or more mark batches and one of them waits."""
    candidate = prediction.candidate
    waits = prediction.data_waits or (None,) * candidate.degree
    runs = [
        _RunTogether(row.solo, slowdown, wait)
        for row, slowdown, wait in zip(candidate.rows, prediction.slowdowns, waits, strict=True)
    ]
    marking = [run for run in runs if run.share is not None]
    if len(marking) < 2:
        return
    waiting = max(marking, key=lambda run: run.share or 0.0)
    if waiting.share is None or waiting.share < MIN_WAIT:
        return
    most = max(sharing_bound(run.most, len(marking)) for run in marking)
    yield Waiting(
        candidate.models_text,
        waiting.solo.name,
        waiting.share,
        waiting.wait is None,
        most,
        Reason(Rule.SHARE_LOADER, f"at most {units.factor(most)}"),
    )
