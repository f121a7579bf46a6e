"""Advice as JSON, in base units (docs/advice.md describes it)."""

from __future__ import annotations

import json
from typing import Any

from radt.analysis.advice import Advice
from radt.analysis.advice_model import Prediction


def advice_json(advice: Advice) -> str:
    """Return all of an advice."""
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
            }
            for solo in advice.measurements.solos.values()
        ],
        "recommendations": [
            {
                "for": one.subject,
                "best": None if one.best is None else _prediction(one.best),
                "reasons": [
                    {
                        "rule": reason.rule.name.lower(),
                        "section": reason.rule.value.section or None,
                        "text": reason.rule.value.text,
                        "numbers": reason.numbers,
                    }
                    for reason in one.reasons
                ],
            }
            for one in advice.recommendations
        ],
        "predictions": [_prediction(one) for one in advice.predictions],
        "accuracy": {
            "slowdown_count": len(advice.accuracy.slowdowns),
            "median_error": advice.accuracy.median_error,
            "worst_error": advice.accuracy.worst and abs(advice.accuracy.worst.error),
            "in_range": advice.accuracy.within,
            "fit_count": len(advice.accuracy.decided),
            "fit_wrong": [one.label for one in advice.accuracy.wrong],
            "slowdowns": [
                {
                    "workload": one.label,
                    "model": one.name,
                    "expected": one.expected,
                    "measured": one.measured,
                }
                for one in advice.accuracy.slowdowns
            ],
        },
        "missing": [need.line for need in advice.needs],
        "notes": list(advice.notes),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _prediction(one: Prediction) -> dict[str, Any]:
    return {
        "models": one.candidate.models_text,
        "workloads": list(one.candidate.labels),
        "why": one.candidate.origin.value,
        "method": one.candidate.method.value,
        "how": one.candidate.sharing_text,
        "degree": one.candidate.degree,
        "fits": one.fit.value,
        "memory": [
            {
                "of": pool.name,
                "need_bytes": pool.need_bytes,
                "capacity_bytes": pool.capacity_bytes,
                "margin_bytes": pool.margin_bytes,
            }
            for pool in one.pools
            if pool.name
        ],
        "gain": one.gain,
        "energy": one.energy,
        "calibrated_by": one.calibrated_by,
        "rows": [
            {
                "model": row.row.solo.name,
                "collocation": str(row.row.collocation),
                "expected": row.expected,
                "low": row.range.low,
                "high": row.range.high,
                "limit": row.limit,
            }
            for row in one.rows
        ],
        "measured_slowdowns": list(one.measured),
        "measured_fit": one.measured_fit,
        "unknown": list(one.unknown),
    }
