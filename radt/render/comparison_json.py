"""A comparison as JSON, exact, for programs (docs/comparing.md describes it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radt.analysis.estimates import Estimate
from radt.analysis.fail_if import CheckedCondition, ExitCode
from radt.analysis.findings import ComparedWorkload, Comparison, Finding
from radt.analysis.operands import Operand
from radt.render.comparison import sentence
from radt.render.report_json import json_text, reached_of, value_of

#: Increased when a field changes its meaning or is removed.
VERSION = 1


def comparison_json(
    comparison: Comparison, checked: Sequence[CheckedCondition] = (), code: ExitCode = ExitCode.FINE
) -> str:
    """Return a whole comparison; unknown values are null."""
    document = {
        "version": VERSION,
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
                "met_by": [finding.name for finding in condition.met],
                "inconclusive": [
                    *(finding.name for finding in condition.inconclusive),
                    *condition.missing,
                ],
            }
            for condition in checked
        ],
        "exit_code": int(code),
    }
    return json_text(document)


def _side(side: Operand) -> Mapping[str, Any]:
    return {
        "text": side.text,
        "kind": side.kind.value,
        "experiment": side.experiment,
        "store": side.store,
        "commit": side.commit or None,
        "footnotes": list(side.footnotes),
        "workloads": [
            {
                "label": workload.label,
                "host": workload.host,
                "repeats": len(workload.workload_ids),
                "workload_ids": list(workload.workload_ids),
            }
            for workload in side.workloads
        ],
    }


def _workload(workload: ComparedWorkload, confidence: float) -> Mapping[str, Any]:
    return {
        "name": workload.name,
        "differences": [
            {
                "what": difference.what,
                "a": difference.a,
                "b": difference.b,
                "warning": difference.is_warning,
            }
            for difference in workload.differences
        ],
        "not_comparable": [quantity.value for quantity in workload.missing],
        "shortfalls": [
            {
                "quantity": shortfall.quantity.value,
                "runs": shortfall.runs or None,
                "a": reached_of(shortfall.a),
                "b": reached_of(shortfall.b),
            }
            for shortfall in workload.shortfalls
        ],
        "findings": [_finding(finding, confidence) for finding in workload.findings],
    }


def _finding(finding: Finding, confidence: float) -> Mapping[str, Any]:
    interval = finding.effect.interval
    return {
        "quantity": finding.quantity.value,
        "unit": finding.quantity.info.unit,
        "runs": finding.runs or None,
        "a": _estimate(finding.a),
        "b": _estimate(finding.b),
        "scale": finding.effect.scale.value,
        "effect": finding.effect.value,
        "interval": interval and [interval.low, interval.high],
        "p_value": finding.effect.p_value,
        "method": finding.effect.method.value,
        "verdict": finding.verdict.value,
        "holds": finding.holds,
        "repeats_wanted": finding.repeats_wanted,
        "sentence": sentence(finding, confidence),
    }


def _estimate(estimate: Estimate) -> Mapping[str, Any]:
    values = value_of(estimate)
    return {name: values[name] for name in ("mean", "repeats", "metrics", "estimated")}
