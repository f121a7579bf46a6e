"""Validation beside training against serial validation, in turns, with the experiment's script."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Bar, Findings, Table

_FOLDER = Path(__file__).parents[2] / "experiments" / "overlapped-validation"
_LIMIT_S = 600
_AGAINST_BOUND, _AGAINST_TUNED, _COPY, _LOSS = 1.05, -0.21, 0.01, 0.01
#: A load and its arms; the first arm is what the others are compared with.
_SIDES = {
    "decode": ("tuned", "serial", "thread", "process"),
    "busy": ("tuned", "process"),
    "compute": ("tuned", "process"),
    "small": ("serial", "thread", "process"),
}
_MEANING = {
    "decode": "one core decodes for training, as many validation samples",
    "busy": "as decode, but two workers decode for training: no core is free",
    "compute": "samples in memory, one thread trains",
    "small": "32 validation samples on 2,048: nothing to win",
}
Runs = dict[str, list[dict[str, float]]]


def measure(rounds: int) -> Findings:
    """Measure all arms of a load in turns, load after load."""
    findings = Findings()
    for load, arms in _SIDES.items():
        found: Runs = {arm: [] for arm in arms}
        for _ in range(rounds):
            for arm in arms:
                found[arm].append(_run(load, arm))
        findings.tables.append(_table(load, found, rounds))
        findings.bars.extend(_bars(load, found))
    return findings


def _run(load: str, arm: str) -> dict[str, float]:
    """Run an arm; return what it prints."""
    done = subprocess.run(
        [sys.executable, "train.py", "--load", load, "--arm", arm],
        cwd=_FOLDER,
        env=os.environ | {"RADT_MODE": "off"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LIMIT_S,
        check=True,
    )
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


def _table(load: str, found: Runs, rounds: int) -> Table:
    base, *_ = found
    table = Table(
        f"Validation, {load}: {_MEANING[load]}",
        ("arm", "seconds", "lowest", "highest", f"against {base}", "× bound", "val_loss"),
        note=f"Medians of {rounds} rounds in turns; from the validator's start to its last result. "
        "The bound is E·max(T, V) + min(T, V), T and V of the fastest epoch and validation.",
    )
    for arm, runs in found.items():
        totals = [run["total"] for run in runs]
        losses = {run["val_loss"] for run in runs}
        table.rows.append(
            (
                arm,
                f"{statistics.median(totals):.2f}",
                f"{min(totals):.2f}",
                f"{max(totals):.2f}",
                "–" if arm == base else f"{_change(found, arm, base):+.1%}",
                f"{_against_bound(runs):.2f}" if "bound" in runs[0] else "–",
                f"{losses.pop():.9g}" if len(losses) == 1 else "differs",
            )
        )
    return table


def _bars(load: str, found: Runs) -> list[Bar]:
    runs = found["process"]
    if load == "small":
        lost = _change(found, "process", "serial")
        return [Bar(f"small: process loses at most {_LOSS:.0%}", f"{lost:+.1%}", lost <= _LOSS)]
    if load == "busy":
        return []
    ratio = _against_bound(runs)
    copy = max(run["copy"] for run in runs)
    same = {run["val_loss"] for arm in found if arm != "tuned" for run in found[arm]}
    bars = [
        Bar(f"{load}: at most {_AGAINST_BOUND} × bound", f"{ratio:.2f}", ratio <= _AGAINST_BOUND),
        Bar(f"{load}: copy at most {_COPY:.0%} of an epoch", f"{copy:.2%}", copy <= _COPY),
        Bar(f"{load}: arms with equal settings agree", f"{len(same)} value", len(same) == 1),
    ]
    if load == "decode":
        change = _change(found, "process", "tuned")
        promise = f"decode: process against tuned serial, {_AGAINST_TUNED:.0%} or better"
        bars.append(Bar(promise, f"{change:+.1%}", change <= _AGAINST_TUNED))
    return bars


def _change(found: Runs, arm: str, base: str) -> float:
    """Return the median over rounds of how much longer an arm takes."""
    pairs = zip(found[arm], found[base], strict=True)
    return statistics.median(one["total"] / other["total"] for one, other in pairs) - 1


def _against_bound(runs: Sequence[dict[str, float]]) -> float:
    return statistics.median(run["total"] / run["bound"] for run in runs)
