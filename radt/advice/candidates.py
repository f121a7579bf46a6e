"""Which workloads are looked at: copies of a model, mixes of several, those that are named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product

from radt.advice.cards import Divisible
from radt.advice.facts import Facts
from radt.advice.rooms import fits_alone
from radt.advice.study import Study
from radt.advice.words import Candidate, Fit, Method, ModelKey, Origin, Resource, Row, Solo
from radt.collocation.spec import Collocation, Mps

#: Degrees of the thesis's study: what 3g, 2g and 1g instances allow, and four.
COPIES = (2, 3, 4, 7)
#: "We limit the amount of collocated models to four" (Robroek 2024, section 4.3.4).
MAX_MIX = 4
#: Of more models than these on a device there would be hundreds of mixes, and only those that
#: were measured or are in the file are looked at.
MAX_MIXED_MODELS = 5


def candidates_of(
    study: Study, named: Iterable[Candidate], *, separate: bool, margin: float
) -> list[Candidate]:
    """All that are to be predicted, each once.

    Args:
        study: The experiment.
        named: Workloads of its file.
        separate: Only what keeps runs apart: MIG.
        margin: Of the memory of an instance, left free.
    """
    found: dict[object, Candidate] = {}
    measured = [one.candidate for one in study.measured]
    for one in (*measured, *named, *_made(study, separate=separate, margin=margin)):
        known = found.get(one.identity)
        if known is None:
            found[one.identity] = one
        elif one.labels:
            labels = tuple(dict.fromkeys((*known.labels, *one.labels)))
            found[one.identity] = replace(known, labels=labels)
    return list(found.values())


def by_place(solos: Iterable[Solo]) -> dict[tuple[str, str], list[Solo]]:
    """Those that could share: on the same devices of the same machine."""
    found: dict[tuple[str, str], list[Solo]] = {}
    for solo in solos:
        found.setdefault((solo.host, solo.devices), []).append(solo)
    return found


def mixed_too_many(study: Study) -> list[str]:
    """Sentences on what is not mixed."""
    return [
        f"{len(solos):,} models on {devices}: their mixes are not looked at, only those that were "
        "measured or are in the file"
        for (_, devices), solos in by_place(study.solos.values()).items()
        if len(solos) > MAX_MIXED_MODELS
    ]


def _made(study: Study, *, separate: bool, margin: float) -> Iterator[Candidate]:
    for (host, devices), solos in by_place(study.solos.values()).items():
        for together in _groups(solos):
            origin = Origin.COPIES if len(set(map(id, together))) == 1 else Origin.MIX
            yield from _ways(together, origin, study.facts, host, devices, separate, margin)


def _groups(solos: Sequence[Solo]) -> Iterator[tuple[Solo, ...]]:
    for solo in solos:
        if not solo.cpus or solo.own_cpus is not None:  # copies would all be on the same CPUs
            for count in COPIES:
                yield (solo,) * count
    if len(solos) <= MAX_MIXED_MODELS:
        for count in range(2, MAX_MIX + 1):
            for mix in combinations_with_replacement(solos, count):
                if len(set(map(id, mix))) > 1:
                    yield mix


def _ways(
    solos: tuple[Solo, ...],
    origin: Origin,
    facts: Facts,
    host: str,
    devices: str,
    separate: bool,
    margin: float,
) -> Iterator[Candidate]:
    """The same runs naively, under MPS, on instances."""
    plain = Candidate(tuple(Row(solo) for solo in solos), origin)
    if plain.method is Method.CPU:
        if not separate:
            yield plain
        return
    device = facts.device(host, devices)
    if not separate:
        yield plain
        if device.has_mps is not False:
            yield Candidate(tuple(Row(solo, Collocation(mps=Mps())) for solo in solos), origin)
    if device.divisible is not None:
        divided = _divided(solos, origin, device.divisible, margin)
        if divided is not None:
            yield divided


def _divided(
    solos: tuple[Solo, ...], origin: Origin, divisible: Divisible, margin: float
) -> Candidate | None:
    """On instances that lie beside each other: as large as can be where the most is needed.

    Like models get like instances. Of all ways that have room for every run, the one in which the
    run that is squeezed most is squeezed least, then in which all together are.
    """
    models = list(dict.fromkeys(solo.key for solo in solos))
    by_key = {solo.key: solo for solo in solos}
    choices: list[list[str]] = []
    for key in models:
        row = Row(by_key[key])
        names = [one.name for one in divisible.plain()]
        room = [name for name in names if fits_alone(row, divisible, name, margin) is not Fit.NO]
        choices.append(room)
    best: tuple[float, float, dict[ModelKey, str]] | None = None
    for assigned in product(*choices):
        chosen = dict(zip(models, assigned, strict=True))
        if not divisible.packs([chosen[solo.key] for solo in solos]):
            continue
        squeezed = [_squeezed(solo, divisible, chosen[solo.key]) for solo in solos]
        rank = (max(squeezed), sum(squeezed))
        if best is None or rank < best[:2]:
            best = (*rank, chosen)
    if best is None:
        return None
    return Candidate(
        tuple(Row(solo, Collocation.parse(best[2][solo.key])) for solo in solos), origin
    )


def _squeezed(solo: Solo, divisible: Divisible, profile: str) -> float:
    """SMs that a run wants over those that it gets; of two that suffice, the smaller is as good."""
    found = divisible.profile(profile)
    assert found is not None
    wanted = solo.shares.get(Resource.KERNEL, solo.shares.get(Resource.SM, 1.0))
    return wanted * divisible.slices / found.slices
