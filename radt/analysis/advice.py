"""Advice on an experiment: predict sharing from runs alone, and recommend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from radt import units
from radt.analysis.advice_candidates import PlannedRows, candidates_of, mixed_too_many
from radt.analysis.advice_choice import Preferences, Recommendation, recommend
from radt.analysis.advice_facts import Facts
from radt.analysis.advice_measurements import Measurements, read_measurements
from radt.analysis.advice_model import Prediction, Resource, Solo
from radt.analysis.advice_prediction import Accuracy, Predictor, compare
from radt.analysis.advice_techniques import Technique, techniques_of
from radt.analysis.advice_waiting import Waiting, waiting_of
from radt.analysis.baselines import BaselineKey
from radt.analysis.memory_fit import DEFAULT_MARGIN
from radt.store.reader import StoreReader

#: Share of the CPUs used by others that is worth a note.
_DISTURBED = 0.15


@dataclass(frozen=True, slots=True)
class MissingMeasurement:
    """A measurement of a model that advice needs.

    ``key`` is None if no run of that model helps; ``to_run``: some run helps.
    """

    name: str
    text: str
    key: BaselineKey | None = None
    to_run: bool = True

    @property
    def line(self) -> str:
        """Return the model and its missing measurements."""
        return f"{self.name}: {self.text}" if self.name else self.text


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on an experiment.

    ``needs`` are missing measurements, ``waiting`` the runs that wait for data, ``techniques`` what
    else may help. `is_refused` is true if no prediction has numbers and no technique may help.
    """

    measurements: Measurements
    preferences: Preferences
    margin: float
    predictions: tuple[Prediction, ...]
    recommendations: tuple[Recommendation, ...]
    accuracy: Accuracy
    needs: tuple[MissingMeasurement, ...]
    planned: PlannedRows = field(default_factory=PlannedRows)
    notes: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    techniques: tuple[Technique, ...] = ()

    @property
    def is_refused(self) -> bool:
        return not self.techniques and not any(
            prediction.slowdowns for prediction in self.predictions
        )


def advise(
    reader: StoreReader,
    experiment: str,
    preferences: Preferences,
    *,
    planned: PlannedRows | None = None,
    margin: float = DEFAULT_MARGIN,
    cores: int | None = None,
) -> Advice:
    """Predict which runs can share a device, and recommend.

    Args:
        reader: The store.
        experiment: The experiment's name.
        preferences: The user's.
        planned: The rows of the experiment's file.
        margin: Share of each memory to leave free.
        cores: CPUs of the machine, if the user gives them.

    Raises:
        StoreError: The store cannot be read.
    """
    planned = planned or PlannedRows()
    measurements = read_measurements(reader, experiment, cores=cores)
    predictor = Predictor(measurements.facts, measurements.measured, margin)
    candidates = candidates_of(
        measurements, planned.candidates(measurements), separate=preferences.separate, margin=margin
    )
    predictions = tuple(map(predictor.predict, candidates))
    solos = sorted(
        measurements.solos.values(), key=lambda solo: (solo.host, solo.devices, solo.name)
    )
    recommendations = recommend(solos, predictions, measurements.facts, preferences)
    return Advice(
        measurements,
        preferences,
        margin,
        predictions,
        tuple(recommendations),
        compare(predictor, measurements.measured),
        tuple(_needs(measurements, planned)),
        planned,
        tuple(_notes(measurements, solos)),
        tuple(waiting_of(solos, predictions, recommendations)),
        tuple(techniques_of(reader, measurements, predictions)),
    )


def _needs(measurements: Measurements, planned: PlannedRows) -> Iterator[MissingMeasurement]:
    missing = dict(measurements.missing) | planned.missing(measurements)
    for key, name in missing.items():
        yield MissingMeasurement(name, "never ran alone", key)
    if not measurements.solos and not missing:
        yield MissingMeasurement("", "no run has finished")
    for solo in measurements.solos.values():
        if solo.is_cpu and measurements.facts.host(solo.host).cores is None:
            text = f"number of CPUs of {solo.host or 'its machine'} unknown: set --cores"
            yield MissingMeasurement(solo.name, text, to_run=False)
        for text in _lacking(solo, measurements.facts):
            yield MissingMeasurement(solo.name, text, solo.key)


def _lacking(solo: Solo, facts: Facts) -> Iterator[str]:
    """Yield the missing measurements of a model that ran alone; another run measures them."""
    if solo.is_cpu:
        host = facts.host(solo.host)
        if host.cores is not None and Resource.CORES not in solo.shares:
            yield "CPU time not measured (listener top)"
        if solo.footprint is None or host.memory_bytes is None:
            yield "memory not measured (listener top)"
        return
    if Resource.SM not in solo.shares:
        yield "GPU load not measured (listeners gpm or dcgm, else smi)"
    if solo.footprint is None:
        yield "GPU memory not measured (listener smi)"
    elif facts.device(solo.host, solo.devices).memory_bytes is None:
        yield "size of the GPU memory unknown (listener smi)"


def _disturbed(measurements: Measurements, solos: Sequence[Solo]) -> Iterator[str]:
    """Yield the models beside which other processes used the CPUs, and their share."""
    for solo in solos:
        load = measurements.facts.runs[solo.run_id].host_load
        own = solo.shares.get(Resource.CORES)
        if load is not None and own is not None and load - own > _DISTURBED:
            yield f"{solo.name} {units.percent(load - own)}"


def _notes(measurements: Measurements, solos: Sequence[Solo]) -> Iterator[str]:
    yield from measurements.left_out
    yield from mixed_too_many(measurements)
    if any(solo.sm_is_utilization for solo in solos):
        yield (
            "SM activity was not measured (listeners gpm, dcgm). GPU utilisation is used instead, "
            "which counts any kernel as fully busy: sharing may gain more"
        )
    if any(not solo.is_cpu and Resource.CORES not in solo.shares for solo in solos):
        yield "unknown whether the CPUs of the machine suffice (listener top, or set --cores)"
    if disturbed := list(_disturbed(measurements, solos)):
        yield (
            "other processes used the CPUs while these ran alone, which slows them down: "
            f"{units.listed(disturbed, 5)}"
        )
    once = [solo for solo in solos if solo.count < 2]
    if once:
        yield f"{len(once)} of {len(solos)} models ran alone once only: run `radt FILE --repeat 5`"
