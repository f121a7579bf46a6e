"""Advice as a document, and as JSON in base units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from radt import units
from radt.analysis.advice import Advice
from radt.analysis.advice_choice import Recommendation, memory_text
from radt.analysis.advice_model import (
    DevicePlace,
    Fit,
    Prediction,
    Range,
    Resource,
    SharingMethod,
    Solo,
)
from radt.analysis.advice_prediction import PredictionCheck, median_error, shared_profiles
from radt.render.json_text import attributes, json_text
from radt.render.model import Block, Cell, ColumnHead, Document, Note, Notes, Role, Row, Table, Tone

RECOMMENDATION = "Recommendation"
#: Rows of each table unless all are requested.
_ROWS = 30
_SHARING = {
    SharingMethod.CPU: "on the CPU",
    SharingMethod.NAIVE: "naively",
    SharingMethod.MPS: "under MPS",
}


def advice_document(
    advice: Advice, *, all_of_them: bool = False, all_by: str = "--all"
) -> Document:
    """Return advice on an experiment.

    Args:
        advice: The advice.
        all_of_them: Include every candidate.
        all_by: How the reader gets every candidate.
    """
    places = advice.measurements.places
    solos = [solo for same in places.values() for solo in same]
    predictions = list(advice.predictions)
    if not all_of_them:
        solos = solos[:_ROWS]
        predictions = _shown(predictions)[:_ROWS]
    recommended = [_recommendation(each, advice.checks) for each in advice.recommendations]
    blocks: list[Block] = [
        Notes([Note(_place(place)) for place in places]),
        _solo_table(solos),
        Notes(recommended, RECOMMENDATION),
        _prediction_table(predictions),
        Notes(_hidden(len(advice.predictions) - len(predictions), all_by)),
        Notes(_accuracy(advice.checks), "Predicted vs measured"),
        Notes([Note(need.line, Tone.BAD) for need in advice.needs], "Missing measurements"),
        Notes([Note(text, Tone.DIM) for text in advice.notes], "Notes"),
    ]
    facts = [
        f"{units.plural(len(advice.measurements.solos), 'model')} measured alone",
        f"{units.plural(len(advice.measurements.measured), 'workload')} measured together",
    ]
    return Document(advice.measurements.experiment, facts, blocks)


def _hidden(count: int, all_by: str) -> list[Note]:
    return [Note(f"{count:,} more: {all_by}", Tone.DIM)] if count else []


def _place(place: DevicePlace) -> str:
    """Return a device with the resources that runs may use."""
    memory = place.memory_bytes
    known = [
        place.gpu,
        "" if memory is None else f"{units.size(memory)} available",
        "" if place.cores is None else units.plural(place.cores, "CPU"),
        ""
        if place.card is None
        else "MIG " + ", ".join(p.name for p in shared_profiles(place.card)),
    ]
    return f"{place.text}: {', '.join(filter(None, known)) or 'unknown'}"


def _solo_table(solos: Sequence[Solo]) -> Table:
    """Return the table of the resources that each model uses alone."""
    resources = {Resource.CORES: "CPU"}
    if any(not solo.is_cpu for solo in solos):
        gpu = {Resource.SM: "SM active", Resource.KERNEL: "kernels", Resource.DRAM: "DRAM"}
        resources = gpu | resources
    rows = []
    for solo in solos:
        percents = [units.percent(solo.shares.get(resource)) for resource in resources]
        time = units.duration(solo.time_per_epoch_s)
        texts = [solo.name, str(solo.count), time, *percents, units.size(solo.memory_bytes)]
        rows.append(Row([*map(Cell, texts)]))
    titles = ["repeats", "time/epoch", *resources.values(), "memory"]
    columns = [ColumnHead("model", role=Role.KEY, is_number=False), *map(ColumnHead, titles)]
    return Table(columns, rows, "Models alone")


def _recommendation(recommendation: Recommendation, checks: Sequence[PredictionCheck]) -> Note:
    """Return a recommendation with its guideline and its expected error."""
    best, where = recommendation.best, recommendation.place.text
    if best is None:
        return Note(f"{where}: one run at a time", Tone.STRONG, details=[recommendation.reason])
    candidate = best.candidate
    sharing = _SHARING.get(candidate.method, f"on {candidate.sharing_text}")
    parts = [
        f"gain {units.factor(best.gain)} ({_range(best.gain_range)})",
        f"slowdown {units.factor(best.slowdown)} ({_range(best.range)})",
        f"memory {memory_text(best)}" + (", hardly any to spare" * (best.fit is Fit.TIGHT)),
    ]
    text = f"{where}: {candidate.models_text} at once {sharing}"
    details = [", ".join(parts), recommendation.reason, _expected_error(best, checks)]
    return Note(text, Tone.STRONG, details=details)


def _expected_error(best: Prediction, checks: Sequence[PredictionCheck]) -> str:
    if best.measured_slowdowns:
        return f"measured in {', '.join(best.candidate.labels)}"
    same = [each for each in checks if each.method is best.candidate.method]
    if not same:
        return (
            "expected error unknown: no other workload was measured; the next experiment "
            "(--write) verifies it"
        )
    return f"expected error {units.percent(median_error(same))} (n = {len(same)})"


def _prediction_table(predictions: Sequence[Prediction]) -> Table:
    columns = [
        ColumnHead("together", role=Role.KEY, is_number=False),
        ColumnHead("sharing", role=Role.LEAD, is_number=False),
        ColumnHead("fits", is_number=False),
        ColumnHead("slowdown"),
        ColumnHead("measured", explanation="measured slowdown"),
        ColumnHead("range", explanation="slowdown by the model alone"),
        ColumnHead("gain"),
    ]
    rows = []
    for prediction in predictions:
        measured = max(prediction.measured_slowdowns, default=None)
        texts = [
            prediction.candidate.models_text,
            prediction.candidate.sharing_text,
            prediction.fit.value,
            units.factor(max(prediction.expected, default=None)),
            "OOM" if prediction.ran_out else units.factor(measured),
            _range(prediction.range),
            units.NO_VALUE if prediction.ran_out else units.factor(prediction.gain),
        ]
        rows.append(Row([*map(Cell, texts)]))
    return Table(columns, rows, "Predictions")


def _range(bounds: Range | None) -> str:
    if bounds is None:
        return units.NO_VALUE
    return f"{units.significant(bounds.low)}–{units.significant(bounds.high)}"


def _shown(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return measured candidates, and for other groups of models the best way of sharing.

    Larger groups that do not fit are left out.
    """

    def promise(prediction: Prediction) -> tuple[bool, bool, float]:
        """Rank fitting candidates first, then MPS, as in recommendations."""
        fits = prediction.fit in (Fit.YES, Fit.TIGHT) and not prediction.ran_out
        return fits, prediction.candidate.method is SharingMethod.MPS, prediction.gain or 0.0

    best = {each.candidate.models: id(each) for each in sorted(predictions, key=promise)}
    return [
        each
        for each in predictions
        if each.measured is not None
        or (
            best[each.candidate.models] == id(each)
            and (each.fit is not Fit.NO or each.candidate.degree == 2)
        )
    ]


def _accuracy(checks: Sequence[PredictionCheck]) -> list[Note]:
    """Return the errors of predictions; nothing if no workload was measured together."""
    if not checks:
        return []
    worst = max(checks, key=lambda each: abs(each.error))
    text = (
        f"slowdown, n = {len(checks)}: median error "
        f"{units.percent(median_error(checks))}, worst {units.percent(abs(worst.error))} "
        f"({worst.model} in {worst.workload}: {units.factor(worst.expected)} expected, "
        f"{units.factor(worst.measured)} measured)"
    )
    return [Note(text)]


def advice_json(advice: Advice) -> str:
    """Return advice as JSON."""
    document = {
        "experiment": advice.measurements.experiment,
        "alone": [_solo_json(solo) for solo in advice.measurements.solos.values()],
        "recommendations": [
            {
                "for": each.place.text,
                "best": None if each.best is None else _prediction_json(each.best),
                "rule": each.rule.name.lower(),
                "reason": each.reason,
            }
            for each in advice.recommendations
        ],
        "predictions": [_prediction_json(prediction) for prediction in advice.predictions],
        "accuracy": {
            "median_error": median_error(advice.checks),
            "slowdowns": [asdict(each) | {"error": each.error} for each in advice.checks],
        },
        "missing": [need.line for need in advice.needs],
        "notes": list(advice.notes),
    }
    return json_text("advice", document)


def _solo_json(solo: Solo) -> dict[str, Any]:
    values = asdict(solo)
    del values["key"], values["place"]
    return {**values, "host": solo.place.host, "devices": solo.place.devices}


def _prediction_json(prediction: Prediction) -> dict[str, Any]:
    return {
        "models": prediction.candidate.models_text,
        "workloads": prediction.candidate.labels,
        "how": prediction.candidate.sharing_text,
        "fits": prediction.fit,
        "memory": [asdict(pool) for pool in prediction.pools],
        **attributes(prediction.candidate, "method", "degree"),
        **attributes(prediction, "gain", "measured_slowdowns", "ran_out"),
        "rows": [
            {
                "model": row.row.solo.name,
                "collocation": str(row.row.collocation),
                **attributes(row, "expected", "limit"),
                **attributes(row.range, "low", "high"),
            }
            for row in prediction.rows
        ],
        "unknown": prediction.unknown or None,
    }
