"""A comparison as JSON, with exact numbers, for programs (docs/comparing.md describes it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radt.analysis.estimates import Estimate
from radt.analysis.fail_if import CheckedCondition, ExitCode, Outcome
from radt.analysis.findings import ComparedWorkload, Comparison, Finding
from radt.analysis.operands import Operand
from radt.render.comparison import sentence
from radt.render.json_text import attributes, json_text
from radt.render.report_json import reached_json


def comparison_json(
    comparison: Comparison, checked: Sequence[CheckedCondition] = (), code: ExitCode = ExitCode.FINE
) -> str:
    """Return a whole comparison; unknown values are null."""
    document = {
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "confidence": comparison.confidence,
        "window": comparison.window.text,
        "comparisons": len(comparison.tested),
        "workloads": [
            _workload(workload, comparison.confidence) for workload in comparison.workloads
        ],
        "only_in_a": list(comparison.only_a),
        "only_in_b": list(comparison.only_b),
        "conditions": [
            {
                "condition": condition.condition.text,
                "quantity": condition.condition.quantity.value,
                "outcome": condition.outcome.value,
                "met_by": [finding.name for finding in condition.findings[Outcome.MET]],
                "inconclusive": [
                    *(finding.name for finding in condition.findings[Outcome.INCONCLUSIVE]),
                    *condition.missing,
                ],
            }
            for condition in checked
        ],
        "exit_code": int(code),
    }
    return json_text("comparison", document)


def _side(side: Operand) -> Mapping[str, Any]:
    return {
        **attributes(side, "text", "kind", "experiment", "store", "footnotes"),
        "commit": side.commit or None,
        "workloads": [
            {
                **attributes(workload, "label", "host", "workload_ids"),
                "repeats": len(workload.workload_ids),
            }
            for workload in side.workloads
        ],
    }


def _workload(workload: ComparedWorkload, confidence: float) -> Mapping[str, Any]:
    return {
        "name": workload.name,
        "differences": [
            {**attributes(difference, "what", "a", "b"), "warning": difference.is_warning}
            for difference in workload.differences
        ],
        "not_comparable": [quantity.value for quantity in workload.missing],
        "shortfalls": [
            {
                "quantity": shortfall.quantity.value,
                "runs": shortfall.runs or None,
                "a": reached_json(shortfall.a),
                "b": reached_json(shortfall.b),
            }
            for shortfall in workload.shortfalls
        ],
        "findings": [_finding(finding, confidence) for finding in workload.findings],
    }


def _finding(finding: Finding, confidence: float) -> Mapping[str, Any]:
    effect, interval = finding.effect, finding.effect.interval
    return {
        "quantity": finding.quantity.value,
        "unit": finding.quantity.info.unit,
        "runs": finding.runs or None,
        "a": _estimate(finding.a),
        "b": _estimate(finding.b),
        "effect": effect.value,
        "interval": interval and [interval.low, interval.high],
        **attributes(effect, "scale", "p_value", "method"),
        **attributes(finding, "verdict", "holds", "repeats_wanted"),
        "sentence": sentence(finding, confidence),
    }


def _estimate(estimate: Estimate) -> Mapping[str, Any]:
    return {
        **attributes(estimate, "mean", "repeats", "metrics"),
        "estimated": estimate.is_estimated,
    }
