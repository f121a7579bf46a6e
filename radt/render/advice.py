"""Advice as a document, and as JSON in base units (docs/advice.md describes the JSON)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from radt import units
from radt.analysis.advice import Advice
from radt.analysis.advice_choice import Reason, Recommendation
from radt.analysis.advice_model import Fit, Method, Prediction, Range, Resource, Solo
from radt.analysis.advice_prediction import Accuracy
from radt.analysis.advice_techniques import Technique
from radt.analysis.advice_waiting import Waiting
from radt.render.model import Block, Cell, Column, Document, Note, Notes, Role, Row, Table, Tone
from radt.render.report_json import json_text

#: Maximum number of mixes shown unless all are requested; the best ones.
_MIXES = 6
#: The same for rows of each table, and recommendations, with many models.
_ROWS = 40
_RECOMMENDED = 12


def advice_document(advice: Advice, *, all_of_them: bool = False) -> Document:
    """Return advice on an experiment; ``all_of_them`` includes every candidate."""
    solos = sorted(
        advice.measurements.solos.values(), key=lambda solo: (solo.host, solo.devices, solo.name)
    )
    recommended = advice.recommendations if all_of_them else advice.recommendations[:_RECOMMENDED]
    hidden = len(advice.recommendations) - len(recommended)
    most = len(advice.waiting) + len(advice.techniques) if all_of_them else _RECOMMENDED
    predictions = list(advice.predictions) if all_of_them else _telling(advice)[:_ROWS]
    blocks: list[Block] = [
        Notes([Note(text) for text in _places(advice)]),
        _solo_table(solos if all_of_them else solos[:_ROWS]),
        Notes([*map(_recommendation, recommended), *_hidden(hidden)], "Recommendations"),
        Notes(_bounded(advice.waiting, most), "Waiting for data"),
        Notes(_bounded(advice.techniques, most), "Techniques that may help"),
        _prediction_table(predictions),
    ]
    if predictions:
        left = len(advice.predictions) - len(predictions)
        blocks.append(Notes([*_hidden(left), Note(_calibration(advice), Tone.DIM)]))
    blocks += [
        Notes([Note(text) for text in _accuracy(advice.accuracy)], "Predicted vs measured"),
        Notes([Note(need.line, Tone.BAD) for need in advice.needs], "Missing measurements"),
        Notes([Note(text, Tone.DIM) for text in advice.notes], "Notes"),
    ]
    facts = [
        f"{units.plural(len(advice.measurements.solos), 'model')} measured alone",
        f"{units.plural(len(advice.measurements.measured), 'workload')} measured together",
    ]
    return Document(advice.measurements.experiment, facts, blocks)


def _hidden(count: int) -> list[Note]:
    return [Note(f"{count:,} more: --all", Tone.DIM)] if count else []


def _places(advice: Advice) -> Iterator[str]:
    """Yield the devices, with the resources that runs may use."""
    measurements = advice.measurements
    for host, devices in dict.fromkeys(
        (solo.host, solo.devices) for solo in measurements.solos.values()
    ):
        facts = measurements.facts.host(host)
        where = f" of {host}" if host else ""
        cores = "" if facts.cores is None else units.plural(facts.cores, "CPU")
        if devices == "cpu":
            known = [cores, _available(facts.memory_bytes)]
            yield f"CPU{where}: {', '.join(filter(None, known)) or 'unknown'}"
            continue
        device = measurements.facts.device(host, devices)
        mig = ""
        if device.mig_gpu is not None:
            names = ", ".join(profile.name for profile in device.mig_gpu.plain())
            source = "from the driver" if device.mig_gpu.from_driver else "from NVIDIA's tables"
            mig = f"MIG {names} ({source})"
        known = [device.name, _available(device.memory_bytes), cores, mig]
        yield f"GPU {devices}{where}: {', '.join(filter(None, known)) or 'unknown'}"


def _available(count_bytes: float | None) -> str:
    return "" if count_bytes is None else f"{units.size(count_bytes)} available"


def _solo_table(solos: Sequence[Solo]) -> Table:
    """Return the table of the resources that each model uses alone."""
    with_gpu = any(not solo.is_cpu for solo in solos)
    titles = ["repeats", "time"]
    if with_gpu:
        stands_in = all(solo.sm_is_utilization for solo in solos if not solo.is_cpu)
        titles += ["GPU util" if stands_in else "SM active", "kernels", "DRAM"]
    titles += ["CPU", "memory"]
    rows = []
    for solo in solos:
        texts = [str(solo.count), units.duration(next(iter(solo.paces_s.values()), None))]
        if with_gpu:
            shares = (Resource.SM, Resource.KERNEL, Resource.DRAM)
            percents = [units.percent(solo.shares.get(resource)) for resource in shares]
            percents[0] += " *" if solo.sm_is_utilization else ""
            texts += percents
        texts.append(units.percent(solo.shares.get(Resource.CORES)))
        texts.append(units.size(None if solo.footprint is None else solo.footprint.peak_bytes))
        rows.append(Row([Cell(solo.name), *map(Cell, texts)]))
    columns = [Column("model", role=Role.KEY, is_number=False), *map(Column, titles)]
    return Table(columns, rows, "Models alone")


def _recommendation(recommendation: Recommendation) -> Note:
    """Return a recommendation with its reasons as details."""
    reasons = [reason.text for reason in recommendation.reasons]
    best = recommendation.best
    if best is None:
        return Note(f"{recommendation.subject}: run alone", Tone.STRONG, details=reasons)
    candidate = best.candidate
    sharing = {Method.CPU: "on the CPU", Method.NAIVE: "naively", Method.MPS: "under MPS"}.get(
        candidate.method, f"on {candidate.sharing_text}"
    )
    count = f"{candidate.degree} at once" if candidate.is_uniform else "together"
    bounds = best.gain_range
    by_model = "" if best.measured or bounds is None else f" ({_bounds(bounds)})"
    parts = [f"gain {units.factor(best.gain)}{by_model}", f"slowdown {units.factor(best.slowdown)}"]
    if best.energy is not None:
        parts.append(f"energy {units.factor(best.energy)}")
    if best.fit is Fit.TIGHT:
        parts.append("hardly any memory to spare")
    text = f"{recommendation.subject}: {count} {sharing}: {', '.join(parts)}"
    return Note(text, Tone.STRONG, details=reasons)


def _bounded(given: Sequence[Waiting | Technique], most: int) -> list[Note]:
    """Return notes on runs that a technique may help, those with the highest bounds first.

    What the bounds assume follows once for all.
    """
    shown = sorted(given, key=lambda one: -(one.at_most or 0.0))[:most]
    notes = [Note(_observed(one), Tone.STRONG, details=[one.reason.text]) for one in shown]
    for rule in dict.fromkeys(one.reason.rule for one in shown):
        guideline = rule.value
        heading = guideline.text[0].upper() + guideline.text[1:]
        text = f"{heading}: {guideline.condition}. See “{guideline.page}”"
        notes.append(Note(f"{text} in the documentation.", Tone.DIM))
    return [*notes, *_hidden(len(given) - len(shown))]


def _observed(given: Waiting | Technique) -> str:
    """Return ``2 × resnet26 + resnet50: resnet50 waits 40 % of its steps' time alone``."""
    if isinstance(given, Technique):
        return f"{given.subject}: {given.observation}"
    who = "" if given.subject == given.model else f"{given.model} "
    alone = " alone" if given.is_alone else ""
    return f"{given.subject}: {who}waits {units.percent(given.share)} of its steps' time{alone}"


def _prediction_table(predictions: Sequence[Prediction]) -> Table:
    with_energy = any(prediction.energy is not None for prediction in predictions)
    columns = [
        Column("together", role=Role.KEY, is_number=False),
        Column("sharing", role=Role.LEAD, is_number=False),
        Column("fits", is_number=False),
        Column("slowdown"),
        Column("measured", explanation="measured slowdown"),
        Column("range", explanation="slowdown by the model alone"),
        Column("gain"),
        *([Column("energy")] if with_energy else []),
    ]
    rows = []
    for prediction in predictions:
        expected = [row.expected for row in prediction.rows]
        texts = [
            prediction.candidate.models_text,
            prediction.candidate.sharing_text,
            prediction.fit.value,
            units.factor(max(expected, default=None)),
            _measured(prediction),
            _range([row.range for row in prediction.rows]),
            units.factor(sum(1 / value for value in expected) if expected else None),
        ]
        texts += [units.factor(prediction.energy)] if with_energy else []
        rows.append(Row([*map(Cell, texts)]))
    return Table(columns, rows, "Predictions")


def _range(ranges: Sequence[Range]) -> str:
    if not ranges:
        return units.NO_VALUE
    return _bounds(
        Range(max(bounds.low for bounds in ranges), max(bounds.high for bounds in ranges))
    )


def _bounds(bounds: Range) -> str:
    return f"{units.significant(bounds.low)}–{units.significant(bounds.high)}"


def _measured(prediction: Prediction) -> str:
    if prediction.ran_out:
        return "OOM"
    return units.factor(max(prediction.measured)) if prediction.measured else units.NO_VALUE


def _telling(advice: Advice) -> list[Prediction]:
    """Return measured and named candidates, the best sharing of each model, the best mixes."""
    best: dict[object, Prediction] = {}
    for prediction in advice.predictions:
        known = best.get(prediction.candidate.models)
        if known is None or _promise(prediction) > _promise(known):
            best[prediction.candidate.models] = prediction
    lowest_no: dict[object, int] = {}
    for prediction in best.values():
        if prediction.candidate.is_uniform and prediction.fit is Fit.NO:
            key = prediction.candidate.models[0]
            degree = prediction.candidate.degree
            lowest_no[key] = min(degree, lowest_no.get(key, degree))

    def is_news(prediction: Prediction) -> bool:
        """Return False if fewer of the same runs do not fit either."""
        key, degree = prediction.candidate.models[0], prediction.candidate.degree
        return degree <= lowest_no.get(key, degree)

    kept = [
        prediction
        for prediction in advice.predictions
        if prediction.candidate.labels
        or (
            prediction.candidate.is_uniform
            and best[prediction.candidate.models] is prediction
            and is_news(prediction)
        )
        or any(prediction is given.best for given in advice.recommendations)
    ]
    mixes = sorted(
        (
            prediction
            for prediction in best.values()
            if prediction not in kept and prediction.gain is not None
        ),
        key=lambda prediction: (prediction.fit is Fit.NO, -(prediction.gain or 0.0)),
    )
    chosen = [
        *kept,
        *[prediction for prediction in mixes if not prediction.candidate.is_uniform][:_MIXES],
    ]
    return sorted(
        chosen,
        key=lambda prediction: (
            not prediction.candidate.is_uniform,
            prediction.candidate.models[0][3],
            prediction.candidate.rows[0].solo.name if prediction.candidate.is_uniform else "",
            prediction.candidate.degree,
            prediction.candidate.method,
        ),
    )


def _promise(prediction: Prediction) -> tuple[bool, bool, float]:
    """Rank fitting candidates first, then MPS, as recommendations do."""
    fits = prediction.fit in (Fit.YES, Fit.TIGHT) and not prediction.ran_out
    return fits, prediction.candidate.method is Method.MPS, prediction.gain or 0.0


def _accuracy(accuracy: Accuracy) -> Iterator[str]:
    """Yield the errors of predictions; nothing if no workload was measured together."""
    worst = accuracy.worst
    if worst is not None:
        count = len(accuracy.slowdowns)
        yield (
            f"slowdown, n = {count}: median error {units.percent(accuracy.median_error)}, "
            f"worst {units.percent(abs(worst.error))} ({worst.name} in {worst.label}: "
            f"{units.factor(worst.expected)} expected, {units.factor(worst.measured)} measured); "
            f"{accuracy.within} of {count} in the range"
        )
    if accuracy.fits:
        decided = len(accuracy.decided)
        text = (
            f"memory, n = {len(accuracy.fits)}: right {decided - len(accuracy.wrong)} of {decided} "
            "times"
        )
        if undecided := len(accuracy.fits) - decided:
            text += f", {undecided} not decided"
        wrong = [
            f"{fit.label} was predicted {'to fit' if fit.predicted is Fit.YES else 'not to fit'} "
            f"and {'did' if fit.fitted else 'ran out of memory'}"
            for fit in accuracy.wrong
        ]
        yield "; ".join([text, *wrong])


def _calibration(advice: Advice) -> str:
    """Return how many measurements calibrate the expected slowdowns."""
    by_method = {
        prediction.candidate.method: prediction.calibrated_by
        for prediction in advice.predictions
        if prediction.rows
    }
    counts = [f"{method} n = {count}" for method, count in by_method.items() if count]
    if not counts:
        return (
            "Slowdowns are the lower ends of their ranges: no other workload was measured that "
            "calibrates them."
        )
    return f"Slowdowns are calibrated by measured workloads: {', '.join(counts)}."


def advice_json(advice: Advice) -> str:
    """Return advice as JSON."""
    document = {
        "experiment": advice.measurements.experiment,
        "goal": advice.preferences.goal.value,
        "max_slowdown": advice.preferences.max_slowdown,
        "separate": advice.preferences.separate,
        "memory_margin": advice.margin,
        "alone": [
            {
                "name": solo.name,
                "run": solo.run_id,
                "host": solo.host,
                "devices": solo.devices,
                "repeats": solo.count,
                "seconds": {of.value: value for of, value in solo.paces_s.items()},
                "shares": {of.value: value for of, value in solo.shares.items()},
                "sm_activity_is_gpu_utilization": solo.sm_is_utilization,
                "memory_bytes": solo.footprint and solo.footprint.peak_bytes,
                "memory_of": solo.footprint and solo.footprint.of.value,
                "data_wait": solo.data_wait,
            }
            for solo in advice.measurements.solos.values()
        ],
        "recommendations": [
            {
                "for": recommendation.subject,
                "best": None
                if recommendation.best is None
                else _prediction_json(recommendation.best),
                "reasons": [_reason_json(reason) for reason in recommendation.reasons],
            }
            for recommendation in advice.recommendations
        ],
        "waiting": [
            {
                "for": waiting.subject,
                "data_wait": waiting.share,
                "waits_most": waiting.model,
                "measured_alone": waiting.is_alone,
                "at_most": waiting.at_most,
                "reasons": [_reason_json(waiting.reason)],
            }
            for waiting in advice.waiting
        ],
        "techniques": [
            {
                "for": technique.subject,
                "observed": technique.observation,
                "at_most": technique.at_most,
                "reasons": [_reason_json(technique.reason)],
            }
            for technique in advice.techniques
        ],
        "predictions": [_prediction_json(prediction) for prediction in advice.predictions],
        "accuracy": {
            "slowdown_count": len(advice.accuracy.slowdowns),
            "median_error": advice.accuracy.median_error,
            "worst_error": advice.accuracy.worst and abs(advice.accuracy.worst.error),
            "in_range": advice.accuracy.within,
            "fit_count": len(advice.accuracy.decided),
            "fit_wrong": [fit.label for fit in advice.accuracy.wrong],
            "slowdowns": [
                {
                    "workload": slowdown.label,
                    "model": slowdown.name,
                    "expected": slowdown.expected,
                    "measured": slowdown.measured,
                }
                for slowdown in advice.accuracy.slowdowns
            ],
        },
        "missing": [need.line for need in advice.needs],
        "notes": list(advice.notes),
    }
    return json_text(document)


def _reason_json(reason: Reason) -> dict[str, Any]:
    return {
        "rule": reason.rule.name.lower(),
        "section": reason.rule.value.section or None,
        "condition": reason.rule.value.condition or None,
        "page": reason.rule.value.page or None,
        "text": reason.rule.value.text,
        "numbers": reason.numbers,
    }


def _prediction_json(prediction: Prediction) -> dict[str, Any]:
    return {
        "models": prediction.candidate.models_text,
        "workloads": list(prediction.candidate.labels),
        "why": prediction.candidate.origin.value,
        "method": prediction.candidate.method.value,
        "how": prediction.candidate.sharing_text,
        "degree": prediction.candidate.degree,
        "fits": prediction.fit.value,
        "memory": [
            {
                "of": pool.name,
                "need_bytes": pool.need_bytes,
                "capacity_bytes": pool.capacity_bytes,
                "margin_bytes": pool.margin_bytes,
            }
            for pool in prediction.pools
            if pool.name
        ],
        "gain": prediction.gain,
        "energy": prediction.energy,
        "calibrated_by": prediction.calibrated_by,
        "rows": [
            {
                "model": row.row.solo.name,
                "collocation": str(row.row.collocation),
                "expected": row.expected,
                "low": row.range.low,
                "high": row.range.high,
                "limit": row.limit,
            }
            for row in prediction.rows
        ],
        "measured_slowdowns": list(prediction.measured),
        "measured_data_waits": list(prediction.data_waits),
        "measured_fit": prediction.measured_fit,
        "unknown": list(prediction.unknown),
    }
