"""Candidates in words."""

from __future__ import annotations

from collections import Counter

from radt.advice.words import Candidate, Method


def models_text(candidate: Candidate) -> str:
    """``2 × resnet26 + resnet50``."""
    counts = Counter(row.solo.name for row in candidate.rows)
    return " + ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items())


def way_text(candidate: Candidate) -> str:
    """``MPS``, ``3g.20gb``, ``together`` on the CPU; each row's where they differ."""
    if candidate.method is Method.CPU:
        return "together"
    if candidate.method is Method.NAIVE:
        return Method.NAIVE.value
    names = list(dict.fromkeys(str(row.collocation) for row in candidate.rows))
    return " + ".join(names)
