"""Advice as lines and tables of words, the same for terminals and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radt import units
from radt.advice.accuracy import Accuracy
from radt.advice.advise import Advice
from radt.advice.choice import Recommendation
from radt.advice.texts import models_text, way_text
from radt.advice.words import Fit, Method, Prediction, Range, Resource, Solo

#: Mixes that are shown where not all are asked for, the best ones.
_MIXES = 6
#: Lines of each table, and recommendations, of an experiment with many models, likewise.
_LINES = 40
_RECOMMENDED = 12


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: heads and cells; the first ``left`` columns stand to the left."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def title(advice: Advice) -> str:
    """What it is about, in a line."""
    alone = units.plural(len(advice.study.solos), "model")
    together = units.plural(len(advice.study.measured), "workload")
    return f"{advice.study.experiment} · {alone} measured alone, {together} together"


def places(advice: Advice) -> Iterator[str]:
    """The devices, and what runs may take of them."""
    study = advice.study
    for host, devices in dict.fromkeys((solo.host, solo.devices) for solo in study.solos.values()):
        facts = study.facts.host(host)
        where = f" of {host}" if host else ""
        cores = "" if facts.cores is None else units.plural(facts.cores, "CPU")
        if devices == "cpu":
            known = [cores, _free(facts.memory_bytes)]
            yield f"CPU{where}: " + (", ".join(filter(None, known)) or "not known")
            continue
        device = study.facts.device(host, devices)
        mig = ""
        if device.divisible is not None:
            names = ", ".join(one.name for one in device.divisible.plain())
            source = "its driver" if device.divisible.asked else "NVIDIA's tables"
            mig = f"MIG {names} ({source})"
        known = [device.name, _free(device.memory_bytes), cores, mig]
        yield f"GPU {devices}{where}: " + (", ".join(filter(None, known)) or "not known")


def _free(count_bytes: float | None) -> str:
    return "" if count_bytes is None else f"{units.size(count_bytes)} for runs"


def solos(advice: Advice, *, all_of_them: bool = False) -> Grid:
    """What each model takes alone."""
    found = _in_order(advice)[: None if all_of_them else _LINES]
    gpu = any(not solo.is_cpu for solo in found)
    heads = ["alone", "repeats", "time"]
    if gpu:
        stands_in = all(solo.sm_is_utilization for solo in found if not solo.is_cpu)
        heads += ["GPU util" if stands_in else "SM active", "kernels", "DRAM"]
    heads += ["CPU", "memory"]
    rows = []
    for solo in found:
        row = [solo.name, str(solo.count), units.duration(next(iter(solo.paces_s.values()), None))]
        if gpu:
            shares = (Resource.SM, Resource.KERNEL, Resource.DRAM)
            told = [units.percent(solo.shares.get(resource)) for resource in shares]
            if solo.sm_is_utilization:
                told[0] = f"{told[0]} *"
            row += told
        footprint = solo.footprint
        row += [
            units.percent(solo.shares.get(Resource.CORES)),
            units.NO_VALUE if footprint is None else units.size(footprint.peak_bytes),
        ]
        rows.append(tuple(row))
    return Grid(tuple(heads), tuple(rows))


def _in_order(advice: Advice) -> list[Solo]:
    return sorted(
        advice.study.solos.values(), key=lambda solo: (solo.host, solo.devices, solo.name)
    )


def recommended(
    advice: Advice, *, all_of_them: bool = False
) -> tuple[Sequence[Recommendation], int]:
    """What is recommended, and how much of it is not shown."""
    found = advice.recommendations
    shown = found if all_of_them else found[:_RECOMMENDED]
    return shown, len(found) - len(shown)


def recommendation(one: Recommendation) -> tuple[str, list[str]]:
    """What to do, and why, a line a reason."""
    reasons = [reason.text for reason in one.reasons]
    if one.best is None:
        return f"{one.subject}: alone", reasons
    candidate = one.best.candidate
    way = way_text(candidate)
    how = {Method.CPU: "on the CPU", Method.NAIVE: "naively", Method.MPS: "under MPS"}.get(
        candidate.method, f"on {way}"
    )
    what = f"{candidate.degree} at once {how}" if candidate.is_uniform else f"together {how}"
    gain, slowdown = units.factor(one.best.gain), units.factor(one.best.slowdown)
    energy = one.best.energy
    saved = "" if energy is None else f", energy {units.factor(energy)}"
    margin = ", hardly any memory to spare" if one.best.fit is Fit.TIGHT else ""
    bounds = one.best.gain_range
    by_model = "" if one.best.measured or bounds is None else f" ({_bounds(bounds)})"
    text = f"{one.subject}: {what}: gain {gain}{by_model}, slowdown {slowdown}{saved}{margin}"
    return text, reasons


def predictions(advice: Advice, *, all_of_them: bool = False) -> tuple[Grid, int]:
    """The candidates, and how many of them are not shown."""
    chosen = list(advice.predictions) if all_of_them else _telling(advice)[:_LINES]
    with_energy = any(one.energy is not None for one in chosen)
    heads = ["together", "how", "fits", "slowdown", "range", "gain"]
    heads += ["energy"] if with_energy else []
    heads += ["measured"]
    rows = []
    for one in chosen:
        ranges = [row.range for row in one.rows]
        expected = max((row.expected for row in one.rows), default=None)
        predicted = sum(1 / row.expected for row in one.rows) if one.rows else None
        row = [
            models_text(one.candidate),
            way_text(one.candidate),
            one.fit.value,
            units.factor(expected),
            _range(ranges),
            units.factor(predicted),
        ]
        row += [units.factor(one.energy)] if with_energy else []
        row += [_measured(one)]
        rows.append(tuple(row))
    return Grid(tuple(heads), tuple(rows), 3), len(advice.predictions) - len(chosen)


def _range(ranges: Sequence[Range]) -> str:
    if not ranges:
        return units.NO_VALUE
    return _bounds(Range(max(one.low for one in ranges), max(one.high for one in ranges)))


def _bounds(found: Range) -> str:
    return f"{units.significant(found.low)}–{units.significant(found.high)}"


def _measured(one: Prediction) -> str:
    if one.ran_out:
        return "OOM"
    return units.factor(max(one.measured)) if one.measured else units.NO_VALUE


def _telling(advice: Advice) -> list[Prediction]:
    """Measured and named ones, of the rest the best way of each group, of mixes the best."""
    best: dict[object, Prediction] = {}
    for one in advice.predictions:
        known = best.get(one.candidate.models)
        if known is None or _promise(one) > _promise(known):
            best[one.candidate.models] = one
    lowest_no: dict[object, int] = {}
    for one in best.values():
        if one.candidate.is_uniform and one.fit is Fit.NO:
            key = one.candidate.models[0]
            degree = one.candidate.degree
            lowest_no[key] = min(degree, lowest_no.get(key, degree))

    def told_of(one: Prediction) -> bool:
        """If three do not fit, seven do not either."""
        key, degree = one.candidate.models[0], one.candidate.degree
        return degree <= lowest_no.get(key, degree)

    kept = [
        one
        for one in advice.predictions
        if one.candidate.labels
        or (one.candidate.is_uniform and best[one.candidate.models] is one and told_of(one))
        or any(one is given.best for given in advice.recommendations)
    ]
    mixes = sorted(
        (one for one in best.values() if one not in kept and one.gain is not None),
        key=lambda one: (one.fit is Fit.NO, -(one.gain or 0.0)),
    )
    chosen = [*kept, *[one for one in mixes if not one.candidate.is_uniform][:_MIXES]]
    return sorted(
        chosen,
        key=lambda one: (
            not one.candidate.is_uniform,
            one.candidate.models[0][3],
            one.candidate.rows[0].solo.name if one.candidate.is_uniform else "",
            one.candidate.degree,
            one.candidate.method,
        ),
    )


def _promise(one: Prediction) -> tuple[bool, bool, float]:
    """What fits first, of that MPS, as in recommendations."""
    fits = one.fit in (Fit.YES, Fit.TIGHT) and not one.ran_out
    return fits, one.candidate.method is Method.MPS, one.gain or 0.0


def accuracy(found: Accuracy) -> list[str]:
    """How far the predictions were off, in sentences; none where nothing was measured together."""
    lines = []
    if found.slowdowns and found.worst is not None:
        worst = found.worst
        off = units.percent(found.median_error)
        where = f"{worst.name} in {worst.label}"
        factors = (
            f"{units.factor(worst.expected)} expected, {units.factor(worst.measured)} measured"
        )
        count = len(found.slowdowns)
        lines.append(
            f"slowdown, n={count}: median error {off}, worst {units.percent(abs(worst.error))} "
            f"({where}: {factors}); {found.within} of {count} in the range"
        )
    if found.fits:
        right = len(found.decided) - len(found.wrong)
        text = f"memory, n={len(found.fits)}: right {right} of {len(found.decided)} times"
        undecided = len(found.fits) - len(found.decided)
        text += f", {undecided} not decided" if undecided else ""
        wrong = [
            f"{one.label} was said {'to fit' if one.predicted is Fit.YES else 'not to fit'} and "
            f"{'did' if one.fitted else 'ran out of memory'}"
            for one in found.wrong
        ]
        lines.append("; ".join([text, *wrong]))
    return lines


def calibration(advice: Advice) -> str:
    """By what the expected slowdowns come about."""
    by_method = {one.candidate.method: one.calibrated_by for one in advice.predictions if one.rows}
    told = [f"{method} n={count}" for method, count in by_method.items() if count]
    if not told:
        return (
            "slowdowns are lower ends of their ranges: no other workload was measured that says "
            "where in it runs come to lie"
        )
    return f"slowdowns lie in their ranges where measured ones do: {', '.join(told)}"


def needs(advice: Advice) -> list[str]:
    """What is missing, a line a model."""
    return [f"{one.name}: {one.text}" if one.name else one.text for one in advice.needs]
