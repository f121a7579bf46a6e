"""Validation beside training against serial validation, in turns, with the experiment's script."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Bar, Findings, Table, ratio
from benchmarks.training.validation_epochs import PAIRS, Epochs
from benchmarks.training.validation_peer import EPOCHS, Measured

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "experiments" / "overlapped-validation"
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


def measure(rounds: int, ray: str | None = None) -> Findings:
    """Measure all arms of a load in turns, load after load.

    Args:
        rounds: Of all arms.
        ray: An interpreter with torch, Pillow and ray[train]; None to leave it out.
    """
    findings = Findings()
    for load, arms in _SIDES.items():
        found: Runs = {arm: [] for arm in arms}
        for _ in range(rounds):
            for arm in arms:
                found[arm].append(_run(load, arm))
        findings.tables.append(_table(load, found, rounds))
        findings.bars.extend(_bars(load, found))
    findings.bars.append(_loss_of_epochs())
    if ray is not None:
        peers = _peers(rounds, ray)
        findings.tables.append(peers.tables[0])
        findings.bars.extend(peers.bars)
    return findings


def _peers(rounds: int, ray: str) -> Findings:
    """Measure this library's validator and Ray Train's in turns."""
    pythons = {"radt": sys.executable, "Ray Train": ray}
    found: dict[str, list[Measured]] = {side: [] for side in pythons}
    for _ in range(rounds):
        for side, python in pythons.items():
            found[side].append(_peer("ray" if python == ray else "radt", python))
    table = Table(
        "Validation beside training, 34 MB of parameters: radt and Ray Train",
        ("side", "seconds", "latency", "first", "stopped", "MB written"),
        note=f"Medians of {rounds} rounds in turns. Seconds: of {EPOCHS} epochs with their "
        "validations, Ray's cluster and worker started before. Latency: from an epoch's end to its "
        "validation's, median of a run without the first one, which starts a process. Stopped: how "
        "long each one stops training. MB written: in files, for each validation.",
    )
    middles = {side: _middle(runs) for side, runs in found.items()}
    for side, (*seconds, megabytes) in middles.items():
        table.rows.append((side, *(f"{each:.3g}" for each in seconds), f"{megabytes:.0f}"))
    pairs = zip(middles["Ray Train"][:-1], middles["radt"][:-1], strict=True)
    table.rows.append(("Ray Train / radt", *(ratio(*pair) for pair in pairs), ""))
    losses = {run.val_loss for runs in found.values() for run in runs}
    return Findings(
        [table],
        [Bar("radt and Ray Train: equal losses", f"{len(losses)} value", len(losses) == 1)],
    )


def _middle(runs: Sequence[Measured]) -> list[float]:
    """Return the medians of what a side took, as the table has them."""
    median = statistics.median
    return [
        median(run.total_s for run in runs),
        median(median(run.latency_s[1:]) for run in runs),
        median(run.latency_s[0] for run in runs),
        median(median(run.stopped_s) for run in runs),
        median(run.written_bytes / EPOCHS / 1e6 for run in runs),
    ]


def _loss_of_epochs() -> Bar:
    """Compare epochs in turns within one training: the noise between trainings hides 1 %."""
    epochs = Epochs(**_printed(sys.executable, "-m", "benchmarks.training.validation_epochs"))
    pairs = zip(epochs.process_s, epochs.serial_s, strict=True)
    lost = statistics.median(process_s / serial_s for process_s, serial_s in pairs) - 1
    return Bar(
        f"small: an epoch beside a process loses at most {_LOSS:.0%}",
        f"{lost:+.1%} of {PAIRS} pairs, and {epochs.once_s:.2f} s once",
        lost <= _LOSS,
    )


def _peer(side: str, python: str) -> Measured:
    """Run a side; return what it took."""
    return Measured(**_printed(python, "-m", "benchmarks.training.validation_peer", side))


def _run(load: str, arm: str) -> dict[str, float]:
    """Run an arm; return what it prints."""
    return _printed(sys.executable, "train.py", "--load", load, "--arm", arm)


def _printed(*command: str) -> dict[str, Any]:
    """Run a command in the experiment's folder; return the JSON of its last line."""
    path = os.pathsep.join([str(_ROOT), str(_FOLDER)])
    done = subprocess.run(
        command,
        cwd=_FOLDER,
        env=os.environ | {"PYTHONPATH": path, "RADT_MODE": "off", "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LIMIT_S,
        check=True,
    )
    values: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
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
    if load in ("busy", "small"):
        return []
    runs = found["process"]
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
