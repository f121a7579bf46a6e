"""Advise on an experiment: predict sharing from runs alone, and recommend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radt import units
from radt.analysis.advice_choice import Recommendation, recommend
from radt.analysis.advice_measurements import Measurements, data_wait, read_measurements
from radt.analysis.advice_model import Prediction, Resource, Solo
from radt.analysis.advice_prediction import (
    DEFAULT_MARGIN,
    MAX_MIXED_MODELS,
    PredictionCheck,
    Predictor,
    candidates_of,
)
from radt.analysis.baselines import BaselineKey
from radt.analysis.report import ReportCache
from radt.store.reader import StoreReader

#: Threshold for notes: share of the CPUs used by others, and of step time spent waiting for data.
_DISTURBED, _WAITING = 0.15, 0.1


@dataclass(frozen=True, slots=True)
class MissingMeasurement:
    """A missing measurement of a model; ``key`` is None if no run could provide it."""

    name: str
    text: str
    key: BaselineKey | None = None

    @property
    def line(self) -> str:
        """Return the model and its missing measurements."""
        return f"{self.name}: {self.text}" if self.name else self.text


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on an experiment.

    Attributes:
        measurements: The measurements that it is based on.
        predictions: For all candidates.
        recommendations: One for each device.
        checks: Expected and measured slowdowns.
        needs: Missing measurements.
        notes: Sentences on doubtful measurements, and on runs that wait for data.
    """

    measurements: Measurements
    predictions: tuple[Prediction, ...]
    recommendations: tuple[Recommendation, ...]
    checks: tuple[PredictionCheck, ...]
    needs: tuple[MissingMeasurement, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Return whether no prediction has numbers."""
        return not any(prediction.slowdowns for prediction in self.predictions)


def advise(
    reader: StoreReader,
    experiment: str,
    *,
    max_slowdown: float | None = None,
    separate: bool = False,
    margin: float = DEFAULT_MARGIN,
    cores: int | None = None,
    cache: ReportCache | None = None,
) -> Advice:
    """Predict which runs can share a device, and recommend.

    Args:
        reader: The store.
        experiment: The experiment's name.
        max_slowdown: The largest slowdown of a run.
        separate: Isolate the runs: MIG instances only.
        margin: Share of each memory to leave free.
        cores: CPUs of the machine, if the user gives them.
        cache: Cache of earlier reports of the experiment; it is updated.

    Raises:
        StoreError: The store cannot be read.
    """
    measurements = read_measurements(reader, experiment, cores=cores, cache=cache)
    predictor = Predictor(measurements.measured, margin)
    candidates = candidates_of(measurements, separate=separate)
    predictions = tuple(map(predictor.predict, candidates))
    recommendations = tuple(
        recommend([*measurements.places], predictions, max_slowdown, separate=separate)
    )
    return Advice(
        measurements,
        predictions,
        recommendations,
        tuple(predictor.checks()),
        tuple(_needs(measurements)),
        tuple(_notes(measurements)),
    )


def _needs(measurements: Measurements) -> Iterator[MissingMeasurement]:
    for key, name in measurements.missing.items():
        yield MissingMeasurement(name, "never ran alone", key)
    if not measurements.solos and not measurements.missing:
        yield MissingMeasurement("", "no model ran alone to its end")
    for solo in measurements.solos.values():
        if solo.is_cpu and solo.place.cores is None:
            text = f"number of CPUs of {solo.place.host or 'its machine'} unknown: set --cores"
            yield MissingMeasurement(solo.name, text)
        for text in _lacking(solo):
            yield MissingMeasurement(solo.name, text, solo.key)


def _lacking(solo: Solo) -> Iterator[str]:
    """Yield the missing measurements of a model that ran alone, which another run would provide."""
    place = solo.place
    load, listeners = (Resource.CORES, "top") if place.is_cpu else (Resource.SM, "gpm, dcgm or smi")
    if load not in solo.shares and (not place.is_cpu or place.cores is not None):
        yield f"{load} not measured (listener {listeners})"
    if solo.memory_bytes is None or place.memory_bytes is None:
        yield f"memory not measured (listener {'top' if place.is_cpu else 'smi'})"


def _disturbed(solos: Sequence[Solo]) -> Iterator[str]:
    """Yield models during whose runs other processes used the CPUs, with their share."""
    for solo in solos:
        own = solo.shares.get(Resource.CORES)
        if solo.host_load is not None and own is not None and solo.host_load - own > _DISTURBED:
            yield f"{solo.name} {units.percent(solo.host_load - own)}"


def _waiting(measurements: Measurements) -> Iterator[str]:
    """Yield the runs that wait for data, with the share of their steps' time."""
    for workload in measurements.report.workloads:
        for group in workload.trained:
            if (wait := data_wait(group)) is not None and wait >= _WAITING:
                yield f"{group.name} {units.percent(wait)} in {workload.name}"


def _notes(measurements: Measurements) -> Iterator[str]:
    solos = list(measurements.solos.values())
    yield from measurements.left_out
    for place, models in measurements.places.items():
        if len(models) > MAX_MIXED_MODELS:
            yield (
                f"{len(models):,} models on {place.text} are too many to try every mix: only "
                "measured mixes are considered"
            )
    if any(solo.sm_is_utilization for solo in solos):
        yield (
            "SM activity was not measured (listeners gpm, dcgm). GPU utilisation is used instead, "
            "which counts any kernel as fully busy: sharing may gain more"
        )
    if any(not solo.is_cpu and Resource.CORES not in solo.shares for solo in solos):
        yield "unknown whether the CPUs of the machine suffice (listener top, or set --cores)"
    if disturbed := list(_disturbed(solos)):
        yield (
            "other processes used the CPUs while these ran alone, which slows them down: "
            f"{units.listed(disturbed, 5)}"
        )
    if waiting := list(_waiting(measurements)):
        yield (
            f"runs wait for data during much of their steps' time: {units.listed(waiting, 5)}; "
            "see “Shared loading” and “Data echoing” in the documentation"
        )
    if once := sum(solo.count < 2 for solo in solos):
        yield f"{once} of {len(solos)} models ran alone once only: run `radt FILE --repeat 5`"
