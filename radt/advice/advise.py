"""Advice on an experiment, from what ran alone to what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from radt import units
from radt.advice.accuracy import Accuracy, compare
from radt.advice.candidates import candidates_of, mixed_too_many
from radt.advice.choice import Recommendation, Wish, recommend
from radt.advice.planned import Planned
from radt.advice.predict import Predictor
from radt.advice.rooms import DEFAULT_MARGIN
from radt.advice.study import Study, read_study
from radt.advice.words import ModelKey, Prediction, Resource, Solo
from radt.store.reader import StoreReader

#: So much of the machine's CPUs, taken by others, is worth a word.
_DISTURBED = 0.15


@dataclass(frozen=True, slots=True)
class Need:
    """A measurement that advice needs: of which model, and what has to be done.

    ``key`` is None where no run helps, and ``to_run`` tells one that a run would bring.
    """

    name: str
    text: str
    key: ModelKey | None = None
    to_run: bool = True


@dataclass(frozen=True, slots=True)
class Advice:
    """All that is said of an experiment.

    ``needs`` is what is missing; with no ``predictions`` that have numbers there is nothing to
    advise, which `is_refused` tells.
    """

    study: Study
    wish: Wish
    margin: float
    predictions: tuple[Prediction, ...]
    recommendations: tuple[Recommendation, ...]
    accuracy: Accuracy
    needs: tuple[Need, ...]
    planned: Planned = field(default_factory=Planned)
    notes: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        return not any(one.slowdowns for one in self.predictions)


def advise(
    reader: StoreReader,
    experiment: str,
    wish: Wish,
    *,
    planned: Planned | None = None,
    margin: float = DEFAULT_MARGIN,
    cores: int | None = None,
) -> Advice:
    """Predict what could share a device, and choose.

    Args:
        reader: The store.
        experiment: Its name.
        wish: What the user wants.
        planned: What the experiment's file asks for.
        margin: Share of each memory that is to stay free.
        cores: CPUs of the machine, where the user says so.

    Raises:
        StoreError: The store cannot be read.
    """
    planned = planned or Planned()
    study = read_study(reader, experiment, cores=cores)
    predictor = Predictor(study.facts, study.measured, margin)
    candidates = candidates_of(
        study, planned.candidates(study), separate=wish.separate, margin=margin
    )
    predictions = tuple(map(predictor.predict, candidates))
    solos = sorted(study.solos.values(), key=lambda solo: (solo.host, solo.devices, solo.name))
    return Advice(
        study,
        wish,
        margin,
        predictions,
        tuple(recommend(solos, predictions, study.facts, wish)),
        compare(predictor, study.measured),
        tuple(_needs(study, planned)),
        planned,
        tuple(_notes(study, solos)),
    )


def _needs(study: Study, planned: Planned) -> Iterator[Need]:
    missing = dict(study.missing) | planned.missing(study)
    for key, name in missing.items():
        yield Need(name, "it never ran alone", key)
    if not study.solos and not missing:
        yield Need("", "no run of it ended well")
    for solo in study.solos.values():
        yield from _lacking(solo, study)


def _lacking(solo: Solo, study: Study) -> Iterator[Need]:
    if solo.is_cpu:
        if study.facts.host(solo.host).cores is None:
            text = f"how many CPUs {solo.host or 'its machine'} has is not known: give --cores"
            yield Need(solo.name, text, to_run=False)
        elif Resource.CORES not in solo.shares:
            yield Need(solo.name, "its CPU time was not measured (listener top)", solo.key)
        if solo.footprint is None or study.facts.host(solo.host).memory_bytes is None:
            yield Need(solo.name, "its memory was not measured (listener top)", solo.key)
        return
    if Resource.SM not in solo.shares:
        text = "the load of its GPU was not measured (listeners gpm or dcgm, else smi)"
        yield Need(solo.name, text, solo.key)
    if solo.footprint is None:
        yield Need(solo.name, "its GPU memory was not measured (listener smi)", solo.key)
    elif study.facts.device(solo.host, solo.devices).memory_bytes is None:
        yield Need(solo.name, "the size of its GPU's memory is not known (listener smi)", solo.key)


def _disturbed(study: Study, solos: Sequence[Solo]) -> Iterator[str]:
    """Models that were not as alone as it seems."""
    for solo in solos:
        load = study.facts.runs[solo.run_id].host_load
        own = solo.shares.get(Resource.CORES)
        if load is not None and own is not None and load - own > _DISTURBED:
            yield f"{solo.name} {units.percent(load - own)}"


def _notes(study: Study, solos: Sequence[Solo]) -> Iterator[str]:
    yield from study.left_out
    yield from mixed_too_many(study)
    if any(solo.sm_is_utilization for solo in solos):
        yield (
            "SM activity was not measured: GPU utilisation stands for it, which counts the time "
            "of any kernel however few SMs it takes; sharing may gain more than is said here "
            "(listeners gpm, dcgm)"
        )
    if any(not solo.is_cpu and Resource.CORES not in solo.shares for solo in solos):
        yield "whether the machine's CPUs suffice is not known (listener top, or give --cores)"
    if disturbed := list(_disturbed(study, solos)):
        yield (
            "others used the machine's CPUs while these ran alone, so that they took less of them "
            f"than they would, and longer: {', '.join(disturbed[:5])}"
            + (f" and {len(disturbed) - 5} more" if len(disturbed) > 5 else "")
        )
    once = [solo for solo in solos if solo.count < 2]
    if once:
        yield f"{len(once)} of {len(solos)} models ran alone only once: chance is in their numbers"
